"""Archive of original messages by handle: everything a compaction removed from the view can be restored."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any

from msgspec import Raw

from midfold.transcript import jsonio
from midfold.transcript.message import Message, Transcript, plain

PREFIX = "mf-"
DIGITS = 12
UNFOLD_TOOL = "context_unfold"
"""Name of the tool that shows a model the originals behind a handle."""
MIN_HANDLE_DIGITS = 6
"""Minimum hex digits of a short handle."""
BATCH = 64


def handle_of(message: Message) -> str:
    """Return the handle of a message. It is a content hash: equal messages have equal handles."""
    return PREFIX + message.digest.hex()[:DIGITS]


def short_handles(handles: Iterable[str]) -> list[str]:
    """Return the handles of messages in order, each shortened to a prefix that no earlier handle has.

    A prefix always means the first message whose handle starts with it, so handles already written stay valid.
    """
    taken: dict[str, str] = {}
    made = []
    for handle in handles:
        size = len(PREFIX) + MIN_HANDLE_DIGITS
        while size < len(handle) and taken.get(handle[:size], handle) != handle:
            size += 1
        for end in range(len(PREFIX) + MIN_HANDLE_DIGITS, len(handle) + 1):
            taken.setdefault(handle[:end], handle)
        made.append(handle[:size])
    return made


def fold_id(messages: Transcript) -> str:
    """Return the id of a fold: a hash over the bytes of its messages, in order."""
    hasher = blake2b(digest_size=DIGITS // 2)
    for start in range(0, len(messages), BATCH):
        batch = messages[start : start + BATCH]
        wires = [wire if type(wire := message.wire) is dict else _wire(message) for message in batch]
        hasher.update(jsonio.encode_quickly(wires))
    return hasher.hexdigest()


def _wire(message: Message) -> Any:
    wire = message.wire
    return wire if isinstance(wire, (dict, Raw)) else message.digest.hex() if wire is None else plain(wire)


def source_bytes(message: Message) -> bytes:
    """Return the exact bytes of an original message; a dict is encoded as compact JSON."""
    return bytes(message.wire) if isinstance(message.wire, Raw) else jsonio.encode(plain(message.origin))


class Archive(Mapping[str, tuple[Message, ...]]):
    """Mapping of handles to original messages."""

    def __init__(self, entries: Mapping[str, tuple[Message, ...]] | None = None) -> None:
        self._entries = dict(entries) if isinstance(entries, dict) else entries or {}

    def __getitem__(self, handle: str) -> tuple[Message, ...]:
        return self._entries[handle]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def originals(self, handle: str) -> list[Any]:
        """Return the originals as the caller passed them: the caller's own objects, or decoded JSON."""
        return [plain(message.wire) if isinstance(message.wire, Raw) else message.wire for message in self[handle]]

    def lines(self) -> Iterator[bytes]:
        """Yield one JSON line `{"handle", "messages"}` per handle. Originals keep their exact bytes."""
        for handle, messages in self._entries.items():
            joined = b",".join(source_bytes(message) for message in messages)
            yield b'{"handle":"' + handle.encode() + b'","messages":[' + joined + b"]}"


# Handles in summaries: only a handle that resolves to originals keeps its form.
#
# Any text can contain something that looks like a handle, and a model would try to unfold it.


_HANDLE = re.compile(rf"(?<![0-9A-Za-z]){PREFIX}([0-9a-f]{{4,64}})(?![0-9A-Za-z])")
_FRAMED = re.compile(rf"\| unfold ({PREFIX}[0-9a-f]{{4,64}})(?: …\]|\]|$)")
"""Format in which digests, previews and placeholders written by midfold name their handle."""
FOREIGN_PREFIX = "mf:"
"""Prefix that replaces `mf-` in a handle that midfold did not issue."""


def handles_in(text: str) -> set[str]:
    """Return everything in a text that looks like a handle."""
    return {PREFIX + digits for digits in _HANDLE.findall(text)} if PREFIX in text else set()


def framed_handles(texts: Iterable[str]) -> set[str]:
    """Return the handles in digests, previews and placeholders; works without a store."""
    return {handle for text in texts for handle in _FRAMED.findall(text)}


def rewrite_foreign_handles(text: str, is_own: Callable[[str], bool]) -> str:
    """Return the text with every handle for which `is_own` is false rewritten to the prefix `mf:`."""
    foreign = {handle for handle in handles_in(text) if not is_own(handle)}

    def rewrite(match: re.Match[str]) -> str:
        return FOREIGN_PREFIX + match.group(1) if match.group() in foreign else match.group()

    return _HANDLE.sub(rewrite, text) if foreign else text
