"""Separate a user's own text from the text that clients put around it, by a table of known wrappers.

1. A wrapper is searched only where clients put it: at the start or end of a text in a user message, next to other
   wrappers, never inside a sentence, a tool result or a response. A tool result contains a user's words only if the
   client says so: for a refused call, or as the reply of a tool that asks the user. Reminders appended to results are
   recognised by position.
2. An unknown wrapper is removed only if text remains without it.
3. `stays` marks wrappers that are part of the client's prompt; newer clients send these in system messages without a
   tag. The text of a skill is a notice, not a user's instruction. Before the first response, instructions are
   recognised by tag and position, whatever their first words.
4. Each text is read once from each end, so the cost is linear.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

from midfold.transcript.message import CALL, RESULT, Message, Role, Text, ToolCall, ToolResult

Meaning = Literal[
    "words", "instructions", "environment", "notice", "command", "output", "observation", "summary", "report", "unknown"
]  # fmt: skip
"""Meaning of a wrapper's content. An observation is a tool result that a framework sends as a user message."""


class Wrapper(NamedTuple):
    """Known wrapper: client, start and end, and meaning; without a closing it extends to the end."""

    client: str
    opening: str
    closing: str
    meaning: Meaning
    begins: str = ""
    """Start of the content, to distinguish wrappers that share a tag."""
    stays: bool = False
    """True if it is part of the client's prompt rather than the conversation."""
    at_end: bool = False
    """True if it is a last paragraph after the user's text."""
    only_first: bool = False
    """True if the client sends it only before the first response."""
    items: re.Pattern[str] | None = None
    """Pattern of listed items, if a later wrapper may list fewer: it then replaces only the items it lists."""


_BULLETS = re.compile(r"^- ([^\s:(]{1,80})", re.MULTILINE)
_LINES = re.compile(r"^(\w{1,80})$", re.MULTILINE)
_FIELDS = re.compile(r"^ {0,4}<(\w{1,40})", re.MULTILINE)
_FILES = re.compile(r"^Contents of (\S{1,400})", re.MULTILINE)


def _tags(client: str, meaning: Meaning, names: str, *, stays: bool = False) -> tuple[Wrapper, ...]:
    return tuple(Wrapper(client, f"<{name}", f"</{name}>", meaning, stays=stays) for name in names.split())


def _reminder(begins: str, items: re.Pattern[str] | None = None, *, only_first: bool = False) -> Wrapper:
    """Return the wrapper of a Claude Code reminder that is part of its prompt."""
    opening, closing = "<system-reminder", "</system-reminder>"
    return Wrapper("claude-code", opening, closing, "instructions", begins, True, only_first=only_first, items=items)


REMINDER, REMINDER_ENDS = "<system-reminder>", ("</system-reminder>", "</system-reminder>\n")

