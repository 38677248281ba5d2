"""Web routes: access control, parameters, every page with its JSON, and the OpenAPI description.

1. Read-only: GET and HEAD. Nothing here changes a store.
2. Every route checks its `Access` before it reads. A session that the caller may not see gives the same 404 as one
   that does not exist. Handles are looked up in a session that the caller may see, never in the whole store.
3. Without keys, the Host header must name this machine; otherwise DNS rebinding would let other sites read the
   store.
4. Message content is shown as text. No scripts, no external resources, no framing.
5. The store is synchronous, so every read runs in a thread.
6. Errors are those of `midfold.errors`: a page for people, an object for programs.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple, Protocol, get_type_hints

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
from midfold.gateway.server import place_of
from midfold.pages import api_types as api
from midfold.pages.api_types import ApiAnswer, ErrorAnswer
from midfold.pages.formatting import name_of
from midfold.pages.html import ICON, ICON_PATH, STYLE, STYLE_PATH, Templates
from midfold.pages.lookup import AFTER, FATES, SORTS, Lookup, Sees, SessionFilter
from midfold.session.sessions import Sessions
from midfold.store.bodies import ROLES
from midfold.transcript import jsonio

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
LARGEST = 2**53 - 1
LONGEST = 1_000
REFERENCE = "#/components/schemas/{name}"
ERRORS = {"400": "invalid parameter", "404": "not found, or not visible to this caller"}
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
"""All methods, so that writing ones get an explanatory 405."""
Handler = Callable[[Request], Awaitable[Response]]


class Access(Protocol):
    """Access control of a server with several callers."""

    def sees(self, request: Request, /) -> Sees:
        """Return what the caller may see; may raise an `HTTPException`, such as 401."""


class Everything:
    """Access for loopback, where the only caller is the store's owner. `hosts` are the allowed host names."""

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
    """Access by session name prefix: each caller sees the sessions that begin with its own."""

    def __init__(self, owner: Callable[[Request], str]) -> None:
        self.owner = owner
        """Function that returns the caller's prefix, or raises an `HTTPException` for an unknown caller."""

    def sees(self, request: Request, /) -> Sees:
        mine = self.owner(request)
        return lambda name: name.startswith(mine)


class BadParameter(MidfoldError):
    """Invalid request parameter."""

    status = 400


class Param(NamedTuple):
    """Parameter of an endpoint. A number is at least 0; a text is one of `choices`, if there are any."""

    name: str
    where: Literal["path", "query"]
    what: str
    number: bool = False
    choices: tuple[str, ...] = ()

    def value(self, given: str | None) -> Any:
        """Return the validated value; None or an empty string if it was not given."""
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
            raise kind(f"{self.name} is not a number of at least 0")
        return int(given)


class RequestParameters:
    """Parameter values of one request, and what its caller may see."""

    def __init__(self, request: Request, params: tuple[Param, ...], sees: Sees) -> None:
        self.sees = sees
        self.values: dict[str, Any] = {}
        for param in params:
            source = request.path_params if param.where == "path" else request.query_params
            if param.where == "query" and len(request.query_params.getlist(param.name)) > 1:
                raise BadParameter(f"{param.name} is given more than once")
            self.values[param.name] = param.value(source.get(param.name))

    @property
    def session(self) -> str:
        """Return the name of the requested session."""
        name = name_of(self.values["key"])
        if name is None:
            raise NotStored("no such session")
        return name

    def text(self, name: str) -> str:
        value: str = self.values[name]
        return value

    def number(self, name: str) -> int | None:
        value: int | None = self.values[name]
        return value


