"""Record failures while deriving text for a summary: omit the text, continue the compaction, report it in the
receipt.

File tracking, digests, headlines, checks and redaction read text produced by agents and tools, whose form can
always be unexpected. Every such derivation runs in `Omissions.attempt`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Literal, TypeVar

import msgspec

from midfold.compaction.redact import redact as built_in_rules

T = TypeVar("T")
Derivation = Literal[
    "client instructions", "file tracking", "local summary", "redaction", "step handles", "summary check",
    "tool arguments", "tool digest", "tool headline", "user words",
]  # fmt: skip
"""Kinds of derived text that may be omitted. The gateway uses them as metric labels, so they must not hold message
text.
"""
REDACTION_FAILED = "[text omitted: its redaction failed]"


class Omission(msgspec.Struct, frozen=True, kw_only=True):
    """Derived text that is missing from a summary, and the error that prevented it."""

    what: Derivation
    error: str
    """Type of the exception; its text may quote a message and is dropped."""
    where: str
    """Source line that raised it, as `file.py:12`."""
    count: int = 1

    @property
    def notice(self) -> str:
        times = f" ({self.count:,} times)" if self.count > 1 else ""
        return (
            f"Omitted from the summary: {self.what}{times}, {self.error} at {self.where}. The compaction continued; "
            "originals are kept. Report this line as a bug."
        )


class Omissions:
    """Omissions of one compaction, counted by kind and source line."""

    def __init__(self) -> None:
        self._counts: dict[tuple[Derivation, str, str], int] = {}

    def attempt(self, what: Derivation, make: Callable[[], T], otherwise: T) -> T:
        """Return the result of `make`, or `otherwise` if it raises."""
        try:
            return make()
        except Exception as error:  # noqa: BLE001 - a text that cannot be derived must not cost the compaction
            key = what, type(error).__name__, _place(error.__traceback__)
            self._counts[key] = self._counts.get(key, 0) + 1
            return otherwise

    def redactor(self, redact: Callable[[str], str]) -> Callable[[str], str]:
        """Return a redactor that replaces a text whose redaction fails.

        The built-in rules are returned unwrapped, because callers apply them to many texts at once; if they fail,
        the enclosing attempt omits the text.
        """
        if redact is built_in_rules:
            return redact
        return lambda text: self.attempt("redaction", lambda: redact(text), REDACTION_FAILED)

    @property
    def entries(self) -> tuple[Omission, ...]:
        return tuple(
            Omission(what=what, error=error, where=where, count=count)
            for (what, error, where), count in self._counts.items()
        )


def _place(traceback: TracebackType | None) -> str:
    """Return the innermost frame of a traceback as `file.py:12`."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return "unknown"
    name = traceback.tb_frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"{name}:{traceback.tb_lineno}"
