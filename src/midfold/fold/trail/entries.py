"""The artifact trail as data: what an agent did to files and to the world, what runs, and what was checked last."""

from __future__ import annotations

from typing import Literal

import msgspec

FileState = Literal["created", "changed", "deleted", "moved", "scratch", "reverted"]
CheckKind = Literal["test", "build", "lint", "typecheck", "script"]


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
