"""Handles next to summary lines: the line they belong to, their cost, and later folds."""

from __future__ import annotations

import re
from typing import Any

import pytest

import midfold
from midfold import compact
from midfold.compaction.archive import PREFIX
from midfold.compaction.local.step_handles import handle_tokens, without_step_handles
from midfold.recall import TOOLS
from midfold.transcript.tokens import estimate_text
from midfold.types import InMemorySource
from support.build import assistant, call, user
from support.hash_seeds import outputs_under_hash_seeds

HANDLE = re.compile(r" (mf-[0-9a-f]{8})$", re.MULTILINE)
OFFER = [
    {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": {}}}
    for tool in TOOLS
]


def talk(count: int = 40) -> list[dict[str, Any]]:
    turns = [user("Port the parser."), assistant("I will.")]
    for number in range(count):
        text = f"def part_{number}_loader(path_{number}):\n" + f"    keep_{number} = {number}\n" * 30
        turns += call(number, "read_file", {"path": f"src/part_{number}.py"}, text)
    turns += call("e", "run_shell", {"command": "make harbour"}, "make: *** No rule to make target 'harbour'.  Stop.")
    return [*turns, assistant("Done so far."), user("Go on."), assistant("Well."), user("And now?")]


def folded(tools: list[dict[str, Any]], **more: Any) -> midfold.Compaction:
    result = compact(talk(), tools=tools, context_length=16_000, force=True, **more)
    assert result.changed
    return result


def test_lines_lead_to_the_messages_they_speak_of() -> None:
    result = folded(OFFER)
    lines = [line for line in result.state.summary.split("\n") if HANDLE.search(line)]
    assert len(lines) > 3
    for line in lines:
        (message,) = InMemorySource(result.archive).unfold(HANDLE.findall(line)[0])
        named = re.findall(r"part_\d+|harbour", line)
        assert not named or any(name in str(message.wire) for name in named), line


def test_without_a_tool_that_unfolds_there_are_none() -> None:
    assert HANDLE.findall(folded([]).state.summary) == []


def test_handles_keep_to_their_share_and_are_written_once() -> None:
    found = HANDLE.findall(folded(OFFER).state.summary)
    assert len(found) == len(set(found))
    assert sum(estimate_text(f" {handle}") for handle in found) <= handle_tokens(16_000)
    assert handle_tokens(1_000) < 40 < handle_tokens(2_000)


def test_a_small_summary_names_only_files_and_errors() -> None:
    summary = folded(OFFER, target_tokens=2_400).state.summary
    for line in summary.split("\n"):
        if HANDLE.search(line):
            assert re.search(r"\.\w{1,5}\b|(?i:fail|error|\*\*\*)", line), line


def test_the_next_fold_keeps_the_handles_of_lines_it_keeps() -> None:
    first = folded(OFFER)
    longer = [*first.messages, *talk(30)[2:]]
    second = compact(longer, tools=OFFER, context_length=16_000, force=True, state=first.state)
    assert second.changed
    before = {without_step_handles(line): line for line in first.state.summary.split("\n") if HANDLE.search(line)}
    after = second.state.summary.split("\n")
    same = [line for line in after if without_step_handles(line) in before]
    for line in same:
        assert not HANDLE.search(line) or line == before[without_step_handles(line)]
    assert not re.search(rf"{PREFIX}[0-9a-f]{{8}} {PREFIX}", second.state.summary)


@pytest.mark.parametrize("text", ["plain", f"- a line {PREFIX}12345678 in it", "- ends with mf-123"])
def test_only_what_was_added_is_taken_out(text: str) -> None:
    assert without_step_handles(text) == text
    assert without_step_handles(f"{text} {PREFIX}12345678") == text


def test_the_same_handles_under_every_hash_seed() -> None:
    script = (
        "import midfold, sys\n"
        "tool = {'type': 'function', 'function': {'name': 'context_unfold', 'description': '', 'parameters': {}}}\n"
        "turns = [{'role': 'user', 'content': 'Go.'}]\n"
        "for n in range(60):\n"
        "    text = f'alpha_{n} and bravo_{n + 1} and delta_{n + 2} are in dir_{n}/file_{n}.py' + ', and so on' * 60\n"
        "    turns += [{'role': 'assistant', 'content': text}, {'role': 'user', 'content': 'go on'}]\n"
        "done = midfold.compact(turns, tools=[tool], context_length=16_000, force=True,\n"
        "    summarizer=lambda ask: '## Goal\\nGo.\\n\\n## Progress\\n### Done\\n' + '\\n'.join(\n"
        "        f'- alpha_{n} and bravo_{n + 2} and delta_{n + 4} in file_{n}.py' for n in range(40))\n"
        "    + '\\n\\n## Active State\\nAll of it is done, nothing is running, and no test fails.')\n"
        "sys.stdout.write(done.state.summary)"
    )
    runs = outputs_under_hash_seeds(script, "1", "2", "3")
    assert len(runs) == 1
    assert len(HANDLE.findall(runs.pop())) > 3
