"""Where a request goes: by the model it names, to the address that was configured, and nowhere else.

Rules of this file:
1. Scheme, host and port are the configuration's. A request adds a path and a query to them and nothing more.
2. Which header carries the provider's key is the configuration's to say, else the path's, and no client's.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple
from urllib.parse import urlsplit

from midfold.config import Config
from midfold.errors import ConfigError
from midfold.gateway.routes import ANTHROPIC
from midfold.lru import LRU

MOST_REMEMBERED = 1_000
X_API_KEY = "x-api-key"
ANTHROPIC_HOSTS = frozenset(("api.anthropic.com",))
"""They want their own header on the routes that both vendors have."""
NO_UPSTREAM = "no upstream is configured: give --upstream URL, or set gateway.upstream or upstreams in config.yaml"


class Target(NamedTuple):
    """What is asked for at an upstream: a path that begins with a slash, and a query, both as they are sent."""

    path: str
    query: str = ""


class Upstream(NamedTuple):
    """One provider. The key is never shown."""

    base: str
    path: str
    key: str | None = None
    wire: str = "any"
    timeout: float = 600.0
    key_header: str = "auto"

    def target(self, path: str, query: bytes = b"") -> Target:
        """What a path of ours is here: /v1 is not doubled where the base has it already."""
        rest = path.removeprefix("/v1") if self.path.endswith("/v1") and path.startswith("/v1/") else path
        return Target(self.path + rest, query.decode("latin-1"))

    def credential(self, wire: str | None) -> tuple[str, str] | None:
        """The header with the key of this upstream, on a route of a wire; None sends the client's own."""
        if self.key is None:
            return None
        if self._key_header(wire) == X_API_KEY:
            return X_API_KEY, self.key
        return "authorization", f"Bearer {self.key}"

    def _key_header(self, wire: str | None) -> str:
        if self.key_header != "auto":
            return self.key_header
        spoken = self.wire if self.wire != "any" else wire
        if spoken is None and urlsplit(self.base).hostname in ANTHROPIC_HOSTS:
            spoken = ANTHROPIC
        return X_API_KEY if spoken == ANTHROPIC else "bearer"

    @property
    def place(self) -> str:
        """The host alone: what may appear in errors and records."""
        return urlsplit(self.base).netloc

    def __repr__(self) -> str:
        return f"Upstream({self.place}, {self.wire})"


class Upstreams:
    """All of them, by model pattern; the most specific pattern wins."""

    def __init__(self, config: Config, environment: Mapping[str, str]) -> None:
        gateway = config.gateway
        self.default = (
            None
            if gateway.upstream is None
            else _upstream("gateway.upstream", gateway.upstream, gateway.api_key_env, environment)._replace(
                timeout=gateway.timeout, key_header=gateway.key_header
            )
        )
        self._patterns: list[tuple[str, Upstream]] = []
        for pattern, row in config.upstreams.items():
            where = f"upstreams.{pattern}"
            if row.base_url is None:
                raise ConfigError(f"{where}: base_url is missing")
            found = _upstream(where, row.base_url, row.api_key_env, environment)._replace(
                wire=row.wire, timeout=row.timeout or gateway.timeout, key_header=row.key_header
            )
            self._patterns.append((pattern.lower(), found))
        self._patterns.sort(key=lambda pair: len(pair[0].replace("*", "")), reverse=True)
        if self.default is None and not self._patterns:
            raise ConfigError(NO_UPSTREAM)
        self._known: LRU[tuple[str | None, str | None], Upstream | None] = LRU(MOST_REMEMBERED)

    def all(self) -> list[Upstream]:
        """Each of them once, the default first."""
        found = [self.default] if self.default else []
        return list(dict.fromkeys([*found, *(upstream for _, upstream in self._patterns)]))

    def find(self, model: str | None, wire: str | None) -> Upstream | None:
        """Who serves a model on a wire; without a model, whoever speaks the wire."""
        if not self._patterns:
            return self.default
        found = self._known.peek((model, wire))
        return found or self._known.made((model, wire), lambda: self._found(model, wire))

    def _found(self, model: str | None, wire: str | None) -> Upstream | None:
        fitting = [pair for pair in self._patterns if wire is None or pair[1].wire in ("any", wire)]
        if model is None:
            return self.default or next((upstream for _, upstream in fitting), None)
        name = model.lower()
        return next((upstream for pattern, upstream in fitting if fnmatchcase(name, pattern)), self.default)


def _upstream(where: str, url: str, variable: str | None, environment: Mapping[str, str]) -> Upstream:
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ConfigError(f"{where}: the address has a user name or a password; api_key_env names where a key is")
    key = None
    if variable is not None:
        key = environment.get(variable, "").strip()
        if not key:
            raise ConfigError(f"{where}: the environment variable {variable} is not set")
    return Upstream(f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/"), key)
