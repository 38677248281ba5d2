"""Message bodies, stored once by hash, and the hash chain that identifies a history.

1. A body is the exact bytes of a message; a dict is encoded as compact JSON. Its digest is the blake2b hash of
   those bytes.
2. A chain value identifies a message and all messages before it: chain(n) = blake2b(chain(n-1) + digest(n)).
3. Reading verifies the digest: a body that does not match the digest it was stored under raises StoreDamaged.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any

from msgspec import Raw

from midfold.errors import StoreDamaged
from midfold.recall.words import index_text
from midfold.transcript.dialect import Dialect
from midfold.transcript.message import DIGEST_SIZE, Message, Role
from midfold.transcript.splice import message_bytes

PLAIN, DEFLATED = 0, 1
MIN_DEFLATE_BYTES = 512
DEFLATE_LEVEL = 1
DICTIONARY = (
    b'{"type":"message","role":"user","content":[{"type":"input_text","text":"{"type":"function_call_output","call_id":'
    b'"output":"{"type":"function_call","name":"arguments":"{"role":"user","content":[{"type":"tool_result",'
    b'"tool_use_id":"toolu_01","content":[{"type":"text","text":"{"role":"assistant","content":[{"type":"thinking",'
    b'"thinking":"","signature":""},{"type":"text","text":""},{"type":"tool_use","id":"toolu_01","name":"Bash",'
    b'"input":{"command":"","description":"","file_path":"","old_string":"","new_string":"","pattern":""}}]}'
    b'{"role":"tool","tool_call_id":"call_","content":"{\\"output\\": \\"\\", \\"exit_code\\": 0, \\"error\\": null}"}'
    b'{"role":"assistant","content":null,"tool_calls":[{"id":"call_","type":"function","function":{"name":"terminal",'
    b'"arguments":"{\\"command\\": \\"cd  && grep -rn \\", \\"path\\": \\"\\"}"}}]}{"role":"user","content":"'
    b'{"role":"assistant","content":"'
)
"""Preset compression dictionary. Part of the stored format: changing it requires a new codec number."""
ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool", "other")


def digest_of(data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_SIZE).digest()


def next_chain(chain: bytes, digest: bytes) -> bytes:
    return blake2b(chain + digest, digest_size=DIGEST_SIZE).digest()


def chain_of(digests: Iterable[bytes], chain: bytes = b"") -> Iterator[bytes]:
    """Yield the chain value after each digest."""
    for digest in digests:
        chain = next_chain(chain, digest)
        yield chain


def deflate(data: bytes) -> tuple[int, bytes]:
    """Return the codec and the encoded data, compressed if that is smaller."""
    if len(data) >= MIN_DEFLATE_BYTES:
        work = zlib.compressobj(DEFLATE_LEVEL, zlib.DEFLATED, -15, zdict=DICTIONARY)
        small = work.compress(data) + work.flush()
        if len(small) < len(data):
            return DEFLATED, small
    return PLAIN, data


def inflate(digest: bytes, codec: int, data: bytes) -> bytes:
    """Return the bytes of a stored body; raise StoreDamaged if they do not match the digest."""
    data = blob(data)
    try:
        body = data if codec == PLAIN else zlib.decompressobj(-15, zdict=DICTIONARY).decompress(data)
    except zlib.error:
        body = None
    if body is None or digest_of(body) != digest:
        raise StoreDamaged("a stored body does not match its hash")
    return body


def blob(value: Any) -> bytes:
    """Return a row's value as bytes; raise StoreDamaged if it has another type."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise StoreDamaged("a row has a value of the wrong type")
    return bytes(value)


def require_link(before: bytes | None, chain: bytes | None, digest: bytes) -> None:
    """Raise StoreDamaged unless `chain` follows from the previous chain value and the digest."""
    if next_chain(b"" if before is None else blob(before), blob(digest)) != chain:
        raise StoreDamaged("a message does not match the hash chain of its history")


class NewMessage:
    """Message to be written to a store."""

    def __init__(self, message: Message, dialect: type[Dialect], at: int | None = None) -> None:
        self.message = message
        self.data = message_bytes(message, dialect)
        self.digest = digest_of(self.data)
        self.at = at

    @property
    def role(self) -> int:
        """Index of the message's role in ROLES, from the raw message if possible, to avoid parsing it."""
        wire = self.message.wire
        named = wire.get("role") if type(wire) is dict else None
        return ROLES.index(named if named in ("user", "assistant", "tool") else self.message.role)

    @property
    def tokens(self) -> str:
        """Text to index the message by."""
        return index_text(self.data)


def read_body(dialect: type[Dialect], digest: bytes, codec: int, data: bytes) -> Message:
    """Return a message over its stored bytes; it is parsed on first use."""
    return Message.over(Raw(inflate(digest, codec, data)), dialect.read)


def read_linked(
    dialect: type[Dialect], before: bytes | None, chain: bytes | None, digest: bytes, codec: int, data: bytes
) -> Message:
    """Return a message of a history, after verifying that it belongs at its position."""
    message = read_body(dialect, digest, codec, data)
    require_link(before, chain, digest)
    return message
