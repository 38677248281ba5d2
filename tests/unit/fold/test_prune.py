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
