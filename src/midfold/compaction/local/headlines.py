"""One-line headlines of tool calls with their outcome, and short file names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from midfold.compaction.local.tool_actions import few_hits, shows_content, without_cd
from midfold.compaction.local.tool_call import Action, ToolCallRecord
from midfold.compaction.tracking.checks import check_of, verdict_of
from midfold.compaction.tracking.commands import steps_of as commands_of
from midfold.transcript.message import CALL, Message, ToolCall
from midfold.transcript.tokens import estimate_text

TOOLS_USED = "- Tools used: "
IDS_SHARE = 0.04
"""Share of the budget that call ids may take; the newest id of each tool is always listed."""
TOKENS_PER_TOOL = 500
"""Budget tokens per listed tool."""
MAX_TOOLS = 8
STATED = "- The assistant said: "
MAX_STATED = 2
MAX_STATED_CHARS = 300
_BLOCKED = re.compile(
    r"\b(?:(?:i|we|it|this|work|task|everything)(?:['’]m| am|['’]re| are|['’]s| is|['’]ve been| (?:have|has) been)"
    r"(?: still| now| currently)? (?:blocked|stuck)\b"
    r"|blocked (?:by|on|until|because)\b"
    r"|(?:can(?:not|['’]t| not)|unable to) (?:proceed|continue|go on|finish|move on)\b"
    r"|(?:waiting|wait) (?:for|on) (?:\w+ ){0,3}(?:approval|permission|access|credentials|sign-off|confirmation|review)"
    r"|(?:missing|without|lack(?:s|ing)?|no) (?:the |an? |your )?(?:approval|permissions?|credentials)\b)",
    re.I,
)
_UNBLOCKED = re.compile(
    r"\b(?:unblocked|no longer blocked|(?:approval|permission|access|credentials)[^.\n]{0,30} "
    r"(?:arrived|granted|given|is there|are there))\b",
    re.I,
)

MAX_COMMAND_CHARS = 110
MAX_SHORT_OUTPUT_CHARS = 200
"""Maximum characters of an output that the headline includes as a whole."""
MAX_CLOSING_CHARS = 120
"""Maximum characters of a last line that the headline includes."""
MAX_PATH_CHARS = 60
ABOUT_FILES = ("read", "write", "patch", "search")
"""Families whose calls name a file."""
WRITES = ("patch", "write")
CLOSINGS = ("search", "list", "other", "web", "process")
"""Families whose whole outcome is included."""
NO_OUTPUT = "no output"

_RUN = re.compile(
    r"\b(?=[bcfgjlptuv])(?:tests?|pytest|unittest|jest|vitest|lint\w*|fmt|format|check|build|typecheck|tsc|vet|git)\b"
)
_RECORDS = (["git", "commit"], ["git", "push"])
_FILE = re.compile(r"[^/.]\.\w{1,10}\Z")
_SCRIPT = re.compile(r"\b(?:python[0-9.]{0,5}|node|ruby|perl)(?: -\w{0,3})? (?:[\"']|<<-? ?['\"]?\w{1,40}['\"]?)$")
_CHANGING = re.compile(r"\.replace\(|\.sub\(|\.write|open\([^)]{1,200}['\"][wa]")
_PREPARING = re.compile(r"(?:import|from|const|require|#|//)\b|#")
_HERE = re.compile(r"cat >(>?) ?([\w./~-]{1,200}) <<-? ?['\"]?\w{1,40}['\"]?$")
"""Commands that run a script of several lines, that change a file, and that write one with a here-document."""


def call_headline(action: Action, record: ToolCallRecord, files: FileNames) -> str:
    """Return a headline of a call with its outcome."""
    if action.outcome == "failed":
        return f"{_did(action, record, files)} → FAILED: {files.inside(action.error or action.detail)}"
    closing = action.detail if action.family in CLOSINGS else action.detail.partition("ends with: ")[2]
    if action.family == "shell" and shows_content(without_cd(record.command)):
        closing = _short_output(record)
    elif action.family == "shell":
        closing = (
            _short_output(record) or (closing.startswith(("ok ", "? ")) and _counts(record)) or closing or _last(record)
        )
    elif action.family == "search":
        closing = few_hits(record) or closing
    has_closing = closing and not (closing == NO_OUTPUT and action.wrote)
    return f"{_did(action, record, files)} → {files.inside(closing)}" if has_closing else _did(action, record, files)


def _short_output(record: ToolCallRecord) -> str:
    """Return the whole output of a command if it is short."""
    text = record.body.text.strip()
    if not text:
        return "no matches" if record.body.exit_code == 1 else NO_OUTPUT
    return (
        " / ".join(record.say(line, MAX_SHORT_OUTPUT_CHARS) for line in text.split("\n"))
        if len(text) <= MAX_SHORT_OUTPUT_CHARS
        else ""
    )


def _last(record: ToolCallRecord) -> str:
    """Return the last line of a command's output if it is short."""
    last = record.body.text.rstrip().rpartition("\n")[2].strip()
    return f"… {record.say(last, MAX_CLOSING_CHARS)}" if 0 < len(last) <= MAX_CLOSING_CHARS else ""


def _counts(record: ToolCallRecord) -> str:
    """Return the counts of a check that passed, for runners whose last line covers only one part."""
    kinds = (
        (check_of(step) for step in commands_of(record.command) if step.words) if _RUN.search(record.command) else ()
    )
    kind = next(filter(None, kinds), None)
    verdict = verdict_of(record.body.text, kind, failed=False) if kind else None
    return f"passed ({verdict.counts})" if verdict and verdict.ok and verdict.counts else ""


