"""pitfalls.md, behaviours worth pinning down: roles, anti-thrash, sanitizer, restarts."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

import midfold
from midfold.compaction.handoff import END_MARKER
from midfold.transcript.laws import violations
from midfold.transcript.repairs import sanitize
from support import fixtures
from support.build import WINDOW, folded, handoff_of, item, responses_work, setting, work
from support.fixtures import assistant, call, system, user

SESSION = [system(), user("Port the parser."), assistant("I will."), *work(0)]


# Roles


def test_the_end_marker_comes_last_and_a_user_message_always_survives() -> None:
    messages: list[Any] = [system(), user("The only ask."), *work(0)]
    for number in range(4):
        result = folded(messages)
        assert handoff_of(result.messages).endswith(END_MARKER)
        assert any(message.get("content") == "The only ask." for message in result.messages)
        messages = [*result.messages, *work(1_000 * (number + 1))]


def test_no_same_role_neighbours_after_the_sanitizer_removed_one() -> None:
    empty = {"role": "assistant", "content": ""}
    messages = [system(), *work(0, 40, 4_000), empty, user("Next."), assistant("Yes.")]
    result = folded(messages, config=setting(protect_last_n=3, prune="off"))
    roles = [message["role"] for message in result.messages]
    assert not any(one == two == "user" for one, two in itertools.pairwise(roles))


def test_no_same_role_neighbours_where_a_stripped_call_was_all_there_was() -> None:
    tail = [user("First."), call(900, "sh", {}, "")[0], user("Second."), assistant("Yes.")]
    result = folded([*SESSION, *tail], config=setting(orphan_calls="strip"))
    roles = [message["role"] for message in result.messages]
    assert not any(one == two == "user" for one, two in itertools.pairwise(roles))


# Anti-thrash


def test_tokenizer_skew_is_no_strike() -> None:
    report = midfold.compact(SESSION, context_length=WINDOW).receipt
    for factor in (0.6, 2.5):
        result = folded(SESSION, usage={"prompt_tokens": round(report.old_tokens * factor)})
        assert result.state.ineffective == 0


def test_strikes_follow_a_session_through_export_and_are_cleared_by_success() -> None:
    fixture = fixtures.repeated_noop_compression()
    host = midfold.EngineHost(context_length=16_000)
    for _ in range(2):
        assert host.compress(fixture.messages) is fixture.messages
    size = host.state.ineffective_tokens
    assert not host.should_compress(size)
    assert host.should_compress(1_000_000), "there is something new to fold"
    again = midfold.EngineHost(context_length=16_000)
    again.restore(json.loads(json.dumps(host.export())))
    assert not again.should_compress(size)
    again.update_model("another-model", 16_000)
    assert again.should_compress(size)


# Sanitizer


def test_call_id_and_id_may_differ() -> None:
    result = folded([item("user", "Go."), *responses_work(120)])
    assert result.receipt.repairs == ()
    assert violations(midfold.read(result.messages).messages) == ()
    assert result.messages[-1]["id"] == "fo_119"


def test_text_is_kept_when_calls_are_stripped() -> None:
    open_call = call(900, "sh", {}, "")[0] | {"content": "I will look at it."}
    messages = midfold.read([user("Go."), open_call, user("Stop."), assistant("Yes.")]).messages
    clean, repairs = sanitize(messages, orphan_calls="strip")
    assert clean[1].text == "I will look at it."
    assert len(clean[1].parts) == 1
    assert repairs


def test_reasoning_goes_with_the_call_it_belongs_to() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ZW5j"}
    lost = {"type": "function_call", "call_id": "open", "name": "sh", "arguments": "{}"}
    end = [thought, lost, item("user", "Stop."), item("assistant", "Stopped.")]
    result = folded([item("user", "Go."), *responses_work(120), *end], config=setting(orphan_calls="strip"))
    kinds = [entry.get("type") for entry in result.messages]
    assert "reasoning" not in kinds, "providers refuse reasoning without the item that it led to"


def test_the_sanitizer_leaves_nothing_that_the_laws_forbid() -> None:
    messages = midfold.read([user("Go."), assistant("Yes."), {"role": "system", "content": ""}, user("And?")]).messages
    assert violations(sanitize(messages)[0]) == ()


def test_what_the_sanitizer_removes_can_be_unfolded() -> None:
    orphan = {"role": "tool", "tool_call_id": "gone", "content": "THE ONLY COPY"}
    result = folded([*SESSION, orphan, user("Hm?"), assistant("Yes.")])
    kept = json.dumps([result.messages, [result.archive.originals(handle) for handle in result.archive]])
    assert "THE ONLY COPY" in kept


def test_repairs_name_the_place_in_the_old_transcript() -> None:
    orphan = {"role": "tool", "tool_call_id": "gone", "content": "?"}
    messages = [*SESSION, orphan, user("Hm?"), assistant("Yes.")]
    assert {repair.message for repair in folded(messages).receipt.repairs} == {len(SESSION)}


# Proxies, restarts


@pytest.mark.parametrize("source", [b' {"messages" : [{"role":"user","content":"\\u00e9 1e-7"}], "max_tokens":1e2}\n'])
def test_an_unchanged_request_leaves_byte_identical(source: bytes) -> None:
    assert midfold.compact(source, context_length=WINDOW).messages is source


def test_a_changed_request_keeps_every_other_byte_and_parameter() -> None:
    listed = json.dumps(SESSION, ensure_ascii=True).encode()
    source = b'{ "max_tokens": 1e2, "seed" : 1e-7,"messages":' + listed + b',\n "x":"\\u00e9"}'
    out = folded(source).messages
    assert out.startswith(b'{ "max_tokens": 1e2, "seed" : 1e-7,"messages":[')
    assert out.endswith(b',\n "x":"\\u00e9"}')


def test_output_is_a_pure_function_of_the_content() -> None:
    hosts = [midfold.EngineHost(context_length=WINDOW) for _ in range(2)]
    hosts[0].update_from_response({"prompt_tokens": 11})
    views = [host.compress(json.loads(json.dumps(SESSION))) for host in hosts]
    assert json.dumps(views[0]) == json.dumps(views[1]) == json.dumps(folded(SESSION).messages)


def test_every_handle_in_the_view_unfolds() -> None:
    host = midfold.EngineHost(context_length=WINDOW)
    view = host.compress([*SESSION, *call(900, "sh", {}, "word " * 30_000), user("And?")])
    fold = host.last.fold if host.last else ""
    assert host.unfold(fold) == SESSION[3 : 3 + len(host.unfold(fold))]
    assert host.last is not None
    for handle in host.last.handles:
        assert host.unfold(handle)
    assert any(handle in json.dumps(view) for handle in host.last.handles)


def test_handles_still_unfold_after_a_restart() -> None:
    host = midfold.EngineHost(context_length=WINDOW)
    host.compress(SESSION)
    again = midfold.EngineHost(context_length=WINDOW)
    again.restore(json.loads(json.dumps(host.export())))
    assert host.last is not None
    assert again.unfold(host.last.fold) == host.unfold(host.last.fold)


def test_an_archive_written_as_lines_holds_the_originals() -> None:
    result = folded(SESSION)
    stored = {entry["handle"]: entry["messages"] for entry in map(json.loads, result.archive.lines())}
    assert stored[result.receipt.fold] == result.archive.originals(result.receipt.fold)


@pytest.mark.parametrize("first", [3, 4])
def test_no_result_behind_the_handoff_answers_a_call_before_it(first: int) -> None:
    asked, late = call(900, "terminal", {"command": "make"}, "LATE RESULT")
    messages = [user("Go."), asked, user("Never mind."), *work(0, 60)]
    messages += [user("Next."), late, assistant("Yes."), user("And now?")]
    protection = midfold.Protection(protect_first_n_messages=first)
    result = folded(messages, config=setting(prune="off"), protection=protection, keep_last_exchanges=2)
    assert asked in result.messages
    assert "LATE RESULT" not in str(result.messages)
    assert "not recorded" in str(result.messages[result.messages.index(asked) + 1]["content"])
    assert violations(midfold.read(result.messages).messages) == ()
