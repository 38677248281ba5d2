from __future__ import annotations

import json
import time
from typing import Any

import pytest

from midfold import Media, Message, Text, ToolCall, ToolResult, compact, read, write
from midfold.transcript.laws import violations
from midfold.transcript.repairs import STRIPPED, STUB, OrphanCalls, sanitize

USER = Message("user", (Text("ask"),))
ANSWER = Message("assistant", (Text("answer"),))
CALL_A = {"id": "a", "type": "function", "function": {"name": "ls", "arguments": "{}"}}


def calls(*ids: str, text: str = "") -> Message:
    said = (Text(text),) if text else ()
    return Message("assistant", (*said, *(ToolCall(call_id, "t", "{}") for call_id in ids)))


def result(call_id: str) -> Message:
    return Message("tool", (ToolResult(call_id, (Text("r"),)),))


def test_a_legal_transcript_comes_back_as_the_same_object() -> None:
    messages = (USER, calls("a", "b"), result("a"), result("b"), ANSWER)
    assert sanitize(messages) == (messages, ())
    assert sanitize(messages)[0] is messages


def test_results_without_a_call_are_removed() -> None:
    clean, repairs = sanitize((USER, result("a"), ANSWER))
    assert clean == (USER, ANSWER)
    assert repairs[0].what == "removed 1 result without a call"


def test_calls_without_a_result_are_bridged_after_the_results_that_are_there() -> None:
    clean, repairs = sanitize((USER, calls("a", "b"), result("a"), USER))
    assert [message.role for message in clean] == ["user", "assistant", "tool", "tool", "user"]
    assert clean[3].text == STUB
    assert violations(clean) == ()
    assert repairs[0].what == "added 1 stub result"


def test_bridges_stand_in_the_next_user_message_where_the_dialect_has_them_there() -> None:
    clean, _ = sanitize((USER, calls("a"), USER), result_role="user")
    assert [type(part).__name__ for part in clean[2].parts] == ["ToolResult", "Text"]
    alone, _ = sanitize((USER, calls("a"), ANSWER, USER), result_role="user")
    assert [message.role for message in alone] == ["user", "assistant", "user", "assistant", "user"]
    assert violations(alone) == ()


def test_stripping_calls_keeps_the_text() -> None:
    clean, _ = sanitize((USER, calls("a", text="let me see"), USER), orphan_calls="strip")
    assert clean[1].parts == (Text("let me see"),)
    gone, repairs = sanitize((USER, calls("a"), USER), orphan_calls="strip")
    assert [message.role for message in gone] == ["user", "assistant", "user"]
    assert gone[1].text == STRIPPED
    assert len(repairs) == 1


def test_calls_that_may_still_be_running_are_left_alone() -> None:
    messages = (USER, calls("a", "b"), result("a"))
    assert sanitize(messages)[0] is messages


def test_messages_that_are_none_and_empty_ones_are_removed() -> None:
    messages = read(
        [
            {"role": "user", "content": "a"},
            None,
            5,
            {"role": "assistant", "content": ""},
            {"role": "user", "content": "b"},
        ]
    ).messages
    clean, repairs = sanitize(messages)
    assert [message.text for message in clean] == ["a", "b"]
    assert [repair.message for repair in repairs] == [1, 2, 3]


def test_parallel_results_are_never_lost() -> None:
    messages = (USER, calls("a", "b", "c"), result("c"), result("a"), result("b"), ANSWER)
    assert sanitize(messages)[0] is messages


def test_a_bridge_stands_behind_all_items_of_its_batch() -> None:
    messages = (USER, calls("a"), calls("b"), result("b"), ANSWER, USER)
    clean, _ = sanitize(messages, batches_of_items=True)
    assert violations(clean) == ()
    assert clean[4].text == STUB
    each, _ = sanitize(messages)
    assert violations(each) == ()
    assert each[2].text == STUB


def test_a_result_takes_the_id_of_its_call_and_both_get_one_where_there_is_none() -> None:
    taken, repairs = sanitize((USER, calls("a"), result(""), ANSWER))
    assert taken[2].parts == (ToolResult("a", (Text("r"),)),)
    assert repairs[0].what == "set a result's id to that of its call"
    given, _ = sanitize((USER, calls(""), result(""), ANSWER))
    call, answer = given[1].parts[0], given[2].parts[0]
    assert isinstance(call, ToolCall)
    assert isinstance(answer, ToolResult)
    assert call.id == answer.call_id != ""
    alone, _ = sanitize((USER, calls(""), USER))
    assert violations(alone) == ()
    stub = alone[2].parts[0]
    assert isinstance(stub, ToolResult)
    assert stub.call_id


def test_legacy_function_calls_are_left_alone() -> None:
    messages = read(
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "r"},
        ]
    ).messages
    assert sanitize(messages)[0] is messages


