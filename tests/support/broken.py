"""Generate malformed histories, and check calls as a provider does that requires results directly after them."""

from __future__ import annotations

import random
from typing import Any

Messages = list[dict[str, Any]]
IDS = ("a", "b", "c", "d", "")


def broken_history(rng: random.Random, dialect: str, length: int) -> Messages:
    """Return user messages, answers, calls and results in random order: missing, duplicated, interrupted or with wrong
    ids.
    """
    return [message for _ in range(length) for message in _MAKERS[dialect](rng)]


def unanswered_directly(messages: Messages, dialect: str) -> list[int]:
    """Return positions of calls without results directly after them; the newest call may still be running."""
    return _CHECKS[dialect](messages)


def _text(rng: random.Random) -> str:
    return f"{rng.choice(('look at', 'change', 'why is', 'test'))} part {rng.randrange(50)} " * rng.choice((1, 4, 120))


def _chat(rng: random.Random) -> Messages:
    def calls() -> dict[str, Any]:
        made = [
            {"id": rng.choice(IDS), "type": "function", "function": {"name": "sh", "arguments": "{}"}}
            for _ in range(rng.choice((1, 1, 2, 3)))
        ]
        return {"role": "assistant", "content": rng.choice((None, "Let me see.")), "tool_calls": made}

    def result() -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": rng.choice(IDS), "content": _text(rng)}

    kind = rng.random()
    if kind < 0.15:
        return [{"role": "user", "content": _text(rng)}]
    if kind < 0.3:
        return [{"role": "assistant", "content": rng.choice((_text(rng), ""))}]
    if kind < 0.34:
        return [{"role": "system", "content": "Mind the rules."}]
    if kind < 0.6:
        made = calls()
        return [made, *({"role": "tool", "tool_call_id": c["id"], "content": _text(rng)} for c in made["tool_calls"])]
    return [calls()] if kind < 0.8 else [result()]


def _anthropic(rng: random.Random) -> Messages:
    out: Messages = []
    for message in _chat(rng):
        text = message.get("content") or "."
        if message["role"] == "tool":
            block = {"type": "tool_result", "tool_use_id": message["tool_call_id"] or "z", "content": text}
            extra = [{"type": "text", "text": "and now?"}] if rng.random() < 0.2 else []
            if out and out[-1]["role"] == "user" and rng.random() < 0.8:
                out[-1]["content"].append(block)
            else:
                out.append({"role": "user", "content": [block, *extra]})
            continue
        blocks: list[Any] = [{"type": "text", "text": text}]
        blocks += [
            {"type": "tool_use", "id": c["id"] or "z", "name": "sh", "input": {}} for c in message.get("tool_calls", [])
        ]
        out.append({"role": "user" if message["role"] == "system" else message["role"], "content": blocks})
    return out


def _responses(rng: random.Random) -> Messages:
    out: Messages = []
    for message in _chat(rng):
        if message["role"] == "tool":
            out.append(
                {"type": "function_call_output", "call_id": message["tool_call_id"] or "z", "output": "ok " * 90}
            )
            continue
        if message.get("content"):
            kind = "output_text" if message["role"] == "assistant" else "input_text"
            content = [{"type": kind, "text": message["content"]}]
            out.append({"type": "message", "role": message["role"], "content": content})
        out += [
            {"type": "function_call", "call_id": c["id"] or "z", "name": "sh", "arguments": "{}"}
            for c in message.get("tool_calls", [])
        ]
    return out


def _check_chat(messages: Messages) -> list[int]:
    bad = []
    for place, message in enumerate(messages):
        asked = [c["id"] for c in message.get("tool_calls") or []]
        end = place + 1
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        given = [after.get("tool_call_id") for after in messages[place + 1 : end]]
        if asked and (sorted(asked) != sorted(given) and not (end == len(messages) and set(given) <= set(asked))):
            bad.append(place)
    return bad


def _check_anthropic(messages: Messages) -> list[int]:
    def ids(message: dict[str, Any], kind: str, name: str) -> list[str]:
        content = message["content"]
        return [b[name] for b in content if b["type"] == kind] if isinstance(content, list) else []

    bad = []
    for place, message in enumerate(messages):
        asked = ids(message, "tool_use", "id")
        after = messages[place + 1] if place + 1 < len(messages) else None
        given = ids(after, "tool_result", "tool_use_id") if after else []
        if asked and after is not None and sorted(asked) != sorted(given):
            is_last = place + 2 == len(messages) and given and set(given) <= set(asked)
            if not is_last:
                bad.append(place)
    return bad


def _check_responses(messages: Messages) -> list[int]:
    """Check that each batch of call items is followed directly by its results."""
    bad, open_calls, since = [], [], 0
    for place, item in enumerate(messages):
        kind = item.get("type")
        if kind == "function_call":
            if since and open_calls:
                bad.append(place)
                open_calls = []
            open_calls.append(item["call_id"])
            since = 0
        elif kind == "function_call_output":
            since += 1
            if item["call_id"] in open_calls:
                open_calls.remove(item["call_id"])
            else:
                bad.append(place)
        elif open_calls and item.get("role") in ("user", "system"):
            bad.append(place)
            open_calls = []
    return bad


_MAKERS = {"openai-chat": _chat, "anthropic": _anthropic, "openai-responses": _responses}
_CHECKS = {"openai-chat": _check_chat, "anthropic": _check_anthropic, "openai-responses": _check_responses}
