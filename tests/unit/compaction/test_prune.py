"""The prune of old tool results and arguments, through `compact`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import midfold
from support.fixtures import assistant, call, user

LONG = "a line of the file\n" * 300
TOKEN = "ghp_" + "Ab1" * 12
SECRETS: dict[str, Callable[[int], dict[str, Any]]] = {
    "key": lambda at: {"path": f"a{at}.py", "api_key": f"plainSecretValue{at:03d}xyz", "content": LONG},
    "text": lambda at: {"path": f"a{at}.py", "content": f"token = '{TOKEN}{at:02d}'\n{LONG}"},
    "cut": lambda at: {"content": f"{'x ' * 110}{TOKEN}{at:02d} {LONG}"},
    "number": lambda at: {"password": 1_234_567_000 + at, "n": [{"token": TOKEN}], "content": LONG},
}


def writes(arguments: Callable[[int], dict[str, Any]], count: int = 50) -> list[dict[str, Any]]:
    calls = [message for at in range(count) for message in call(at, "write_file", arguments(at), "ok")]
    return [user("Deploy it."), assistant("Yes."), *calls, user("Go on.")]


def size_of(messages: list[dict[str, Any]]) -> int:
    return midfold.compact(messages, context_length=10**8).receipt.old_tokens


@pytest.mark.parametrize("name", SECRETS)
def test_arguments_that_are_shortened_are_redacted_and_stay_json(name: str) -> None:
    messages = writes(SECRETS[name])
    size = size_of(messages)
    result = midfold.compact(messages, context_length=int(size * 1.9))
    assert result.receipt.status == "pruned"
    digests = [digest for digest in result.receipt.digests if digest.kind == "arguments"]
    assert len(digests) > 20
    for digest in digests:
        arguments = result.messages[digest.message]["tool_calls"][0]["function"]["arguments"]
        assert json.loads(arguments)
        assert "[REDACTED:" in arguments
        assert not any(secret in arguments for secret in ("plainSecretValue", "ghp_", "1234567"))
        (original,) = midfold.read(messages).messages[digest.message : digest.message + 1]
        assert result.archive[digest.handle] == (original,)


def test_arguments_without_a_long_text_are_left_alone() -> None:
    one = call(900, "write_file", {"api_key": "plainSecretValue001xyz", "list": ["short text"] * 200}, "ok")
    first, last, *others = writes(SECRETS["key"])
    messages = [first, last, *one, *others]
    result = midfold.compact(messages, context_length=int(size_of(messages) * 1.9))
    assert result.receipt.status == "pruned"
    assert result.messages[2] is one[0]


def terminal(at: int, text: str, command: str = "make") -> list[dict[str, Any]]:
    return call(at, "terminal", {"command": command}, text)


def old_results(*first: dict[str, Any], count: int = 60) -> list[dict[str, Any]]:
    """Return a history that a prune alone makes small enough: these messages, then long results."""
    calls = [message for at in range(100, 100 + count) for message in terminal(at, LONG)]
    return [user("Build it."), assistant("Yes."), *first, *calls, user("Go on.")]


def pruned(messages: list[dict[str, Any]], share: float = 1.9) -> midfold.Compaction:
    result = midfold.compact(messages, context_length=int(size_of(messages) * share))
    assert result.receipt.status == "pruned"
    return result


def test_a_pruned_result_of_a_failed_call_stays_an_error() -> None:
    def batch(at: int, *, is_error: bool) -> list[dict[str, Any]]:
        use = {"type": "tool_use", "id": f"t{at}", "name": "terminal", "input": {"command": f"make {at}"}}
        result = {"type": "tool_result", "tool_use_id": f"t{at}", "content": LONG, "is_error": is_error}
        return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]

    calls = [message for at in range(60) for message in batch(at, is_error=at % 2 == 0)]
    messages = [user("Build it."), *calls, assistant("Done."), user("Go on.")]
    result = pruned(messages)
    places = [digest.message for digest in result.receipt.digests]
    assert len(places) > 20
    for place in places:
        (block,) = result.messages[place]["content"]
        (before,) = messages[place]["content"]
        assert block["content"] != before["content"]
        assert block["is_error"] is before["is_error"]


TESTS = "pytest " + " ".join(f"tests/unit/module_{at}.py::test_case" for at in range(9))
FAILED = "FAILED tests/unit/module_1.py::test_with_a_long_name - AssertionError: assert 1 == 2, which is wrong"


def test_a_digest_is_not_digested_again() -> None:
    first = pruned(old_results(*terminal(1, f"{'.' * 900}\n{FAILED}\n9 failed in 1.20s\n", TESTS)))
    digest = first.messages[3]["content"]
    assert 200 < len(digest) < 400 and "unfold" in digest
    second = pruned([*first.messages, *old_results(count=80)])
    assert second.messages[3]["content"] == digest
    assert 3 not in [entry.message for entry in second.receipt.digests]


def test_a_result_that_is_shorter_than_its_digest_stays() -> None:
    short = f"{FAILED}\n{FAILED}\n2 failed in 1.20s"
    messages = old_results(*terminal(1, short, TESTS))
    result = pruned(messages)
    assert len(short) > 200
    assert result.messages[3] is messages[3]


@pytest.mark.parametrize("words", [200, 300, 400])
def test_a_prune_that_hardly_saves_anything_is_no_outcome(words: int) -> None:
    """A fold is made instead, or nothing: the next request would be as large again."""
    newest = [(assistant if at % 2 else user)(f"{at} " + "word " * words) for at in range(20)]
    messages = [user("Build it."), assistant("Yes."), *terminal(1, LONG[:800]), *newest]
    receipt = midfold.compact(messages, context_length=int(size_of(messages) * 1.95)).receipt
    assert receipt.old_tokens >= receipt.threshold_tokens
    assert receipt.status != "pruned" or receipt.new_tokens <= 0.9 * receipt.old_tokens