def _did(action: Action, record: ToolCallRecord, files: FileNames) -> str:
    if action.family == "shell":
        command = without_cd(record.command).strip()
        first, _, rest = command.partition("\n")
        if first.endswith(("$(cat <<'EOF'", '$(cat <<"EOF"', "$(cat <<EOF")):
            first = f"{first.partition('$(cat <<')[0]}{rest.strip().partition(chr(10))[0]}"
        elif _SCRIPT.search(first):
            first = f"{first} {_key_line(rest)}".rstrip()
        if here := _HERE.match(first):
            wrote = f"{'added to' if here[1] else 'wrote'} {files.inside(here[2])}"
            return "; $ ".join(
                [wrote, *(record.say(files.inside(line), MAX_COMMAND_CHARS) for line in _run_after(record))]
            )
        return f"$ {record.say(files.inside(first), MAX_COMMAND_CHARS)}" if command else "ran a command"
    if action.family == "other":
        return f"{action.tool}: {action.did.removeprefix('called it with ')}"
    did = action.did
    for path in action.paths:
        did = did.replace(record.path(path), files.first(path))
    return did


def _run_after(record: ToolCallRecord) -> list[str]:
    """Return the last program that a command runs after it wrote a file: the outcome is that of this program."""
    others = [" ".join(step.words) for step in commands_of(record.command)[1:] if step.words and not step.writes]
    return [line for line in others[-1:] if not line.startswith(("cat ", "chmod ", "echo ", "ls "))]


def _key_line(script: str) -> str:
    """Return the first line of a script that changes something, or else the first that is not setup."""
    lines = [line.strip() for line in script.split("\n")]
    changing = (line for line in lines if _CHANGING.search(line))
    return next(changing, next((line for line in lines if line and not _PREPARING.match(line)), ""))


class FileNames:
    """Display names of a fold's files: the path at first, then the shortest unique suffix."""

    def __init__(self, root: str, paths: Iterable[str]) -> None:
        self.root = root
        inside = dict.fromkeys(path.removeprefix(root) for path in paths)
        counts = Counter(end for path in inside for end in _ends_of_path(path))
        self._ends = {
            path: next((end for end in _ends_of_path(path) if counts[end] == 1), path)
            for path in inside
            if _FILE.search(path)
        }

    def inside(self, text: str) -> str:
        """Make paths in a text relative to the root."""
        return text.replace(self.root, "") if self.root else text

    def first(self, path: str) -> str:
        """Return the path relative to the root; of a long one, the last three components."""
        inside = path.removeprefix(self.root)
        return inside if len(inside) <= MAX_PATH_CHARS else "/".join(inside.split("/")[-3:])

    def short_headline(self, action: Action | None, headline: str) -> tuple[str, str]:
        """Return the file that a headline names, and the headline for use after that file was already named."""
        path = action.paths[0] if action is not None and action.family in ABOUT_FILES and action.paths else ""
        inside, first = path.removeprefix(self.root), self.first(path)
        if not path or first not in headline:
            return "", headline
        end = self._ends.get(inside, inside)
        end = end if len(end) < len(first) else first
        return inside, headline.replace(first, end, 1).replace(f"{end} lines ", f"{end} ", 1)


def _ends_of_path(path: str) -> Iterator[str]:
    """Yield the suffixes of a path, shortest first."""
    place = len(path)
    while (place := path.rfind("/", 0, place)) > 0:
        yield path[place + 1 :]
    yield path


def is_in_headline(action: Action, record: ToolCallRecord) -> bool:
    """Return whether the headline suffices: plans, failed writes, successful tests, builds, linters and commits."""
    if action.family == "plan" or (action.family in WRITES and action.outcome == "failed"):
        return True
    if action.family != "shell" or action.outcome == "failed" or not _RUN.search(record.command):
        return False
    return any(check_of(step) or step.words[:2] in _RECORDS for step in commands_of(record.command) if step.words)


# Call ids and stated blockers of the built-in summary.


def tools_used(messages: Iterable[Message], budget: int) -> str:
    """Return one line with the tools called, their counts, and their call ids, newest first."""
    parts = [part for message in messages if message.kinds & CALL for part in message.parts]
    ids: dict[str, list[str]] = {}
    for part in parts:
        if type(part) is ToolCall:
            ids.setdefault(part.name, []).append(part.id)
    most = max(min(budget // TOKENS_PER_TOOL, MAX_TOOLS), 1)
    used = sorted(ids, key=lambda name: -len(ids[name]))[:most]
    share = budget * IDS_SHARE / max(len(used), 1)
    listed = (f"{name} x{len(ids[name])}{_ids_text(ids[name], share)}" for name in used)
    return f"{TOOLS_USED}{', '.join(listed)}" if used else ""


def _ids_text(ids: Sequence[str], left: float) -> str:
    shown: list[str] = []
    known = [one for one in reversed(ids) if one]
    for one in known:
        left -= estimate_text(one) + 1
        if shown and left < 0:
            break
        shown.append(one)
    if not shown:
        return ""
    return f" ({', '.join(shown)}{' and older ones' if len(shown) < len(known) else ''})"


def stated_blockers(sentences: Iterable[str], earlier: Iterable[str] = ()) -> list[str]:
    """Return the newest sentences in which the assistant states a blocker that it did not later call resolved.

    `earlier` are lines of an earlier summary.
    """
    found = [line for line in earlier if line.startswith(STATED)]
    for sentence in sentences:
        if _UNBLOCKED.search(sentence):
            found = []
        elif _BLOCKED.search(sentence) and len(sentence) <= MAX_STATED_CHARS:
            found.append(f"{STATED}{sentence.lstrip('-*# ')}")
    return list(dict.fromkeys(found))[-MAX_STATED:]
