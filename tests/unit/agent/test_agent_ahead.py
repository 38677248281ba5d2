"""A fold made ahead is used if only new messages were added since, and is otherwise discarded."""

from __future__ import annotations

from typing import Any

import midfold
from midfold.compaction.handoff import recognise
from midfold.errors import SummaryFailed
from midfold.session.host import BackgroundFold
from midfold.session.session import Session
from midfold.testing import ScriptedSummarizer
from midfold.transcript.laws import violations


def talk(start: int, count: int) -> list[dict[str, Any]]:
    words = "a sentence about the parser, its tests and its numbers. " * 30
    return [
        {"role": role, "content": f"{role} {number}: {words}"}
        for number in range(start, start + count)
        for role in ("user", "assistant")
    ]


def session(summarizer: Any = None) -> Session:
    sessions = midfold.open("memory:", summarizer=summarizer)
    made = sessions.session("s", context_length=16_000, system="You are careful.")
    made.append(talk(0, 20))
    return made


def test_a_draft_is_swapped_in_with_everything_that_was_said_since() -> None:
    one = session()
    make = one.prepare()
    assert make is not None
    one.append(talk(20, 2))
    draft = make()
    assert draft is not None
    done = one.compact(ahead=draft)
    assert done.changed
    assert done.receipt.fold == draft.outcome.receipt.fold
    view = one.view().transcript
    assert [message.text[:12] for message in view[-4:]] == [
        "user 20: a s",
        "assistant 20",
        "user 21: a s",
        "assistant 21",
    ]
    assert not violations(view)
    assert sum(1 for message in view if (ours := recognise(message)) and ours.kind == "fold") == 1
    assert one.store.check(deep=True) is not None
    assert list(one.store.check(deep=True)) == []
    assert len(one.history()) == 44
    assert one.unfold(done.receipt.fold)


def test_a_draft_of_a_view_that_is_gone_is_not_used() -> None:
    one = session()
    make = one.prepare()
    assert make is not None
    draft = make()
    assert draft is not None
    first = one.compact(force=True, keep_last_exchanges=3)
    assert first.changed
    second = one.compact(ahead=draft)
    assert second.receipt.fold != draft.outcome.receipt.fold
    one.undo()
    again = one.compact(
        ahead=draft, force=True
    )  # the same messages parsed again: the draft's objects are not those of the view
    assert again.changed
    assert list(one.store.check(deep=True)) == []


def test_making_a_draft_changes_nothing_and_of_a_failed_summary_only_the_pause_is_kept() -> None:
    summarizer = ScriptedSummarizer([SummaryFailed("network")])
    one = session(summarizer)
    before, info = one.view().json(), one.info
    make = one.prepare()
    assert make is not None
    draft = make()
    assert not draft.outcome.changed
    assert one.view().json() == before
    assert one.info == info
    assert one.swap(draft) is None
    assert one.view().json() == before
    assert one.prepare() is None, "no model is asked again before the pause is over"
    assert len(summarizer.asks) == 1


def test_at_most_one_draft_is_made_at_a_time() -> None:
    one, ahead = session(), BackgroundFold()
    assert ahead.take() is None
    assert ahead.start(one)
    assert ahead.has_begun
    assert not ahead.start(one)
    assert ahead.take() is not None
    assert not ahead.has_begun
    ahead.start(one)
    ahead.drop()
    assert ahead.take() is None
    assert BackgroundFold().start(midfold.open("memory:").session("empty")) is False