def test_calls_without_a_name_are_taken_out_and_empty_arguments_become_an_object() -> None:
    messages = read(
        [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "so", "tool_calls": [{"id": "1", "type": "function", "function": None}]},
            {"role": "tool", "tool_call_id": "1", "content": "r"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "2", "type": "function", "function": {"name": "f", "arguments": None}}],
            },
            {"role": "tool", "tool_call_id": "2", "content": "r"},
        ]
    ).messages
    clean, repairs = sanitize(messages)
    assert [message.role for message in clean] == ["user", "assistant", "assistant", "tool"]
    assert clean[2].parts == (ToolCall("2", "f", "{}"),)
    assert {repair.message for repair in repairs} == {1, 2, 3}


def test_a_call_that_an_answer_follows_is_not_waiting() -> None:
    clean, _ = sanitize((USER, calls("a"), ANSWER))
    assert [message.role for message in clean] == ["user", "assistant", "tool", "assistant"]


def test_what_a_repair_uncovers_is_repaired_too() -> None:
    stray = Message("user", (Media("image", "AA"), ToolResult("other", ())))
    clean, _ = sanitize((USER, calls("a"), stray), result_role="user")
    assert violations(clean) == ()
    same = (USER, calls("a"), calls("a"), calls("a"), result("a"), ANSWER)
    assert violations(sanitize(same)[0]) == ()


@pytest.mark.parametrize("orphan_calls", ["bridge", "strip"])
@pytest.mark.parametrize("named", [True, False])
def test_repairs_take_time_in_proportion_to_the_calls(orphan_calls: OrphanCalls, named: bool) -> None:
    """Regression: a message of 4,000 calls without results took 17 seconds, and one of 100,000 hours."""
    message = calls(*(f"c{number}" if named else "" for number in range(20_000)))
    begun = time.process_time()
    clean, _ = sanitize((USER, message, USER), orphan_calls=orphan_calls)
    assert time.process_time() - begun < 4
    assert not violations(clean)


def test_many_results_without_ids_in_one_message_take_the_ids_of_their_calls() -> None:
    blocks = [{"type": "tool_use", "id": f"c{number}", "name": "t", "input": {}} for number in range(5_000)]
    results = [{"type": "tool_result", "content": "r"} for _ in blocks]
    said = [{"role": "user", "content": "go"}, {"role": "assistant", "content": blocks}]
    document = read(json.dumps([*said, {"role": "user", "content": results}]).encode(), dialect="anthropic")
    begun = time.process_time()
    clean, repairs = sanitize(document.messages)
    written = json.loads(write(document, messages=clean))
    assert time.process_time() - begun < 4
    assert len(repairs) == 5_000
    assert [block["tool_use_id"] for block in written[2]["content"]] == [block["id"] for block in blocks]


@pytest.mark.parametrize("role", ["tool", "user"])
@pytest.mark.parametrize("orphan_calls", ["bridge", "strip"])
def test_calls_of_a_message_whose_role_nobody_knows_are_calls(role: str, orphan_calls: OrphanCalls) -> None:
    lost = Message("other", (ToolCall("x", "t", "{}"),))
    answer = ToolResult("a", (Text("r"),))
    results = Message(role, (answer,))  # type: ignore[arg-type]
    for messages in ((USER, lost, calls("a"), results, ANSWER), (USER, lost, USER), (USER, calls("a"), results, lost)):
        again = (*messages, USER)
        clean, _ = sanitize(again, orphan_calls=orphan_calls, result_role=role)  # type: ignore[arg-type]
        assert violations(clean) == ()
        assert sanitize(clean, orphan_calls=orphan_calls, result_role=role)[0] is clean  # type: ignore[arg-type]
    both = Message(role, (answer, ToolResult("x", (Text("r"),))))  # type: ignore[arg-type]
    joined, _ = sanitize((USER, lost, calls("a"), both, ANSWER), result_role=role)  # type: ignore[arg-type]
    assert [message.role for message in joined] == ["user", "assistant", role, "assistant"]
    assert violations(joined) == ()


