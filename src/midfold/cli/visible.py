"""Text from transcripts, stores and models, made harmless for a terminal: what would steer it is shown instead.

Control characters, escape sequences, characters that turn the direction of writing and those that nobody sees are
written as Python would escape them. Tabs stay, and line ends where lines are meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult

_UNSEEN = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_NAMED = {"\n": "\\n", "\r": "\\r"}


def visible(text: str, *, lines: bool = False) -> str:
    """The text with everything shown that is not meant to be seen; `lines` keeps its line ends."""
    if text.isprintable():
        return text
    return _UNSEEN.sub(lambda found: found[0] if lines and found[0] == "\n" else _escaped(found[0]), text)


def visible_json(text: str) -> str:
    """JSON of the same value, without a raw character that steers a terminal; line ends between its parts stay."""
    return _UNSEEN.sub(lambda found: found[0] if found[0] == "\n" else _as_json(found[0]), text)


def _escaped(character: str) -> str:
    code = ord(character)
    if character in _NAMED:
        return _NAMED[character]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x1_0000 else f"\\U{code:08x}"


def _as_json(character: str) -> str:
    pairs = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{pairs[place]:02x}{pairs[place + 1]:02x}" for place in range(0, len(pairs), 2))


class Harmless:
    """A hook of a rich console: whatever is printed, its text cannot steer the terminal. Colours are the console's."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Shown(item) for item in renderables]


class _Shown:
    def __init__(self, item: ConsoleRenderable) -> None:
        self.item = item

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        segments: Iterable[Segment] = console.render(self.item, options)
        for segment in segments:
            yield segment if segment.control else Segment(visible(segment.text, lines=True), segment.style)
