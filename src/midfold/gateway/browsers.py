"""Rules for requests from web pages: allowed origins (CORS) and host names.

These follow the Fetch standard:

1. Browsers send `Origin` with every request that may change something, and `Sec-Fetch-Site` with every request.
   Other clients send neither and are not affected.
2. A page of another origin may use the gateway only if `gateway.origins` lists it; another port of this machine is
   another origin. With keys, the browser would attach a saved password; without keys, none is needed.
3. Navigation to a gateway page is allowed: it changes nothing, and the linking page cannot read the response.
4. Without keys, the `Host` header must name this gateway. This prevents DNS rebinding, where a foreign name
   resolves to this machine.
5. The gateway sets the CORS headers; those of an upstream concern the upstream's own pages and are removed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from fnmatch import fnmatchcase
from typing import Any

from midfold.config import Config

Header = tuple[bytes, bytes]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LOOPBACK = frozenset(("127.0.0.1", "localhost", "[::1]"))
FOREIGN_SITES = (b"cross-site", b"same-site")
"""Values of `Sec-Fetch-Site` for other origins; the same site on another port is another origin."""
CHECKED_HEADERS = frozenset((b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode"))
SAFE_METHODS = ("GET", "HEAD")
CORS_PREFIX = b"access-control-"
MAX_ORIGIN_CHARS = 300
REFUSED_ORIGIN = "pages of another origin may not use this gateway; add the origin to gateway.origins to allow it"
REFUSED_NAME = "unknown host name; this gateway serves {}. Add names to gateway.hosts"


class AdmissionRefused(Exception):
    """Request that the admission layer refuses."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def split_list(text: str | None) -> list[str]:
    """Return the items of a comma-separated setting, in lower case."""
    return [word.strip().lower() for word in (text or "").split(",") if word.strip()]


class Browsers:
    """Checks of host and origin that precede the key check."""

    def __init__(self, *, keyed: bool = False, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self.hosts = LOOPBACK | frozenset(map(host_name, hosts))
        self._keyed, self._origins = keyed, tuple(origins)

    @classmethod
    def of(cls, config: Config) -> Browsers:
        settings = config.gateway
        hosts = [settings.host.lower(), *split_list(settings.hosts)]
        return cls(keyed=bool(config.keys), hosts=hosts, origins=split_list(settings.origins))

    def check(self, method: str, headers: Iterable[Header]) -> bytes | None:
        """Return the foreign origin that may read the response, None if there is none. Raises AdmissionRefused."""
        found = [pair for pair in headers if pair[0] in CHECKED_HEADERS]
        hosts = [value.decode("latin-1").lower() for name, value in found if name == b"host"]
        if not self._keyed and not (len(hosts) == 1 and host_name(hosts[0]) in self.hosts):
            raise AdmissionRefused(421, REFUSED_NAME.format(", ".join(sorted(self.hosts))))
        if len(found) == len(hosts):
            return None
        origins = [value for name, value in found if name == b"origin"]
        if origins:
            return self._allowed_origin(origins, hosts)
        if any(name == b"sec-fetch-site" and value in FOREIGN_SITES for name, value in found):
            modes = [value for name, value in found if name == b"sec-fetch-mode"]
            if method not in SAFE_METHODS or modes != [b"navigate"]:
                raise AdmissionRefused(403, REFUSED_ORIGIN)
        return None

    def _allowed_origin(self, origins: list[bytes], hosts: list[str]) -> bytes | None:
        text = origins[0].decode("latin-1").lower()
        if len(origins) == 1 and len(text) <= MAX_ORIGIN_CHARS:
            place = text.partition("://")[2]
            if place and [place] == hosts:
                return None
            if any(fnmatchcase(text, pattern) for pattern in self._origins):
                return origins[0]
        raise AdmissionRefused(403, REFUSED_ORIGIN)


def host_name(place: str) -> str:
    """Return the name of `name:port`."""
    name, colon, port = place.rpartition(":")
    return name if colon and port.isdigit() else place


def is_preflight(method: str, headers: Iterable[Header]) -> bool:
    return method == "OPTIONS" and any(name == b"access-control-request-method" for name, _ in headers)


async def answer_preflight(origin: bytes, headers: Iterable[Header], send: Send) -> None:
    """Answer a CORS preflight request: allow the origin and the headers it asks for."""
    requested = dict(headers)
    allowed: list[Header] = [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]
    allowed.append((b"access-control-allow-methods", b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"))
    allowed.append((b"access-control-max-age", b"600"))
    if wanted := requested.get(b"access-control-request-headers"):
        allowed.append((b"access-control-allow-headers", wanted))
    if requested.get(b"access-control-request-private-network") == b"true":
        allowed.append((b"access-control-allow-private-network", b"true"))
    await send({"type": "http.response.start", "status": 204, "headers": allowed})
    await send({"type": "http.response.body", "body": b""})


def with_cors_headers(origin: bytes, send: Send) -> Send:
    """Return a `send` that adds CORS headers for this origin to responses."""

    async def sending(event: MutableMapping[str, Any]) -> None:
        if event["type"] == "http.response.start":
            kept = [pair for pair in event["headers"] if not pair[0].lower().startswith(CORS_PREFIX)]
            ours = [
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", b"*"),
                (b"vary", b"Origin"),
            ]
            event = {**event, "headers": [*kept, *ours]}
        await send(event)

    return sending
