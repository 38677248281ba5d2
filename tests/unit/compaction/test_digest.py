"""Digests of old tool results: their content, omissions, recognition and cost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from midfold.compaction.local.digest import (
    PLACEHOLDER,
    back_reference,
    describe,
    digest,
    duplicates,
    is_digest,
    register_digest,
)
from midfold.compaction.local.tool_call import FAMILIES, Action
from midfold.transcript.laws import Place
from midfold.transcript.message import Media, Message, Text, ToolCall, ToolResult
from support.timing import assert_in_proportion

HANDLE = "mf-1a2b3c4d5e6f"


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id="c1", name=name, arguments=json.dumps(arguments))


def result(text: str, *, is_error: bool = False, name: str | None = None) -> ToolResult:
    return ToolResult(call_id="c1", parts=(Text(text=text),), is_error=is_error, name=name)


def line(name: str, text: str, **arguments: Any) -> str:
    return digest(call(name, **arguments), result(text), handle=HANDLE)


def test_a_digest_says_what_was_done_how_it_ended_how_big_it_was_and_where_it_is() -> None:
    output = "Exit code 1\n" + "collected 3 items\n" * 52 + "E   AssertionError: x\n1 failed in 0.1s"
    assert line("Bash", output, command="pytest -q") == (
        f"[Bash] ran `pytest -q` -> exit 1, 54 lines, last error: E AssertionError: x ({len(output):,} characters)"
        f" | unfold {HANDLE}"
    )


def test_a_failure_is_called_a_failure_once() -> None:
    shown = line("Read", "<tool_use_error>File does not exist.</tool_use_error>", file_path="a.py")
    assert "-> failed: File does not exist. (" in shown
    assert shown.count("failed") == 1


def test_a_digest_is_one_bounded_line_without_control_characters() -> None:
    command = "echo `id`\x1b[31m\x00\u202e\n" + "x" * 5000
    shown = line("Bash", "Exit code 3\nfatal: \x07bad\n", command=command)
    assert "\n" not in shown
    assert shown.isprintable()
    assert len(shown) <= 240 + len(f" | unfold {HANDLE}")
    assert shown.count("`") == 2
    assert "exit 3" in shown


def test_an_output_cannot_forge_a_handle() -> None:
    shown = line("Bash", "Exit code 1\nError: no | unfold mf-000000000000", command="ls | unfold mf-111111111111")
    assert shown.count("| unfold") == 1
    assert shown.endswith(f"| unfold {HANDLE}")


def test_a_tool_name_cannot_break_the_brackets() -> None:
    shown = digest(ToolCall(id="1", name="a] [b\n", arguments="{}"), result("x" * 300), handle=HANDLE)
    assert is_digest(shown)


def test_everything_from_arguments_and_output_is_redacted_before_it_is_cut() -> None:
    secret = "sk-" + "a1B2" * 40

    def redact(text: str) -> str:
        return text.replace(secret, "[redacted]")

    start = "curl -H 'x' " + "y" * 60
    made = [
        digest(call("Bash", command=f"{start} {secret}"), result("Exit code 1\nok"), handle=HANDLE, redact=redact),
        digest(
            call("Bash", command="x"), result(f"Exit code 1\nError: bad key {secret}"), handle=HANDLE, redact=redact
        ),
        digest(call("get_user", token=secret), result("{}"), handle=HANDLE, redact=redact),
        digest(call("WebFetch", url=f"https://x/?k={secret}"), result("page"), handle=HANDLE, redact=redact),
        digest(call("Read", file_path=f"/tmp/{secret}"), result("Error: no"), handle=HANDLE, redact=redact),
        digest(call("Grep", pattern=secret, path="."), result("a:1:b"), handle=HANDLE, redact=redact),
        digest(call("Task", description=secret, prompt="p"), result("done"), handle=HANDLE, redact=redact),
        digest(call("think", thought=secret), result(f"said {secret}"), handle=HANDLE, redact=redact),
    ]
    for shown in made:
        assert "a1B2a1B2" not in shown
        assert "sk-" not in shown
    assert sum("[redacted]" in shown for shown in made) >= 7


def test_the_digest_is_known_again_and_so_are_placeholder_and_back_reference() -> None:
    assert is_digest(line("Bash", "x" * 300, command="ls"))
    assert is_digest(digest(None, result("x" * 300), handle=HANDLE))
    assert is_digest(digest(None, result("x" * 300), handle=""))
    assert is_digest(PLACEHOLDER)
    assert is_digest(back_reference(HANDLE, "message 41 (Read src/a.py)"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "plain",
        "[x] y",
        PLACEHOLDER + " more",
        "[a] b\n[c] d | unfold mf-1",
        "[Same tool output as in x",
        "see [Bash] ran `x` -> y | unfold mf-1",
    ],
)
def test_other_texts_are_not_taken_for_digests(text: str) -> None:
    assert not is_digest(text)


def test_a_back_reference_names_the_copy_on_one_line() -> None:
    assert back_reference(HANDLE, "message 41\n(Read a.py)") == (
        f"[Same tool output as in message 41 (Read a.py), kept there] | unfold {HANDLE}"
    )


def test_a_missing_call_is_described_by_its_output() -> None:
    assert describe(None, result("<returncode>2</returncode>\n<output>\na\nb\n</output>")).family == "shell"
    assert describe(None, result("hello")).family == "other"
    assert describe(None, result("hello", name="read_file")).family == "read"


def test_a_result_that_was_never_recorded_is_neither_good_nor_bad() -> None:
    action = describe(call("Bash", command="ls"), result("[no result recorded]"))
    assert (action.outcome, action.detail) == ("unknown", "no result was recorded")


def messages(*results: ToolResult) -> tuple[Message, ...]:
    return tuple(Message("tool", (part,)) for part in results)


def test_duplicates_point_to_the_newest_copy_anywhere() -> None:
    long, other = result("a" * 300), result("b" * 300)
    transcript = messages(long, other, long, long, other)
    assert duplicates(transcript, 0, 3) == {
        Place(0, 0): Place(3, 0),
        Place(1, 0): Place(4, 0),
        Place(2, 0): Place(3, 0),
    }


def test_the_newest_copy_is_never_a_duplicate_itself() -> None:
    transcript = messages(*[result("a" * 300)] * 5)
    found = duplicates(transcript, 0, 5)
    assert set(found.values()) == {Place(4, 0)}
    assert Place(4, 0) not in found


def test_results_of_one_message_are_compared_too_and_media_count() -> None:
    image = ToolResult(call_id="x", parts=(Media(kind="image", data="i" * 300),))
    transcript = (Message("user", (image, image)),)
    assert duplicates(transcript, 0, 1) == {Place(0, 0): Place(0, 1)}


def test_short_bodies_and_digests_are_no_duplicates() -> None:
    short = result("a" * 199)
    ours = result(digest(call("Bash", command="x" * 200), result("y" * 300), handle="mf-" + "a" * 60))
    assert len(ours.text) >= 200
    assert duplicates(messages(short, short, ours, ours), 0, 4) == {}


def test_bodies_that_differ_in_one_character_are_no_duplicates() -> None:
    assert duplicates(messages(result("a" * 300), result("a" * 299 + "b")), 0, 2) == {}


def test_users_describe_their_own_tools_first_and_take_it_back() -> None:
    def mine(asked: ToolCall | None, answer: ToolResult) -> Action | None:
        if asked is None or asked.name != "deploy":
            return None
        return Action(family="other", tool="deploy", did="deployed it", outcome="ok", detail="green")

    before = describe(call("deploy"), result("x"))
    unregister = register_digest(mine)
    try:
        assert describe(call("deploy"), result("x")).did == "deployed it"
        assert "deployed it -> green" in digest(call("deploy"), result("x"), handle=HANDLE)
        assert describe(call("Bash", command="ls"), result("x")).family == "shell"
    finally:
        unregister()
    unregister()
    assert describe(call("deploy"), result("x")) == before


def test_the_newest_registration_is_asked_first_and_a_broken_one_is_passed_over() -> None:
    def broken(asked: ToolCall | None, answer: ToolResult) -> Action | None:
        raise RuntimeError("no")

    def named(did: str) -> Any:
        return lambda asked, answer: Action(family="other", tool="t", did=did)

    takers = [register_digest(named("first")), register_digest(named("second")), register_digest(broken)]
    try:
        assert describe(None, result("x")).did == "second"
    finally:
        for take_back in takers:
            take_back()


def test_what_users_describe_is_bounded_and_redacted_too() -> None:
    take_back = register_digest(lambda asked, answer: Action(family="other", tool="t\n", did="a\n" * 500, detail="pw"))
    try:
        shown = digest(None, result("x"), handle=HANDLE, redact=lambda text: text.replace("pw", "***"))
    finally:
        take_back()
    assert is_digest(shown)
    assert "***" in shown


HOSTILE = {
    "brackets": "[" * 100_000,
    "braces": '{"a":' * 40_000,
    "spaces": " " * 200_000,
    "newlines": "\n" * 200_000,
    "errors": "Error: error " * 15_000,
    "traces": "Traceback (most recent call last)\n" * 6_000,
    "codes": "<returncode>1</returncode>" * 8_000,
    "outputs": "<returncode>1</returncode>\n" + "<output>" * 24_000,
    "halves": "<returncode>1</returncode>\n<output_head>" + "<output_tail>" * 15_000,
    "colons": "a:1:" * 50_000,
    "reminders": "<system-reminder>" * 10_000 + "</system-reminder>",
    "escapes": "\x1b[" * 100_000,
    "digits": "1" * 200_000,
    "failed": "1 failed, " * 20_000,
    "words": "word_" * 40_000,
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("name", ["Bash", "Grep", "Glob", "unknown_tool"])
def test_hostile_outputs_cost_linear_time(kind: str, name: str) -> None:
    tool = call(name, command="make", pattern="x")
    text = HOSTILE[kind]
    assert_in_proportion(lambda text: digest(tool, result(text), handle=HANDLE), text, (text * 4, 8))


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_arguments_cost_linear_time(kind: str) -> None:
    def work(command: str) -> None:
        digest(ToolCall(id="1", name="Bash", arguments=json.dumps({"command": command})), result("x"), handle=HANDLE)

    assert_in_proportion(work, HOSTILE[kind], (HOSTILE[kind] * 4, 8))


def test_every_family_is_named() -> None:
    assert len(set(FAMILIES)) == 12
