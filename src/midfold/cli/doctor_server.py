"""The doctor's look at what a gateway needs: its store, its upstreams, its door."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import NamedTuple

from midfold.config import Config
from midfold.errors import ConfigError, MidfoldError

PATIENCE = 10.0


class Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    status: str
    told: str


def findings(config: Config, *, probe: bool) -> Iterator[Finding]:
    """Only what is configured is looked at; only with `probe` is anything sent."""
    if config.store.url is not None:
        yield store(config)
    if config.gateway.upstream is not None or config.upstreams:
        yield from upstreams(config, probe=probe)
        yield door(config)
        if probe:
            yield gateway(config)


def store(config: Config) -> Finding:
    """Opens it, which brings its schema up to date, and checks every invariant."""
    from midfold.service import open_sessions

    assert config.store.url is not None
    try:
        with open_sessions(config.store.url, config=config) as sessions:
            broken = sessions.check()
            many = len(sessions.store.sessions(1_000))
    except MidfoldError as error:
        return Finding("store", "problem", str(error))
    if broken:
        return Finding("store", "problem", f"{len(broken)} invariants do not hold: midfold store check lists them")
    return Finding("store", "ok", f"{sessions.store.where}: {many:,} sessions, every invariant holds")


def upstreams(config: Config, *, probe: bool) -> Iterator[Finding]:
    if importlib.util.find_spec("starlette") is None:
        yield Finding("gateway", "problem", "its packages are missing: pip install 'midfold[gateway]'")
        return
    from midfold.gateway.upstreams import Upstreams

    try:
        found = Upstreams(config, os.environ)
    except ConfigError as error:
        yield Finding("upstreams", "problem", str(error))
        return
    for upstream in found.all():
        key = "a key of the gateway's" if upstream.key else "the client's own key"
        if probe:
            yield _reached(upstream.base, upstream.place)
        else:
            yield Finding("upstream", "ok", f"{upstream.place}, wire {upstream.wire}, {key}")


def door(config: Config) -> Finding:
    from midfold.gateway.operating import check_door

    try:
        check_door(config)
    except ConfigError as error:
        return Finding("door", "problem", str(error))
    who = f"{len(config.keys)} keys" if config.keys else "this machine only, no keys"
    return Finding("door", "ok", f"{config.gateway.host}:{config.gateway.port}, {who}")


def gateway(config: Config) -> Finding:
    """Whether a gateway runs where the settings say, and whether it looks at the requests that it should look at."""
    import httpx2

    settings = config.gateway
    place = f"{'127.0.0.1' if settings.host in ('0.0.0.0', '::') else settings.host}:{settings.port}"
    try:
        told = httpx2.get(f"http://{place}/readyz", timeout=PATIENCE, follow_redirects=False).json()
        unmanaged, store = dict(told.get("unmanaged", {})), told["store"]
    except (httpx2.HTTPError, OSError):
        return Finding("gateway", "note", f"none runs at {place}")
    except (ValueError, LookupError, TypeError, AttributeError):
        return Finding("gateway", "note", f"what answers at {place} is no gateway")
    if unmanaged:
        return Finding("gateway", "problem", _unmanaged(place, unmanaged))
    if store != "ok":
        return Finding("gateway", "problem", f"the one at {place} is not ready: its store gives {store}")
    return Finding("gateway", "ok", f"one runs at {place}, and looks at what it should")


def _unmanaged(place: str, counts: dict[str, int]) -> str:
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
    return (
        f"the one at {place} has passed on {sum(counts.values()):,} requests without looking at them ({kinds}). "
        "If a kind begins with Store, `midfold store check` is next; any other is a fault of midfold's: please report "
        'it with the lines "a request was passed on as it was" of the gateway\'s log'
    )


def _reached(base: str, place: str) -> Finding:
    """Whether anybody answers there; without a key, so any answer will do."""
    import httpx2

    try:
        status = httpx2.get(base, timeout=PATIENCE, follow_redirects=False).status_code
    except (httpx2.HTTPError, OSError) as error:
        return Finding("upstream", "problem", f"{place} does not answer: {type(error).__name__}")
    return Finding("upstream", "ok" if status < 500 else "problem", f"{place} answers ({status})")
