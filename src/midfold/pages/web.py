"""The routes: for every face a page and its JSON, with the headers that keep a stranger's text harmless.

Rules of this file:
1. Read-only: GET and HEAD. Nothing here changes a store.
2. What messages say is shown as text. No script runs, nothing is loaded from elsewhere, no page is framed.
3. The store is synchronous: whatever reads it runs in a thread.
4. Errors are what `midfold.errors` says they are: a page for people, an object for programs.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from midfold import __version__
from midfold.config import Config
from midfold.errors import MidfoldError, NotStored
from midfold.gateway.logs import place_of
from midfold.pages import api_types
from midfold.pages.api_types import ErrorAnswer
from midfold.pages.formatting import name_of
from midfold.pages.html import ICON, ICON_PATH, STYLE, STYLE_PATH, Templates
from midfold.pages.lookup import AFTER, FATES, Folds, Lookup, Sees
from midfold.service import Sessions
from midfold.store.bodies import ROLES
from midfold.transcript import jsonio

# Who may see which sessions.
#
# Rules of this file:
# 1. Every route asks before it reads. What a caller may not see does not exist for it: the answer is the same 404 as
#    for
#    a session that nobody ever had.
# 2. Handles are looked up in a session the caller may see, never in the whole store.
# 3. Where no key is asked for, a request must be addressed to this machine: a page elsewhere could otherwise read a
#    store
#    through a name of its own that leads here.


LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class Access(Protocol):
    """What a server must know to keep its callers apart."""

    def sees(self, request: Request, /) -> Sees:
        """What the caller of this request may see. May raise an `HTTPException`, such as 401."""


class Everything:
    """For loopback, where the only caller is the owner of the store. `hosts` are the names it may be called by."""

    def __init__(self, hosts: Iterable[str] = LOOPBACK) -> None:
        self.hosts = frozenset(host.lower() for host in hosts)

    def sees(self, request: Request, /) -> Sees:
        if not self._is_ours(request.headers.getlist("host")):
            raise HTTPException(421, f"expected a request for {', '.join(sorted(self.hosts))}")
        return everything

    def _is_ours(self, given: Sequence[str]) -> bool:
        if len(given) != 1:
            return False
        host, colon, port = given[0].lower().rpartition(":")
        return (host if colon and port.isdigit() else given[0].lower()) in self.hosts


def everything(name: str) -> bool:
    return True


class Under:
    """For servers whose sessions begin with the name of their owner: everybody sees what begins with their own."""

    def __init__(self, owner: Callable[[Request], str]) -> None:
        self.owner = owner
        """The beginning that belongs to the caller; raises an `HTTPException` for a caller it does not know."""

    def sees(self, request: Request, /) -> Sees:
        mine = self.owner(request)
        return lambda name: name.startswith(mine)


# What a request asks for: parameters, checked against what the API says about them.


LARGEST = 2**53 - 1
LONGEST = 1_000


class BadParameter(MidfoldError):
    """A parameter is not what was expected."""

    status = 400


class Param(NamedTuple):
    """One parameter. A number is at least 0; a text is one of `choices`, if there are any."""

    name: str
    where: Literal["path", "query"]
    what: str
    number: bool = False
    choices: tuple[str, ...] = ()

    def value(self, given: str | None) -> Any:
        """The checked value; None or an empty text if it was not given."""
        if self.number:
            return self._number(given)
        text = given or ""
        if len(text) > LONGEST:
            raise BadParameter(f"{self.name} is longer than {LONGEST:,} characters")
        if self.choices and text and text not in self.choices:
            raise BadParameter(f"{self.name} is not one of {', '.join(self.choices)}")
        return text

    def _number(self, given: str | None) -> int | None:
        if given is None or given == "":
            return None
        if not (given.isascii() and given.isdigit() and len(given) <= 16 and int(given) <= LARGEST):
            kind = NotStored if self.where == "path" else BadParameter
            raise kind(f"{self.name} is not a number from 0 on")
        return int(given)


class RequestParameters:
    """The values of one request, and what its caller may see."""

    def __init__(self, request: Request, params: tuple[Param, ...], sees: Sees) -> None:
        self.sees = sees
        self.values: dict[str, Any] = {}
        for param in params:
            source = request.path_params if param.where == "path" else request.query_params
            if param.where == "query" and len(request.query_params.getlist(param.name)) > 1:
                raise BadParameter(f"{param.name} is given more than once")
            self.values[param.name] = param.value(source.get(param.name))

    @property
    def name(self) -> str:
        """The session that was asked for."""
        name = name_of(self.values["key"])
        if name is None:
            raise NotStored("there is no such session")
        return name

    def text(self, name: str) -> str:
        value: str = self.values[name]
        return value

    def number(self, name: str, default: int = 0) -> int:
        value: int | None = self.values[name]
        return default if value is None else value

    def number_if_given(self, name: str) -> int | None:
        value: int | None = self.values[name]
        return value


# Everything there is to see, once: a page, its JSON under `/api`, and its line in the OpenAPI description.


KEY = Param("key", "path", "the session: `key` of a list, which is its name unless that has unusual characters")
SEQ = Param("seq", "path", "the number of the compaction, from 1 on", number=True)
POSITION = Param("position", "path", "the place of the message in the history, from 0 on", number=True)
HANDLE = Param("handle", "path", "a handle (mf-...) of a receipt, a line or a hit, or the beginning of one")
START = Param("start", "query", "the first entry of the page, from 0 on", number=True)
PAGE = Param("page", "query", "the page, from 0 on", number=True)
SHOWN = Param("show", "query", "only messages with this fate, or those there were afterwards", choices=(*FATES, AFTER))
QUERY = Param("q", "query", 'words that must all occur; "in quotes" literally, begin* as a beginning')
NAME = Param("q", "query", "a part of the names of sessions")
SESSION = Param("session", "query", "only in the session of this name")
ROLE = Param("role", "query", "only messages of this role", choices=tuple(ROLES))

Make = Callable[[Lookup, Folds, RequestParameters], api_types.Answer]


class Endpoint(NamedTuple):
    """One thing to see."""

    name: str
    path: str
    template: str
    """Empty if it has no page of its own: it is on another one."""
    summary: str
    answers: type[api_types.Answer]
    make: Make
    params: tuple[Param, ...] = ()

    @property
    def api_path(self) -> str:
        return "/api/overview" if self.path == "/" else f"/api{self.path}"


ENDPOINTS = (
    Endpoint(
        "overview",
        "/",
        "overview.html",
        "All sessions at a glance: how full they are, what was saved, what deserves a look.",
        api_types.Overview,
        lambda reader, folds, asked: reader.overview(asked.sees),
    ),
    Endpoint(
        "sessions",
        "/sessions",
        "sessions.html",
        "Sessions, those used last first.",
        api_types.SessionList,
        lambda reader, folds, asked: reader.sessions_like(asked.text("q"), asked.number("page"), asked.sees),
        (NAME, PAGE),
    ),
    Endpoint(
        "session",
        "/sessions/{key}",
        "session.html",
        "One session: how it grew and was folded, where its tokens go, a page of its messages.",
        api_types.SessionPage,
        lambda reader, folds, asked: reader.session(asked.name, asked.number_if_given("start"), asked.sees),
        (KEY, START),
    ),
    Endpoint(
        "messages",
        "/sessions/{key}/messages",
        "",
        "A page of the history, folded or not; the newest messages if no start is given.",
        api_types.MessageList,
        lambda reader, folds, asked: reader.messages(asked.name, asked.number_if_given("start"), asked.sees),
        (KEY, START),
    ),
    Endpoint(
        "turns",
        "/sessions/{key}/turns",
        "",
        "Every request whose usage was reported.",
        api_types.TurnList,
        lambda reader, folds, asked: reader.turns(asked.name, asked.sees),
        (KEY,),
    ),
    Endpoint(
        "compactions",
        "/sessions/{key}/compactions",
        "",
        "The compactions of a session, undone ones too.",
        api_types.CompactionList,
        lambda reader, folds, asked: reader.compactions(asked.name, asked.sees),
        (KEY,),
    ),
    Endpoint(
        "compaction",
        "/sessions/{key}/compactions/{seq}",
        "compaction.html",
        "One compaction, before and after: what was folded, changed and kept.",
        api_types.CompactionPage,
        lambda reader, folds, asked: folds.compaction(
            asked.name, asked.number("seq"), asked.number("start"), asked.text("show"), asked.sees
        ),
        (KEY, SEQ, START, SHOWN),
    ),
    Endpoint(
        "receipt",
        "/sessions/{key}/compactions/{seq}/receipt",
        "receipt.html",
        "The receipt of a compaction: every decision and its reason.",
        api_types.ReceiptPage,
        lambda reader, folds, asked: folds.receipt(asked.name, asked.number("seq"), asked.sees),
        (KEY, SEQ),
    ),
    Endpoint(
        "message",
        "/sessions/{key}/messages/{position}",
        "originals.html",
        "One message of the history, whole and redacted.",
        api_types.OriginalsPage,
        lambda reader, folds, asked: folds.message(asked.name, asked.number("position"), asked.sees),
        (KEY, POSITION),
    ),
    Endpoint(
        "unfold",
        "/sessions/{key}/unfold/{handle}",
        "originals.html",
        "The originals behind a handle, redacted.",
        api_types.OriginalsPage,
        lambda reader, folds, asked: folds.unfold(asked.name, asked.text("handle"), asked.number("start"), asked.sees),
        (KEY, HANDLE, START),
    ),
    Endpoint(
        "search",
        "/search",
        "search.html",
        "Messages that have all the words, folded or not, the best first.",
        api_types.SearchPage,
        lambda reader, folds, asked: reader.search(
            asked.text("q"), asked.sees, session=asked.text("session"), role=asked.text("role")
        ),
        (QUERY, SESSION, ROLE),
    ),
    Endpoint(
        "cache",
        "/cache",
        "cache.html",
        "How well the providers' prompt caches work.",
        api_types.CachePage,
        lambda reader, folds, asked: reader.cache(asked.sees),
    ),
)

RAW = Endpoint(
    "raw",
    "/sessions/{key}/unfold/{handle}/raw",
    "",
    "The originals behind a handle as a JSON array, byte for byte and not redacted.",
    api_types.Answer,
    lambda reader, folds, asked: api_types.Answer(),
    (KEY, HANDLE),
)


# The OpenAPI description, derived from the faces and the types they answer with.


REFERENCE = "#/components/schemas/{name}"
ERRORS = {"400": "a parameter is not what was expected", "404": "there is no such thing, or not for this caller"}


@cache
def description() -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    types = [*dict.fromkeys(face.answers for face in ENDPOINTS), ErrorAnswer]
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    by_type = dict(zip(types, schemas, strict=True))
    problem = by_type[ErrorAnswer]
    paths = {face.api_path: _operation(face, by_type[face.answers], problem) for face in ENDPOINTS}
    paths[RAW.api_path] = _operation(RAW, {"type": "array", "items": {}}, problem)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "midfold sessions",
            "version": __version__,
            "description": "What midfold's pages show, as JSON. Read-only. Times are milliseconds since 1970, sizes "
            "are tokens, money is US dollars. Texts are redacted, except for `raw`.",
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(face: Endpoint, schema: dict[str, Any], problem: dict[str, Any]) -> dict[str, Any]:
    errors = {
        status: {"description": what, "content": {"application/json": {"schema": problem}}}
        for status, what in ERRORS.items()
        if status == "400" or any(param.where == "path" or param.name == "session" for param in face.params)
    }
    answer = {"description": face.summary, "content": {"application/json": {"schema": schema}}}
    return {
        "get": {
            "operationId": face.name,
            "summary": face.summary,
            "parameters": [_parameter(param) for param in face.params],
            "responses": {"200": answer, **errors},
        }
    }


def _parameter(param: Param) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "maxLength": LONGEST}
    if param.number:
        schema = {"type": "integer", "minimum": 0, "maximum": LARGEST}
    elif param.choices:
        schema = {"type": "string", "enum": list(param.choices)}
    described = {"name": param.name, "in": param.where, "description": param.what, "schema": schema}
    if param.where == "path":
        return {**described, "required": True}
    return {**described, "required": False, "allowEmptyValue": True}


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
Handler = Callable[[Request], Awaitable[Response]]
Work = Callable[[RequestParameters], Response]


def routes(sessions: Sessions, *, config: Config | None = None, access: Access | None = None) -> list[Route]:
    """The pages and `/api` over the sessions of a store, to be put into any Starlette application.

    Without an `access`, whoever asks by a name of this machine sees everything.
    """
    return _routes(_Site(Lookup(sessions, config, sessions.clock), access or Everything()))


def _routes(served: _Site) -> list[Route]:
    made = [
        Route(STYLE_PATH, _asset(STYLE, "text/css"), methods=METHODS),
        Route(ICON_PATH, _asset(ICON, "image/svg+xml"), methods=METHODS),
        Route("/api/openapi.json", served.openapi, methods=METHODS),
        Route(RAW.api_path, served.raw(), methods=METHODS),
    ]
    for face in ENDPOINTS:
        made.append(Route(face.api_path, served.api(face), methods=METHODS, name=f"api-{face.name}"))
        if face.template:
            made.append(Route(face.path, served.page(face), methods=METHODS, name=face.name))
    for path in ("/api", "/api/{rest:path}"):
        made.append(Route(path, served.nothing(as_page=False), methods=METHODS))
    made.append(Route("/sessions/{rest:path}", served.nothing(as_page=True), methods=METHODS))
    return made


def app(sessions: Sessions, *, config: Config | None = None, access: Access | None = None) -> Starlette:
    """The pages alone."""
    served = _Site(Lookup(sessions, config, sessions.clock), access or Everything())
    served.pages.warm()
    return Starlette(
        routes=[*_routes(served), Route("/{rest:path}", served.nothing(as_page=True), methods=METHODS)],
    )


class _Site:
    """The endpoints of one store."""

    def __init__(self, reader: Lookup, access: Access) -> None:
        self.reader, self.pages, self.access = reader, Templates(reader.clock), access
        self.folds = Folds(reader)

    def api(self, face: Endpoint) -> Handler:
        return self._endpoint(face, lambda asked: _json(face.make(self.reader, self.folds, asked)), as_page=False)

    def page(self, face: Endpoint) -> Handler:
        def work(asked: RequestParameters) -> Response:
            facts = face.make(self.reader, self.folds, asked)
            return _html(self.pages.render(face, facts, asked.values))

        return self._endpoint(face, work, as_page=True)

    def raw(self) -> Handler:
        def work(asked: RequestParameters) -> Response:
            body = self.folds.raw(asked.name, asked.text("handle"), asked.sees)
            return Response(body, media_type="application/json", headers=HEADERS)

        return self._endpoint(RAW, work, as_page=False)

    def nothing(self, *, as_page: bool) -> Handler:
        async def endpoint(request: Request) -> Response:
            return self._problem("there is no such page", 404, as_page)

        return endpoint

    async def openapi(self, request: Request) -> Response:
        return _json(description())

    def _endpoint(self, face: Endpoint, work: Work, *, as_page: bool) -> Handler:
        def answer(request: Request) -> Response:
            return work(RequestParameters(request, face.params, self.access.sees(request)))

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
        problem = ErrorAnswer(error=what, status=status)
        return _html(self.pages.problem(problem), status) if as_page else _json(problem, status)


def _asset(data: bytes, kind: str) -> Handler:
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
