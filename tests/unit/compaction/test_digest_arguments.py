"""Oversized tool-call arguments are shrunk and stay valid JSON with the same keys and numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from midfold.compaction.local.digest import shrink_arguments, shrink_json_string_leaves
from support.timing import assert_in_proportion

LONG = "line of text, " * 200


def test_a_large_write_stays_valid_json() -> None:
    before = json.dumps({"file_path": "/w/a.py", "content": LONG, "n": 3, "ok": True, "none": None})
    after = shrink_arguments(before)
    value = json.loads(after)
    assert len(after) < len(before)
    assert len(value["content"]) <= 500
    assert value["content"].startswith("line of text")
    assert value["content"].endswith("of text, ")
    assert "characters left out]…" in value["content"]
    assert {key: value[key] for key in ("file_path", "n", "ok", "none")} == {
        "file_path": "/w/a.py", "n": 3, "ok": True, "none": None,
    }  # fmt: skip


def test_the_marker_says_exactly_how_much_is_missing() -> None:
    text = "".join(chr(97 + n % 26) for n in range(5000)) + " "
    shrunk = shrink_json_string_leaves(text, 300)
    head, _, rest = shrunk.partition("…[")
    number, _, tail = rest.partition(" characters left out]…")
    assert len(shrunk) <= 300
    assert len(head) + int(number.replace(",", "")) + len(tail) == len(text)
    assert text.startswith(head)
    assert text.endswith(tail)


@pytest.mark.parametrize("keys", [("old_string", "new_string"), ("old_str", "new_str")])
def test_a_long_edit_is_shown_by_what_it_changes(keys: tuple[str, str]) -> None:
    def edit(middle: str) -> str:
        return f"{LONG}\n    limit = {middle}\n{LONG}"

    before = json.dumps({"path": "/w/a.py", keys[0]: edit("10"), keys[1]: edit("20, and more"), "all": False})
    value = json.loads(shrink_arguments(before, 60))
    assert value == {
        "path": "/w/a.py",
        keys[0]: "…    limit = 10…",
        keys[1]: "…    limit = 20, and more…",
        "all": False,
    }
    assert shrink_arguments(before, len(before)) == before
    halves = {**json.loads(before), keys[1]: 3}
    assert LONG[:20] in json.loads(shrink_arguments(json.dumps(halves), 60))[keys[0]]


def test_an_edit_that_changes_much_is_cut_even_so() -> None:
    before = json.dumps({"old_string": f"same\n{LONG}", "new_string": f"same\n{LONG.upper()}"})
    value = json.loads(shrink_arguments(before, 80))
    assert [value[key].startswith(start) for key, start in (("old_string", "…line of"), ("new_string", "…LINE OF"))]
    assert all(len(text) <= 80 and "left out" in text and "same" not in text for text in value.values())


def test_unicode_stays_as_it_is() -> None:
    before = json.dumps({"content": "é漢字🙂 " * 500, "path": "/w/é.py"})
    after = shrink_arguments(before)
    assert "\\u" not in after
    assert "é漢字🙂" in after
    assert json.loads(after)["path"] == "/w/é.py"


@pytest.mark.parametrize(
    "literal",
    ["1e-7", "1E400", "-0", "1.50", "12345678901234567890123456789", "NaN", "-Infinity", "9" * 5000, "0.1e+5"],
)
def test_number_literals_are_written_as_they_were(literal: str) -> None:
    after = shrink_arguments(f'{{"n": {literal}, "text": {json.dumps(LONG)}}}')
    assert f'"n":{literal},' in after
    assert "left out" in after


@pytest.mark.parametrize("text", ["", "not json " * 200, "{" + LONG, '{"a": "' + LONG, "[" * 100_000, "\ud800" * 1000])
def test_what_is_not_json_is_returned_as_it_is(text: str) -> None:
    assert shrink_arguments(text) is text


def test_what_is_not_json_is_clamped_when_asked() -> None:
    text = "*** Begin Patch\n" + "+x\n" * 500
    shrunk = shrink_arguments(text, 200, clamp_raw=True)
    assert len(shrunk) <= 200
    assert shrunk.startswith("*** Begin Patch")


def test_nothing_to_do_returns_the_very_same_object() -> None:
    text = json.dumps({"path": "/w/" + "a/" * 300, "list": list(range(500))})
    assert shrink_arguments(text) is text
    value: dict[str, Any] = {"a": [1, {"b": "short"}], "id": "x" * 100}
    assert shrink_json_string_leaves(value, 50) is value


def test_a_result_that_would_not_be_shorter_is_not_used() -> None:
    text = '{"a": "' + "x y" * 14 + '"}'
    assert len(shrink_arguments(text, 40)) <= len(text)


@pytest.mark.parametrize("key", ["path", "file_path", "filePath", "paths", "cwd", "workdir", "url", "id", "call_id", "sessionId", "task-id", "output_path"])  # fmt: skip  # noqa: E501
def test_strings_under_path_and_id_keys_stay_whole(key: str) -> None:
    value = {key: "some thing " * 30}
    assert shrink_json_string_leaves(value, 50) is value
    assert shrink_json_string_leaves({key: ["some thing " * 30]}, 50) == {key: ["some thing " * 30]}


def test_strings_that_look_like_paths_or_ids_stay_whole() -> None:
    for text in (
        "/a/very/long/" + "folder/" * 20,
        "src/" + "deep/" * 20 + "x.py",
        "https://x.org/" + "a/" * 50,
        "0" * 64,
        "call_" + "a" * 60,
    ):
        assert shrink_json_string_leaves({"value": text}, 50) == {"value": text}


def test_texts_under_such_keys_that_cannot_be_paths_are_shrunk_all_the_same() -> None:
    assert len(shrink_json_string_leaves({"path": "x" * 100_000}, 500)["path"]) <= 500
    assert len(shrink_json_string_leaves({"file": "a\n" * 1000}, 500)["file"]) <= 500


def test_base64_is_no_path() -> None:
    assert len(shrink_json_string_leaves({"data": "/9j/" + "4AAQ" * 1000}, 500)["data"]) <= 500


def test_nested_leaves_are_shrunk_and_the_input_is_not_touched() -> None:
    value = {"edits": [{"old": LONG, "new": "short"}, ["x", LONG]], "n": 1}
    copy = json.loads(json.dumps(value))
    shrunk = shrink_json_string_leaves(value, 100)
    assert value == copy
    assert len(shrunk["edits"][0]["old"]) <= 100
    assert shrunk["edits"][0]["new"] == "short"
    assert len(shrunk["edits"][1][1]) <= 100


def test_depth_and_cycles_do_not_matter() -> None:
    deep: Any = LONG
    for _ in range(50_000):
        deep = [deep]
    assert shrink_json_string_leaves(deep, 100) is not deep
    while isinstance(deep, list):
        deep = deep.pop()
    loop: dict[str, Any] = {"text": LONG}
    loop["self"] = loop
    shrunk = shrink_json_string_leaves(loop, 100)
    assert shrunk["self"] is shrunk


def test_shrinking_twice_changes_nothing_more() -> None:
    once = shrink_arguments(json.dumps({"a": LONG, "b": [LONG]}), 120)
    assert shrink_arguments(once, 120) is once


@pytest.mark.parametrize("limit", [-5, 0, 1, 39, 40])
def test_tiny_limits_leave_room_for_the_marker(limit: int) -> None:
    shrunk = shrink_json_string_leaves(LONG, limit)
    assert "left out" in shrunk
    assert len(shrunk) <= 40


@pytest.mark.parametrize(
    "unit",
    ['"a b",', "[", '{"a":', "\\u0000", "a/", "a-", "\\", '{"a b c":"d e f"},', "9", "x y "],
    ids=lambda text: text[:6],
)
def test_hostile_arguments_cost_linear_time(unit: str) -> None:
    for wrap in ("{}", '["{}"]', "[{}1]"):
        once, four = (wrap.replace("{}", unit * (20_000 * factor)) for factor in (1, 4))
        assert_in_proportion(lambda text: shrink_arguments(text, clamp_raw=True), once, (four, 8))


def test_with_little_room_only_the_beginning_of_a_string_is_shown() -> None:
    command = "cat > test_all.py << 'EOF'\n" + "assert port == 8123\n" * 60 + "EOF"
    shown = json.loads(shrink_arguments(json.dumps({"command": command}), 60))["command"]
    assert shown.startswith("cat > test_all.py") and shown.endswith(" characters left out]…") and len(shown) <= 60
    assert json.loads(shrink_arguments(json.dumps({"command": command}), 200))["command"].endswith("\nEOF")
