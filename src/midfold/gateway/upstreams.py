"""Where a request goes: by the model it names, to the address that was configured, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple
from urllib.parse import urlsplit

from midfold.config import Config
from midfold.core.lru import LRU
from midfold.errors import ConfigError

MOST_REMEMBERED = 1_000
NO_UPSTREAM = "no upstream is configured: give --upstream URL, or set gateway.upstream or upstreams in config.yaml"


class Upstream(NamedTuple):
    """One provider. The key is never shown."""

    base: str
    path: str
    key: str | None = None
    wire: str = "any"
    timeout: float = 600.0

    def url(self, path: str, query: bytes = b"") -> str:
        """The address for a path of ours: /v1 is not doubled where the base has it already."""
        rest = path.removeprefix("/v1") if self.path.endswith("/v1") and path.startswith("/v1/") else path
        return f"{self.base}{self.path}{rest}{'?' + query.decode('latin-1') if query else ''}"

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
            else _upstream(
                "gateway.upstream", gateway.upstream, gateway.api_key_env, "any", gateway.timeout, environment
            )
        )
        self._patterns: list[tuple[str, Upstream]] = []
        for pattern, row in config.upstreams.items():
            where = f"upstreams.{pattern}"
            if row.base_url is None:
                raise ConfigError(f"{where}: base_url is missing")
            timeout = row.timeout or gateway.timeout
            found = _upstream(where, row.base_url, row.api_key_env, row.wire, timeout, environment)
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
        return self._known.made((model, wire), lambda: self._found(model, wire))

    def _found(self, model: str | None, wire: str | None) -> Upstream | None:
        fitting = [pair for pair in self._patterns if wire is None or pair[1].wire in ("any", wire)]
        if model is None:
            return self.default or next((upstream for _, upstream in fitting), None)
        name = model.lower()
        return next((upstream for pattern, upstream in fitting if fnmatchcase(name, pattern)), self.default)


def _upstream(
    where: str, url: str, variable: str | None, wire: str, timeout: float, environment: Mapping[str, str]
) -> Upstream:
    parts = urlsplit(url)
    key = None
    if variable is not None:
        key = environment.get(variable, "").strip()
        if not key:
            raise ConfigError(f"{where}: the environment variable {variable} is not set")
    return Upstream(f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/"), key, wire, timeout)
