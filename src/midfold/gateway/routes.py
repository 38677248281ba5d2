"""Paths that the gateway understands, and rules for headers; all other paths are passed through."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import msgspec

from midfold.compaction.redact import redact

CREDENTIALS = frozenset((b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"))
"""Headers with which clients authenticate to providers."""
Raw = tuple[bytes, bytes]
Kind = Literal["generate", "count", "compact", "other"]
OPENAI, ANTHROPIC = "openai", "anthropic"


class Route(NamedTuple):
    """Kind of a path. `dialect` is the format of its body if midfold reads it."""

    kind: Kind
    dialect: str | None = None
    vendor: str | None = None
    """Only vendor with this path, if midfold does not read its body."""

    @property
    def name(self) -> str:
        """Return the name for metrics and logs."""
        return self.kind if self.dialect is None else f"{self.dialect} {self.kind}"

    @property
    def wire(self) -> str | None:
        """Return the vendor whose protocol is used; None if both have the path."""
        if self.dialect is None:
            return self.vendor
        return ANTHROPIC if self.dialect == "anthropic" else OPENAI


OTHER = Route("other")
OTHER_ANTHROPIC = Route("other", vendor=ANTHROPIC)
_PATHS = {
    "/chat/completions": Route("generate", "openai-chat"),
    "/responses": Route("generate", "openai-responses"),
    "/responses/compact": Route("compact", "openai-responses"),
    "/messages": Route("generate", "anthropic"),
    "/messages/count_tokens": Route("count", "anthropic"),
}
ROUTES = {prefix + path: route for prefix in ("", "/v1") for path, route in _PATHS.items()}
"""Known paths; base URLs of clients may or may not include /v1."""
UNVERSIONED = frozenset(_PATHS)
_ANTHROPIC_ONLY = ("/v1/messages", "/messages", "/v1/complete", "/complete")


UNSERVED = frozenset(("CONNECT", "TRACE"))
"""Methods that are refused: CONNECT opens a tunnel, TRACE echoes the headers including the provider's key."""
NOT_A_PATH = "the request target must be a path that begins with / and has no spaces, backslashes or fragment"
_TARGET = re.compile(rb"/[!-\"$->@-\[\]-~]*(\?[!-\"$-~]*)?")


def is_origin_form(target: bytes) -> bool:
    """Return whether a request target is a path with an optional query (RFC 9112, 3.2.1), not a URL."""
    return _TARGET.fullmatch(target) is not None


NO_WEBSOCKETS = "WebSockets are not supported: send the same request over HTTP"


def is_websocket(method: str, headers: Iterable[Raw]) -> bool:
    """Return whether a request opens a WebSocket (RFC 6455, 4.1), which is refused without asking an upstream."""
    offers = [value.lower() for name, value in headers if name == b"upgrade"]
    return method == "GET" and any(one.strip() == b"websocket" for offer in offers for one in offer.split(b","))


def route_of(method: str, path: str) -> Route:
    found = ROUTES.get(path) if method == "POST" else None
    if found is not None:
        return found
    return OTHER_ANTHROPIC if path.startswith(_ANTHROPIC_ONLY) else OTHER


# Headers that pass through, in either direction.
#
# Rules (RFC 9110, 7.6.1):
# 1. Hop-by-hop headers (`connection` and those it lists, `transfer-encoding`, ...) are dropped.
# 2. `host` and `content-length` are recomputed. `x-midfold-*` is never forwarded in either direction.
# 3. Of `accept-encoding` only encodings that the gateway can read are forwarded; the response's encoding is never
#    changed.


HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_NOT_SENT = HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_NOT_WITH_OUR_KEY = CREDENTIALS | {
    b"cookie",
    b"x-http-method",
    b"x-http-method-override",
    b"x-method-override",
    b"x-original-url",
    b"x-rewrite-url",
}
"""Headers dropped when the gateway's key is used: other credentials, and overrides of method or path."""
OURS = b"x-midfold-"
MAX_SESSION_BYTES = 200
"""Maximum bytes of a session label; a longer one is ignored."""
READABLE = ("gzip", "deflate", "identity")


class RequestOptions(NamedTuple):
    """Options of a client for the gateway; `label` is the session name that it sends to its provider."""

    session: str | None
    bypass: bool
    label: str = ""


SESSION_HEADERS = {
    b"x-claude-code-session-id": "claude-code",
    b"session-id": "codex",
    b"session_id": "codex",
    b"thread-id": "codex",
    b"conversation_id": "codex",
    b"x-opencode-session": "opencode",
    b"x-session-affinity": "opencode",
}
"""Headers by which clients name their sessions, with the client."""
_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{4,64}")
_USER_ID = re.compile(r"_session_([A-Za-z0-9_-]{4,64})\Z|\"session_id\"\s*:\s*\"([A-Za-z0-9_-]{4,64})\"")
MAX_USER_ID_CHARS = 1_000