KEY = Param("key", "path", "the session: `key` in a list, which is its name unless that has unusual characters")
SEQ = Param("seq", "path", "number of the compaction, from 1", number=True)
POSITION = Param("position", "path", "position of the message in the history, from 0", number=True)
HANDLE = Param("handle", "path", "a handle (mf-...) from a receipt, a list or a search, or a prefix of one")
START = Param("start", "query", "first entry of the page, from 0", number=True)
PAGE = Param("page", "query", "page number, from 0", number=True)
SHOWN = Param("show", "query", "only messages with this state, or those after the compaction", choices=(*FATES, AFTER))
QUERY = Param(
    "q", "query", 'words to search for; "in quotes" matches literally if that finds anything, begin* matches a prefix'
)
NAME = Param("q", "query", "part of a session's name or title")
MODEL = Param("model", "query", "only sessions of this model")
CLIENT = Param("client", "query", "only sessions of this client, such as claude-code")
OWNER = Param(
    "owner", "query", "only sessions with this before the last slash of their name: a gateway key or a project"
)
SORT = Param("sort", "query", "sort column; default: most recently used first", choices=tuple(SORTS))
ORDER = Param("order", "query", "ascending or descending", choices=("up", "down"))
SESSION = Param("session", "query", "only in the session of this name")
ROLE = Param("role", "query", "only messages of this role", choices=tuple(ROLES))

Make = Callable[[Lookup, RequestParameters], ApiAnswer | bytes]


class WebEndpoint(NamedTuple):
    """Page, its JSON under `/api`, and its entry in the OpenAPI description."""

    name: str
    path: str
    params: tuple[Param, ...]
    template: str
    """Template file; empty for an endpoint without a page."""
    summary: str
    answers: type[ApiAnswer | bytes]
    """Response type; `bytes` for JSON that is sent as stored."""
    make: Make

    @property
    def api_path(self) -> str:
        return "/api/overview" if self.path == "/" else f"/api{self.path}"


ENDPOINTS: list[WebEndpoint] = []
"""Registry of all endpoints."""


def _endpoint(path: str, *params: Param, template: str = "") -> Callable[[Make], Make]:
    """Register a function as an endpoint, described by its docstring and return type."""

    def add(make: Make) -> Make:
        answers, name = get_type_hints(make)["return"], make.__name__.removeprefix("_")
        ENDPOINTS.append(WebEndpoint(name, path, params, template, make.__doc__ or "", answers, make))
        return make

    return add


@_endpoint("/", template="overview.html")
def _overview(lookup: Lookup, asked: RequestParameters) -> api.Overview:
    """Summarize all sessions: how full they are, what was saved, what needs attention."""
    return lookup.overview(asked.sees)


@_endpoint("/sessions", NAME, MODEL, CLIENT, OWNER, SORT, ORDER, PAGE, template="sessions.html")
def _sessions(lookup: Lookup, asked: RequestParameters) -> api.SessionList:
    """List sessions, most recently used first by default; filter by name, title, model, client and key."""
    choice = SessionFilter(*(asked.text(name) for name in ("q", "model", "client", "owner")))
    sort, order = asked.text("sort") or "used", asked.text("order")
    return lookup.sessions_like(choice, asked.number("page") or 0, asked.sees, sort=sort, order=order)


@_endpoint("/sessions/{key}", KEY, START, template="session.html")
def _session(lookup: Lookup, asked: RequestParameters) -> api.SessionPage:
    """Show one session: growth, compactions, token use, a page of its messages."""
    return lookup.session(asked.session, asked.number("start"), asked.sees)


@_endpoint("/sessions/{key}/messages", KEY, START)
def _messages(lookup: Lookup, asked: RequestParameters) -> api.MessageList:
    """List a page of the history, folded or not; the newest messages if no start is given."""
    return lookup.messages(asked.session, asked.number("start"), asked.sees)


@_endpoint("/sessions/{key}/turns", KEY)
def _turns(lookup: Lookup, asked: RequestParameters) -> api.TurnList:
    """List the requests with reported usage."""
    return lookup.turns(asked.session, asked.sees)


@_endpoint("/sessions/{key}/compactions", KEY)
def _compactions(lookup: Lookup, asked: RequestParameters) -> api.CompactionList:
    """List the compactions of a session, including undone ones."""
    return lookup.compactions(asked.session, asked.sees)


