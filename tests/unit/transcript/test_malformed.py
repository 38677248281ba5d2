"""Malformed histories are read, reported with their position, and written back unchanged."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from midfold import Meter, read, write


def call(**changes: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}", **changes.pop("function", {})}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": function, **changes}],
    }


CASES: list[tuple[Any, str, str]] = [
    (None, "messages[1]", "expected a message object, found null"),
    ("hi", "messages[1]", "expected a message object, found a string"),
    (7, "messages[1]", "expected a message object, found a number"),
    ([], "messages[1]", "expected a message object, found a list"),
    ({}, "messages[1].role", "expected a role, found null"),
    ({"role": 3, "content": "x"}, "messages[1].role", "expected a role, found a number"),
    ({"role": "robot", "content": "x"}, "messages[1].role", "found another role"),
    ({"role": "user", "content": None}, "messages[1].content", "expected text or a list of parts, found null"),
    ({"role": "user", "content": 5}, "messages[1].content", "found a number"),
    ({"role": "user", "content": {"a": 1}}, "messages[1].content", "found an object"),
    ({"role": "user", "content": ["a"]}, "messages[1].content[0]", "expected an object with a type, found a string"),
    ({"role": "user", "content": [None]}, "messages[1].content[0]", "found null"),
    ({"role": "user", "content": [{"text": "a"}]}, "messages[1].content[0].type", "expected the type of the block"),
    ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[1].content[0].text", "found a number"),
    ({"role": "assistant", "tool_calls": 5}, "messages[1].tool_calls", "expected a list, found a number"),
    ({"role": "assistant", "tool_calls": [None]}, "messages[1].tool_calls[0]", "expected an object, found null"),
    (call(function={"arguments": None}), "messages[1].tool_calls[0].function.arguments", "found null"),
    (call(function={"arguments": {"a": 1}}), "messages[1].tool_calls[0].function.arguments", "found an object"),
    (call(function={"arguments": "{oops"}), "messages[1].tool_calls[0].function.arguments", "not JSON"),
    (call(function={"name": None}), "messages[1].tool_calls[0].function.name", "expected a tool name, found null"),
    (call(id=None), "messages[1].tool_calls[0].id", "expected a call id, found null"),
    (call(id=12), "messages[1].tool_calls[0].id", "found a number"),
    (call(id=""), "messages[1].tool_calls[0].id", "found an empty string"),
    ({"role": "tool", "content": "r"}, "messages[1].tool_call_id", "expected a call id, found null"),
    ({"role": "tool", "tool_call_id": "9", "content": "r"}, "messages[1]", "answers no call"),
]


@pytest.mark.parametrize(("value", "path", "what"), CASES)
def test_the_problem_is_named_with_its_place_and_nothing_is_lost(value: Any, path: str, what: str) -> None:
    messages = [{"role": "user", "content": "a"}, value]
    source = json.dumps(messages).encode()
    document = read(source, dialect="openai-chat")
    assert any(problem.path == path and what in problem.what for problem in document.problems), document.problems
    assert write(document) == source
    assert write(document, messages=document.messages[1:]) == json.dumps([value]).encode()
    assert Meter().count(document.messages).tokens > 0
    as_values = read(messages, dialect="openai-chat")
    assert [p.path for p in as_values.problems] == [p.path for p in document.problems]
    assert write(as_values, messages=as_values.messages[1:]) == [value]


def test_function_null_is_named_with_its_place() -> None:
    value = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": None}]}
    problems = read([value]).problems
    assert [(problem.path, problem.what) for problem in problems] == [
        ("messages[0].tool_calls[0].function", "expected an object, found null")
    ]


def test_problems_never_quote_content() -> None:
    secret = "sk-verysecret"
    values = [
        {"role": secret, "content": secret},
        {"role": "assistant", "tool_calls": [{"id": [secret], "function": secret}]},
    ]
    assert secret not in " ".join(map(str, read(values, dialect="openai-chat").problems))


def test_a_reused_id_a_result_before_its_call_and_an_unanswered_call_are_reported() -> None:
    result = {"role": "tool", "tool_call_id": "1", "content": "r"}
    problems = read([result, call(), {"role": "user", "content": "?"}, call(), result]).problems
    assert [(problem.path, problem.what) for problem in problems] == [
        ("messages[0]", "this tool result answers no call of the preceding turn"),
        ("messages[1]", "this tool call was never answered"),
        ("messages[3]", "an earlier tool call has the same id"),
    ]


def test_a_call_still_running_at_the_end_is_no_problem() -> None:
    assert read([{"role": "user", "content": "a"}, call()]).problems == ()


@pytest.mark.parametrize(
    ("dialect", "value", "path"),
    [
        ("anthropic", {"role": "tool", "content": "x"}, "messages[0].role"),
        ("anthropic", {"role": "user"}, "messages[0].content"),
        ("anthropic", {"role": "user", "content": [{"type": "tool_result"}]}, "messages[0].content[0].tool_use_id"),
        (
            "anthropic",
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "a"}]},
            "messages[0].content[0].input",
        ),
        ("anthropic", {"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ("anthropic", {"role": "user", "content": [3]}, "messages[0].content[0]"),
        ("openai-responses", {"type": "function_call", "name": "f", "arguments": "{}"}, "messages[0].call_id"),
        ("openai-responses", {"type": "function_call", "call_id": "1", "arguments": "{}"}, "messages[0].name"),
        ("openai-responses", {"type": "function_call_output", "call_id": 5, "output": "x"}, "messages[0].call_id"),
        ("openai-responses", {"content": "x"}, "messages[0].type"),
        ("openai-responses", {"role": "user", "content": None}, "messages[0].content"),
        ("openai-responses", None, "messages[0]"),
    ],
)
def test_the_other_dialects_name_the_place_too(dialect: str, value: Any, path: str) -> None:
    document = read([value], dialect=dialect)
    assert path in [problem.path for problem in document.problems]
    assert write(document) == [value]


def test_nesting_deeper_than_the_stack_is_a_problem_of_that_message_only() -> None:
    deep = b'{"role":"user","content":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    source = b'[{"role":"user","content":"a"},' + deep + b"]"
    document = read(source)
    assert document.messages[0].text == "a"
    assert [(p.path, p.what) for p in document.problems] == [("messages[1]", "nested too deeply to read")]
    assert write(document) == source
    assert write(document, messages=document.messages[1:]) == b"[" + deep + b"]"


def test_a_ten_megabyte_line_and_fifty_thousand_messages_are_read_in_seconds() -> None:
    start = time.process_time()
    long = json.dumps([{"role": "user", "content": "word " * 2_000_000}]).encode()
    many = json.dumps([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}] * 25_000).encode()
    for source in (long, many):
        document = read(source)
        assert not document.problems
        assert Meter().count(document.messages).tokens > 1000
        assert write(document) == source
    assert time.process_time() - start < 10
