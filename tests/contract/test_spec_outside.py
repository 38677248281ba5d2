"""Statements of both documents, tested as a user would: through `compact`, a session, an agent, a gateway, a terminal.

Each test fails under a mutation of the code (tests/mutants.toml).
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import midfold
from midfold.compaction.receipt import FAILURES
from midfold.engines import Compressor, ContextEngine
from midfold.engines.contract import ToolSpec
from midfold.testing import FakeClock
from midfold.testing.answers import value
from midfold.testing.doubles import ScriptedProvider
from midfold.transcript.laws import violations
from support.build import PORTING, SECRET, WINDOW, Asked, handoffs, setting, tool_run, work
from support.build import ported as folded
from support.fixtures import assistant, call, number_lines, system, tool_results, user
from support.gateways import running

PIECE = 10
"""Consecutive characters of a credential that count as a leak."""


def leaks(text: str, secret: str = SECRET) -> list[str]:
    """Return the pieces of a credential in a text, even with characters inserted between them."""
    pieces = {secret[start : start + PIECE] for start in range(len(secret) - PIECE + 1)}
    return sorted(piece for piece in pieces if piece in text)


# Redaction


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("said", ["Use the key {} for the upload.", "key={}", "`{}`", "- curl -H 'X-Key: {}' host"])
def test_no_piece_of_a_key_in_a_models_summary_is_left(said: str, verify: bool) -> None:
    asked = Asked(f"## Goal\nUpload.\n\n## Critical Context\n{said.format(SECRET)}\nThe upload was started at noon.")
    result = folded(summarizer=asked, config=setting(verify=verify))
    shown = [json.dumps(result.messages), json.dumps(msgspec.to_builtins(result.state)), repr(result.receipt)]
    assert [leaks(text) for text in shown] == [[], [], []]
    assert "started at noon" in handoffs(result.messages)[0]


# Media


def picture_in_result(number: int) -> list[dict[str, Any]]:
    """Return a screenshot in a tool result, in Anthropic's format."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": f"AAA{number % 10}" * 50}}
    content = [{"type": "text", "text": f"shot {number}"}, image]
    return [
        {"role": "assistant", "content": [{"type": "tool_use", "id": f"s{number}", "name": "browser", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"s{number}", "content": content}]},
    ]


def pictures(messages: Any) -> int:
    return json.dumps(messages).count('"type": "image"')


def test_screenshots_in_old_tool_results_do_not_survive_a_compaction() -> None:
    shots = [message for number in range(40) for message in picture_in_result(number)]
    newest = {
        "role": "user",
        "content": [{"type": "text", "text": "And this?"}, picture_in_result(99)[1]["content"][0]["content"][1]],
    }
    messages = [user("Watch the page."), *shots, newest, {"role": "assistant", "content": "I see."}]
    result = midfold.compact(messages, context_length=64_000, config=setting(protect_last_n=20))
    assert result.changed
    assert pictures(messages) == 41
    assert pictures(result.messages) == 1
    assert result.messages[-2] is newest
    assert "removed to save context space" in json.dumps(result.messages)


# Back-references


def test_no_back_reference_leads_to_a_copy_that_became_a_digest_itself() -> None:
    body = number_lines("the same old line {n}", 80)
    old = [message for number in range(6) for message in call(900 + number, "read_file", {"path": "a.py"}, body)]
    messages = [user("Go."), assistant("Yes."), *old, *tool_run(0, 30)]
    result = midfold.compact(messages, context_length=64_000, force=True, config=setting(protect_last_n=4))
    assert result.receipt.status == "pruned"
    shown = list(tool_results(result.messages))
    assert body not in shown, "no copy is in the tail"
    assert [text for text in shown if text.startswith("[Same tool output")] == []
    assert {digest.kind for digest in result.receipt.digests} == {"digest"}


# Tail, and role of the handoff