@_endpoint("/sessions/{key}/compactions/{seq}", KEY, SEQ, START, SHOWN, template="compaction.html")
def _compaction(lookup: Lookup, asked: RequestParameters) -> api.CompactionPage:
    """Show one compaction, before and after: what was folded, changed and kept."""
    seq, start = asked.number("seq") or 0, asked.number("start") or 0
    return lookup.compaction(asked.session, seq, start, asked.text("show"), asked.sees)


@_endpoint("/sessions/{key}/compactions/{seq}/receipt", KEY, SEQ, template="receipt.html")
def _receipt(lookup: Lookup, asked: RequestParameters) -> api.ReceiptPage:
    """Show the receipt of a compaction: every decision and its reason."""
    return lookup.receipt(asked.session, asked.number("seq") or 0, asked.sees)


@_endpoint("/sessions/{key}/messages/{position}", KEY, POSITION, template="originals.html")
def _message(lookup: Lookup, asked: RequestParameters) -> api.OriginalsPage:
    """Show one message of the history in full, redacted."""
    return lookup.message(asked.session, asked.number("position") or 0, asked.sees)


@_endpoint("/sessions/{key}/unfold/{handle}", KEY, HANDLE, START, template="originals.html")
def _unfold(lookup: Lookup, asked: RequestParameters) -> api.OriginalsPage:
    """Show the originals behind a handle, redacted."""
    return lookup.unfold(asked.session, asked.text("handle"), asked.number("start") or 0, asked.sees)


@_endpoint("/search", QUERY, SESSION, ROLE, template="search.html")
def _search(lookup: Lookup, asked: RequestParameters) -> api.SearchPage:
    """Search messages, folded or not: those with all words, best first, or else the closest."""
    return lookup.search(asked.text("q"), asked.sees, session=asked.text("session"), role=asked.text("role"))


@_endpoint("/cache", template="cache.html")
def _cache(lookup: Lookup, asked: RequestParameters) -> api.CachePage:
    """Show how well the providers' prompt caches work."""
    return lookup.cache(asked.sees)


@_endpoint("/sessions/{key}/unfold/{handle}/raw", KEY, HANDLE)
def _raw(lookup: Lookup, asked: RequestParameters) -> bytes:
    """Return the originals behind a handle as a JSON array, byte for byte and not redacted."""
    return lookup.raw(asked.session, asked.text("handle"), asked.sees)


@cache
def description() -> dict[str, Any]:
    """Return an OpenAPI 3.1 document of the endpoints and their response types."""
    types = [*dict.fromkeys(one.answers for one in ENDPOINTS if one.answers is not bytes), ErrorAnswer]
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    by_type: dict[type, dict[str, Any]] = {bytes: {"type": "array", "items": {}}}
    by_type |= dict(zip(types, schemas, strict=True))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "midfold sessions",
            "version": __version__,
            "description": "What midfold's pages show, as JSON. Read-only. Times are milliseconds since 1970, sizes "
            "are tokens, money is US dollars. Texts are redacted, except for `raw`.",
        },
        "paths": {one.api_path: _operation(one, by_type[one.answers], by_type[ErrorAnswer]) for one in ENDPOINTS},
        "components": {"schemas": components},
    }


