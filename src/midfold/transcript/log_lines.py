"""What the log of a coding agent says: its messages in a provider's shape, and beside them models, usage and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from midfold.transcript.dialect import Dialect

Line = Mapping[str, Any]
MOST_LINES = 5


class LoggedTurn(NamedTuple):
    """What a log says of an answer: the usage as the provider reports it, when it came, and whose it is."""

    usage: Mapping[str, Any]
    at: str
    model: str = ""


class Log(NamedTuple):
    """The messages of a log and their shape. What is said of answers is told by their place among the messages."""

    client: str
    dialect: type[Dialect]
    messages: list[Any]
    times: Sequence[str] = ()
    """When each message was written down; empty where nobody knows."""
    turns: Mapping[int, LoggedTurn] = {}
    model: str = ""
    """The model that was asked last; empty if no line names one."""
    window: int = 0
    """The size of its window, where the log says it."""
    session: str = ""
    title: str = ""
    folder: str = ""
    """The client's own name for the session, its own title, and the folder it worked in."""
    folds: frozenset[int] = frozenset()
    """Places of messages before which the client has compacted its history."""
    damaged: tuple[int, ...] = ()
    """Numbers of lines that nobody can read; they are left out."""
    is_open: bool = False
    """Whether the last message may still grow: an answer whose blocks are being written, results that are awaited."""

    @property
    def damage(self) -> str:
        """Which lines nobody can read, in words."""
        shown = ", ".join(map(str, self.damaged[:MOST_LINES])) + (
            " and others" if len(self.damaged) > MOST_LINES else ""
        )
        return f"{len(self.damaged):,} damaged line(s) left out: {shown}" if self.damaged else ""

    def seconds(self, place: int) -> float | None:
        """When a message was written down, in seconds since 1970."""
        return seconds_of(self.times[place]) if place < len(self.times) else None


def seconds_of(stamp: Any) -> float | None:
    """A moment as logs write it; None for what is none."""
    try:
        return datetime.fromisoformat(stamp).timestamp() if isinstance(stamp, str) and stamp else None
    except (ValueError, OverflowError, OSError):
        return None


def stamp_of(seconds: float) -> str:
    """A moment as logs write it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def string_of(value: Any) -> str:
    return value if isinstance(value, str) else ""


def mapping_of(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