NEW_TASK = "\nNew task:\n"
"""Marker of the user's next task in smolagents, after the output of the last step."""
WRAPPERS = (
    _reminder("As you answer the user's questions, you can use the following context:", only_first=True),
    _reminder("Codebase and user instructions are shown below.", only_first=True),
    _reminder("# Environment", only_first=True),
    _reminder("You are powered by the model named", only_first=True),
    _reminder("Today's date is"),
    _reminder("Attribution for git commits and pull requests"),
    _reminder("Contents of /", _FILES),
    _reminder("SessionStart:"),
    _reminder("# MCP Server Instructions"),
    _reminder("The following skills are available for use with the Skill tool:", _BULLETS),
    _reminder("Available agent types for the Agent tool:", _BULLETS),
    _reminder("The following deferred tools are now available via ToolSearch", _LINES),
    Wrapper("claude-code", "<system-reminder", "</system-reminder>", "notice", "The following skills were invoked in"),
    Wrapper("claude-code", "<system-reminder", "</system-reminder>", "notice", "UserPromptSubmit hook"),
    *_tags("claude-code", "instructions", "system-reminder"),
    *_tags("claude-code", "notice", "total_tokens", stays=True),
    Wrapper("claude-code", "Base directory for this skill: ", "", "notice"),
    *_tags("claude-code", "command", "command-name command-message command-args command-contents"),
    *_tags("claude-code", "output", "local-command-stdout local-command-stderr bash-stdout bash-stderr bash-input"),
    *_tags("claude-code", "report", "task-notification"),
    *_tags("claude-code", "notice", "local-command-caveat user-prompt-submit-hook post-tool-use-hook"),
    *_tags("claude-code", "notice", "session-start-hook system-notification background-task todo-snapshot"),
    *_tags("claude-code", "environment", "ide_opened_file ide_selection ide_diagnostics new-diagnostics"),
    Wrapper("claude-code", "[Request interrupted by user", "\n", "notice"),
    Wrapper("claude-code", "Operation stopped by hook: ", "", "notice"),
    Wrapper("claude-code", "Caveat: The messages below were generated by the user while running local", "", "notice"),
    Wrapper(
        "claude-code",
        "This session is being continued from a previous conversation",
        "Pick up the last task as if the break never happened.",
        "summary",
    ),
    Wrapper("claude-code", "If you need specific details from before exiting plan mode", "\n", "notice", at_end=True),
    Wrapper("codex", "# AGENTS.md instructions for ", "</INSTRUCTIONS>", "instructions", stays=True),
    Wrapper("codex", "# Context from my IDE setup:", "## My request for Codex:", "environment"),
    Wrapper("codex", "Another language model started to solve this problem and produced a summary", "", "summary"),
    *_tags("codex", "instructions", "user_instructions skills_instructions permissions collaboration_mode", stays=True),
    *_tags("codex", "instructions", "personality_spec apps_instructions plugins_instructions", stays=True),
    *_tags("codex", "instructions", "INSTRUCTIONS"),
    Wrapper("codex", "<environment_context", "</environment_context>", "environment", stays=True, items=_FIELDS),
    *_tags("codex", "report", "subagent_notification"),
    *_tags("codex", "notice", "turn_aborted user_action skill"),
    *_tags("codex", "output", "user_shell_command"),
    *_tags("gemini-cli", "environment", "session_context", stays=True),
    *_tags("gemini-cli", "summary", "state_snapshot"),
    Wrapper("gemini-cli", "This is the Gemini CLI. We are setting up the context for our chat.", "", "environment"),
    *_tags("copilot", "instructions", "reminderInstructions customInstructions"),
    *_tags("copilot", "environment", "context editorContext attachments workspace_info environment_info"),
    *_tags("copilot", "words", "userRequest prompt"),
    *_tags("cursor", "environment", "user_info project_layout additional_data open_and_recently_viewed_files"),
    *_tags("cursor", "words", "user_query"),
    *_tags("cline", "environment", "environment_details"),
    *_tags("cline", "words", "task feedback user_message answer"),
    *_tags("mini-swe-agent", "words", "pr_description issue_description"),
    *_tags("mini-swe-agent", "instructions", "instructions"),
    *_tags("mini-swe-agent", "observation", "returncode output"),
    *_tags("openhands", "environment", "uploaded_files EXTRA_INFO"),
    Wrapper("openhands", "EXECUTION RESULT of [", "", "observation"),
    Wrapper("smolagents", "Observation:\n", NEW_TASK, "observation"),
    Wrapper("swe-agent", "OBSERVATION:\n", "", "observation"),
    Wrapper("autogen", "exitcode: ", "", "observation"),
)
OWN_COMMANDS = re.compile(
    "/(?:exit|quit|clear|compact|model|login|logout|help|config|cost|status|context|resume|usage|doctor|memory|export"
    "|permissions|hooks|mcp|agents|ide|vim|theme|upgrade|rewind|plugin|add-dir)"
)
"""Commands that a client runs locally without a request to the model."""
_BY_TAG = {wrapper.opening[1:]: wrapper for wrapper in WRAPPERS if wrapper.opening.startswith("<")}
_BY_BEGINNING = tuple(wrapper for wrapper in WRAPPERS if wrapper.begins)
_OTHERS = tuple(wrapper for wrapper in WRAPPERS if not wrapper.opening.startswith("<"))
_OTHER_OPENINGS = tuple(wrapper.opening for wrapper in _OTHERS)
_LAST_PARAGRAPHS = tuple(wrapper for wrapper in WRAPPERS if wrapper.at_end)
_SUMMARY_OPENINGS = tuple(wrapper.opening for wrapper in WRAPPERS if wrapper.meaning == "summary")
_INSTRUCTIONS = re.compile("instruction|reminder|rules|guideline|convention|memory|memories|preference", re.I)
"""Words in the names of tags that clients put around project instructions."""
_TITLE = re.compile(r"#{1,3} [^\n]{1,400}\n{1,3}")
_TAG = re.compile(r"<([A-Za-z][\w-]{0,40})(?: [^<>\n]{0,200})?>")
_END_TAG = re.compile(r"</([A-Za-z][\w-]{0,40})>\Z")
_END_REACH, _LAST_REACH = 60, 1_000
MAX_TITLE_CHARACTERS = 80
MAX_REDACTED_CHARACTERS = 1_000
"""Characters that are redacted before a title is truncated, so that a secret across the cut is still detected."""


