"""Data types for the contents of a coding agent's log: messages, models, usage and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from midfold.transcript.dialect import Dialect

Line = Mapping[str, Any]
MAX_LISTED_LINES = 5


class LoggedTurn(NamedTuple):
    """Usage of one response as the provider reported it, with its time and model."""

    usage: Mapping[str, Any]
    at: str
    model: str = ""


class Log(NamedTuple):
    """Contents of a log; `turns` and `folds` refer to messages by index."""

    client: str
    dialect: type[Dialect]
    messages: list[Any]
    times: Sequence[str] = ()
    """ISO 8601 time of each message, '' if unknown."""
    turns: Mapping[int, LoggedTurn] = {}
    model: str = ""
    """Last model used, '' if no line names one."""
    window: int = 0
    """Context window in tokens, 0 if the log does not say."""
    session: str = ""
    title: str = ""
    folder: str = ""
    """The client's session id, session title and working folder."""
    folds: frozenset[int] = frozenset()
    """Indexes of messages before which the client compacted its history."""
    damaged: tuple[int, ...] = ()
    """Numbers of unreadable lines, which are omitted."""
    is_open: bool = False
    """True if the last message may still grow: blocks still being written, or results still awaited."""

    @property
    def damage(self) -> str:
        """Return a description of the unreadable lines, '' if there are none."""
        shown = ", ".join(map(str, self.damaged[:MAX_LISTED_LINES])) + (
            " and others" if len(self.damaged) > MAX_LISTED_LINES else ""
        )
        return f"{len(self.damaged):,} unreadable line(s) skipped: {shown}" if self.damaged else ""

    def seconds(self, place: int) -> float | None:
        """Return when the message was logged, in seconds since 1970, or None."""
        return seconds_of(self.times[place]) if place < len(self.times) else None


def seconds_of(stamp: Any) -> float | None:
    """Return an ISO 8601 timestamp in seconds since 1970, or None if it is not one."""
    try:
        return datetime.fromisoformat(stamp).timestamp() if isinstance(stamp, str) and stamp else None
    except (ValueError, OverflowError, OSError):
        return None


def stamp_of(seconds: float) -> str:
    """Return seconds since 1970 as an ISO 8601 string."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def string_of(value: Any) -> str:
    return value if isinstance(value, str) else ""


def mapping_of(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
