"""The artifact trail as data: what an agent did to files and to the world, what runs, and what was checked last.

Entries are kept redacted, one line each and bounded, and so many of each kind.
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
MOST_FILES, MOST_ACTS, MOST_RUNNING, MOST_CHECKS, MOST_READS = 400, 300, 40, 12, 300
LONGEST_TEXT, LONGEST_COMMAND, LONGEST_LAST, LONGEST_NAME = 240, 140, 110, 80
REDACTED_AT_ONCE = 4_000


class TrackedFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that was changed, and what it came to.

    `scratch` is a temporary file, a script that was made to try something, a copy to fall back on, or a file that was
    created and removed again; `reverted` was changed and put back.
    """

    path: str
    state: FileState
    below: int = 0
    """Files in it, where it is a folder that is told as one."""
    source: str = ""
    """Where it was before it was moved."""
    names: tuple[str, ...] = ()
    """Functions, classes and headings that were touched."""
    added: int = 0
    removed: int = 0
    """Lines, of all edits together."""
    edits: int = 0
    last: str = ""
    """A line of the newest edit: what it is now, where an edit was redone."""
    by: str = ""
    """The name of the agent's own script that made the newest change: what it wrote is not known."""
    is_run: bool = False
    """Whether it was run as a script."""
    gone: bool = False
    """Whether a scratch file was removed again."""
    at: int = -1
    """The message with the newest change; -1 where only a handoff told of it."""


class WorldAct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that was done beside the files: a commit, an installation, a booking. What failed did not happen."""

    what: str
    text: str
    ok: bool | None = True
    """None where the output does not show whether it took place."""
    outcome: str = ""
    """What came of it, with its ids: a commit's hash, the number of a pull request, why it failed."""
    is_replaced: bool = False
    """Whether a later act says what came of it in the end: it was tried again, or left what it had left before."""
    at: int = -1


class RunningTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A command, server or sub-agent that was started and not seen to stop."""

    id: str
    what: str
    at: int = -1


class CheckRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The newest run of a test, build or linter, or of a script of the agent's own that is named like a test."""

    kind: CheckKind
    command: str
    ok: bool | None = None
    """None where the output does not tell."""
    counts: str = ""
    fails: tuple[str, ...] = ()
    before: str = ""
    """The name of the source file that was changed last, where that was after it: it tells of an older state."""
    at: int = -1


class FileRead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that was read and never changed, and which parts of it."""

    path: str
    looked: tuple[str, ...] = ()
    at: int = -1


class GitState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the repository stands, by the newest output of git that says so."""

    branch: str = ""
    """With how far it is ahead of or behind another."""
    commit: str = ""
    """The newest commit that was made here."""
    is_dirty: bool = False
    """Whether files were changed after it, or without any."""


class Trail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What calls and their results say was done, oldest first. Plain JSON; nothing in it was written by a model."""

    files: tuple[TrackedFile, ...] = ()
    acts: tuple[WorldAct, ...] = ()
    running: tuple[RunningTask, ...] = ()
    checks: tuple[CheckRun, ...] = ()
    reads: tuple[FileRead, ...] = ()
    git: GitState = GitState()
    root: str = ""
    """The folder that relative paths are in, where the conversation names it."""
    messages: int = 0
    """How many messages it follows: positions count from the first."""
    ahead: int = 0
    """How many of the messages that come next it tells of already: those that stay behind a handoff."""

    @property
    def is_empty(self) -> bool:
        return not (self.files or self.acts or self.running or self.checks or self.reads or self.git.branch)


def newest_files(files: list[TrackedFile]) -> tuple[TrackedFile, ...]:
    """Where there are too many, scratch files go first, then the oldest."""
    if len(files) > MOST_FILES:
        files = [file for file in files if file.state != "scratch"][-MOST_FILES:]
    return tuple(files)


class EntryCleaner:
    """Entries as they are kept: redacted, one line each, bounded. What an earlier trail has is kept as it is."""

    def __init__(self, trail: Trail, redact: Redactor) -> None:
        self._redact = redact
        self._known: set[Any] = {*trail.files, *trail.acts, *trail.running, *trail.checks, *trail.reads}

    def _is_clean(self, *texts: str) -> bool:
        """Whether there is nothing to do: no secret, no second line, nothing long."""
        whole = "\n".join(texts)
        return max(map(len, texts)) <= LONGEST_NAME and whole.count("\n") < len(texts) and self._redact(whole) == whole

    def _text(self, text: str, limit: int) -> str:
        return clip(flat(self._redact(text[:REDACTED_AT_ONCE])), limit) if text else ""

    def _quote(self, text: str, limit: int) -> str:
        """What an output says, unless it may be an order."""
        return "" if is_suspicious(text) else self._text(text, limit)

    def name(self, text: str) -> str:
        return clip(flat(self._redact(text)), LONGEST_NAME)

    def file(self, file: TrackedFile) -> TrackedFile:
        if file in self._known or self._is_clean(file.path, file.source, file.last, file.by, *file.names):
            return file
        return msgspec.structs.replace(
            file,
            path=self._text(file.path, 300),
            source=self._text(file.source, 300),
            names=tuple(self._text(name, LONGEST_NAME) for name in file.names),
            last=self._text(file.last, LONGEST_LAST),
            by="".join(self._text(file.by, LONGEST_NAME).split()),
        )

    def act(self, act: WorldAct) -> WorldAct:
        if act in self._known:
            return act
        outcome = (self._text if act.ok else self._quote)(act.outcome, LONGEST_TEXT)
        return msgspec.structs.replace(act, text=self._text(act.text, LONGEST_COMMAND), outcome=outcome)

    def task(self, task: RunningTask) -> RunningTask:
        if task in self._known:
            return task
        return msgspec.structs.replace(
            task, id=self._text(task.id, LONGEST_NAME), what=self._text(task.what, LONGEST_COMMAND)
        )

    def check(self, check: CheckRun) -> CheckRun:
        if check in self._known:
            return check
        return msgspec.structs.replace(
            check,
            command=self._text(check.command, LONGEST_COMMAND),
            counts=self._text(check.counts, LONGEST_NAME),
            fails=tuple(filter(None, (self._quote(line, LONGEST_COMMAND) for line in check.fails))),
            before=self._text(check.before, LONGEST_NAME),
        )

    def read(self, read: FileRead) -> FileRead:
        if read in self._known or self._is_clean(read.path, *read.looked):
            return read
        return msgspec.structs.replace(
            read,
            path=self._text(read.path, 300),
            looked=tuple(self._text(looked, LONGEST_NAME) for looked in read.looked),
        )