class Block(NamedTuple):
    """Wrapper found in a text: its full text and its content."""

    wrapper: Wrapper
    text: str
    inside: str

    @property
    def key(self) -> tuple[str, str]:
        """Return what identifies versions of the same block."""
        return self.wrapper.opening, self.wrapper.begins

    @property
    def names(self) -> frozenset[str]:
        """Return the items it lists."""
        return frozenset(self.wrapper.items.findall(self.inside)) if self.wrapper.items else frozenset()


class UserText(NamedTuple):
    """Text of a user message, split into the user's own words and the client's blocks."""

    words: str
    blocks: tuple[Block, ...]

    def all_of(self, *meanings: Meaning) -> tuple[Block, ...]:
        return tuple(block for block in self.blocks if block.wrapper.meaning in meanings)


def read_user_text(text: str) -> UserText:
    """Split a text into what the user typed and what the client put around it."""
    start, end = _trim(text, 0, len(text))
    blocks: list[Block] = []
    while (block := _first_block(text, start, end)) is not None:
        blocks.append(block)
        start, end = _trim(text, start + len(block.text), end)
    after: list[Block] = []
    while (block := _last_block(text, start, end)) is not None:
        after.append(block)
        start, end = _trim(text, start, end - len(block.text))
    blocks += reversed(after)
    return UserText(_words(text[start:end], blocks), tuple(blocks))


def prompt_blocks(text: str, role: Role, *, is_first: bool) -> tuple[Block, ...]:
    """Return the blocks of a text that are part of the client's prompt.

    Before the first response these are the blocks before the user's words; later, only blocks of texts without other
    words.
    """
    begun = (row for row in _BY_BEGINNING if row.stays and text.startswith(row.begins))
    if role == "system" and (row := next(begun, None)):
        return (Block(row._replace(items=row.items or _BULLETS), text, text),)
    end = len(text.rstrip())
    blocks: list[Block] = []
    start = _trim(text, 0, end)[0]
    while (block := _first_block(text, start, end)) is not None:
        blocks.append(block)
        start = _trim(text, start + len(block.text), end)[0]
    if start < end and not is_first:
        return ()
    if is_first:
        blocks = _mark_prompt_blocks(blocks or _titled_block(text, start, end))
    return tuple(block for block in blocks if block.wrapper.stays and (is_first or not block.wrapper.only_first))


def _titled_block(text: str, start: int, end: int) -> list[Block]:
    """Return the text as one block if it is a heading and a tag around all the rest (Codex)."""
    title = _TITLE.match(text, start, end)
    block = _first_block(text, title.end(), end) if title is not None else None
    if block is None or title is None or title.end() + len(block.text) < end:
        return []
    return [block._replace(text=text[start:end])]


def _mark_prompt_blocks(blocks: list[Block]) -> list[Block]:
    """Mark instructions before the first response and before the user's words as part of the prompt.

    Clients reword their introductions from release to release, so tag and position decide. The first line distinguishes
    blocks, so that only versions of the same block replace each other.
    """
    found: list[Block] = []
    is_before = True
    for block in blocks:
        row = block.wrapper
        is_before = is_before and row.meaning != "words"
        is_named = row.meaning == "unknown" and _INSTRUCTIONS.search(row.opening) is not None
        if is_before and not row.stays and (row.meaning == "instructions" or is_named):
            begins = block.inside.partition("\n")[0][:MAX_TITLE_CHARACTERS]
            row = row._replace(stays=True, only_first=True, begins=begins)
        found.append(block._replace(wrapper=row))
    return found


