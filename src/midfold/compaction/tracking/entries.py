"""Data classes of the trail: file changes, side effects, running tasks, checks and reads.

Entries are redacted, single-line and of limited size, with a maximum number of each kind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from midfold.compaction.injection import is_suspicious
from midfold.compaction.local.tool_call import clip, flat

Redactor = Callable[[str], str]
FileState = Literal["created", "changed", "deleted", "moved", "scratch", "reverted"]
CheckKind = Literal["test", "build", "lint", "typecheck", "script"]
MAX_FILES = 400
MAX_ACTS = 300
MAX_RUNNING = 40
MAX_CHECKS = 12
MAX_READS = 300
MAX_OUTCOME_CHARS = 240
MAX_COMMAND_CHARS = 140
MAX_LAST_CHARS = 110
MAX_NAME_CHARS = 80
MAX_REDACTED_CHARS = 4_000


class TrackedFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A changed file and its final state.

    `scratch` is a temporary file, an experimental script, a backup copy, or a file created and removed again;
    `reverted` was changed and restored.
    """

    path: str
    state: FileState
    below: int = 0
    """Number of files in it, for a directory listed as one entry."""
    source: str = ""
    """Path before a move."""
    names: tuple[str, ...] = ()
    """Functions, classes and headings that were edited."""
    added: int = 0
    removed: int = 0
    """Lines added and removed by all edits."""
    edits: int = 0
    last: str = ""
    """A line of the newest edit."""
    by: str = ""
    """Name of the agent's script that made the newest change; its content is unknown."""
    is_run: bool = False
    """Whether it was run as a script."""
    gone: bool = False
    """Whether a scratch file was removed."""
    at: int = -1
    """Message with the newest change; -1 if it comes from a handoff only."""


class WorldAct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A side effect beyond files, such as a commit, an installation or a booking. A failed one did not happen."""

    what: str
    text: str
    ok: bool | None = True
    """None if the output does not show whether it succeeded."""
    outcome: str = ""
    """Outcome with its ids: a commit hash, a pull request number, the reason of a failure."""
    is_replaced: bool = False
    """Whether a later act has the final outcome: a retry, or a repetition with the same effect."""
    at: int = -1


class RunningTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A command, server or sub-agent that was started and not seen to stop."""

    id: str
    what: str
    at: int = -1


class CheckRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Newest run of a test, build or linter, or of the agent's own script that is named like a test."""

    kind: CheckKind
    command: str
    ok: bool | None = None
    """None if the output does not show it."""
    counts: str = ""
    fails: tuple[str, ...] = ()
    before: str = ""
    """Name of the last changed source file if that change came after the run, so that the result is outdated."""
    at: int = -1


class FileRead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that was read and never changed, with the parts read."""

    path: str
    looked: tuple[str, ...] = ()
    at: int = -1


class GitState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of the repository according to the newest git output."""

    branch: str = ""
    """Branch, with its distance from upstream."""
    commit: str = ""
    """Newest commit made by the agent."""
    is_dirty: bool = False
    """Whether files changed since that commit, or at all if there is none."""


class Trail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Work according to tool calls and results, oldest first. Plain JSON; no LLM wrote any of it."""

    files: tuple[TrackedFile, ...] = ()
    acts: tuple[WorldAct, ...] = ()
    running: tuple[RunningTask, ...] = ()
    checks: tuple[CheckRun, ...] = ()
    reads: tuple[FileRead, ...] = ()
    git: GitState = GitState()
    root: str = ""
    """Directory of relative paths, if the conversation names it."""
    messages: int = 0
    """Number of messages covered; positions count from the first."""
    ahead: int = 0
    """Number of following messages already covered: those that stay behind a handoff."""

    @property
    def is_empty(self) -> bool:
        return not (self.files or self.acts or self.running or self.checks or self.reads or self.git.branch)


def newest_files(files: list[TrackedFile]) -> tuple[TrackedFile, ...]:
    """Return the newest files; above the maximum, drop scratch files first, then the oldest."""
    if len(files) > MAX_FILES:
        files = [file for file in files if file.state != "scratch"][-MAX_FILES:]
    return tuple(files)


class EntryCleaner:
    """Filter that redacts entries and limits them to a short line. Entries of an earlier trail stay unchanged."""

    def __init__(self, trail: Trail, redact: Redactor) -> None:
        self._redact = redact
        self._known: set[Any] = {*trail.files, *trail.acts, *trail.running, *trail.checks, *trail.reads}

    def _is_clean(self, *texts: str) -> bool:
        """Return whether there is nothing to clean: no secret, no second line, nothing long."""
        whole = "\n".join(texts)
        return (
            max(map(len, texts)) <= MAX_NAME_CHARS and whole.count("\n") < len(texts) and self._redact(whole) == whole
        )

    def _text(self, text: str, limit: int) -> str:
        return clip(flat(self._redact(text[:MAX_REDACTED_CHARS])), limit) if text else ""

    def _quote(self, text: str, limit: int) -> str:
        """Return a text from output, or "" if it may be a prompt injection."""
        return "" if is_suspicious(text) else self._text(text, limit)

    def name(self, text: str) -> str:
        return clip(flat(self._redact(text)), MAX_NAME_CHARS)

    def file(self, file: TrackedFile) -> TrackedFile:
        if file in self._known or self._is_clean(file.path, file.source, file.last, file.by, *file.names):
            return file
        return msgspec.structs.replace(
            file,
            path=self._text(file.path, 300),
            source=self._text(file.source, 300),
            names=tuple(self._text(name, MAX_NAME_CHARS) for name in file.names),
            last=self._text(file.last, MAX_LAST_CHARS),
            by="".join(self._text(file.by, MAX_NAME_CHARS).split()),
        )

    def act(self, act: WorldAct) -> WorldAct:
        if act in self._known:
            return act
        outcome = (self._text if act.ok else self._quote)(act.outcome, MAX_OUTCOME_CHARS)
        return msgspec.structs.replace(act, text=self._text(act.text, MAX_COMMAND_CHARS), outcome=outcome)

    def task(self, task: RunningTask) -> RunningTask:
        if task in self._known:
            return task
        return msgspec.structs.replace(
            task, id=self._text(task.id, MAX_NAME_CHARS), what=self._text(task.what, MAX_COMMAND_CHARS)
        )

    def check(self, check: CheckRun) -> CheckRun:
        if check in self._known:
            return check
        return msgspec.structs.replace(
            check,
            command=self._text(check.command, MAX_COMMAND_CHARS),
            counts=self._text(check.counts, MAX_NAME_CHARS),
            fails=tuple(filter(None, (self._quote(line, MAX_COMMAND_CHARS) for line in check.fails))),
            before=self._text(check.before, MAX_NAME_CHARS),
        )

    def read(self, read: FileRead) -> FileRead:
        if read in self._known or self._is_clean(read.path, *read.looked):
            return read
        return msgspec.structs.replace(
            read,
            path=self._text(read.path, 300),
            looked=tuple(self._text(looked, MAX_NAME_CHARS) for looked in read.looked),
        )
