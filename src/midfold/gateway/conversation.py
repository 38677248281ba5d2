"""A request as a conversation: what is hashed, what is counted, and how it is written back.

Rules of this file:
1. The chain of hashes is over the messages without a leading system prompt: clients put dates and lists into theirs,
   and a conversation is the same one under another prompt.
2. Nor are cache markers part of it: clients move theirs with every request. They are taken out of the bytes, so that a
   message has the hash it has without them, whoever wrote it.
3. Where originals are stored redacted, redacted messages are what is hashed: the history that the store has.
4. Nothing is read that is not asked for.
"""

from __future__ import annotations

import re
from functools import cached_property

from msgspec import Raw

from midfold.cache.markers import QUOTED_MARKERS
from midfold.engine.assemble import with_note
from midfold.fold.request import Redactor
from midfold.gateway.policy import LEAST_MESSAGES
from midfold.store.bodies import chain_of
from midfold.store.intake import redact_json
from midfold.store.sync import Checkpoint
from midfold.transcript import jsonio
from midfold.transcript.dialect import Dialect
from midfold.transcript.document import Document, write
from midfold.transcript.message import Message, Transcript
from midfold.transcript.tokens import Fixed, Meter

_MARKER = re.compile(b"(?:" + b"|".join(QUOTED_MARKERS) + rb")\s*+:\s*+(?:\{[^{}]*+\}|null)")
"""In a string its quotes would be escaped, so it is found without parsing."""
_COMMA = re.compile(rb"\s*+,\s*+")
OURS = "gw-"
"""What the names begin with that the gateway gives."""
IDENTIFYING = 4
"""So many messages tell one conversation from another: hygiene never acts on fewer."""


class Conversation:
    """The messages of one request."""

    def __init__(self, document: Document, redactor: Redactor | None = None, whose: str = "") -> None:
        self.document, self.whose = document, whose
        self._redactor = redactor
        self.dialect = document.dialect
        messages = document.messages
        alone = self.dialect.system_key is None and bool(messages) and messages[0].role == "system"
        self.preamble: Message | None = messages[0] if alone else None
        """A system prompt that is the first message."""
        self.talk: Transcript = messages[1:] if alone else messages
        self._as_sent: Conversation | None = None

    def with_talk(self, talk: Transcript) -> Conversation:
        """The same request with other messages."""
        other = Conversation(self.document, self._redactor, self.whose)
        other.talk, other._as_sent = talk, self
        return other

    @property
    def as_sent(self) -> Conversation:
        """The conversation as the client knows it, without hidden turns."""
        return self._as_sent or self

    @cached_property
    def bare(self) -> Transcript:
        """The messages without cache markers: what identifies them, and what is stored."""
        if self._redactor is None and self._as_sent is None and all(map(self.document.lacks, QUOTED_MARKERS)):
            return self.talk
        return tuple(_bare(message, self.dialect, self._redactor) for message in self.talk)

    @cached_property
    def chains(self) -> list[bytes]:
        """The hash of each message and everything before it."""
        return list(chain_of(message.digest for message in self.bare))

    @cached_property
    def lengths(self) -> dict[bytes, int]:
        """How many messages a chain stands for."""
        return {chain: count for count, chain in enumerate(self.chains, 1)}

    @property
    def is_long_enough(self) -> bool:
        return len(self.talk) >= LEAST_MESSAGES

    @property
    def name(self) -> str:
        """A name that every request of the conversation has, and every branch of it."""
        return self.names[0]

    @property
    def identity(self) -> str:
        """What it is known by in memory. Labels that clients send are no part of it: others may send the same."""
        return f"{self.whose}/{self.name}"

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The name, then those it had while it had fewer messages than tell it from another."""
        opening = (_bare(message, self.dialect, self._redactor) for message in self.talk[:IDENTIFYING])
        chains = list(chain_of(message.digest for message in opening))
        return tuple(f"{OURS}{chain.hex()[:24]}" for chain in reversed(chains))

    @property
    def system(self) -> Message | None:
        """The system prompt, wherever it stands."""
        return self.preamble or self.document.system

    @property
    def prompt_digest(self) -> bytes:
        """What tells one system prompt from another, cache markers aside; empty without one."""
        return b"" if self.system is None else _bare(self.system, self.dialect, self._redactor).digest

    def view(self, checkpoint: Checkpoint | None) -> Transcript:
        """What the model sees of the messages, without a leading system prompt."""
        return self.talk if checkpoint is None else checkpoint.apply(self.talk, self.dialect)

    def fixed(self, meter: Meter) -> Fixed:
        """What stands beside the messages: the system prompt, wherever it is, and tools, which seldom change."""
        alone = meter.fixed(self.system)
        tools = self.document.body.get("tools") if self.document.body is not None else None
        if tools is None:
            return alone
        data = bytes(tools) if isinstance(tools, Raw) else jsonio.encode(tools)
        return alone._replace(units=alone.units + meter.raw_tool_units(data, lambda: self.document.tools))

    def written(self, view: Transcript, *, noted: bool) -> bytes:
        """The body with other messages; the bytes that came in if they are the same."""
        system = self.system
        changed = with_note(system) if noted and system is not None else system
        if self.preamble is not None and changed is not None:
            return bytes(write(self.document, messages=(changed, *view)))
        return bytes(write(self.document, messages=view, system=changed))


def _bare(message: Message, dialect: type[Dialect], redactor: Redactor | None) -> Message:
    data = bytes(message.wire) if isinstance(message.wire, Raw) else b""
    marked = any(name in data for name in QUOTED_MARKERS)
    kept = without_markers(data) if marked else data
    if redactor is not None and data:
        kept = redact_json(kept, redactor)
    return message if kept is data else Message.over(Raw(kept), dialect.read)


def without_markers(data: bytes) -> bytes:
    """A message without its cache markers, and without the commas that stood between them and their neighbours.

    Every byte is looked at once: what stands between two markers is cut out once, and a comma is looked for on either
    side of a marker only.
    """
    kept: list[bytes] = []
    last = 0
    for marker in _MARKER.finditer(data):
        before, end = data[last : marker.start()], marker.end()
        bare = before.rstrip()
        if bare.endswith(b","):
            before = bare[:-1].rstrip()
        elif (comma := _COMMA.match(data, end)) is not None:
            end = comma.end()
        kept.append(before)
        last = end
    return b"".join((*kept, data[last:]))
