"""Fixtures for one PostgreSQL server per test process, and the profile of all property tests.

The profile uses the same examples on every run, and no deadline, because machines may be busy.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings

from support.postgres import Server, server

for _profile, _examples in (("test", 12), ("all", 60)):
    settings.register_profile(
        _profile,
        derandomize=True,
        deadline=None,
        max_examples=_examples,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.register_profile("soak", deadline=None, max_examples=2_000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "test"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it

for _name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY", "NOUS_API_KEY"):
    os.environ.pop(_name, None)  # no test may send requests with a developer's keys


class _NoOmissions(logging.Handler):
    """Log handler that fails a test in which a compaction omitted a text after an internal error."""

    def emit(self, record: logging.LogRecord) -> None:
        assert not record.getMessage().startswith("Omitted from the summary"), record.getMessage()


@pytest.fixture(autouse=True)
def _no_omissions(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.node.get_closest_marker("omits"):
        yield
        return
    handler, log = _NoOmissions(), logging.getLogger("midfold")
    log.addHandler(handler)
    yield
    log.removeHandler(handler)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """Start a server for this test process."""
    with server() as running:
        yield running


@pytest.fixture
def postgres_url(postgres: Server) -> str:
    """Return the URL of a new database."""
    return postgres.database(f"d{uuid4().hex[:12]}")
