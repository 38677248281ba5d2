"""Rules, skills, sub-agents and memory are found where clients put them."""

from __future__ import annotations

from typing import Any

import pytest

import midfold
from midfold.transcript.sections import find_sections

WORDS = "alpha beta gamma delta " * 30


def found(*messages: dict[str, Any]) -> dict[str, int]:
    breakdown = midfold.context_breakdown(midfold.read(list(messages)).messages)
    sizes = {bucket.name: bucket.tokens for bucket in breakdown.categories}
    assert sum(sizes.values()) == breakdown.estimated_total_tokens
    return {name: sizes[name] for name in ("rules", "skills", "sub-agents", "memory") if sizes[name]}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def reminder(inside: str) -> dict[str, Any]:
    return user(f"<system-reminder>\n{inside}\n</system-reminder>\nFix it.")


@pytest.mark.parametrize(
    ("message", "label"),
    [
        (user(f"# AGENTS.md instructions for /src\n\n<INSTRUCTIONS>\n{WORDS}\n</INSTRUCTIONS>"), "rules"),
        (user(f"<user_instructions>\n{WORDS}\n</user_instructions>"), "rules"),
        (reminder(f"Contents of /src/CLAUDE.md (project instructions):\n\n{WORDS}"), "rules"),
        (reminder(f"Wording of another release.\n# claudeMd\nContents of /src/CLAUDE.md:\n\n{WORDS}"), "rules"),
        (reminder(f"The following skills are available for use with the Skill tool:\n\n- pdf: {WORDS}"), "skills"),
        (user(f"Base directory for this skill: /skills/pdf\n\n{WORDS}"), "skills"),
        (reminder(f"Available agent types for the Agent tool:\n- Explore: {WORDS}"), "sub-agents"),
        (user(f"<task-notification>\n<status>completed</status>\n{WORDS}\n</task-notification>"), "sub-agents"),
        (user(f"<memory-context>\n{WORDS}\n</memory-context>\nGo on."), "memory"),
        ({"role": "system", "content": f"Be good.\n<available_skills>\n{WORDS}\n</available_skills>"}, "skills"),
        ({"role": "system", "content": f"Be good.\n<user_rules>\n{WORDS}\n</user_rules>\nEnd."}, "rules"),
        ({"role": "system", "content": f"Be good.\nInstructions from: /src/AGENTS.md\n{WORDS}"}, "rules"),
        (
            {"role": "system", "content": f"# Tone\nShort.\n# auto memory\n{WORDS}\n## Files\nx\n# Tools\nMany."},
            "memory",
        ),
        ({"role": "system", "content": f"# Context\n## Persistent Memories (1)\n{WORDS}\n## Rules\nx"}, "memory"),
    ],
)
def test_blocks_of_clients_fill_their_bucket(message: dict[str, Any], label: str) -> None:
    size = midfold.Meter().tokens(midfold.estimate_text(WORDS))
    sizes = found(message, user("Please."))
    assert set(sizes) == {label}
    assert size <= sizes[label] <= size + 40


def test_files_of_one_block_are_told_apart_and_the_state_of_git_is_none() -> None:
    text = (
        "As you answer the user's questions, you can use the following context:\n# claudeMd\n"
        f"Contents of /src/CLAUDE.md (project instructions, checked into the codebase):\n\n{WORDS}\n\n"
        f"Contents of /home/.claude/memory/MEMORY.md (user's auto-memory, persists):\n\n{WORDS}{WORDS}\n"
        f"# gitStatus\n{WORDS}"
    )
    sizes = found(reminder(text))
    assert set(sizes) == {"rules", "memory"}
    assert 1.5 < sizes["memory"] / sizes["rules"] < 2


def test_results_of_sub_agents_and_skills_are_theirs() -> None:
    def called(name: str, number: int) -> list[dict[str, Any]]:
        function = {"name": name, "arguments": "{}"}
        return [
            {"role": "assistant", "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": WORDS},
        ]

    sizes = found(user("Go."), *called("Task", 1), *called("Skill", 2), *called("Bash", 3))
    assert set(sizes) == {"sub-agents", "skills"}
    assert sizes["sub-agents"] == sizes["skills"]


def test_reports_are_part_of_what_a_compaction_can_shrink_and_definitions_are_not() -> None:
    function = {"name": "Task", "arguments": "{}"}
    agents = reminder(f"Available agent types for the Agent tool:\n- Explore: {WORDS}")
    report = [
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c", "content": WORDS},
    ]
    breakdown = midfold.context_breakdown(midfold.read([agents, *report]).messages)
    bucket, whole = breakdown.categories[5], breakdown.scale_conversation(3).categories[5]
    assert bucket.name == "sub-agents"
    assert 0 < bucket.foldable < bucket.tokens
    assert whole.tokens == bucket.tokens + 2 * bucket.foldable


def test_words_of_the_user_and_results_of_other_tools_are_conversation() -> None:
    quoted = f"Look at this: <user_rules>{WORDS}</user_rules> is wrong."
    assert found(user(quoted), {"role": "assistant", "content": f"# Memory\n{WORDS}"}) == {}
    assert list(find_sections(midfold.read([{"role": "system", "content": "<rules> never close"}]).messages)) == []


def test_sections_of_the_caller_override_what_was_found() -> None:
    messages = midfold.read([user(f"<memory>\n{WORDS}\n</memory>"), user("Go.")]).messages
    plain = midfold.context_breakdown(messages)
    named = midfold.context_breakdown(messages, sections={"notes": f"<memory>\n{WORDS}\n</memory>"})
    sizes = {bucket.name: bucket.tokens for bucket in named.categories}
    assert sizes["memory"] == 0
    assert sizes["notes"] > 50
    assert named.estimated_total_tokens == plain.estimated_total_tokens
