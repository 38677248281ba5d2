"""Originals by handle: what a fold, a digest or a spill took out of the view can always be had back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

from msgspec import Raw

from midfold.core import jsonio
from midfold.core.message import Message, Transcript, plain
from midfold.core.recall import MOST_CHARACTERS, MOST_WINDOWS, Recall, Window

PREFIX = "mf-"
DIGITS = 12
BATCH = 64


def handle_of(message: Message) -> str:
    """The handle of one message: its content, so the same message has the same handle everywhere."""
    return PREFIX + message.digest.hex()[:DIGITS]


def fold_id(messages: Transcript) -> str:
    """The id of a fold: a hash over the bytes of all of its messages, in order."""
    hasher = blake2b(digest_size=DIGITS // 2)
    for start in range(0, len(messages), BATCH):
        hasher.update(jsonio.encode_quickly([_wire(message) for message in messages[start : start + BATCH]]))
    return hasher.hexdigest()


def _wire(message: Message) -> Any:
    wire = message.wire
    return wire if isinstance(wire, Raw | dict) else message.digest.hex() if wire is None else plain(wire)


def source_bytes(message: Message) -> bytes:
    """The exact bytes of an original; a dict is written compactly."""
    return bytes(message.wire) if isinstance(message.wire, Raw) else jsonio.encode(plain(message.origin))


class Archive(Mapping[str, tuple[Message, ...]]):
    """Handle -> the original messages it stands for."""

    def __init__(self, entries: Mapping[str, tuple[Message, ...]] | None = None) -> None:
        self._entries = dict(entries or {})
        self._recall: Recall | None = None

    def __getitem__(self, handle: str) -> tuple[Message, ...]:
        return self._entries[handle]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def originals(self, handle: str) -> list[Any]:
        """The originals as the caller gave them: their own objects, or decoded JSON."""
        return [plain(message.wire) if isinstance(message.wire, Raw) else message.wire for message in self[handle]]

    def search(self, query: str, limit: int = MOST_WINDOWS, characters: int = MOST_CHARACTERS) -> list[Window]:
        """The windows of neighbouring passages that fit a query best; see `core.recall`."""
        if self._recall is None:
            self._recall = Recall(self._entries)
        return self._recall.search(query, limit, characters)

    def lines(self) -> Iterator[bytes]:
        """JSON lines `{"handle", "messages"}`; `load` reads them back. Originals keep their exact bytes."""
        for handle, messages in self._entries.items():
            joined = b",".join(source_bytes(message) for message in messages)
            yield b'{"handle":"' + handle.encode() + b'","messages":[' + joined + b"]}"