def request_options(headers: Iterable[Raw]) -> RequestOptions:
    session, bypass, label = None, False, ""
    for name, value in headers:
        if name == b"x-midfold-session":
            session = value.decode("latin-1").strip() or None if len(value) <= MAX_SESSION_BYTES else None
        elif name == b"x-midfold-bypass":
            bypass = value.strip().lower() in (b"true", b"1", b"yes")
        elif name in SESSION_HEADERS and not label:
            label = _label(SESSION_HEADERS[name], value.decode("latin-1").strip())
    return RequestOptions(session, bypass, label)


def label_in(metadata: Any) -> str:
    """Return the session label in a request's metadata, as Claude Code sends it; "" without one."""
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    found = _USER_ID.search(user[:MAX_USER_ID_CHARS]) if isinstance(user, str) else None
    return _label("claude-code", found[1] or found[2]) if found else ""


def _label(client: str, given: str) -> str:
    return f"{client}-{given}" if _SESSION_ID.fullmatch(given) else ""


_COMPACTING = re.compile(rb"claude-cli/|codex[_-][a-z_-]+/|opencode/")
"""Prefixes of the `user-agent` of Claude Code, Codex and opencode, which compact their conversations themselves."""


def compacts_itself(headers: Iterable[Raw]) -> bool:
    """Return whether a request comes from a client with its own compaction."""
    return any(name == b"user-agent" and _COMPACTING.match(value) for name, value in headers)


_PRODUCT = re.compile(rb"([A-Za-z][A-Za-z0-9._+-]{0,39})(?:/([A-Za-z0-9._+-]{1,40}))?(?![^ (;,])")
_NUMBERS = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4})?")
MAX_NAME_DIGITS, MAX_VERSION_LETTERS = 3, 12
"""Maximum digits in a program's name and letters in its version; anything longer may be a misplaced key."""


def client_product(headers: Iterable[Raw]) -> str:
    """Return the client's name from the first product of its `user-agent`, with a version of at most two numbers."""
    found = _PRODUCT.match(next((value for name, value in headers if name == b"user-agent"), b""))
    if found is None:
        return ""
    name, version = found[1].decode(), (found[2] or b"").decode()
    if sum(map(str.isdigit, name)) > MAX_NAME_DIGITS or redact(name) != name:
        return ""
    numbers = _NUMBERS.match(version)
    kept = numbers[0] if numbers else version if version.isalpha() and len(version) <= MAX_VERSION_LETTERS else ""
    return f"{name}/{kept}" if kept else name


def betas(headers: Iterable[Raw]) -> list[str]:
    """Return the provider beta features that a client requests, sorted."""
    lines = [value.decode("latin-1") for name, value in headers if name in (b"anthropic-beta", b"openai-beta")]
    return sorted({one.strip() for line in lines for one in line.split(",") if one.strip()})


def to_upstream(headers: Iterable[Raw], credential: tuple[str, str] | None = None) -> list[tuple[str, str]]:
    """Return the client's headers to send upstream; a `credential` replaces the client's own."""
    given = list(headers)
    dropped = _NOT_SENT | _connection_headers(given)
    if credential is not None:
        dropped |= _NOT_WITH_OUR_KEY
    sent: list[tuple[str, str]] = []
    for name, value in given:
        if name in dropped or name.startswith(OURS):
            continue
        text = value.decode("latin-1")
        sent.append((name.decode("latin-1"), _readable(text) if name == b"accept-encoding" else text))
    if credential is not None:
        sent.append(credential)
    return sent


def _readable(encodings: str) -> str:
    kept = [one.strip() for one in encodings.split(",") if one.partition(";")[0].strip().lower() in READABLE]
    return ", ".join(kept) or "identity"


def _connection_headers(headers: Iterable[Raw]) -> frozenset[bytes]:
    named = [value for name, value in headers if name == b"connection"]
    return frozenset(one.strip().lower() for value in named for one in value.split(b","))


def to_client(headers: Iterable[Raw], *, without_length: bool = False) -> list[Raw]:
    """Return the upstream's headers to send to the client."""
    given = [(name.lower(), value) for name, value in headers]
    dropped = HOP_BY_HOP | _connection_headers(given)
    if without_length:
        dropped |= {b"content-length", b"content-encoding"}
    return [(name, value) for name, value in given if name not in dropped and not name.startswith(OURS)]


def encoding_of(headers: Iterable[Raw]) -> str:
    return next((value.decode("latin-1").strip().lower() for name, value in headers if name == b"content-encoding"), "")


# Errors made by the gateway, in the format of the client's provider.


_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def error_body(wire: str | None, status: int, message: str, code: str | None = None) -> bytes:
    """Return an error as JSON: Anthropic's format for its clients, OpenAI's for all others."""
    value: dict[str, Any]
    if wire == ANTHROPIC:
        kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        value = {"type": "error", "error": {"type": kind, "message": message}}
    else:
        kind = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        value = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return msgspec.json.encode(value)