def user_words(message: Message) -> str:
    """Return what a person typed in a message; '' for other roles and for messages written by the client."""
    if message.role != "user":
        return ""
    words = (read_user_text(part.text).words for part in message.parts if isinstance(part, Text))
    return "\n\n".join(filter(None, words))


REFUSED = "The user doesn't want to proceed with this tool use"
_USER_SAID = re.compile(r".{0,240}?\bthe user said:\n", re.DOTALL)
_NOTE_ON_REFUSAL = "\n\nNote: The user's next message may contain"
QUESTION_TOOLS = (
    "askuserquestion", "askuser", "askquestion", "askquestions", "askfollowupquestion", "requestuserinput", "question",
    "clarify",
)  # fmt: skip
"""Tools of known clients whose results are replies of the user, by name without separators."""
_TOPIC = re.compile(
    r"\"(?:repo\w{0,20}|url|library\w{0,10}|document\w{0,10}|file\w{0,10}|path|database)\"\s{0,4}:", re.I
)
"""Arguments that name the subject of a question; questions to a user have none."""
_ANSWERED = re.compile(r"(?:User has answered your questions|Your questions have been answered|The user answered): ")
_PAIR = re.compile(r'"([^"\n]{1,2000})"="([^"]{1,2000})"')
_NOT_ANSWERED = ("<tool_use_error>", "The user did not answer")
MAX_REPLY_CHARACTERS = 4_000


def reply_in_result(tool: str, result: ToolResult, arguments: str = "{}") -> str:
    """Return what the user said in a tool result, or '' if the tool did not ask the user.

    A refusal counts only if the client marks the result as an error, because any command can print such a sentence.
    """
    if not result.is_error and not _asks_user(tool, arguments):
        return ""
    text = result.text.strip()
    if text.startswith(REFUSED):
        opening = _USER_SAID.match(text)
        return text[opening.end() :].partition(_NOTE_ON_REFUSAL)[0].strip()[:MAX_REPLY_CHARACTERS] if opening else ""
    if result.is_error:
        return ""
    opening = _ANSWERED.match(text)
    if opening is None:
        return "" if text.startswith(_NOT_ANSWERED) else text[:MAX_REPLY_CHARACTERS]
    pairs = _PAIR.findall(text, opening.end())
    rendered = "\n".join(f'"{question}" → "{answer}"' for question, answer in pairs) or text[opening.end() :]
    return rendered[:MAX_REPLY_CHARACTERS]


@lru_cache(maxsize=256)
def _asks_user(tool: str, arguments: str) -> bool:
    """Return whether a call asks the user; tools that ask a service also name the subject."""
    return "".join(filter(str.isalnum, tool.lower())) in QUESTION_TOOLS and not _TOPIC.search(arguments)


def without_reminders(result: str) -> str:
    """Return a result without the reminders that a client appended for its model."""
    end = len(result)
    while result.endswith(REMINDER_ENDS, 0, end) and (start := result.rfind(REMINDER, 0, end)) >= 0:
        end = start
        while end and result[end - 1].isspace():
            end -= 1
    return result[:end]


def replies(messages: Iterable[Message]) -> Iterator[str]:
    """Yield what users said in tool results."""
    calls: dict[str, tuple[str, str]] = {}
    for message in messages:
        for part in message.parts if message.kinds & (CALL | RESULT) else ():
            if isinstance(part, ToolCall):
                calls[part.id] = part.name, part.arguments
            elif isinstance(part, ToolResult):
                tool, arguments = calls.get(part.call_id, ("", "{}"))
                if words := reply_in_result(tool, part, arguments):
                    yield words


def title_of(messages: Iterable[Message], redact: Callable[[str], str]) -> str:
    """Return a one-line title: the first words that a person typed."""
    words = next(filter(None, map(user_words, messages)), "")
    line = " ".join(redact(words[:MAX_REDACTED_CHARACTERS]).split())
    if len(line) <= MAX_TITLE_CHARACTERS:
        return line
    return f"{line[: MAX_TITLE_CHARACTERS - 1].rpartition(' ')[0] or line[: MAX_TITLE_CHARACTERS - 1]}…"


