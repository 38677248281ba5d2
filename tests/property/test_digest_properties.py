"""For any input, a digest is one bounded line that is recognised again, and shrunk arguments are valid JSON."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from midfold.compaction.local.digest import (
    LIMIT,
    back_reference,
    describe,
    digest,
    duplicates,
    is_digest,
    shrink_arguments,
    shrink_json_string_leaves,
)
from midfold.compaction.local.tool_call import FAMILIES
from midfold.testing import strategies
from midfold.transcript import jsonio
from midfold.transcript.laws import Place
from midfold.transcript.message import Media, Message, Opaque, Part, Text, ToolCall, ToolResult

HANDLE = "mf-1a2b3c4d5e6f"

NAMES = st.sampled_from(
    ["Bash", "Read", "Edit", "Write", "Grep", "Glob", "Task", "TodoWrite", "WebFetch", "apply_patch", "exec_command",
     "write_stdin", "process", "browser_click", "str_replace_editor", "mcp__a__b", "", "update_plan", "delegate_task"]
)  # fmt: skip
KEYS = st.sampled_from(
    ["command", "cmd", "file_path", "path", "pattern", "query", "url", "urls", "old_string", "content", "patch",
     "todos", "plan", "tasks", "prompt", "goal", "action", "session_id", "offset", "limit", "view_range", "edits",
     "status", "taskId"]
)  # fmt: skip
OPENINGS = st.sampled_from(
    ["", "Exit code 1\n", "<returncode>1</returncode>\n<output>\n", "Exit code: 0\nWall time: 1 s\nOutput:\n",
     "Error: ", "<tool_use_error>", '{"output": "', '{"error": ', "Traceback (most recent call last):\n",
     "Found 3 files\n",
     "Chunk ID: 1\nProcess exited with code 1\nOutput:\n", "*** Begin Patch\n",
     "<returncode>1</returncode>\n<output_head>"]
)  # fmt: skip
VALUES = strategies.json_values(odd=True)
ARGUMENTS = st.dictionaries(KEYS | st.text(max_size=8), VALUES, max_size=4).map(jsonio.text_of)
CALLS = st.none() | st.builds(ToolCall, id=st.text(max_size=4), name=NAMES | st.text(max_size=20), arguments=ARGUMENTS | st.text(max_size=60))  # fmt: skip  # noqa: E501
TEXTS = st.builds(lambda opening, text: Text(text=opening + text), OPENINGS, st.text(max_size=200)) | VALUES.map(
    lambda value: Text(text=jsonio.text_of(value))
)
PARTS: st.SearchStrategy[Part] = (
    TEXTS | st.builds(Media, kind=st.just("image"), data=st.text(max_size=5)) | st.just(Opaque(kind="x", body="{}"))
)
RESULTS = st.builds(
    ToolResult,
    call_id=st.text(max_size=4),
    parts=st.lists(PARTS, max_size=3).map(tuple),
    is_error=st.booleans(),
    name=st.none() | NAMES,
)


@given(CALLS, RESULTS, st.text(max_size=30))
def test_a_digest_is_one_bounded_printable_line_that_is_known_again(
    call: ToolCall | None, result: ToolResult, handle: str
) -> None:
    line = digest(call, result, handle=handle)
    assert line.isprintable()
    assert len(line) <= LIMIT + 100
    assert is_digest(line)
    line.encode("utf-8")


@given(CALLS, RESULTS)
def test_an_action_is_of_a_known_family_and_states_a_flagged_error(call: ToolCall | None, result: ToolResult) -> None:
    action = describe(call, result)
    assert action.family in FAMILIES
    assert action == describe(call, result)
    assert action.lines >= 0
    assert action.characters == len(result.text)
    if result.is_error:
        assert action.outcome in ("failed", "unknown")
        assert not (action.family in ("write", "patch") and action.wrote)


@given(st.text(max_size=60), st.text(max_size=300))
def test_a_back_reference_is_known_again(handle: str, where: str) -> None:
    assert is_digest(back_reference(handle, where))


@given(st.text(max_size=400))
def test_a_text_is_a_digest_only_if_it_says_so(text: str) -> None:
    if is_digest(text):
        assert text.startswith("[")
        assert "\n" not in text


@given(st.lists(st.sampled_from(["a" * 300, "b" * 300, "c" * 10]), max_size=8), st.integers(0, 8), st.integers(0, 8))
def test_duplicates_agree_with_the_obvious_definition(texts: list[str], start: int, end: int) -> None:
    messages = tuple(Message("tool", (ToolResult(call_id="", parts=(Text(text=text),)),)) for text in texts)
    expected = {}
    for index in range(start, min(end, len(texts))):
        later = [place for place in range(index + 1, len(texts)) if texts[place] == texts[index]]
        if later and len(texts[index]) >= 200:
            expected[Place(index, 0)] = Place(later[-1], 0)
    assert duplicates(messages, start, end) == expected


def shape(value: Any) -> Any:
    """Return the value with all text of strings removed."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return "" if isinstance(value, str) else repr(value)


LONG_TEXTS = st.text(max_size=12).map(lambda text: text * 40)
LONG_VALUES = st.recursive(
    VALUES | LONG_TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(LONG_VALUES, st.integers(-1, 200))
def test_shrunk_arguments_are_json_of_the_same_shape(value: Any, limit: int) -> None:
    before = jsonio.text_of(value)
    after = shrink_arguments(before, limit)
    assert len(after) <= len(before)
    assert shape(json.loads(after)) == shape(json.loads(before))
    assert shrink_arguments(after, limit) == after
    assert (after is before) or after != before


@given(LONG_VALUES, st.integers(-1, 200))
def test_shrinking_values_is_idempotent_and_keeps_its_input(value: Any, limit: int) -> None:
    before = repr(value)
    once = shrink_json_string_leaves(value, limit)
    assert repr(value) == before
    assert shrink_json_string_leaves(once, limit) is once


@given(st.text(max_size=300), st.integers(-1, 100), st.booleans())
def test_shrinking_never_raises_and_never_grows(text: str, limit: int, clamp: bool) -> None:
    assert len(shrink_arguments(text, limit, clamp_raw=clamp)) <= len(text)
