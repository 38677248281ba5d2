from __future__ import annotations

import json
import threading
import time

import midfold
from midfold import EngineHost
from midfold.transcript.laws import violations
from tests.support.build import WINDOW, assistant, failing, handoffs, system, user

THRESHOLD = WINDOW // 2
SOFT, HARD = int(THRESHOLD * 0.9), THRESHOLD + 500


def settled(host: EngineHost) -> None:
    """Wait for a fold in the background."""
    ends = time.monotonic() + 20
    while host.in_flight and time.monotonic() < ends:
        time.sleep(0.005)


TALK = [turn for n in range(30) for turn in (user(f"Look at part {n}."), assistant(f"Part {n} is fine. " * 60))]
SESSION = [system(), user("Port the parser."), assistant("Yes."), *TALK]


def test_a_fold_is_prepared_under_soft_pressure_and_swapped_in_under_hard_pressure() -> None:
    host = EngineHost(context_length=WINDOW)
    assert host.step(SESSION, 100) is SESSION
    assert not host.in_flight
    assert host.step(SESSION, SOFT) is SESSION
    settled(host)
    assert host.state.count == 0
    grown = [*SESSION, user("And the lexer?"), assistant("Soon.")]
    view = host.step(grown, HARD)
    assert host.state.count == 1
    assert view[-2:] == grown[-2:]
    assert len(view) < len(grown)
    assert violations(midfold.read(view).messages) == ()
    assert host.last is not None
    assert host.unfold(host.last.fold)[0] in SESSION


def test_a_fold_whose_messages_have_changed_is_not_swapped_in() -> None:
    host = EngineHost(context_length=WINDOW)
    ready = host.prepare(SESSION)
    assert ready is not None
    changed = [*SESSION[:5], user("Something else."), *SESSION[6:]]
    assert host.swap(changed, ready) is changed
    assert host.swap(SESSION[:-1], ready) is not None
    assert host.state.count == 0
    assert host.swap(SESSION, ready) is not SESSION


def test_a_fold_made_before_another_compaction_is_not_swapped_in() -> None:
    host = EngineHost(context_length=WINDOW)
    ready = host.prepare(SESSION)
    assert ready is not None
    view = host.compress(SESSION, current_tokens=HARD)
    assert host.swap(view, ready) is view
    assert host.state.count == 1


def test_hard_pressure_waits_for_a_fold_that_is_still_being_made() -> None:
    started, go = threading.Event(), threading.Event()

    def slow(ask: midfold.SummaryRequest) -> str:
        started.set()
        assert go.wait(10)
        return "## Goal\nPort the parser."

    host = EngineHost(context_length=WINDOW, summarizer=slow)
    assert host.step(SESSION, SOFT) is SESSION
    assert started.wait(10)
    assert host.in_flight
    threading.Timer(0.05, go.set).start()
    view = host.step(SESSION, HARD)
    assert len(handoffs(view)) == 1
    assert "Port the parser." in handoffs(view)[0]


def test_a_preparation_that_fails_leaves_the_host_as_it_was_and_the_compaction_is_made_then() -> None:
    host = EngineHost(context_length=WINDOW, summarizer=failing("timeout"))
    before = json.dumps(host.export())
    assert host.step(SESSION, SOFT) is SESSION
    settled(host)
    assert json.dumps(host.export()) == before
    assert len(handoffs(host.step(SESSION, HARD))) == 1
