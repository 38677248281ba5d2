"""The routes: for every face a page and its JSON, with the headers that keep a stranger's text harmless.

Rules of this file:
1. Read-only: GET and HEAD. Nothing here changes a store.
2. What messages say is shown as text. No script runs, nothing is loaded from elsewhere, no page is framed.
3. The store is synchronous: whatever reads it runs in a thread.
4. Errors are what `midfold.errors` says they are: a page for people, an object for programs.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from midfold.config import Config
from midfold.dashboard.access import Access, Everything
from midfold.dashboard.asked import Asked
from midfold.dashboard.faces import FACES, RAW, Face
from midfold.dashboard.facts import Problem
from midfold.dashboard.folded import Folds
from midfold.dashboard.openapi import description
from midfold.dashboard.pages import ICON, ICON_PATH, STYLE, STYLE_PATH, Pages
from midfold.dashboard.reader import Reader
from midfold.errors import MidfoldError, NotStored
from midfold.gateway.logs import place_of
from midfold.service import Sessions
from midfold.transcript import jsonio

POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
_log = logging.getLogger("midfold.pages")
READING = ("GET", "HEAD")
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]
"""All of them, so that those that would change something get an answer that says why not."""
Endpoint = Callable[[Request], Awaitable[Response]]
Work = Callable[[Asked], Response]


def routes(sessions: Sessions, *, config: Config | None = None, access: Access | None = None) -> list[Route]:
    """The pages and `/api` over the sessions of a store, to be put into any Starlette application.

    Without an `access`, whoever asks by a name of this machine sees everything.
    """
    return _routes(_Served(Reader(sessions, config, sessions.clock), access or Everything()))


def _routes(served: _Served) -> list[Route]:
    made = [
        Route(STYLE_PATH, _asset(STYLE, "text/css"), methods=METHODS),
        Route(ICON_PATH, _asset(ICON, "image/svg+xml"), methods=METHODS),
        Route("/api/openapi.json", served.openapi, methods=METHODS),
        Route(RAW.api_path, served.raw(), methods=METHODS),
    ]
    for face in FACES:
        made.append(Route(face.api_path, served.api(face), methods=METHODS, name=f"api-{face.name}"))
        if face.template:
            made.append(Route(face.path, served.page(face), methods=METHODS, name=face.name))
    for path in ("/api", "/api/{rest:path}"):
        made.append(Route(path, served.nothing(as_page=False), methods=METHODS))
    made.append(Route("/sessions/{rest:path}", served.nothing(as_page=True), methods=METHODS))
    return made


def app(sessions: Sessions, *, config: Config | None = None, access: Access | None = None) -> Starlette:
    """The pages alone."""
    served = _Served(Reader(sessions, config, sessions.clock), access or Everything())
    served.pages.warm()
    return Starlette(
        routes=[*_routes(served), Route("/{rest:path}", served.nothing(as_page=True), methods=METHODS)],
    )


class _Served:
    """The endpoints of one store."""

    def __init__(self, reader: Reader, access: Access) -> None:
        self.reader, self.pages, self.access = reader, Pages(reader.clock), access
        self.folds = Folds(reader)

    def api(self, face: Face) -> Endpoint:
        return self._endpoint(face, lambda asked: _json(face.make(self.reader, self.folds, asked)), as_page=False)

    def page(self, face: Face) -> Endpoint:
        def work(asked: Asked) -> Response:
            facts = face.make(self.reader, self.folds, asked)
            return _html(self.pages.render(face, facts, asked.values))

        return self._endpoint(face, work, as_page=True)

    def raw(self) -> Endpoint:
        def work(asked: Asked) -> Response:
            body = self.folds.raw(asked.name, asked.text("handle"), asked.sees)
            return Response(body, media_type="application/json", headers=HEADERS)

        return self._endpoint(RAW, work, as_page=False)

    def nothing(self, *, as_page: bool) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            return self._problem("there is no such page", 404, as_page)

        return endpoint

    async def openapi(self, request: Request) -> Response:
        return _json(description())

    def _endpoint(self, face: Face, work: Work, *, as_page: bool) -> Endpoint:
        def answer(request: Request) -> Response:
            return work(Asked(request, face.params, self.access.sees(request)))

        async def endpoint(request: Request) -> Response:
            if request.method not in READING:
                refused = self._problem("nothing can be changed here: expected GET", 405, as_page)
                refused.headers["allow"] = ", ".join(READING)
                return refused
            try:
                return await run_in_threadpool(answer, request)
            except NotStored as error:
                return self._problem(str(error), 404, as_page)
            except MidfoldError as error:
                return self._problem(str(error), error.status, as_page)
            except HTTPException as error:
                answered = self._problem(error.detail, error.status_code, as_page)
                answered.headers.update(error.headers or {})
                return answered
            except Exception as error:  # noqa: BLE001 - a fault of ours; its text may hold what was said
                _log.error("%s could not be shown: %s %s", face.name, type(error).__name__, place_of(error))
                return self._problem(f"this could not be shown ({type(error).__name__})", 500, as_page)

        return endpoint

    def _problem(self, what: str, status: int, as_page: bool) -> Response:
        problem = Problem(error=what, status=status)
        return _html(self.pages.problem(problem), status) if as_page else _json(problem, status)


def _asset(data: bytes, kind: str) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        return Response(data, media_type=kind, headers={**HEADERS, "cache-control": "max-age=86400"})

    return endpoint


def _json(value: Any, status: int = 200) -> Response:
    """Halves of characters, as clients leave them where they cut a text, are escaped: msgspec does not write them."""
    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:
        data = jsonio.encode(msgspec.to_builtins(value))
    return Response(data, status, HEADERS, "application/json")


def _html(text: str, status: int = 200) -> Response:
    return Response(text.encode("utf-8", "replace"), status, HEADERS, "text/html")
