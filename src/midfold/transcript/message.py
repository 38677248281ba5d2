"""Messages as immutable values over the exact bytes, or the caller's object, that they were read from.

`wire` is the original; an unchanged message is written as exactly that. `parts` is its parsed content, read on first
use by the dialect. A changed message has no `wire`; its `origin` is what it was made from and supplies all unknown
fields. Messages with the same role and parts are equal, whatever their bytes; the same holds for parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Raw

from midfold.transcript import jsonio

Role = Literal["system", "user", "assistant", "tool", "other"]

DIGEST_SIZE = 16
TEXT, CALL, RESULT, IMAGE, MEDIA, THINKING, OPAQUE = (1 << bit for bit in range(7))
"""Bits of `Message.kinds`, one per kind of part. IMAGE is also set for an image inside a tool result."""
NULL = Raw(b"null")
"""Wire of a part read from null. A wire of None means that there is no original, or that the part has changed."""


class Part(msgspec.Struct, frozen=True, eq=False, gc=False, kw_only=True):
    """Part of a message; `wire` is the block it was read from and is ignored in comparisons."""

    bit: ClassVar[int] = 0
    wire: Any = None

    def value(self) -> tuple[Any, ...]:
        fields = self.__struct_fields__
        return tuple(getattr(self, field) for field in fields if field != "wire")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Part):
            return NotImplemented
        return self is other or (type(self) is type(other) and self.value() == other.value())

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.value()))


class Text(Part, frozen=True, eq=False, gc=False):
    """Plain text."""

    bit: ClassVar[int] = TEXT
    text: str


class ToolCall(Part, frozen=True, eq=False, gc=False):
    """Tool call; `arguments` is JSON text, as the model wrote it if the dialect preserves it."""

    bit: ClassVar[int] = CALL
    id: str
    name: str
    arguments: str


class ToolResult(Part, frozen=True, eq=False, gc=False):
    """Result of one tool call."""

    bit: ClassVar[int] = RESULT
    call_id: str
    parts: tuple[Part, ...]
    is_error: bool = False
    name: str | None = None

    @property
    def text(self) -> str:
        if len(self.parts) == 1:
            only = self.parts[0]
            return only.text if isinstance(only, Text) else ""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))


class Media(Part, frozen=True, eq=False, gc=False):
    """Image, document, audio, video or file; `data` is base64 text, a URL or a file id."""

    bit: ClassVar[int] = MEDIA
    kind: Literal["image", "document", "audio", "video", "file"]
    data: str
    mime: str | None = None


class Thinking(Part, frozen=True, eq=False, gc=False):
    """Reasoning. A `signature` binds it to its provider: it is kept or dropped, never edited."""

    bit: ClassVar[int] = THINKING
    text: str
    signature: str | None = None
    redacted: bool = False


class Opaque(Part, frozen=True, eq=False, gc=False):
    """Block that midfold keeps and counts but does not interpret; `body` is its JSON text."""

    bit: ClassVar[int] = OPAQUE
    kind: str
    body: str


class Problem(NamedTuple):
    """Problem of a conversation and the path where it occurs."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}" if self.path else self.what

    def under(self, prefix: str) -> Problem:
        return Problem(prefix + self.path, self.what)


class Reading(msgspec.Struct, frozen=True, gc=False):
    """Role, parts and problems that a dialect read from one message."""

    role: Role
    parts: tuple[Part, ...]
    problems: tuple[Problem, ...] = ()


Reader = Callable[[Any], Reading]


