"""Sessions: a host's view of the store, from two processes at once, after restarts, and with failures."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

import midfold
from midfold.compaction.handoff import SYSTEM_NOTE, recognise
from midfold.errors import NotStored, StoreConflict, StoreError, SummaryFailed
from midfold.session.sessions import Sessions
from midfold.store import SqlStore, open_database
from midfold.store.leases import CompactionLease, Lease, Renewal
from midfold.testing.doubles import FakeClock, ScriptedSummarizer
from support.build import anthropic_work, work
from support.fixtures import assistant, call, long_tool_heavy_conversation, system, user

WINDOW = 64_000
TALK = long_tool_heavy_conversation().messages
Open = Callable[..., Sessions]


def begun(sessions: Sessions, name: str = "s", messages: list[dict[str, Any]] = TALK) -> midfold.Session:
    session = sessions.session(name, context_length=WINDOW)
    session.append(messages)
    return session


def folds(view: list[Any]) -> list[str]:
    found = [(message, recognise(message)) for message in midfold.read(view).messages]
    return [message.text for message, known in found if known and known.kind == "fold"]


def test_a_session_folds_when_it_is_time_and_goes_on_elsewhere(connect: Open) -> None:
    session = begun(connect())
    assert session.should_compact()
    done = session.compact()
    assert (done.receipt.status, done.receipt.persistence, done.session) == ("compacted", "in_place_archive", session)
    view = session.view().messages
    assert len(view) < len(TALK) and view[-1] == TALK[-1] and len(folds(view)) == 1
    elsewhere = connect().session("s", context_length=WINDOW)
    assert elsewhere.view().messages == view
    assert elsewhere.history().messages == TALK
    assert not elsewhere.should_compact()
    assert [message["role"] for message in elsewhere.unfold(done.receipt.fold)]
    assert elsewhere.unfold(done.receipt.fold)[0] == TALK[done.receipt.boundary.start]  # type: ignore[union-attr]


def test_a_turn_leaves_the_older_part_of_a_view_as_it_is(connect: Open) -> None:
    session, elsewhere = begun(connect()), connect().session("s", context_length=WINDOW)
    said, olders = list(TALK), []
    for number in range(300):
        said.append(user(f"turn {number}"))
        (session if number % 3 else elsewhere).append(said[-1:])
        count = session._now().running.now.count
        assert count == len(said) and session.view().messages[-1] == said[-1]
        olders.append(session._copy.view().older)  # type: ignore[union-attr]
    assert session.view().messages == elsewhere.view().messages == said
    assert len(set(map(id, olders))) == 2, "put together once in 257 turns"


def test_state_is_rehydrated_and_the_summary_updated(connect: Open) -> None:
    script = ScriptedSummarizer(["## Goal\nfirst summary", "## Goal\nsecond summary"])
    begun(connect(summarizer=script)).compact(force=True)
    resumed = connect(summarizer=script).session("s", context_length=WINDOW)
    resumed.append(work(500, 60))
    receipt = resumed.compact(force=True, focus="the schema").receipt
    assert (receipt.compaction_count, receipt.summary.updated_previous) == (2, True)
    assert "first summary" in script.asks[1].previous
    assert len(folds(resumed.view().messages)) == 1


def test_a_new_session_inherits_nothing(connect: Open) -> None:
    sessions = connect()
    begun(sessions).compact(force=True)
    script = ScriptedSummarizer(["## Goal\nother"])
    other = connect(summarizer=script).session("t", context_length=WINDOW)
    other.append(TALK)
    other.compact(force=True)
    assert script.asks[0].previous == ""


def test_the_last_exchanges_asked_for_are_there_word_for_word_after_a_restart(connect: Open) -> None:
    asks = [place for place, message in enumerate(TALK) if message["role"] == "user"]
    receipt = begun(connect()).compact(keep_last_exchanges=2).receipt
    assert receipt.status == "compacted"
    view = connect().session("s", context_length=WINDOW).view().messages
    kept = TALK[asks[-2] :]
    assert view[-len(kept) :] == kept and len(folds(view)) == 1


def test_a_client_that_has_nothing_to_say_yet_has_an_empty_view(connect: Open) -> None:
    session = connect().session("a")
    assert session.sync([]).added == 0
    assert session.view().messages == []
    assert not session.compact(force=True).changed


def test_a_no_op_changes_nothing(connect: Open) -> None:
    session = begun(connect(), messages=TALK[:6])
    before = session.info
    done = session.compact()
    assert (done.receipt.status, done.receipt.persistence) == ("unchanged", "no_persistence_change")
    assert (session.info, session.receipts()) == (before, [])


def test_a_preview_has_no_side_effects(connect: Open) -> None:
    session = begun(connect(summarizer=ScriptedSummarizer()))
    before = session.info
    receipt = session.preview(force=True)
    assert (receipt.status, session.info, session.receipts()) == ("compacted", before, [])


def test_an_empty_session(connect: Open) -> None:
    session = connect().session("nobody", context_length=WINDOW)
    assert (len(session.view()), session.info, session.compact(force=True).receipt.status) == (0, None, "unchanged")
    with pytest.raises(NotStored):
        session.history()


def test_undo_and_the_view_of_an_earlier_compaction(connect: Open) -> None:
    session = begun(connect())
    session.compact(force=True)
    first = session.view().messages
    session.append(work(500, 60))
    session.compact(force=True)
    assert session.view(at=1).messages == first
    assert session.view(at=0).messages == session.history().messages
    assert session.undo().seq == 2
    assert session.view().messages == [*first, *work(500, 60)]
    session.undo()
    assert session.view().messages == session.history().messages
    again = session.compact(force=True).receipt
    assert (again.compaction_count, [record.seq for record in session.receipts()]) == (1, [1, 2, 3])


def test_a_child_continues_with_state_and_handles(connect: Open) -> None:
    sessions = connect()
    session = begun(sessions)
    done = session.compact(force=True, persistence="child")
    assert (done.receipt.persistence, done.session.name) == ("child_continuation", "s+1")
    child = connect().session("s+1", context_length=WINDOW)
    child.append(work(500, 60))
    second = child.compact(force=True).receipt
    assert second.compaction_count == 2
    assert child.unfold(done.receipt.fold) == session.unfold(done.receipt.fold)
    assert len(folds(child.view().messages)) == 1
    with pytest.raises(StoreConflict, match=r"continues as s\+1"):
        session.append([user("late")])


def test_who_measured_the_view_of_another_compaction_folds_nothing(connect: Open) -> None:
    asked: list[midfold.SummaryRequest] = []
    session = begun(connect(summarizer=lambda ask: asked.append(ask) or "## Goal\nwork"))
    assert session.compact(force=True, measured_at=0).receipt.status == "compacted"
    late = session.compact(prompt_tokens=10 * WINDOW, measured_at=0).receipt
    assert (late.status, len(asked)) == ("unchanged", 1)


def test_the_loser_gets_its_messages_back_unchanged(connect: Open) -> None:
    inside, proceed = threading.Event(), threading.Event()

    def slow(ask: midfold.SummaryRequest) -> str:
        inside.set()
        proceed.wait(20)
        return "## Goal\nslow"

    winner = begun(connect(summarizer=slow))
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(winner.compact(force=True)))
    thread.start()
    assert inside.wait(20)
    loser = connect().session("s", context_length=WINDOW)
    done = loser.compact(force=True)
    assert (done.receipt.status, done.changed) == ("already_in_flight", False)
    assert loser.view().messages == TALK
    loser.append([user("meanwhile")])
    proceed.set()
    thread.join()
    assert results[0].receipt.status == "compacted"
    assert loser.view().messages[-1] == user("meanwhile")
    assert loser.compact(force=True).receipt.status == "compacted"


def test_a_lease_that_ran_out_commits_nothing(connect: Open) -> None:
    sessions = connect(lease_seconds=0.2)

    def stalled(ask: midfold.SummaryRequest) -> str:
        lease = sessions.store.database.write(lambda tx: tx.one("lease", session="s"))
        assert lease is not None
        sessions.store.leases.release(Lease("s", lease[0], lease[1]))
        assert sessions.leases.try_acquire("s") is not None
        return "## Goal\nlate"

    sessions.summarizer = stalled
    session = begun(sessions)
    done = session.compact(force=True)
    assert (done.receipt.status, session.receipts()) == ("aborted", [])
    assert session.view().messages == TALK


def test_a_lease_outlives_its_time_while_the_summary_is_made(connect: Open) -> None:
    sessions = connect(lease_seconds=4)
    other = connect(lease_seconds=4)
    refused: list[bool] = []

    def slow(ask: midfold.SummaryRequest) -> str:
        for _ in range(4):
            threading.Event().wait(1.4)
            refused.append(other.leases.try_acquire("s") is None)
        return "## Goal\nslow but steady"

    sessions.summarizer = slow
    assert begun(sessions).compact(force=True).receipt.status == "compacted"
    assert refused == [True] * 4
    assert other.leases.try_acquire("s") is not None


class Flaky:
    """Leases in a store that is temporarily unreachable."""

    def __init__(self, failures: int) -> None:
        self.failures, self.calls = failures, 0

    def try_acquire(self, session_id: str) -> Lease | None:
        raise StoreError("unreachable")

    def refresh(self, lease: Lease) -> bool:
        self.calls += 1
        if self.calls <= self.failures:
            raise StoreError("unreachable")
        return True

    def release(self, lease: Lease) -> None:
        raise StoreError("unreachable")


@pytest.mark.parametrize(("failures", "lost"), [(2, False), (3, True)])
def test_renewing_may_fail_a_few_times_and_no_more(failures: int, lost: bool) -> None:
    leases: CompactionLease = Flaky(failures)
    renewal = Renewal(leases, Lease("s", "h", 1), 0.01)
    renewal.start()
    renewal._thread.join(0.3)
    renewal.stop()
    assert renewal.lost is lost


def test_a_store_that_does_not_answer_is_no_permission(connect: Open) -> None:
    sessions = connect()
    session = begun(sessions)
    real, sessions.store.leases = sessions.store.leases, Flaky(0)  # type: ignore[assignment]
    sessions.store.leases.ttl = 1.0  # type: ignore[attr-defined]
    with pytest.raises(StoreError):
        session.compact(force=True)
    sessions.store.leases = real
    assert session.view().messages == TALK


def test_a_failed_summary_keeps_the_history_and_cools_down(connect: Open) -> None:
    clock = FakeClock()
    script = ScriptedSummarizer([SummaryFailed("network"), "## Goal\nthere again", "## Goal\nonce more"])
    session = begun(connect(summarizer=script, clock=clock))
    assert session.compact().receipt.status == "aborted"
    assert session.view().messages == TALK
    clock.advance(29)
    paused = session.compact().receipt
    assert paused.reason.startswith("summary model not called: 1 s of the cooldown after a failure (network) are left")
    assert (paused.status, paused.summary.failure, paused.summary.cooldown) == ("aborted", "network", 1.0)
    clock.advance(2)
    assert session.compact().receipt.status == "compacted"
    assert script.left == 1


def test_reported_usage_is_believed_after_a_restart(connect: Open) -> None:
    session = begun(connect(), messages=TALK[:60])
    session.observe({"prompt_tokens": 31_000, "completion_tokens": 5})
    assert session.size == (31_000, "reported")
    resumed = connect().session("s", context_length=WINDOW)
    assert resumed.size == (31_000, "reported")
    resumed.append(TALK[60:70])
    assert resumed.size.basis == "calibrated" and resumed.size.tokens > 31_000
    resumed.observe({"usage": None})
    assert resumed.size.basis == "calibrated"


def test_a_client_with_its_whole_history_or_with_the_view(connect: Open) -> None:
    sessions = connect()
    session = sessions.session("s", context_length=WINDOW)
    assert session.sync(TALK).added == len(TALK)
    session.compact(force=True)
    assert session.sync([*TALK, user("one")])[1:] == (len(TALK), 1, False, 0)
    seen = session.view().messages
    assert session.sync([*seen, assistant("two")])[1:] == (len(TALK) + 1, 1, False, 0)
    changed = session.sync([*TALK[:10], user("instead")])
    assert (changed.branched, changed.session.name, changed.common) == (True, "s~1", 10)
    assert changed.session.view().messages == [*TALK[:10], user("instead")]
    assert session.history().messages == [*TALK, user("one"), assistant("two")]


def test_a_branch_can_be_compacted_on_its_own(connect: Open) -> None:
    session = begun(connect())
    fold = session.compact(force=True).receipt.fold
    branch = session.sync([*TALK, user("a"), *work(500, 60)]).session
    assert branch is session
    branch = session.sync([*TALK, user("b"), *work(700, 60)]).session
    assert branch.name == "s~1"
    assert branch.unfold(fold) == session.unfold(fold)
    receipt = branch.compact(force=True).receipt
    assert (receipt.status, receipt.compaction_count) == ("compacted", 2)
    assert len(session.receipts()) == 1


def test_anthropic_messages_with_a_system_prompt_beside_them(connect: Open) -> None:
    messages = [user("Port the parser."), assistant("I will."), *anthropic_work(120)]
    session = connect().session("s", context_length=32_000, system="You are careful.")
    session.append(messages)
    assert session.info.dialect == "anthropic"  # type: ignore[union-attr]
    assert session.view().system == "You are careful."
    assert session.compact().receipt.status == "compacted"
    assert session.view().system == f"You are careful.\n\n{SYSTEM_NOTE}"
    hints = session.cache_hints()
    assert hints[-1].message_index == len(session.view()) - 1
    assert any("handoff" in hint.reason for hint in hints)
    assert {hint.provider for hint in hints} == {"anthropic"}
    assert session.cache_hints("openai") == () or session.cache_hints("openai")[-1].placement == "request"
    session.undo()
    assert session.view().system == "You are careful."
    assert session.view().messages == messages


def test_a_plain_beginning_takes_the_dialect_of_what_follows(connect: Open) -> None:
    session = connect().session("s")
    session.append([user("hello"), assistant("hi")])
    session.append(anthropic_work(2))
    assert session.info.dialect == "anthropic"  # type: ignore[union-attr]
    assert midfold.read(session.view().messages, dialect="anthropic").messages == session.view().transcript


def test_hits_have_handles_snippets_and_no_secrets(connect: Open) -> None:
    key = "sk-" + "ant-api03-" + "Zx9Qw8Er7Ty6Ui5Op4As3Df2Gh1Jk0Lz" * 2
    session = begun(connect())
    session.append(
        call(900, "terminal", {"command": "cat src/secrets_file.py"}, f"needle TOKEN = '{key}' in_the_haystack")
    )
    session.append(work(700, 60))
    session.compact(force=True)
    (hit,) = session.search("in_the_haystack")
    assert "needle" in hit.text and key not in hit.text and key[:20] not in hit.text
    assert key in session.unfold(hit.handle)[0]["content"]
    assert session.search("secrets_file.py", role="assistant")[0].position == len(TALK)
    assert session.search('"haystack needle"') == []
    assert session.search("needle", limit=0) == []


def test_exact_words_rank_before_scattered_ones(connect: Open) -> None:
    session = connect().session("s")
    session.append([user("the alpha and then much later the beta"), user("alpha beta"), user("beta alpha beta")])
    positions = [hit.position for hit in session.search("alpha beta")]
    assert (set(positions[:2]), positions[2]) == ({1, 2}, 0)


def test_an_exported_session_is_the_same_elsewhere(connect: Open) -> None:
    sessions = connect()
    session = begun(sessions)
    session.append(b'[{"role": "user",\n "content": "two\\nlines", "x": 1e-7}]')
    done = session.compact(force=True)
    session.append([user("after")])
    elsewhere = midfold.open("memory:")
    assert elsewhere.load(session.export().splitlines()) == "s"
    copy = elsewhere.session("s", context_length=WINDOW)
    assert copy.view().json() == session.view().json()
    assert copy.history().json() == session.history().json()
    assert copy.unfold_bytes(done.receipt.fold) == session.unfold_bytes(done.receipt.fold)
    assert elsewhere.check(deep=True) == []
    assert copy.export().splitlines()[1:] == session.export().splitlines()[1:]
    with pytest.raises(StoreConflict):
        elsewhere.load(session.export().splitlines())
    with pytest.raises(StoreError, match="line 1"):
        elsewhere.load([b"{}"])


def test_a_loaded_session_was_used_when_its_last_message_was_said(connect: Open) -> None:
    database = open_database("memory:", clock=lambda: 1_700_000_000)
    with Sessions(SqlStore(database)) as source:
        session = begun(source)
        session.compact(force=True)
        loaded = connect()
        loaded.load(session.export().splitlines())
        (info,) = loaded.all()
        assert info.updated == 1_700_000_000_000 < info.created
        assert loaded.session("s", context_length=WINDOW).view().json() == session.view().json()


def test_deleting_is_asked_for(connect: Open) -> None:
    sessions = connect()
    begun(sessions, "old", TALK[:4])
    begun(sessions, "new", TALK[:4])
    assert sessions.prune(3_600) == []
    with pytest.raises(StoreError, match="older_than must not be negative"):
        sessions.prune(-1)
    sessions.session("old").delete()
    assert "old" not in sessions and "new" in sessions
    assert [info.name for info in sessions.all()] == ["new"]


def test_the_host_of_the_specification_on_a_store(connect: Open) -> None:
    host = midfold.EngineHost(conversation=connect().session("s", context_length=WINDOW))
    host.append(TALK)
    assert host.should_compress() and host.size.tokens > WINDOW // 2
    assert not host.should_compress(prompt_tokens=10)
    shorter = host.compress(TALK)
    assert len(shorter) < len(TALK) and host.last is not None
    assert host.compress(shorter) is shorter
    assert host.last.status == "unchanged"
    assert host.unfold(connect().session("s").receipts()[0].receipt.fold)
    restarted = midfold.EngineHost(conversation=connect().session("s", context_length=WINDOW))
    restarted.restore(host.export())
    longer = restarted.compress([*shorter, *work(900, 80)], force=True)
    assert restarted.last is not None and restarted.last.compaction_count == 2
    assert len(folds(longer)) == 1
    with pytest.raises(StoreError):
        restarted.reset()


@pytest.mark.parametrize("verb", ["compress", "compress_async", "prepare and swap", "step"])
def test_every_verb_folds_where_the_session_is_stored(connect: Open, verb: str) -> None:
    host = midfold.EngineHost(conversation=connect().session("s", context_length=WINDOW))
    host.append(TALK)
    if verb == "compress_async":
        view = asyncio.run(host.compress_async(TALK))
    elif verb == "prepare and swap":
        ready = host.prepare(TALK)
        assert ready is not None and connect().session("s").receipts() == []
        view = host.swap(TALK, ready)
    else:
        view = host.step(TALK) if verb == "step" else host.compress(TALK)
    elsewhere = connect().session("s", context_length=WINDOW)
    assert [record.receipt for record in elsewhere.receipts()] == [host.last]
    assert len(view) < len(TALK) and view == elsewhere.view().messages


def test_another_model_is_another_model_for_the_whole_session(connect: Open) -> None:
    clock = FakeClock()
    script = ScriptedSummarizer([SummaryFailed("auth"), "## Goal\nthere again"])
    host = midfold.EngineHost(conversation=connect(summarizer=script, clock=clock).session("s", context_length=WINDOW))
    assert host.compress(TALK) is TALK and not host.should_compress()
    host.update_model("gpt-4o", WINDOW // 2)
    assert (host.window, host.budget.threshold_tokens, host.state.failure) == (WINDOW // 2, WINDOW // 4, "")
    assert connect().session("s").state == midfold.CompactionState()
    assert host.compress(TALK) is not TALK


def test_a_session_is_compacted_in_an_event_loop(connect: Open) -> None:
    script = ScriptedSummarizer(["## Goal\nport the parser"])
    session = begun(connect(summarizer=script))
    done = asyncio.run(session.compact_async(keep_last_exchanges=2))
    assert (done.receipt.status, done.session, script.left) == ("compacted", session, 0)
    assert connect().session("s").view().messages == session.view().messages


def test_a_compaction_that_is_cancelled_leaves_no_lease(connect: Open) -> None:
    class Endless:
        def __call__(self, ask: midfold.SummaryRequest) -> str:
            raise AssertionError("it is awaited")

        async def later(self, ask: midfold.SummaryRequest) -> str:
            await asyncio.sleep(60)
            return ""

    session = begun(connect(summarizer=Endless()))

    async def cancelled() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(session.compact_async(force=True), 1.0)

    asyncio.run(cancelled())
    assert connect().session("s", context_length=WINDOW).compact(force=True).receipt.status == "compacted"


def test_messages_bodies_and_bytes_are_taken_alike(connect: Open) -> None:
    session = connect().session("s")
    session.append({"role": "user", "content": "one"})
    session.append(b'[{"role":"assistant","content":"two"}]')
    session.append(midfold.read([user("three")]).messages)
    session.append({"model": "gpt-5.5", "messages": [system("four")]})
    odd = b'[{"role" : "user",  "content":"five", "x": 1e-7}]'
    session.append(midfold.read(odd).messages)
    session.append((midfold.Message("user", (midfold.Text("six"),)),))
    assert [message["content"] for message in session.view()] == ["one", "two", "three", "four", "five", "six"]
    assert odd[1:-1] in session.history().json()


@pytest.mark.parametrize("place", ["said", "name", "id", "arguments", "result"])
def test_a_session_with_half_a_character_in_it_is_compacted(place: str) -> None:
    """Clients may cut text inside a character; such a session could never be folded again."""
    half = {one: "\ud83d" if one == place else "" for one in ("said", "name", "id", "arguments", "result")}
    messages: list[dict[str, object]] = []
    for number in range(20):
        function = {"name": f"read{half['name']}", "arguments": f'{{"path":"a{half["arguments"]}{number}.py"}}'}
        call = {"id": f"c{half['id']}{number}", "type": "function", "function": function}
        messages += [
            {"role": "user", "content": f"ask {number} {half['said']} " + "word " * 300},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": f"Error: {half['result']} line\n" * 20},
        ]
    session = midfold.open("memory:").session("s")
    session.append(messages)
    assert session.compact(force=True).receipt.status in ("compacted", "pruned")
    assert json.loads(session.view().json())


def test_what_a_host_keeps_with_a_session_outlives_folds_undo_and_the_process(connect: Open) -> None:
    sessions = connect()
    assert sessions.host_state("s") == {}
    assert not sessions.set_host_state("s", {"a": 1}), "there is no session yet"
    session = begun(sessions)
    assert sessions.set_host_state("s", {"a": [1, {"b": "c"}]})
    session.observe({"prompt_tokens": 40_000, "completion_tokens": 10})
    assert session.compact().changed
    assert connect().host_state("s") == {"a": [1, {"b": "c"}]}
    session.undo()
    assert connect().host_state("s") == {"a": [1, {"b": "c"}]}
    sessions.delete("s")
    assert sessions.host_state("s") == {}


def test_an_undone_fold_stays_undone_until_the_window_is_nearly_full(connect: Open) -> None:
    session = connect().session("s", context_length=32_000)
    session.append([user("Port the parser."), assistant("I will."), *work(0, 90)])
    assert session.compact().receipt.status == "compacted"
    session.undo()
    decided = {share: session.decide(int(32_000 * share)) for share in (0.6, 0.94, 0.951, 0.98)}
    assert [decision.fold for decision in decided.values()] == [False, False, True, True]
    assert "undone" in decided[0.94].reason
