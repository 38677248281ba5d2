"""Data that pages read equals the store's own: positions, states, sizes, turns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import midfold
from midfold.compaction.archive import handle_of
from midfold.errors import NotStored
from midfold.pages import statistics
from midfold.pages.lookup import Lookup
from midfold.pages.messages import MessageFates, MessageReader, MessageRuns
from midfold.pages.messages import MessagePlace as Place
from midfold.pages.statistics import MAX_COUNTED, SizeMeter, sample
from midfold.pages.web import everything
from midfold.session.sessions import Sessions
from midfold.store.protocol import ViewPiece
from midfold.store.usage import Turns
from midfold.transcript.message import Usage
from support.build import work
from support.fixtures import assistant, call, user
from support.pages import CODING, HOSTILE, SECRET, WINDOW, filled


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    with filled() as made:
        yield made


@pytest.fixture(params=["memory", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    return "memory:" if request.param == "memory" else str(request.getfixturevalue("postgres_url"))


def test_turns_are_kept_in_order_and_go_with_their_session(url: str) -> None:
    with midfold.open(url) as store:
        one, two = store.session("one", model="gpt-5"), store.session("two")
        for session in (one, two):
            session.append([user("hello")])
        assert one.info is not None
        assert two.info is not None
        turns = Turns(store.store)
        assert turns.of(one.info) == []
        assert not any(turns.newest(10).values())
        for number in range(1, 4):
            turns.record(one.info, Usage(prompt_tokens=number, cache_read_tokens=number - 1), at=number)
        Turns(store.store).record(two.info, Usage(prompt_tokens=9), at=9, model="other")
        assert [(turn.at, turn.usage.prompt_tokens, turn.model) for turn in turns.of(one.info)] == [
            (1, 1, "gpt-5"),
            (2, 2, "gpt-5"),
            (3, 3, "gpt-5"),
        ]
        newest = turns.newest(10)
        assert newest[one.info.id] < newest[two.info.id]
        gone = one.info
        one.delete()
        assert turns.of(gone) == []
        assert len(turns.of(two.info)) == 1
        assert store.check(deep=True) == []


def test_places_are_what_lists_would_be() -> None:
    places = MessageRuns(
        [ViewPiece(0, 2), ViewPiece(None, 1, 7), ViewPiece(5, 1, 8), ViewPiece(9, 3), ViewPiece(12, 0)]
    )
    whole = [
        Place(0),
        Place(1),
        Place(None, 7),
        Place(5, 8),
        Place(9),
        Place(10),
        Place(11),
    ]
    assert list(places) == whole
    assert len(places) == 7
    for start in range(9):
        for stop in range(start, 9):
            assert places.between(start, stop) == whole[start:stop]


def test_a_message_is_kept_changed_or_folded() -> None:
    fates = MessageFates(MessageRuns([ViewPiece(0, 2), ViewPiece(5, 1, 8), ViewPiece(None, 1, 7)]))
    told = [
        Place(1),
        Place(2),
        Place(5),
        Place(5, 8),
        Place(5, 9),
        Place(2, 9),
        Place(None, 7),
        Place(None, 6),
    ]
    assert [fates.of(place) for place in told] == [
        "kept", "folded", "changed", "kept", "changed", "folded", "kept", "folded",
    ]  # fmt: skip


def test_the_strips_of_a_compaction_that_only_shortened_results_add_up() -> None:
    with midfold.open("memory:") as store:
        session = store.session("s", context_length=64_000)
        session.append([user("go"), *work(0, count=30, words=1_200), *work(30, count=20, words=20)])
        assert session.compact(force=True).receipt.status == "pruned"
        page = Lookup(store).compaction("s", 1, 0, "", everything)
        assert {segment.what for segment in (*page.before, *page.after)} == {"kept"}
        assert page.counts["changed"] == len({change.handle for change in page.changes}) > 0
        assert page.before[0].tokens == pytest.approx(page.compaction.old_tokens, rel=0.01)
        assert page.before[0].tokens > 2 * page.after[0].tokens


def test_before_and_after_are_the_views_the_store_gives(sessions: Sessions) -> None:
    session = sessions.session(CODING)
    info, records = sessions.store.must(CODING), session.receipts()
    assert len(records) >= 3
    reader = MessageReader(sessions.store, info)
    for record in records:
        before = [*session.view(record.base).items] if record.base else []
        start = next((base.upto for base in records if base.seq == record.base), 0)
        said = [item.message for item in session.history(start, record.upto).items]
        expected = [item.message for item in before] + said
        assert [found.message for found in reader.read(reader.before(record, records))] == expected
        assert [found.message for found in reader.read(reader.after(record))] == list(
            session.view(record.seq).transcript
        )
        assert len(expected) == record.receipt.old_messages
    assert [found.message for found in reader.read(reader.now(records))] == list(session.view().transcript)


def test_every_message_has_a_fate_and_tokens_add_up(sessions: Sessions) -> None:
    lookup = Lookup(sessions)
    for record in sessions.session(CODING).receipts():
        page = lookup.compaction(CODING, record.seq, 0, "", everything)
        receipt = record.receipt
        assert sum(page.counts.values()) == receipt.old_messages
        assert sum(segment.messages for segment in page.after) == receipt.new_messages
        assert sum(segment.messages for segment in page.before) == receipt.old_messages
        assert sum(segment.tokens for segment in page.after) == pytest.approx(receipt.new_tokens, rel=0.01)
        assert sum(segment.tokens for segment in page.before) == pytest.approx(receipt.old_tokens, rel=0.05)
        assert ("folded" in {segment.what for segment in page.before}) == (receipt.status == "compacted")
        if receipt.status == "compacted":
            assert page.handoff
            assert "handoff" in {segment.what for segment in page.after}
            originals = sessions.store.unfold(CODING, page.fold)
            shown = [message for start in range(0, len(originals), 20) for message in
                     lookup.unfold(CODING, page.fold, start, everything).messages]  # fmt: skip
            assert [message.handle for message in shown] == [handle_of(message) for message in originals]


def test_what_was_folded_can_be_read_message_by_message(sessions: Sessions) -> None:
    lookup = Lookup(sessions)
    seq = next(one.seq for one in sessions.session(CODING).receipts() if one.receipt.status == "compacted")
    page = lookup.compaction(CODING, seq, 0, "folded", everything)
    assert {line.fate for line in page.lines.lines} == {"folded"}
    line = next(line for line in page.lines.lines if line.position is not None)
    by_position = lookup.message(CODING, line.position or 0, everything).messages[0]
    by_handle = lookup.unfold(CODING, line.handle, 0, everything).messages[0]
    assert by_position.blocks == by_handle.blocks
    assert by_position.blocks
    after = lookup.compaction(CODING, 1, 0, "after", everything)
    assert after.lines.total == after.compaction.new_messages


def test_the_size_is_the_one_the_session_knows(sessions: Sessions) -> None:
    sizes = SizeMeter(midfold.Config())
    for name in (CODING, "airline"):
        session = sessions.session(name, context_length=WINDOW if name == CODING else None)
        size = sizes.size(MessageReader(sessions.store, sessions.store.must(name)), session.receipts())
        assert size.tokens == pytest.approx(session.size.tokens, rel=0.02)
        assert size.basis == session.size.basis
        assert size.window == session.setup.window
        assert size.threshold == session.setup.budget.threshold_tokens


def test_a_size_that_was_reported_since_is_believed_until_something_is_said() -> None:
    with midfold.open("memory:") as store:
        session = store.session("s", model="claude-opus-4-6")
        session.append([user("hello " * 500)])
        Turns(store.store).record(store.store.must("s"), Usage(prompt_tokens=7_777), at=1)
        reader = Lookup(store)
        assert reader.statistics.one(store.store.must("s")).facts.size.tokens == 7_777
        session.append([assistant("hi")])
        size = reader.statistics.one(store.store.must("s")).facts.size
        assert (size.basis, size.tokens < 1_500) == ("estimated", True)


def test_a_session_without_reports_is_estimated_and_a_very_long_one_sampled() -> None:
    with midfold.open("memory:") as store:
        session = store.session("long")
        session.append(work(0, count=900, words=40))
        info = store.store.must("long")
        reader = MessageReader(store.store, info)
        size = SizeMeter(midfold.Config()).size(reader, [])
        assert size.basis == "sampled"
        assert size.tokens == pytest.approx(session.size.tokens, rel=0.1)
        places, scale = sample(reader.history(), 0)
        assert len(places) == MAX_COUNTED
        assert scale == info.count / MAX_COUNTED


def test_usage_that_a_session_observed_is_shown_turn_by_turn_with_what_the_cache_did() -> None:
    with midfold.open("memory:") as store:
        session = store.session("s", model="claude-opus-4-6")
        session.append([user("hello " * 3_000)])
        for read, written in ((0, 4_000), (4_000, 100)):
            session.observe(Usage(prompt_tokens=4_200, cache_read_tokens=read, cache_write_tokens=written))
        page = Lookup(store).session("s", None, everything)
        assert [(turn.prompt_tokens, turn.cache_read_tokens) for turn in page.turns] == [(4_200, 0), (4_200, 4_000)]
        assert (page.session.cache.requests, page.session.cache.read_tokens) == (2, 4_000)
        assert [one.cause for one in page.session.causes] == ["hit", "cold_start"]
        assert page.session.cache.net == pytest.approx(session.health.saved)
        assert page.session.size.basis == "reported"


def test_what_is_remembered_is_bounded(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "MAX_KEPT", 60)
    kept = Lookup(sessions).statistics
    for _ in range(2):
        for info in sessions.all():
            assert kept.one(info).facts.name == info.name
            assert kept.kept.bytes <= 60


def test_what_a_model_unfolded_again_is_found() -> None:
    with midfold.open("memory:") as store:
        session = store.session("s")
        session.append([user("go"), *call(1, "context_unfold", {"handle": "mf-1"}, "word " * 200), assistant("done")])
        session.append([user("and now?"), *call(2, "terminal", {"command": "grep context_unfold"}, "three lines")])
        found = Lookup(store).statistics.retrievals(MessageReader(store.store, store.store.must("s")))
        assert [item.position for item in found] == [2]
        assert found[0].tokens > 150


def test_secrets_are_redacted_wherever_a_message_is_shown(sessions: Sessions) -> None:
    reader = Lookup(sessions)
    shown = [
        reader.session(HOSTILE, None, everything).lines.lines[0].text,
        reader.message(HOSTILE, 0, everything).messages[0].blocks[0].text,
        reader.search("script alert", everything).hits[0].text,
    ]
    assert all(text and SECRET not in text for text in shown)
    assert SECRET.encode() in reader.raw(HOSTILE, "mf-" + _digits(sessions), everything)


def _digits(sessions: Sessions) -> str:
    return next(iter(sessions.store.history(HOSTILE))).message.digest.hex()[:12]


def test_what_is_not_there_is_named() -> None:
    with midfold.open("memory:") as store:
        session = store.session("s")
        session.append([user("hello")])
        lookup = Lookup(store)
        for ask in (
            lambda: lookup.receipt("s", 1, everything),
            lambda: lookup.message("s", 1, everything),
            lambda: lookup.unfold("s", "mf-123456789abc", 0, everything),
            lambda: lookup.receipt("t", 1, everything),
            lambda: lookup.receipt("s", 1, lambda name: False),
        ):
            with pytest.raises(NotStored):
                ask()