def chat(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages a provider receives after the repairs."""
    document = read(list(messages))
    clean, _ = sanitize(document.messages)
    assert violations(clean) == ()
    written: list[dict[str, Any]] = write(document, messages=clean)
    return written


LEGACY = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
HELLO = {"role": "user", "content": "Hello."}


def test_a_legacy_call_without_a_result_is_answered_as_providers_take_it() -> None:
    _, called, stub, _ = chat(HELLO, LEGACY, HELLO)
    assert "function_call" not in called
    ((name, function),) = [(call["id"], call["function"]) for call in called["tool_calls"]]
    assert function == {"name": "f", "arguments": "{}"}
    assert (stub["role"], stub["tool_call_id"]) == ("tool", name)


def test_a_legacy_result_of_a_call_with_an_id_takes_it() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    made = {"role": "assistant", "content": None, "tool_calls": [call]}
    _, called, result, _ = chat(HELLO, made, {"role": "function", "name": "f", "content": "42"}, HELLO)
    assert called == made
    assert (result["role"], result["tool_call_id"], result["content"]) == ("tool", "a", "42")


def test_legacy_calls_of_one_batch_become_calls_with_ids() -> None:
    told = {"role": "function", "name": "f", "content": "42"}
    _, called, first, second, _ = chat(HELLO, LEGACY, LEGACY, told, told, HELLO)
    assert [call["id"] for call in called["tool_calls"]] == [first["tool_call_id"], second["tool_call_id"]]
    assert {first["role"], second["role"]} == {"tool"}


@pytest.mark.parametrize("orphan_calls", ["bridge", "strip"])
@pytest.mark.parametrize("role", ["user", "assistant", "other"])
def test_a_stray_result_beside_a_lost_call_hides_nothing(role: Any, orphan_calls: OrphanCalls) -> None:
    mixed = Message(role, (ToolResult("gone", (Text("r"),)), ToolCall("lost", "t", "{}")))
    for messages in ((mixed,), (mixed, USER), (USER, mixed, USER)):
        clean, _ = sanitize(messages, orphan_calls=orphan_calls, result_role="user")
        assert not any("answers no call" in found or "without a result" in found for found in violations(clean))


THINKING = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
HIDDEN = [
    {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALL_A]},
    {"role": "assistant", "content": " ", "reasoning_content": "hm", "tool_calls": [CALL_A]},
    {"role": "assistant", "content": [THINKING, {"type": "tool_use", "id": "a", "name": "ls", "input": {}}]},
    {
        "role": "assistant",
        "content": [
            {"type": "redacted_thinking", "data": "c2ln"},
            {"type": "tool_use", "id": "a", "name": "ls", "input": {}},
        ],
    },
]


@pytest.mark.parametrize("message", HIDDEN)
def test_stripping_calls_leaves_no_message_of_reasoning_alone(message: dict[str, Any]) -> None:
    document = read([{"role": "user", "content": "Go."}, message, {"role": "user", "content": "And?"}])
    clean, _ = sanitize(document.messages, orphan_calls="strip", result_role="user")
    (_, said, _) = write(document, messages=clean)
    assert STRIPPED in str(said["content"])
    assert "reasoning_content" not in said and "hinking" not in str(said["content"])


def test_taking_out_a_call_without_a_name_leaves_no_message_of_reasoning_alone() -> None:
    nameless = {**CALL_A, "function": {"name": "", "arguments": "{}"}}
    hidden = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [nameless]}
    document = read([{"role": "user", "content": "Go."}, hidden, {"role": "user", "content": "And?"}])
    assert [message.text for message in sanitize(document.messages)[0]] == ["Go.", "And?"]


def said_item(text: str, item_id: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text}]
    return {"type": "message", "role": "assistant", "id": item_id, "content": content}


REFERENCE = {"type": "item_reference", "id": "rs_9"}
REPEATED = [
    {"type": "message", "role": "user", "content": "Go."},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "one"},
    {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "ls", "arguments": "{}"},
    {"type": "function_call_output", "id": "fo_1", "call_id": "a", "output": "x"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "two"},
    {"type": "function_call", "id": "fc_1", "call_id": "b", "name": "ls", "arguments": "{}"},
    {"type": "function_call_output", "id": "fo_1", "call_id": "b", "output": "y"},
    REFERENCE,
    REFERENCE,
    said_item("one", "msg_1"),
    said_item("two", "msg_1"),
]


@pytest.mark.parametrize("source", [REPEATED, json.dumps(REPEATED).encode()])
def test_an_item_id_that_an_earlier_item_has_is_dropped_and_nothing_else(source: Any) -> None:
    document = read(source)
    clean, repairs = sanitize(document.messages, batches_of_items=True)
    written = write(document, messages=clean)
    items = json.loads(written) if isinstance(written, bytes) else written
    expected = [
        {k: v for k, v in item.items() if k != "id"} if at in (4, 5, 6, 10) else item
        for at, item in enumerate(REPEATED)
    ]
    assert items == expected[:8] + expected[9:]
    assert [repair.message for repair in repairs] == [4, 5, 6, 8, 10]
    assert sanitize(clean, batches_of_items=True) == (clean, ())


def test_item_ids_are_unique_over_the_whole_view_of_a_compaction() -> None:
    turns = [
        item
        for number in range(60)
        for item in (
            {"type": "message", "role": "user", "content": f"Step {number}. " + "word " * 40},
            said_item(f"Done {number}. " + "word " * 40, "msg_same"),
        )
    ]
    result = compact(turns, context_length=10_000, force=True)
    ids = [item["id"] for item in result.messages if "id" in item]
    assert result.receipt.status == "compacted" and len(result.messages) > 4
    assert ids == ["msg_same"]
    assert any("item id" in repair.what for repair in result.receipt.repairs)
