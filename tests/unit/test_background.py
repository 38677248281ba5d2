from __future__ import annotations

import json
import threading
from typing import Any

import midfold
from midfold import BackgroundCompaction, EngineHost
from midfold.transcript.laws import violations
from tests.support.build import WINDOW, assistant, failing, handoffs, system, user

THRESHOLD = WINDOW // 2
SOFT, HARD = int(THRESHOLD * 0.9), THRESHOLD + 500


class Inline:
    """An executor that does the work at once, in the caller's thread."""

    def submit(self, work: Any, *arguments: Any) -> Any:
        from concurrent.futures import Future

        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments))
        except Exception as error:  # noqa: BLE001 - a future carries whatever was raised
            future.set_exception(error)
        return future


TALK = [turn for n in range(30) for turn in (user(f"Look at part {n}."), assistant(f"Part {n} is fine. " * 60))]
SESSION = [system(), user("Port the parser."), assistant("Yes."), *TALK]


def test_a_fold_is_prepared_under_soft_pressure_and_swapped_in_under_hard_pressure() -> None:
    host = EngineHost(context_length=WINDOW)
    background = BackgroundCompaction(host, Inline())  # type: ignore[arg-type]
    assert background.step(SESSION, 100) is SESSION
    assert background.step(SESSION, SOFT) is SESSION
    assert host.state.count == 0
    grown = [*SESSION, user("And the lexer?"), assistant("Soon.")]
    view = background.step(grown, HARD)
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

    def slow(ask: midfold.SummaryAsk) -> str:
        started.set()
        assert go.wait(10)
        return "## Goal\nPort the parser."

    host = EngineHost(context_length=WINDOW, summarizer=slow)
    with BackgroundCompaction(host) as background:
        assert background.step(SESSION, SOFT) is SESSION
        assert started.wait(10)
        assert background.in_flight
        threading.Timer(0.05, go.set).start()
        view = background.step(SESSION, HARD)
    assert len(handoffs(view)) == 1
    assert "Port the parser." in handoffs(view)[0]


def test_a_preparation_that_fails_leaves_the_host_as_it_was_and_the_compaction_is_made_then() -> None:
    host = EngineHost(context_length=WINDOW, summarizer=failing("timeout"))
    background = BackgroundCompaction(host, Inline())  # type: ignore[arg-type]
    before = json.dumps(host.export())
    assert background.step(SESSION, SOFT) is SESSION
    assert json.dumps(host.export()) == before
    assert len(handoffs(background.step(SESSION, HARD))) == 1