def test_the_tail_is_the_callers_own_messages_and_nothing_stands_behind_it() -> None:
    ends = [*call(900, "read_file", {"path": "a"}, number_lines("line {n}", 40)), assistant("Read."), user("And now?")]
    messages = [system(), user("Go."), assistant("Yes."), *work(0), *ends]
    result = midfold.compact(messages, context_length=60_000)
    assert result.receipt.status == "compacted"
    assert result.boundary is not None
    tail = messages[result.boundary.end :]
    assert len(tail) >= 20
    assert all(mine is theirs for mine, theirs in zip(result.messages[-len(tail) :], tail, strict=True))
    kept = sum(any(message is mine for mine in result.messages) for message in messages)
    assert kept == len(tail) + 2, "system prompt aside, the first exchange and the tail"


@pytest.mark.parametrize(
    ("opening", "role"), [([user("Go.")], "assistant"), ([user("Go."), assistant("Yes.")], "user")]
)
def test_the_handoff_speaks_in_the_role_that_its_neighbours_leave(opening: list[Any], role: str) -> None:
    messages = [system(), *opening, *work(0)]
    result = midfold.compact(messages, context_length=60_000, config=setting(protect_last_n=5))
    text = handoffs(result.messages)[0]
    place = next(number for number, message in enumerate(result.messages) if message.get("content") == text)
    assert (place, result.messages[place]["role"]) == (1 + len(opening), role)
    roles = [message["role"] for message in result.messages]
    assert not any(one == two != "tool" for one, two in itertools.pairwise(roles))


def test_behind_a_system_prompt_alone_the_handoff_is_the_users_and_comes_first() -> None:
    first = midfold.compact([system(), user("Go."), assistant("Yes."), *work(0)], context_length=60_000)
    grown = [*first.messages, *work(500), user("And now?"), assistant("Done.")]
    second = midfold.compact(grown, context_length=60_000, state=first.state)
    assert second.receipt.compaction_count == 2
    assert second.messages[1] == user(handoffs(second.messages)[0])


def test_the_latest_visible_answer_stays_also_where_it_does_not_follow_the_ask() -> None:
    answer = assistant("THE ANSWER")
    messages = [system(), user("Go."), assistant("Yes."), user("THE ASK"), *work(700, 30), answer, *work(0)]
    result = midfold.compact(messages, context_length=60_000, config=setting(protect_last_n=4))
    assert result.receipt.status == "compacted"
    assert any(message is answer for message in result.messages)