def _operation(endpoint: WebEndpoint, schema: dict[str, Any], error: dict[str, Any]) -> dict[str, Any]:
    errors = {
        status: {"description": what, "content": {"application/json": {"schema": error}}}
        for status, what in ERRORS.items()
        if status == "400" or any(param.where == "path" or param.name == "session" for param in endpoint.params)
    }
    answer = {"description": endpoint.summary, "content": {"application/json": {"schema": schema}}}
    return {
        "get": {
            "operationId": endpoint.name,
            "summary": endpoint.summary,
            "parameters": [_parameter(param) for param in endpoint.params],
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


def routes(sessions: Sessions, *, config: Config | None = None, access: Access | None = None) -> list[Route]:
    """Return the routes of the pages and `/api`, for any Starlette application.

    Without `access`, every request that names this machine in its Host header sees everything.
    """
    return _Site(sessions, config, access).routes()


def app(sessions: Sessions, *, config: Config | None = None, access: Access | None = None) -> Starlette:
    """Return a standalone application."""
    site = _Site(sessions, config, access)
    site.templates.warm()
    return Starlette(routes=[*site.routes(), _route("/{rest:path}", site.not_found(as_page=True))])


class _Site:
    """Handlers of one store's pages."""

    def __init__(self, sessions: Sessions, config: Config | None, access: Access | None) -> None:
        self.lookup, self.access = Lookup(sessions, config, sessions.clock), access or Everything()
        self.templates = Templates(sessions.clock)

    def routes(self) -> list[Route]:
        async def openapi(request: Request) -> Response:
            return _json(description())

        made = [
            _route(STYLE_PATH, _asset(STYLE, "text/css")),
            _route(ICON_PATH, _asset(ICON, "image/svg+xml")),
            _route("/api/openapi.json", openapi),
        ]
        for endpoint in ENDPOINTS:
            made.append(_route(endpoint.api_path, self._handler(endpoint, as_page=False), f"api-{endpoint.name}"))
            if endpoint.template:
                made.append(_route(endpoint.path, self._handler(endpoint, as_page=True), endpoint.name))
        made += [_route(path, self.not_found(as_page=False)) for path in ("/api", "/api/{rest:path}")]
        return [*made, _route("/sessions/{rest:path}", self.not_found(as_page=True))]

    def not_found(self, *, as_page: bool) -> Handler:
        async def handle(request: Request) -> Response:
            return self._error("no such page", 404, as_page)

        return handle

    def _handler(self, endpoint: WebEndpoint, *, as_page: bool) -> Handler:
        def work(request: Request) -> Response:
            asked = RequestParameters(request, endpoint.params, self.access.sees(request))
            answer = endpoint.make(self.lookup, asked)
            return _html(self.templates.render(endpoint, answer, asked.values)) if as_page else _json(answer)

        async def handle(request: Request) -> Response:
            if request.method not in READING:
                refused = self._error("read-only: use GET", 405, as_page)
                refused.headers["allow"] = ", ".join(READING)
                return refused
            try:
                return await run_in_threadpool(work, request)
            except NotStored as error:
                return self._error(str(error), 404, as_page)
            except MidfoldError as error:
                return self._error(str(error), error.status, as_page)
            except HTTPException as error:
                answered = self._error(error.detail, error.status_code, as_page)
                answered.headers.update(error.headers or {})
                return answered
            except Exception as error:  # noqa: BLE001 - a fault of ours; its text may hold what was said
                _log.error("rendering %s failed: %s %s", endpoint.name, type(error).__name__, place_of(error))
                return self._error(f"internal error ({type(error).__name__})", 500, as_page)

        return handle

    def _error(self, what: str, status: int, as_page: bool) -> Response:
        error = ErrorAnswer(error=what, status=status)
        return _html(self.templates.error(error), status) if as_page else _json(error, status)


def _route(path: str, handler: Handler, name: str | None = None) -> Route:
    return Route(path, handler, methods=METHODS, name=name)


def _asset(data: bytes, kind: str) -> Handler:
    async def endpoint(request: Request) -> Response:
        return Response(data, media_type=kind, headers={**HEADERS, "cache-control": "max-age=86400"})

    return endpoint


def _json(value: Any, status: int = 200) -> Response:
    """Encode JSON; fall back to an encoder that escapes lone surrogates, which msgspec rejects."""
    try:
        data = value if isinstance(value, bytes) else msgspec.json.encode(value)
    except UnicodeEncodeError:
        data = jsonio.encode(msgspec.to_builtins(value))
    return Response(data, status, HEADERS, "application/json")


def _html(text: str, status: int = 200) -> Response:
    return Response(text.encode("utf-8", "replace"), status, HEADERS, "text/html")