class Message(msgspec.Struct, eq=False, gc=False):
    """One message of a conversation, read-only; `with_parts` returns a changed copy.

    `Message(role, parts)` creates a new message, `Message.over(wire, reader)` one over existing bytes or objects.
    """

    _role: Role | None
    _parts: tuple[Part, ...] | None
    _wire: Any = None
    _origin: Any = None
    _problems: tuple[Problem, ...] = ()
    _reader: Reader | None = None
    _hash: int | None = None
    _digest: bytes | None = None
    units: int | None = None
    """Cached default estimate; see tokens.py."""
    _kinds: int | None = None

    @classmethod
    def over(cls, wire: Any, reader: Reader) -> Message:
        """Return a message over the original, parsed by `reader` on first use."""
        return cls(None, None, NULL if wire is None else wire, None, (), reader)

    @property
    def role(self) -> Role:
        if self._role is None:
            self._read()
        return self._role  # type: ignore[return-value]

    @property
    def parts(self) -> tuple[Part, ...]:
        if self._parts is None:
            self._read()
        return self._parts  # type: ignore[return-value]

    @property
    def kinds(self) -> int:
        """Return the bits of the kinds of parts in the message."""
        kinds = self._kinds
        if kinds is None:
            kinds = self._kinds = kinds_of(self.parts)
        return kinds

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Return the problems found when the message was read, with paths relative to it."""
        if self._parts is None:
            self._read()
        return self._problems

    @property
    def wire(self) -> Any:
        """Return the exact bytes (`msgspec.Raw`) or the caller's object; None if changed."""
        return self._wire

    @property
    def origin(self) -> Any:
        """Return the original that a changed message was made from, or `wire` if unchanged."""
        return self._origin if self._wire is None else self._wire

    def _read(self) -> None:
        assert self._reader is not None
        try:
            value = plain(self._wire)
        except jsonio.NotJSON as error:
            body = bytes(self._wire).decode("utf-8", "surrogateescape")
            reading = Reading("other", (Opaque("unreadable", body),), (Problem("", str(error)),))
        else:
            reading = self._reader(value)
        self._role, self._parts, self._problems = reading.role, reading.parts, reading.problems

    def with_parts(self, parts: tuple[Part, ...]) -> Message:
        """Return the message with other parts; fields unknown to midfold stay."""
        return self if parts == self.parts else Message(self.role, parts, None, self.origin)

    def texts(self) -> Iterator[str]:
        """Yield every visible text of the message, including tool results."""
        for part in self.parts:
            if isinstance(part, (Text, ToolResult)):
                yield part.text

    @property
    def text(self) -> str:
        return "\n".join(self.texts())

    @property
    def digest(self) -> bytes:
        """Return a hash of the exact bytes that is stable across processes."""
        if self._digest is None:
            self._digest = blake2b(self._bytes(), digest_size=DIGEST_SIZE).digest()
        return self._digest

    @property
    def key(self) -> Any:
        """Return the key for caching anything about this message: its bytes and its reader."""
        return (self.digest, self._reader)

    def _bytes(self) -> bytes | Raw:
        if isinstance(self._wire, Raw):
            return self._wire
        if self._wire is not None:
            return jsonio.encode_quickly(plain(self._wire))
        return jsonio.encode([self.role, [[type(part).__name__, *_plain_value(part)] for part in self.parts]])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return self is other or (self.role == other.role and self.parts == other.parts)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.role, self.parts))
        return self._hash

    def __repr__(self) -> str:
        kinds = ", ".join(type(part).__name__ for part in self.parts)
        return f"<Message {self.role}: {kinds or 'empty'}>"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._parts is None:
            return (Message.over, (self._wire, self._reader))
        return (Message, (self.role, self.parts, self._wire, self._origin, self.problems, self._reader))


Transcript = tuple[Message, ...]


class Tool(msgspec.Struct, frozen=True):
    """Tool offered to the model; `body` is its definition as JSON text."""

    name: str
    body: str


def kinds_of(parts: tuple[Part, ...]) -> int:
    """Return the bits of the kinds of these parts."""
    found = 0
    for part in parts:
        bit = part.bit
        found |= bit
        if bit == RESULT:
            inner: tuple[Part, ...] = part.parts  # type: ignore[attr-defined]
            if len(inner) != 1 or inner[0].bit != TEXT:
                found |= kinds_of(inner) & IMAGE
        elif bit == MEDIA and part.kind == "image":  # type: ignore[attr-defined]
            found |= IMAGE
    return found


def plain(wire: Any) -> Any:
    """Return the JSON value of bytes, a mapping or an SDK message object."""
    if type(wire) is dict:
        return wire
    if isinstance(wire, (Raw, bytes)):
        return jsonio.decode(wire)
    dump = getattr(wire, "model_dump", None)
    return dump(exclude_unset=True) if callable(dump) else wire


def _plain_value(part: Part) -> list[Any]:
    if isinstance(part, ToolResult):
        inner = [[type(item).__name__, *_plain_value(item)] for item in part.parts]
        return [part.call_id, inner, part.is_error, part.name]
    return list(part.value())


# Usage reported by providers, in one shape for all dialects.


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one request as the provider counted them; `prompt_tokens` includes cached tokens."""

    prompt_tokens: int
    completion_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


def read_usage(value: Any) -> Usage | None:
    """Read the usage of a response of any dialect, or its `usage` field; None without a prompt size.

    Anthropic's `input_tokens` excludes tokens read from and written to the cache, so those are added. Servers that do
    not count report zero prompt tokens; that is ignored.
    """
    value = plain(value)
    if isinstance(value, Mapping) and "usage" in value:
        value = plain(value["usage"])
    if not isinstance(value, Mapping):
        return None
    read = _number(value, "cache_read_input_tokens") or _detail(value, "cached_tokens")
    written = _number(value, "cache_creation_input_tokens")
    if "prompt_tokens" in value:
        prompt = _number(value, "prompt_tokens")
    else:
        prompt = _number(value, "input_tokens")
        if "cache_read_input_tokens" in value or "cache_creation_input_tokens" in value:
            prompt += read + written
    if prompt <= 0:
        return None
    output = _number(value, "completion_tokens") or _number(value, "output_tokens")
    return Usage(prompt_tokens=prompt, completion_tokens=output, cache_read_tokens=read, cache_write_tokens=written)


def usage_fields(usage: Usage) -> dict[str, Any]:
    """Return the usage in the form that `read_usage` reads."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read_tokens},
        "cache_creation_input_tokens": usage.cache_write_tokens,
    }


def _detail(value: Mapping[str, Any], key: str) -> int:
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = value.get(name)
        if isinstance(details, Mapping):
            return _number(details, key)
    return _number(value, "prompt_cache_hit_tokens")


def _number(value: Mapping[str, Any], key: str) -> int:
    number = value.get(key)
    return max(number, 0) if isinstance(number, int) and not isinstance(number, bool) else 0
