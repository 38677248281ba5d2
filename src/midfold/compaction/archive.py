"""Originals by handle: what a fold, a digest or a spill took out of the view can always be had back."""

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
"""What the tool is called with which a model has originals shown."""
FEWEST_DIGITS = 6
"""Of a short handle."""
BATCH = 64


def handle_of(message: Message) -> str:
    """The handle of one message: its content, so the same message has the same handle everywhere."""
    return PREFIX + message.digest.hex()[:DIGITS]


def short_handles(handles: Iterable[str]) -> list[str]:
    """Handles of messages in their order, each as short as no earlier one begins.

    A beginning means the first message whose handle begins so: what was written once keeps its meaning.
    """
    taken: dict[str, str] = {}
    made = []
    for handle in handles:
        size = len(PREFIX) + FEWEST_DIGITS
        while size < len(handle) and taken.get(handle[:size], handle) != handle:
            size += 1
        for end in range(len(PREFIX) + FEWEST_DIGITS, len(handle) + 1):
            taken.setdefault(handle[:end], handle)
        made.append(handle[:size])
    return made


def fold_id(messages: Transcript) -> str:
    """The id of a fold: a hash over the bytes of all of its messages, in order."""
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
    """The exact bytes of an original; a dict is written compactly."""
    return bytes(message.wire) if isinstance(message.wire, Raw) else jsonio.encode(plain(message.origin))


class Archive(Mapping[str, tuple[Message, ...]]):
    """Handle -> the original messages it stands for."""

    def __init__(self, entries: Mapping[str, tuple[Message, ...]] | None = None) -> None:
        self._entries = dict(entries) if isinstance(entries, dict) else entries or {}

    def __getitem__(self, handle: str) -> tuple[Message, ...]:
        return self._entries[handle]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def originals(self, handle: str) -> list[Any]:
        """The originals as the caller gave them: their own objects, or decoded JSON."""
        return [plain(message.wire) if isinstance(message.wire, Raw) else message.wire for message in self[handle]]

    def lines(self) -> Iterator[bytes]:
        """JSON lines `{"handle", "messages"}`; `load` reads them back. Originals keep their exact bytes."""
        for handle, messages in self._entries.items():
            joined = b",".join(source_bytes(message) for message in messages)
            yield b'{"handle":"' + handle.encode() + b'","messages":[' + joined + b"]}"


# Handles in text that is carried on: only one that leads to originals keeps its shape.
#
# Anybody can write something that looks like a handle. A model that finds one in a summary takes it for ours.


_HANDLE = re.compile(rf"(?<![0-9A-Za-z]){PREFIX}([0-9a-f]{{4,64}})(?![0-9A-Za-z])")
_FRAMED = re.compile(rf"\| unfold ({PREFIX}[0-9a-f]{{4,64}})(?: …\]|\]|$)")
"""As digests, previews and placeholders of ours name theirs."""
STRANGE = "mf:"
"""What a handle begins with that is not one of ours."""


def handles_in(text: str) -> set[str]:
    """Everything in a text that looks like a handle."""
    return {PREFIX + digits for digits in _HANDLE.findall(text)} if PREFIX in text else set()


def framed_handles(texts: Iterable[str]) -> set[str]:
    """Handles in frames of ours: what can be known without a store."""
    return {handle for text in texts for handle in _FRAMED.findall(text)}


def with_own_handles(text: str, is_own: Callable[[str], bool]) -> str:
    """The text in which nothing looks like a handle that is none of ours."""
    strange = {handle for handle in handles_in(text) if not is_own(handle)}

    def rewrite(match: re.Match[str]) -> str:
        return STRANGE + match.group(1) if match.group() in strange else match.group()

    return _HANDLE.sub(rewrite, text) if strange else text