def client_summary(message: Message) -> str:
    """Return the summary that a client put in place of an earlier conversation, or ''."""
    return "\n\n".join(block.inside for _, block in _summaries(message))


def without_client_summary(message: Message) -> Message:
    """Return the message without such a summary."""
    parts = list(message.parts)
    for number, block in _summaries(message):
        part = parts[number]
        parts[number] = Text(part.text.replace(block.text, "", 1).strip()) if isinstance(part, Text) else part
    return message.with_parts(tuple(part for part in parts if not isinstance(part, Text) or part.text))


def _summaries(message: Message) -> Iterator[tuple[int, Block]]:
    """Yield the summaries in a message with their part indexes."""
    for number, part in enumerate(message.parts if message.role == "user" else ()):
        if isinstance(part, Text) and any(opening in part.text for opening in _SUMMARY_OPENINGS):
            yield from ((number, block) for block in read_user_text(part.text).all_of("summary"))


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def _first_block(text: str, start: int, end: int) -> Block | None:
    tag = _TAG.match(text, start, end)
    if tag is not None:
        wrapper = _wrapper_of_tag(tag.group(1))
        close = text.find(wrapper.closing, tag.end(), end) if wrapper is not None else -1
        if wrapper is None or close < 0:
            return None
        inside = text[tag.end() : close].strip()
        return Block(_by_content(wrapper, inside), text[start : close + len(wrapper.closing)], inside)
    if not text.startswith(_OTHER_OPENINGS, start, end):
        return None
    wrapper = next(wrapper for wrapper in _OTHERS if text.startswith(wrapper.opening, start, end))
    find = text.rfind if wrapper.closing == NEW_TASK else text.find
    close = find(wrapper.closing, start, end) if wrapper.closing else -1
    whole = text[start : end if close < 0 else close + len(wrapper.closing)]
    return Block(wrapper, whole, whole.removeprefix(wrapper.opening).removesuffix(wrapper.closing).strip())


def _last_block(text: str, start: int, end: int) -> Block | None:
    line = text.rfind("\n", max(end - _LAST_REACH, start), end) + 1
    for row in _LAST_PARAGRAPHS if line else ():
        if text.startswith(row.opening, line, end):
            return Block(row, text[line:end], text[line:end])
    tag = _END_TAG.search(text, max(end - _END_REACH, start), end)
    wrapper = _wrapper_of_tag(tag.group(1)) if tag is not None else None
    if tag is None or wrapper is None:
        return None
    place = text.rfind(wrapper.opening, start, end)
    opening = _TAG.match(text, place, end) if place >= 0 else None
    is_alone = place == start or text[place - 1 : place].isspace()
    if opening is None or opening.group(1) != tag.group(1) or not is_alone:
        return None
    inside = text[opening.end() : tag.start()].strip()
    return Block(_by_content(wrapper, inside), text[place:end], inside)


def _by_content(wrapper: Wrapper, inside: str) -> Wrapper:
    """Return a more specific wrapper with the same tag if the content matches one."""
    found = (row for row in _BY_BEGINNING if row.opening == wrapper.opening and inside.startswith(row.begins))
    return next(found, wrapper)


def _wrapper_of_tag(name: str) -> Wrapper | None:
    """Return the wrapper of a tag; an unknown tag needs a compound name, unlike most tags that people paste."""
    known = _BY_TAG.get(name)
    if known is not None or not ("-" in name or "_" in name):
        return known
    return Wrapper("", f"<{name}", f"</{name}>", "unknown")


def _words(rest: str, blocks: list[Block]) -> str:
    words = [block.inside for block in blocks if block.wrapper.meaning == "words"]
    if rest or any(words):
        return "\n\n".join(filter(None, [*words, rest]))
    command = _command(blocks)
    if command:
        return command
    return "\n\n".join(block.text for block in blocks if block.wrapper.meaning == "unknown")


def _command(blocks: list[Block]) -> str:
    """Return the user's slash command as typed, or '' if the client handles it locally."""
    parts = {block.wrapper.opening: block.inside for block in blocks if block.wrapper.meaning == "command"}
    name = parts.get("<command-name", "")
    if not name or OWN_COMMANDS.fullmatch(name):
        return ""
    return f"{name} {parts.get('<command-args', '')}".strip()
