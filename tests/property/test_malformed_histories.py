"""For any input, a compaction's result has no call without results directly after it, in any dialect.

The checkers use the wire format only, not `laws`. Calls of the newest batch may still be waiting.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import midfold
from support.build import setting

Wire = list[dict[str, Any]]
WORDS = ["router", "cache", "lease", "table", "index", "parser", "socket", "thread", "frame", "digest"]
ROLES = ("assistant",) * 6 + ("robot", "developer", "user", "model")
SEEDS = range(60)


class Client:
    """Writer of malformed histories: lost and stray results, duplicate ids, text between call and result, odd roles."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ids: list[str] = ["none"]

    def words(self, count: int) -> str:
        return " ".join(f"{self.random.choice(WORDS)}{self.random.randrange(99)}" for _ in range(count))

    def maybe(self, chance: float) -> bool:
        return self.random.random() < chance

    def names(self) -> list[str]:
        found = []
        for _ in range(self.random.choice([1, 1, 2, 3])):
            found.append(self.random.choice(self.ids) if self.maybe(0.1) else f"c{len(self.ids)}")
            self.ids.append(found[-1])
        return found

    def answered(self, names: list[str]) -> Iterator[tuple[str, str]]:
        for name in names:
            if self.maybe(0.85):
                yield name, self.words(self.random.choice([5, 30, 300]))

    def speech(self) -> dict[str, Any]:
        return {"role": self.random.choice(("user", "assistant", "robot")), "content": self.words(20)}

    def history(self, batch: Callable[[], Wire], stray: Callable[[], dict[str, Any]]) -> Wire:
        messages: Wire = [{"role": "user", "content": "Go."}] if self.maybe(0.8) else []
        for _ in range(self.random.choice([3, 10, 40])):
            chance = self.random.random()
            messages += batch() if chance < 0.45 else [stray()] if chance < 0.55 else [self.speech()]
            if self.maybe(0.08):
                messages.insert(len(messages) - 1, self.speech())
        return messages


def chat(client: Client) -> Wire:
    def stray() -> dict[str, Any]:
        legacy = {"role": "assistant", "content": None, "function_call": {"name": "t", "arguments": "{}"}}
        old = {"role": "function", "name": "t", "content": "old"}
        return client.random.choice(
            [{"role": "tool", "tool_call_id": client.random.choice(client.ids), "content": "x"}, legacy, old]
        )

    def batch() -> Wire:
        names, role = client.names(), client.random.choice(ROLES)
        calls = [{"id": name, "type": "function", "function": {"name": "t", "arguments": "{}"}} for name in names]
        made = {"role": role, "content": client.random.choice([None, "Look."]), "tool_calls": calls}
        return [
            made,
            *({"role": "tool", "tool_call_id": name, "content": text} for name, text in client.answered(names)),
        ]

    return client.history(batch, stray)


def anthropic(client: Client) -> Wire:
    def stray() -> dict[str, Any]:
        result = {"type": "tool_result", "tool_use_id": client.random.choice(client.ids), "content": "x"}
        return {"role": client.random.choice(("user", "assistant")), "content": [result]}

    def batch() -> Wire:
        names, role = client.names(), client.random.choice(ROLES)
        calls: list[Any] = [{"type": "tool_use", "id": name, "name": "t", "input": {}} for name in names]
        blocks = [{"type": "tool_result", "tool_use_id": n, "content": text} for n, text in client.answered(names)]
        cut = client.random.randrange(len(blocks) + 1) if client.maybe(0.2) else 0
        parts = [part for part in (blocks[:cut], blocks[cut:]) if part]
        return [{"role": role, "content": calls}, *({"role": "user", "content": part} for part in parts)]

    return client.history(batch, stray)


def responses(client: Client) -> Wire:
    def stray() -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": client.random.choice(client.ids), "output": "x"}

    def batch() -> Wire:
        names = client.names()
        calls = [{"type": "function_call", "call_id": name, "name": "t", "arguments": "{}"} for name in names]
        return [
            *calls,
            *({"type": "function_call_output", "call_id": n, "output": t} for n, t in client.answered(names)),
        ]

    return client.history(batch, stray)


def blocks_of(message: dict[str, Any], kind: str, key: str) -> list[str]:
    content = message.get("content")
    return [block[key] for block in content if block.get("type") == kind] if isinstance(content, list) else []


def chat_faults(messages: Wire) -> Iterator[str]:
    place = 0
    while place < len(messages):
        calls = [call["id"] for call in messages[place].get("tool_calls") or ()]
        legacy = messages[place].get("function_call") is not None
        after = place + 1
        role = "function" if legacy and not calls else "tool"
        while after < len(messages) and messages[after]["role"] == role and (calls or legacy):
            after += 1
        results = [message.get("tool_call_id") for message in messages[place + 1 : after]]
        if messages[place]["role"] in ("tool", "function"):
            yield f"{place}: a result without a call"
        if legacy and not calls and len(results) != 1 and after < len(messages):
            yield f"{place}: a legacy call with {len(results)} results"
        if calls and (
            Counter(results) - Counter(calls) or (Counter(calls) - Counter(results) and after < len(messages))
        ):
            yield f"{place}: calls {calls} have results {results}"
        place = after


def anthropic_faults(messages: Wire) -> Iterator[str]:
    results: list[str] = []
    for place in range(len(messages) - 1, -1, -1):
        calls = blocks_of(messages[place], "tool_use", "id")
        is_newest = place >= len(messages) - 2
        if Counter(results) - Counter(calls) or (Counter(calls) - Counter(results) and not is_newest):
            yield f"{place}: calls {calls} have results {results}"
        results = blocks_of(messages[place], "tool_result", "tool_use_id")
    if results:
        yield "0: results without a call"


def responses_faults(messages: Wire) -> Iterator[str]:
    waiting: Counter[str] = Counter()
    for place, item in enumerate(messages):
        if item.get("type") == "function_call":
            waiting[item["call_id"]] += 1
        elif item.get("type") == "function_call_output":
            if not waiting[item["call_id"]]:
                yield f"{place}: a result without a call"
            waiting[item["call_id"]] -= 1
        elif item.get("role") == "user" and +waiting:
            yield f"{place}: calls {list(+waiting)} have no results"


@pytest.mark.parametrize("orphan_calls", ["bridge", "strip"])
@pytest.mark.parametrize(
    ("write", "faults"), [(chat, chat_faults), (anthropic, anthropic_faults), (responses, responses_faults)]
)
def test_no_call_is_left_that_is_not_answered_directly(
    write: Callable[[Client], Wire], faults: Callable[[Wire], Iterator[str]], orphan_calls: str
) -> None:
    changed = 0
    for seed in SEEDS:
        messages = write(Client(seed))
        config = setting(orphan_calls=orphan_calls, protect_last_n=1 + seed % 20)
        result = midfold.compact(messages, context_length=4_000, force=True, config=config)
        changed += result.changed
        assert not result.changed or list(faults(result.messages)) == [], seed
    assert changed > len(SEEDS) // 3
