"""System messages in the middle of a conversation on Anthropic's wire, through many folds."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

import midfold
from midfold import MemoryConversation, Setup
from support.provider_rules import check

Value = dict[str, Any]


def talk(rng: random.Random, turns: int) -> Iterator[Value]:
    """Yield a session as Claude Code 2.1 sends it: reminders after user messages and tool results."""
    calls = told = 0
    for turn in range(turns):
        yield {"role": "user", "content": f"ask {turn}: {'word ' * rng.randrange(3, 60)}"}
        for _ in range(rng.randrange(6)):
            if rng.random() < 0.4:
                told += 1
                text = f"reminder {told}: {'rule ' * rng.randrange(3, 30)}"
                yield {"role": "system", "content": rng.choice([text, [{"type": "text", "text": text}]])}
            calls += 1
            use = {"type": "tool_use", "id": f"t{calls}", "name": "read", "input": {"path": f"f{calls}"}}
            yield {"role": "assistant", "content": [use]}
            text = f"content {calls}: {'lorem ' * rng.randrange(3, 700)}"
            yield {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"t{calls}", "content": text}]}
        yield {"role": "assistant", "content": f"answer {turn}: {'done ' * rng.randrange(2, 40)}"}
    yield {"role": "user", "content": "and now?"}


def reminders(messages: list[Value]) -> list[str]:
    """Return the reminders that are system messages, not quoted elsewhere."""
    said = json.dumps([message["content"] for message in messages if message["role"] == "system"])
    return [part.partition(":")[0] for part in said.split("reminder ")[1:]]


def is_complete(messages: list[Value], following: Value | None) -> bool:
    """Return whether a client would send these messages: the next turn is the assistant's."""
    return messages[-1]["role"] != "assistant" and (following is None or following["role"] == "assistant")


@pytest.mark.parametrize("seed", range(10))
def test_what_the_system_says_in_the_middle_stands_where_anthropic_takes_it_after_every_fold(seed: int) -> None:
    rng, window = random.Random(seed), (8_000, 16_000, 32_000)[seed % 3]
    setup = Setup(context_length=window, system="Be careful.", leaves_room=seed % 2 == 0)
    conversation, view, folds = MemoryConversation(setup), [], 0
    whole = list(talk(rng, 40))
    for place, message in enumerate(whole):
        view.append(message)
        if not is_complete(view, whole[place + 1] if place + 1 < len(whole) else None):
            continue
        conversation.sync(midfold.read(view, dialect="anthropic"))
        if conversation.should_compact() and conversation.compact().changed:
            folds += 1
            there, view = set(reminders(view)), list(conversation.view().messages)
            assert reminders(view) == sorted(reminders(view), key=int)
            is_kept = not there or max(there, key=int) in reminders(view)
            assert is_kept or window < 32_000, "the newest is gone, though there was room"
            archived = {
                reminder for handle in conversation.archive for reminder in reminders(conversation.unfold(handle))
            }
            assert there <= archived | set(reminders(view)), "a reminder is neither here nor unfolds"
        problem = check("anthropic", {"model": "m", "max_tokens": 1, "messages": view}, 1 << 60)
        assert problem is None, problem
    assert folds >= 2


@pytest.mark.parametrize("dialect", ["openai-chat", "anthropic"])
def test_only_anthropic_needs_neighbours_for_it(dialect: str) -> None:
    said = [{"role": role, "content": f"{'lorem ' * 300}"} for _ in range(20) for role in ("user", "assistant")]
    told = {"role": "system", "content": "reminder 1: rule"}
    conversation = MemoryConversation(Setup(context_length=16_000))
    conversation.sync(midfold.read([*said[:15], told, *said[15:], said[0]], dialect=dialect))
    assert conversation.compact(force=True).changed
    folded = conversation.view().messages
    place = folded.index(told)
    generated = sum("(midfold bridge" in str(one["content"]) or "(midfold ack" in str(one["content"]) for one in folded)
    assert generated == (1 if dialect == "anthropic" else 0)
    if dialect == "anthropic":
        assert [message["role"] for message in folded[place - 1 : place + 2]] == ["user", "system", "assistant"]


def test_of_what_claude_code_counts_behind_every_result_only_the_newest_count_stays() -> None:
    messages: list[Value] = [{"role": "user", "content": "Read the files."}, {"role": "system", "content": "Be brief."}]
    for number in range(60):
        use = {"type": "tool_use", "id": f"t{number}", "name": "read", "input": {"path": f"f{number}"}}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "lorem " * 300}
        left = f"<total_tokens>{900_000 - number} tokens left</total_tokens>"
        messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        messages += [{"role": "system", "content": left}]
    conversation = MemoryConversation(Setup(context_length=16_000, leaves_room=True))
    conversation.sync(midfold.read(messages, dialect="anthropic"))
    assert conversation.compact().changed
    view = conversation.view().messages
    counts = [message["content"] for message in view if "total_tokens" in str(message["content"])]
    results = sum("tool_result" in str(message["content"]) for message in view)
    assert counts[-1] == messages[-1]["content"]
    assert len(counts) <= results
    assert "Be brief." in str(view)


SETTINGS: list[Value] = [
    {"role": "system", "content": [{"type": "tool_addition", "tool": {"type": "tool_reference", "name": "browse"}}]},
    {"role": "system", "output_config": {"effort": "low"}},
    {"role": "system", "clear_at": "next_user_message", "content": "reminder 1: be brief"},
    {"role": "system", "content": [{"type": "tool_removal", "tool": {"type": "tool_reference", "name": "write"}}]},
]


def with_settings() -> list[Value]:
    messages: list[Value] = [{"role": "user", "content": "Read the files."}]
    for number in range(32):
        use = {"type": "tool_use", "id": f"t{number}", "name": "read", "input": {"path": f"f{number}"}}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": f"content {number} {'lorem ' * 400}"}
        messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        messages += SETTINGS[number // 8 : number // 8 + 1] if number % 8 == 4 else []
    return messages


@pytest.mark.parametrize("target", [1_500, 3_000, 6_000, 12_000])
def test_changes_of_the_tools_stay_in_their_order_and_settings_stay_with_their_words(target: int) -> None:
    messages = with_settings()
    assert midfold.read(messages, dialect="anthropic").problems == ()
    folded = midfold.compact(messages, target_tokens=target, force=True)
    assert folded.receipt.status == "compacted"
    view = folded.messages
    blocks = [block for message in view if isinstance(message.get("content"), list) for block in message["content"]]
    changes = [block for block in blocks if block["type"] in ("tool_addition", "tool_removal")]
    assert changes == [*SETTINGS[0]["content"], *SETTINGS[3]["content"]]
    told = [message for message in view if message["role"] == "system" and message not in SETTINGS]
    assert told in ([], [{"role": "system", "content": changes}])
    assert "null" not in json.dumps(view)
    assert check("anthropic", {"model": "m", "max_tokens": 1, "messages": view}, 1 << 60) is None
