"""Message bodies: exact bytes, stored once by their hash, and the chain of hashes that identifies a history.

1. A body is the exact bytes of a message; a dict is written compactly. Its digest is blake2b of these bytes.
2. A chain value stands for a message and everything before it: chain(n) = blake2b(chain(n-1) + digest(n)).
3. Compression is a matter of storage only: what is read has the digest it was stored under, or is not given out.
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
SMALLEST_TO_DEFLATE = 512
LEVEL = 1
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
"""What messages begin with. Part of the stored format: it never changes, another one would be another codec."""
ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool", "other")


def digest_of(data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_SIZE).digest()


def next_chain(chain: bytes, digest: bytes) -> bytes:
    return blake2b(chain + digest, digest_size=DIGEST_SIZE).digest()


def chain_of(digests: Iterable[bytes], chain: bytes = b"") -> Iterator[bytes]:
    """The chain after each of these."""
    for digest in digests:
        chain = next_chain(chain, digest)
        yield chain


def deflate(data: bytes) -> tuple[int, bytes]:
    """Codec and stored form, whichever is smaller."""
    if len(data) >= SMALLEST_TO_DEFLATE:
        work = zlib.compressobj(LEVEL, zlib.DEFLATED, -15, zdict=DICTIONARY)
        small = work.compress(data) + work.flush()
        if len(small) < len(data):
            return DEFLATED, small
    return PLAIN, data


def inflate(digest: bytes, codec: int, data: bytes) -> bytes:
    """The bytes of a stored body; raises if they are not what was stored."""
    data = blob(data)
    try:
        body = data if codec == PLAIN else zlib.decompressobj(-15, zdict=DICTIONARY).decompress(data)
    except zlib.error:
        body = None
    if body is None or digest_of(body) != digest:
        raise StoreDamaged("a stored text has another hash than when it was written")
    return body


def blob(value: Any) -> bytes:
    """A value of a row that is bytes, unless the row is damaged: then it may be anything."""
    if not isinstance(value, bytes | bytearray | memoryview):
        raise StoreDamaged("a row has a value of another kind than was written")
    return bytes(value)


def require_link(before: bytes | None, chain: bytes | None, digest: bytes) -> None:
    """Raises unless a message has the chain it should have after the one before it."""
    if next_chain(b"" if before is None else blob(before), blob(digest)) != chain:
        raise StoreDamaged("a history has another message at a position than was written there")


class NewMessage:
    """One message on its way into a store."""

    def __init__(self, message: Message, dialect: type[Dialect], at: int | None = None) -> None:
        self.message = message
        self.data = message_bytes(message, dialect)
        self.digest = digest_of(self.data)
        self.at = at

    @property
    def role(self) -> int:
        """The role a filter asks for; a plain one is not worth reading the whole message."""
        wire = self.message.wire
        named = wire.get("role") if type(wire) is dict else None
        return ROLES.index(named if named in ("user", "assistant", "tool") else self.message.role)

    @property
    def tokens(self) -> str:
        """What it can be found by."""
        return index_text(self.data)


def read_body(dialect: type[Dialect], digest: bytes, codec: int, data: bytes) -> Message:
    """A message over its stored bytes, read when somebody asks."""
    return Message.over(Raw(inflate(digest, codec, data)), dialect.read)


def read_linked(
    dialect: type[Dialect], before: bytes | None, chain: bytes | None, digest: bytes, codec: int, data: bytes
) -> Message:
    """The same for a message of a history: it is the one that was written at its position."""
    message = read_body(dialect, digest, codec, data)
    require_link(before, chain, digest)
    return message
