"""Replace old pictures with a placeholder or with the output of the caller's reducer.

- Pictures before the newest human turn that has one are replaced; that turn and everything after it are not
  changed.
- A placeholder is deterministic and names the handle of the original.
- Pictures are never inspected here. A reducer is called once per picture, newest first, while its output fits the
  budget. Its output must be smaller; if it fails, the placeholder is used and the failure counted.
"""

from __future__ import annotations

from collections.abc import Callable

from midfold.transcript.laws import is_human
from midfold.transcript.message import IMAGE, Media, Message, Part, Text, ToolResult, Transcript, kinds_of
from midfold.transcript.tokens import estimate_text, media_units

MediaReducer = Callable[[Media], "Media | str | None"]
"""Callable that returns a smaller picture, a text description, or None for the placeholder."""
ADDRESSES = ("http://", "https://")


class MediaReduction:
    """Calls to a caller's reducer for one conversation: checks, limits and counts its output."""

    def __init__(self, reducer: MediaReducer, redact: Callable[[str], str], max_tokens: int) -> None:
        self._reducer, self._redact, self._left = reducer, redact, max_tokens
        self._calls = self._over_budget = 0
        self._failures: list[str] = []

    def reduce(self, media: Media) -> Media | str | None:
        """Return the replacement of a picture; None for the placeholder."""
        if self._left <= 0:
            self._over_budget += 1
            return None
        self._calls += 1
        try:
            made = self._reducer(media)
        except Exception as error:  # noqa: BLE001 - whatever a caller's reducer raises must not lose the fold
            self._failures.append(type(error).__name__)
            return None
        if isinstance(made, str):
            made = self._redact(made).strip()
        if not made:
            return None
        wrong = _fault(made, media)
        if wrong:
            self._failures.append(wrong)
            return None
        price = media_units(made) if isinstance(made, Media) else estimate_text(made)
        self._left -= price
        if self._left < 0:
            self._over_budget += 1
            return None
        return made

    @property
    def notices(self) -> list[str]:
        """Notices for the caller about failures and the budget."""
        notices = []
        if self._failures:
            why = ", ".join(dict.fromkeys(self._failures))
            notices.append(
                f"Media reducer failed for {len(self._failures):,} of {self._calls:,} old pictures ({why}); "
                "used placeholders."
            )
        if self._over_budget:
            notices.append(
                f"Replaced {self._over_budget:,} old pictures with placeholders: no budget left for reduced ones."
            )
        return notices


def _fault(made: object, media: Media) -> str:
    """Return why this cannot replace a picture; empty if it can."""
    if isinstance(made, str):
        return "not smaller" if estimate_text(made) >= media_units(media) else ""
    if not isinstance(made, Media) or made.kind != media.kind or not made.data:
        return "neither a picture nor a text"
    is_smaller = len(made.data) < len(media.data) or made.data.startswith(ADDRESSES)
    return "" if is_smaller and made.data != media.data else "not smaller"


def newest_picture(messages: Transcript) -> int | None:
    """Return the index of the newest human turn with an image, else of the newest message with an image."""
    newest = None
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].kinds & IMAGE:
            if is_human(messages[index]):
                return index
            newest = index if newest is None else newest
    return newest


def has_images(parts: tuple[Part, ...]) -> bool:
    return bool(kinds_of(parts) & IMAGE)


def replace_historical_media(
    messages: Transcript, handle: Callable[[Message], str], reduction: MediaReduction | None = None
) -> tuple[Transcript, dict[int, str]]:
    """Return the transcript with older images replaced or reduced, and the handle of each changed message."""
    newest = newest_picture(messages)
    if newest is None:
        return messages, {}
    changed: dict[int, str] = {}
    out = list(messages)
    for index in range(newest - 1, -1, -1):
        if messages[index].kinds & IMAGE:
            changed[index] = handle(messages[index])
            out[index] = messages[index].with_parts(_without(messages[index].parts, changed[index], reduction))
    return tuple(out), dict(sorted(changed.items()))


def placeholder(media: Media, handle: str) -> str:
    unfold = f" | unfold {handle}" if handle else ""
    return f"[{media.mime or 'image'} removed to save context space{unfold}]"


def _without(parts: tuple[Part, ...], handle: str, reduction: MediaReduction | None) -> tuple[Part, ...]:
    return tuple(_without_image(part, handle, reduction) for part in parts)


def _without_image(part: Part, handle: str, reduction: MediaReduction | None) -> Part:
    if isinstance(part, Media) and part.kind == "image":
        made = None if reduction is None else reduction.reduce(part)
        if isinstance(made, Media):
            return made
        line = placeholder(part, handle)
        return Text(f"{line}\n{made}" if made else line)
    if isinstance(part, ToolResult) and has_images(part.parts):
        inner = _without(part.parts, handle, reduction)
        return ToolResult(part.call_id, inner, part.is_error, part.name, wire=part.wire)
    return part
