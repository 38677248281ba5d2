"""Failures while deriving text for a summary: the text is omitted, the compaction goes on, the receipt says so.

Everything in a summary that is derived from messages (file tracking, digests, headlines, checks, redaction) reads
text that agents and tools produced, so some of it may always be of a shape that the code does not expect. Each place
that asks for such a text does it through `Omissions.attempt`.
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
"""What may be omitted. The gateway counts by these names, so none of them may hold text of a message."""
REDACTION_FAILED = "[text omitted: its redaction failed]"


class Omission(msgspec.Struct, frozen=True, kw_only=True):
    """A derived text that is missing from a summary, and the error that prevented it."""

    what: Derivation
    error: str
    """The type of the exception; its text may quote a message and is dropped."""
    where: str
    """The source line that raised it, as `file.py:12`."""
    count: int = 1

    @property
    def notice(self) -> str:
        times = f" ({self.count:,} times)" if self.count > 1 else ""
        return (
            f"Omitted from the summary: {self.what}{times}, {self.error} at {self.where}. The compaction went on; "
            "originals are kept. Report this line as a bug."
        )


class Omissions:
    """The omissions of one compaction, counted by kind and place."""

    def __init__(self) -> None:
        self._counts: dict[tuple[Derivation, str, str], int] = {}

    def attempt(self, what: Derivation, make: Callable[[], T], otherwise: T) -> T:
        """Return what `make` returns, or `otherwise` if it raises."""
        try:
            return make()
        except Exception as error:  # noqa: BLE001 - a text that cannot be derived must not cost the compaction
            key = what, type(error).__name__, _place(error.__traceback__)
            self._counts[key] = self._counts.get(key, 0) + 1
            return otherwise

    def redactor(self, redact: Callable[[str], str]) -> Callable[[str], str]:
        """Return a redactor that replaces a text whose redaction fails.

        The built-in rules come back as they are, because readers apply them to many texts at once; where they fail,
        the attempt around them omits the text.
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
