"""Find the parts of a context that are rules, skills, sub-agents or memory.

In user messages these are blocks that clients add around the user's text (`wrappers.py`). In system messages they are
tagged blocks, chapters under a heading, and files after a line with their name. A tool result is classified by its
tool. Anything else counts as system prompt or conversation. Sub-agents cover both definitions and reports.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from midfold.transcript.message import RESULT, Message, Role, Text, ToolCall, ToolResult
from midfold.transcript.wrappers import Block, read_user_text

Label = Literal["rules", "skills", "sub-agents", "memory"]
SECTIONS: tuple[Label, ...] = ("rules", "skills", "sub-agents", "memory")


class ContextSection(NamedTuple):
    """Labelled section of a message."""

    label: Label
    text: str
    in_prompt: bool
    """True if it is part of a system message."""
    is_fixed: bool = True
    """True if it precedes the first response."""


_TAGS: dict[Label, str] = {
    "rules": "rules user_rules project_rules always_applied_workspace_rules custom_instructions customInstructions "
    "user_instructions project_instructions INSTRUCTIONS claude_md agents_md",
    "skills": "skills skill skills_instructions available_skills agent_skills",
    "sub-agents": "agents available_agents subagents available_subagents task-notification subagent_notification",
    "memory": "memory memories user_memory user_memories memory-context memory_context auto_memory persistent_memory",
}
_BY_TAG: dict[str, Label] = {name: label for label, names in _TAGS.items() for name in names.split()}
_TOOLS: dict[Label, str] = {
    "rules": "",
    "skills": "skill loadskill useskill activateskill",
    "sub-agents": "task agent subagent delegate delegatetask delegatetoagent spawnagent dispatchagent runsubagent "
    "callagent runagent waitagent agenttool newtask",
    "memory": "memory memorysearch searchmemory readmemory recallmemory",
}
_BY_TOOL: dict[str, Label] = {name: label for label, names in _TOOLS.items() for name in names.split()}
_OPENINGS: tuple[tuple[str, Label], ...] = (
    ("# AGENTS.md instructions for ", "rules"),
    ("Base directory for this skill: ", "skills"),
    ("The following skills ", "skills"),
    ("Available agent types ", "sub-agents"),
)
_HEADINGS: tuple[tuple[Label, str], ...] = (
    ("rules", r"(?:AGENTS|CLAUDE|GEMINI)\.md\b[^\n]*|(?:project|user|workspace) (?:rules|instructions)"),
    ("skills", r"(?:available )?skills"),
    ("sub-agents", r"(?:available )?(?:sub-?agents|agents|agent types)"),
    ("memory", r"(?:\w+ )?memor(?:y|ies)(?: \(\d+\))?"),
)
_MARK = re.compile(
    r"^(?:<(?P<tag>[A-Za-z][\w-]{1,40})(?: [^<>\n]{0,200})?>"
    r"|(?P<level>#{1,3}) (?:" + "|".join(f"(?P<h{number}>{words})" for number, (_, words) in enumerate(_HEADINGS)) + ")"
    r"[ \t]*$|(?P<file>Instructions from: |--- Context from: |Contents of /))",
    re.MULTILINE | re.IGNORECASE,
)
"""Start of a section in a system message."""
_FILE = re.compile(r"^(?:Contents of|Instructions from:|--- Context from:) (?P<path>[^\n]{1,600})", re.MULTILINE)
_AFTER_FILES = re.compile(r"^# (?:currentDate|gitStatus|userEmail)\b", re.MULTILINE)
"""Headings that Claude Code sends after the project files, in the same block."""
_MEMORY_FILE = re.compile(r"\bmemory/|\bMEMORY\.md\b|\bauto-?memory\b", re.IGNORECASE)


def find_sections(messages: Iterable[Message]) -> Iterator[ContextSection]:
    """Yield the sections of the messages in order, without overlaps."""
    tools: dict[str, str] = {}
    is_fixed = True
    for message in messages:
        is_fixed = is_fixed and message.role != "assistant"
        for part in message.parts:
            if isinstance(part, ToolCall):
                tools[part.id] = part.name
            elif isinstance(part, ToolResult):
                label = _BY_TOOL.get(_plain(part.name or tools.get(part.call_id, "")))
                if label is not None and part.text:
                    yield ContextSection(label, part.text, in_prompt=False, is_fixed=False)
            elif isinstance(part, Text) and not message.kinds & RESULT:
                for section in _in_text(part.text, message.role):
                    yield section._replace(is_fixed=is_fixed)


def _in_text(text: str, role: Role) -> Iterator[ContextSection]:
    if role == "system":
        yield from _in_system_text(text)
    elif role == "user":
        for block in read_user_text(text).blocks:
            yield from _in_block(block)


def _plain(tool: str) -> str:
    return "".join(filter(str.isalnum, tool.lower()))


def _in_block(block: Block) -> Iterator[ContextSection]:
    """Yield the sections of a client's block; files are classified by path."""
    inside = block.inside
    for opening, label in _OPENINGS:
        if block.text.startswith(opening) or inside.startswith(opening):
            yield ContextSection(label, block.text, in_prompt=False)
            return
    found = _BY_TAG.get(block.wrapper.opening.removeprefix("<"))
    if found is not None:
        yield ContextSection(found, block.text, in_prompt=False)
    elif _FILE.search(inside):
        yield from _files(inside, in_prompt=False)


def _files(text: str, *, in_prompt: bool) -> Iterator[ContextSection]:
    """Yield the files in a text, each including the line that names it."""
    end = _AFTER_FILES.search(text)
    text = text[: end.start()] if end else text
    starts = list(_FILE.finditer(text))
    for number, start in enumerate(starts):
        stop = starts[number + 1].start() if number + 1 < len(starts) else len(text)
        label: Label = "memory" if _MEMORY_FILE.search(start["path"]) else "rules"
        yield ContextSection(label, text[start.start() : stop].strip(), in_prompt)


def _in_system_text(text: str) -> Iterator[ContextSection]:
    for opening, label in _OPENINGS:
        if text.startswith(opening):
            yield ContextSection(label, text, in_prompt=True)
            return
    place, unclosed = 0, set[str]()
    while (mark := _MARK.search(text, place)) is not None:
        place = mark.end()
        if mark["file"]:
            yield from _files(text[mark.start() :], in_prompt=True)
            return
        if mark["tag"]:
            found = _BY_TAG.get(mark["tag"])
            end = _end_of_tag(text, mark) if found is not None and mark["tag"] not in unclosed else -1
            if end < 0:
                unclosed.add(mark["tag"])
        else:
            heading = next(number for number in range(len(_HEADINGS)) if mark[f"h{number}"])
            found, end = _HEADINGS[heading][0], _end_of_chapter(text, mark)
        if found is not None and end > place:
            yield ContextSection(found, text[mark.start() : end].strip(), in_prompt=True)
            place = end


def _end_of_tag(text: str, mark: re.Match[str]) -> int:
    closing = f"</{mark['tag']}>"
    end = text.find(closing, mark.end())
    return end + len(closing) if end >= 0 else -1


def _end_of_chapter(text: str, mark: re.Match[str]) -> int:
    """Return the start of the next heading of the same or a higher level."""
    following = re.compile(rf"^#{{1,{len(mark['level'])}}} ", re.MULTILINE).search(text, mark.end())
    return following.start() if following else len(text)
