"""Deterministic conversations in all three dialects: long enough to be folded, and the malformed ones of daily life."""

from __future__ import annotations

from typing import Any

from midfold.transcript import jsonio

CANARY = "zyzzyva"
"""A word that stands in every text, argument and result of these conversations, and nowhere else."""


def long_conversation(dialect: str, count: int = 9, *, results: bool = True) -> list[dict[str, Any]]:
    """Rounds, after a system prompt where the dialect has one in its list; without `results` there is only talk."""
    opening = [] if dialect == "anthropic" else [{"role": "system", "content": f"You help with {CANARY}."}]
    return [*opening, *(message for messages in rounds(dialect, count, results=results) for message in messages)]


def rounds(dialect: str, count: int, *, results: bool = True) -> list[list[dict[str, Any]]]:
    """Rounds of an ask, three parallel calls with long results, and an answer."""
    make = {"openai-chat": _chat, "openai-responses": _responses, "anthropic": _anthropic}[dialect]
    return [make(number, results) for number in range(count)]


def spoiled_conversation(dialect: str) -> list[Any]:
    """A long conversation with what clients really send: orphans, unanswered calls, empty and unreadable messages."""
    whole = rounds(dialect, 8)
    orphan = {
        "openai-chat": {"role": "tool", "tool_call_id": "gone", "content": f"{CANARY} orphan"},
        "openai-responses": {"type": "function_call_output", "call_id": "gone", "output": f"{CANARY} orphan"},
        "anthropic": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "gone", "content": CANARY}]},
    }[dialect]
    for number in (2, 7):
        _lose_a_result(whole[number], dialect)
    whole[5].insert(1, {"role": "user", "content": f"{CANARY}: and quickly"})
    return [
        orphan,
        *(message for messages in whole[:4] for message in messages),
        {"role": "assistant", "content": ""},
        {"role": "user", "content": None},
        f"no message: {CANARY}",
        *(message for messages in whole[4:7] for message in messages),
        {"role": "assistant", "content": f"{CANARY} once more"},
        orphan,
        *whole[7],
    ]


def _lose_a_result(messages: list[dict[str, Any]], dialect: str) -> None:
    """The second of three parallel calls is never answered."""
    if dialect == "anthropic":
        del messages[2]["content"][1]
    else:
        del messages[-3]


def _ask(number: int) -> str:
    return f"{CANARY}: please look at src/part{number}.py and tell me why test {number} fails. " + _talk(number, 12)


def _answer(number: int) -> str:
    return f"{CANARY}: part {number} fails because of line {number * 7}. " + _talk(number + 50, 30)


def _talk(number: int, sentences: int) -> str:
    return " ".join(f"Remark {number}.{place} is about the {CANARY} of module {place}." for place in range(sentences))


def _calls(number: int) -> list[tuple[str, str, dict[str, str], str]]:
    path = f"src/{CANARY}/part{number}.py"
    listing = "\n".join(f"{line}: value_{number}_{line} = compute('{CANARY}', {line})" for line in range(60))
    output = f"{CANARY}\n" + "\n".join(f"test_{number}_{line} PASSED" for line in range(40)) + "\n1 failed"
    return [
        (f"call_{number}_a", "read_file", {"path": path}, listing),
        (f"call_{number}_b", "terminal", {"command": f"pytest {path} -k {CANARY}"}, output),
        (f"call_{number}_c", "search_files", {"pattern": CANARY, "path": "src"}, f"{path}:3: import {CANARY}"),
    ]


def _chat(number: int, results: bool) -> list[dict[str, Any]]:
    calls = _calls(number) if results else []
    made = [
        {"id": call, "type": "function", "function": {"name": name, "arguments": jsonio.text_of(arguments)}}
        for call, name, arguments, _ in calls
    ]
    return [
        {"role": "user", "content": _ask(number)},
        *([{"role": "assistant", "content": None, "tool_calls": made}] if calls else []),
        *({"role": "tool", "tool_call_id": call, "content": text} for call, _, _, text in calls),
        {"role": "assistant", "content": _answer(number)},
    ]


def _responses(number: int, results: bool) -> list[dict[str, Any]]:
    calls = _calls(number) if results else []
    thought = {"type": "reasoning", "id": f"rs_{number}", "summary": [{"type": "summary_text", "text": CANARY}]}
    return [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": _ask(number)}]},
        *([thought] if calls else []),
        *(
            {"type": "function_call", "call_id": call, "name": name, "arguments": jsonio.text_of(arguments)}
            for call, name, arguments, _ in calls
        ),
        *({"type": "function_call_output", "call_id": call, "output": text} for call, _, _, text in calls),
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": _answer(number)}]},
    ]


def _anthropic(number: int, results: bool) -> list[dict[str, Any]]:
    calls = _calls(number) if results else []
    thought: dict[str, Any] = {"type": "thinking", "thinking": f"{CANARY}, hm", "signature": "c2lnbmVk"}
    made = [{"type": "tool_use", "id": call, "name": name, "input": arguments} for call, name, arguments, _ in calls]
    given = [{"type": "tool_result", "tool_use_id": call, "content": text} for call, _, _, text in calls]
    return [
        {"role": "user", "content": [{"type": "text", "text": _ask(number)}]},
        *([{"role": "assistant", "content": [thought, *made]}, {"role": "user", "content": given}] if calls else []),
        {"role": "assistant", "content": [{"type": "text", "text": _answer(number)}]},
    ]
