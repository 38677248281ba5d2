"""The cost of a page depends on its content, not on the length of the session."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import midfold
from midfold.pages.html import Templates
from midfold.pages.lookup import Lookup
from midfold.pages.web import ENDPOINTS, everything
from midfold.session.sessions import Sessions
from midfold.store.usage import Turns
from midfold.transcript.message import Usage
from support.build import work

LONG, SHORT = 10_000, 200
MOST_CPU_SECONDS = 0.2
SLOWER_MACHINES = 2
SESSION = next(endpoint for endpoint in ENDPOINTS if endpoint.name == "session")


@pytest.fixture(scope="module")
def sessions() -> Sessions:
    """Create two sessions with the same kind of work, with usage reported every second message."""
    store = midfold.open("memory:")
    for name, count in (("long", LONG), ("short", SHORT)):
        messages = work(0, count=count // 2, words=60)
        session = store.session(name, model="claude-opus-4-6")
        session.append(messages)
        info = store.store.must(name)
        turns = Turns(store.store)
        usage = Usage(prompt_tokens=50_000, cache_read_tokens=49_000)
        for number in range(count // 2):
            turns.record(info, usage, at=number)
    return store


def cost(work: Callable[[], object]) -> float:
    def once() -> float:
        start = time.process_time()
        work()
        return time.process_time() - start

    return min(once() for _ in range(3))


def page(sessions: Sessions, name: str) -> str:
    """Render as in the first request after a start: without caches, except the compiled template."""
    facts = Lookup(sessions).session(name, None, everything)
    return PAGES.render(SESSION, facts, {"key": name, "start": None})


PAGES = Templates(time.time)


def test_the_page_of_ten_thousand_messages_is_quick(sessions: Sessions) -> None:
    text = page(sessions, "long")
    assert "9,951–10,000 of 10,000" in text
    assert len(text) < 150_000
    long, short = cost(lambda: page(sessions, "long")), cost(lambda: page(sessions, "short"))
    assert long < MOST_CPU_SECONDS * SLOWER_MACHINES, f"{long * 1000:.0f} ms against {short * 1000:.0f} ms"


def test_the_overview_remembers_what_did_not_change(sessions: Sessions) -> None:
    reader = Lookup(sessions)
    first = reader.overview(everything)
    assert {item.name for item in first.sessions} == {"long", "short"}
    assert cost(lambda: reader.overview(everything)) < 0.1
    sessions.session("short").append([{"role": "user", "content": "one more"}])
    again = {item.name: item for item in reader.overview(everything).sessions}
    assert again["short"].messages == SHORT + 1