def test_a_summary_that_is_too_long_is_cut_to_its_budget() -> None:
    asked: list[midfold.SummaryRequest] = []

    def chatty(ask: midfold.SummaryRequest) -> str:
        asked.append(ask)
        return "## Goal\n" + "\n".join(f"- step {n} was done and checked" for n in range(ask.budget_tokens // 3))

    result = folded(summarizer=chatty, config=setting(verify=False))
    assert result.receipt.summary.source == "model"
    assert result.receipt.summary.tokens <= asked[0].budget_tokens * 1.15


def test_a_call_that_was_lost_before_another_batch_at_the_end_is_answered() -> None:
    lost, last = call(900, "terminal", {"command": "sleep"}, "")[0], call(901, "terminal", {"command": "ls"}, "a b")
    result = midfold.compact([system(), user("Go."), assistant("Yes."), *work(0), lost, *last], context_length=60_000)
    assert result.changed
    ids = [message["tool_call_id"] for message in result.messages if message["role"] == "tool"]
    assert "call_900" in ids, "providers answer 400 to a call without a result"
    assert violations(midfold.read(result.messages).messages) == ()


# Engine decisions and tools


class Contrary(Compressor):
    """Engine with one tool that folds small conversations and no large ones."""

    name = "contrary"

    def should_compress(self, request: Any) -> midfold.Pressure:
        return midfold.Pressure.HARD if (request.prompt_tokens or 0) < 20_000 else midfold.Pressure.NONE

    def compress(self, request: Any) -> Any:
        return super().compress(msgspec.structs.replace(request, force=True))

    def tools(self) -> tuple[ToolSpec, ...]:
        return (ToolSpec(name="lcm_grep", description="Looks.", parameters={"type": "object", "properties": {}}),)


@pytest.mark.parametrize(("calls", "folds"), [(20, True), (200, False)])
def test_the_engine_decides_whatever_the_size(calls: int, folds: bool) -> None:
    engine: ContextEngine = Contrary()
    messages = [user("Go."), assistant("Yes."), *work(0, calls)]
    assert midfold.compact(messages, context_length=40_000, engine=engine).changed is folds
    host = midfold.EngineHost(engine, context_length=40_000)
    host.append(messages)
    assert host.should_compress() is folds
    with midfold.open("memory:", engine=engine) as sessions:
        session = sessions.session("s", context_length=40_000)
        session.append(messages)
        assert session.should_compact() is folds
        assert session.compact().changed is folds


# Gateway hygiene

UNCOUNTED = value({"choices": []})
HUGE = [
    user("Read the log."),
    *call(0, "read_file", {"path": "log"}, number_lines("line {n} of it", 9_000)),
    user("And?"),
]


def sent_through(messages: list[Any], **settings: Any) -> tuple[str, Any]:
    """Return the gateway's action on a request at a window of 32,000 tokens, and the provider's request."""
    body = json.dumps({"model": "m", "messages": messages}).encode()
    with (
        ScriptedProvider(then=lambda request: UNCOUNTED) as provider,
        running(provider.url, window=32_000, **settings) as gateway,
    ):
        _, head, _ = gateway.post("/v1/chat/completions", body)
        return head["x-midfold-action"], provider.requests[-1].body["messages"]


def test_hygiene_acts_from_four_messages_on() -> None:
    action, got = sent_through(HUGE[:3])
    assert (action, got) == ("relayed", HUGE[:3])
    action, got = sent_through(HUGE)
    assert action == "pruned"
    assert len(json.dumps(got)) < 5_000


def test_hygiene_leaves_everything_alone_where_compression_is_disabled() -> None:
    action, got = sent_through(HUGE, compression={"enabled": False})
    assert (action, got) == ("passed", HUGE)


# Sessions: cooldown after a failure


def test_a_failure_of_no_known_kind_is_another_and_keeps_its_words() -> None:
    def failing(ask: midfold.SummaryRequest) -> str:
        raise midfold.SummaryFailed("the model is on holiday")  # type: ignore[arg-type]

    turns = [user("Go."), assistant("Yes."), *work(0, 200)]
    done = midfold.compact(turns, context_length=40_000, summarizer=failing)
    assert (done.receipt.status, done.receipt.summary.failure) == ("compacted", "other")
    assert "the model is on holiday" in str(midfold.SummaryFailed("the model is on holiday"))  # type: ignore[arg-type]


def test_a_session_asks_no_model_during_the_pause_and_asks_again_after_it() -> None:
    clock, asked = FakeClock(), 0

    def refused(ask: midfold.SummaryRequest) -> str:
        nonlocal asked
        asked += 1
        raise midfold.SummaryFailed("auth")

    with midfold.open("memory:", summarizer=refused, clock=clock) as sessions:
        session = sessions.session("s", context_length=40_000)
        session.append([user("Go."), assistant("Yes."), *work(0, 200)])
        first = session.compact().receipt
        assert (first.status, first.summary.cooldown, asked) == ("aborted", 300, 1)
        for seconds in (0, 150, 149):
            clock.advance(seconds)
            again = sessions.session("s", context_length=40_000)
            assert not again.should_compact()
            assert again.compact().receipt.status == "aborted"
            assert asked == 1
        clock.advance(1.5)
        assert sessions.session("s", context_length=40_000).compact().receipt.status == "aborted"
        assert asked == 2


# Failures


KEEPS = {"auth", "network"}
ASKS_THE_CONVERSATIONS_MODEL = {"model_not_found", "unavailable", "timeout"}
TRANSIENT = {"malformed", "timeout", "unavailable", "network"}


def test_the_failures_of_the_documents_are_treated_as_they_say() -> None:
    assert {kind for kind, row in FAILURES.items() if row.then == "keep"} == KEEPS
    assert {kind for kind, row in FAILURES.items() if row.main_model} >= ASKS_THE_CONVERSATIONS_MODEL
    assert not any(FAILURES[kind].main_model for kind in KEEPS), "no other model is asked where nothing is folded"
    assert {FAILURES[kind].retry_class for kind in TRANSIENT} == {"transient"}
    assert all(row.cooldown > 0 for row in FAILURES.values())
    assert FAILURES["auth"].cooldown == 300


@pytest.mark.parametrize(
    ("answer", "kind"),
    [("I'm sorry, I cannot help with that.", "filtered"), ("<html><body>502 Bad Gateway</body></html>", "malformed")],
)
def test_an_answer_that_is_no_summary_is_a_failure_and_not_the_handoff(answer: str, kind: str) -> None:
    result = folded(summarizer=lambda ask: midfold.SummaryAnswer(text=answer, strict=True))
    assert (result.receipt.summary.failure, result.receipt.summary.source) == (kind, "local")
    assert answer not in handoffs(result.messages)[0]


@pytest.mark.parametrize("tool", ["fetch_page", "terminal", "read_file", "anything_else"])
@pytest.mark.parametrize("told", ["request timed out after 30 s", "Socket: connection refused by 10.0.0.7"])
def test_the_fallback_tells_an_error_by_its_words_whatever_the_tool(tool: str, told: str) -> None:
    failed = call(900, tool, {"url": "http://10.0.0.7/a"}, told)
    messages = [system(), user("Go."), assistant("Yes."), *work(0, 30), *failed, *work(100, 60)]
    summary = handoffs(midfold.compact(messages, context_length=40_000, config=setting(protect_last_n=4)).messages)[0]
    assert told in summary


# Leases


def test_a_crashed_compactor_blocks_for_its_lease_and_not_longer(tmp_path: Path) -> None:
    clock, url = FakeClock(), f"sqlite:///{tmp_path}/s.db"
    with midfold.open(url, clock=clock, lease_seconds=45) as crashed:
        crashed.session("s").append(PORTING)
        lease = crashed.leases.try_acquire("s")
        assert lease is not None
        with midfold.open(url, clock=clock, lease_seconds=45) as sessions:
            session = sessions.session("s", context_length=WINDOW)
            clock.advance(44.9)
            assert session.compact().receipt.status == "already_in_flight"
            assert len(session.view().messages) == len(PORTING)
            clock.advance(0.2)
            assert session.compact().receipt.status == "compacted"
        assert not crashed.leases.refresh(lease)


def test_a_lease_that_is_refreshed_lives_on(tmp_path: Path) -> None:
    clock = FakeClock()
    with midfold.open(f"sqlite:///{tmp_path}/s.db", clock=clock, lease_seconds=45) as sessions:
        lease = sessions.leases.try_acquire("s")
        assert lease is not None
        clock.advance(44)
        assert sessions.leases.refresh(lease)
        clock.advance(44)
        assert sessions.leases.try_acquire("s") is None
        clock.advance(1.1)
        assert not sessions.leases.refresh(lease)
        assert sessions.leases.try_acquire("s") is not None


def test_a_holder_that_slept_past_its_time_commits_nothing_also_if_nobody_else_came() -> None:
    with midfold.open("memory:", lease_seconds=0.3) as sessions:

        def stalled(ask: midfold.SummaryRequest) -> str:
            database = sessions.store.database
            held = database.write(lambda tx: tx.one("lease", session="s"))
            assert held is not None
            # The renewing thread is stopped, as in a suspended process, so its lease expires.
            sessions.store.leases.refresh = lambda lease: True  # type: ignore[method-assign]
            assert _eventually(lambda: (database.write(lambda tx: tx.one("lease", session="s")) or [0, 0, 1])[2] <= 0)
            return "## Goal\nlate"

        sessions.summarizer = stalled
        session = sessions.session("s", context_length=40_000)
        messages = [user("Go."), assistant("Yes."), *work(0, 200)]
        session.append(messages)
        done = session.compact(force=True)
        assert (done.receipt.status, session.receipts()) == ("aborted", [])
        assert session.view().messages == messages


def _eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Return whether a condition becomes true; leases use the clock of the database."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.05)
    return False
