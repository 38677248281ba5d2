"""Trajectories for tests: generated from a seed, or converted from the shared transcripts."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from typing import Any

from midfold import SummaryRequest


class Words:
    """Token counter with one token per word, so that counts can be checked by eye."""

    name = "words"

    def count(self, text: str, /) -> int:
        return len(text.split())


def words(count: int, word: str = "word") -> str:
    return " ".join([word] * count)


def turn(kind: str, value: str) -> dict[str, str]:
    return {"from": kind, "value": value}


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def response(content: object, name: str = "bash") -> str:
    inside = json.dumps({"tool_call_id": "c1", "name": name, "content": content})
    return f"<tool_response>\n{inside}\n</tool_response>"


def run_of(steps: int, seed: int = 0, size: int = 60) -> list[dict[str, str]]:
    """Return an agent run: system, human, pairs of a call and its result, then an answer."""
    rng = random.Random(seed)
    turns = [turn("system", "You are an agent."), turn("human", f"Fix bug number {seed} in src/module_{seed}.py")]
    for number in range(steps):
        path = f"src/pkg_{seed}/file_{rng.randrange(steps)}.py"
        text = f"<think>\nstep {number}\n</think>\nNow I look at {path} because of value_{number}."
        turns.append(turn("gpt", f"{text}\n{call('bash', command=f'cat {path}')}"))
        body = [f"line {line} of {path}: value_{rng.randrange(999)} = {rng.random()}" for line in range(size // 6)]
        turns.append(turn("tool", response("\n".join(body))))
    return [*turns, turn("gpt", f"The bug {seed} is fixed.")]


def record(seed: int = 0, steps: int = 40, size: int = 60) -> dict[str, Any]:
    return {"id": f"run-{seed}", "conversations": run_of(steps, seed, size), "score": 1e-7, "tags": ["a", None]}


def lines(count: int, steps: int = 40, size: int = 60) -> bytes:
    """Return distinct records as JSON lines."""
    return b"".join(json.dumps(record(seed, steps, size)).encode() + b"\n" for seed in range(count))


def slow_summary(ask: SummaryRequest) -> str:
    """Return a summary slowly, for runs that are interrupted."""
    time.sleep(0.15)
    return f"{len(ask.messages)} turns were here."


def from_chat(conversation: dict[str, Any]) -> dict[str, Any]:
    """Convert a recorded conversation to ShareGPT: results of one batch share a turn; calls and thoughts are marked in
    text.
    """
    return {"id": conversation["id"], "conversations": list(_turns(conversation["messages"])), "completed": True}


def _turns(messages: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    results: list[str] = []
    for message in messages:
        role, content = message["role"], message.get("content") or ""
        if role == "tool":
            results.append(response(content, message.get("name") or "tool"))
            continue
        if results:
            yield turn("tool", "\n".join(results))
            results = []
        if role != "assistant":
            yield turn("human" if role == "user" else role, content)
            continue
        thought = f"<think>\n{message.get('reasoning_content') or ''}\n</think>\n"
        calls = [_call(asked["function"]) for asked in message.get("tool_calls") or []]
        yield turn("gpt", "\n".join([thought + content, *calls]).rstrip())
    if results:
        yield turn("tool", "\n".join(results))


def _call(function: dict[str, Any]) -> str:
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        arguments = {"raw": function["arguments"]}
    return call(function["name"], **(arguments if isinstance(arguments, dict) else {"value": arguments}))
