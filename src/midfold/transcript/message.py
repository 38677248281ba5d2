"""Messages as frozen values over the exact bytes, or the caller's own object, that they came from.

Rules of this file:
1. `wire` is what arrived. A message that nobody changed leaves as exactly that: the same bytes, the same object.
2. `parts` is what it means, read on first use by the dialect that knows the shape, and then kept.
3. A changed message has no `wire`; its `origin` is what it was made from, and lends it every field we do not know.
4. Two messages with the same role and parts are equal, whatever bytes they came from. The same holds for parts.
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
"""Kinds of parts: the bits of `Message.kinds`. A message has an image also where it stands in a result."""
NULL = Raw(b"null")
"""The wire of what was read from null; None says that something was read from nothing, or has changed."""


class Part(msgspec.Struct, frozen=True, eq=False, gc=False, kw_only=True):
    """What a message is made of. `wire` is the block it was read from, and no part of its value."""

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
    """Words."""

    bit: ClassVar[int] = TEXT
    text: str


class ToolCall(Part, frozen=True, eq=False, gc=False):
    """A request to run a tool. `arguments` is JSON text as the model wrote it, or as near to it as the dialect has."""

    bit: ClassVar[int] = CALL
    id: str
    name: str
    arguments: str


class ToolResult(Part, frozen=True, eq=False, gc=False):
    """The answer to one call."""

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
    """An image, document, sound or file. `data` is its base64 text, its address or its file id."""

    bit: ClassVar[int] = MEDIA
    kind: Literal["image", "document", "audio", "video", "file"]
    data: str
    mime: str | None = None


class Thinking(Part, frozen=True, eq=False, gc=False):
    """Reasoning. A `signature` binds it to the provider that wrote it: it is kept or dropped, never edited."""

    bit: ClassVar[int] = THINKING
    text: str
    signature: str | None = None
    redacted: bool = False


class Opaque(Part, frozen=True, eq=False, gc=False):
    """Something midfold carries and counts but does not read. `body` is its JSON text."""

    bit: ClassVar[int] = OPAQUE
    kind: str
    body: str


class Problem(NamedTuple):
    """One thing that is wrong with a conversation, and where."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}" if self.path else self.what

    def under(self, prefix: str) -> Problem:
        return Problem(prefix + self.path, self.what)


class Reading(msgspec.Struct, frozen=True, gc=False):
    """What a dialect understood of one message."""

    role: Role
    parts: tuple[Part, ...]
    problems: tuple[Problem, ...] = ()


Reader = Callable[[Any], Reading]


class Message(msgspec.Struct, eq=False, gc=False):
    """One message of a conversation. Read-only: `with_parts` makes a changed one.

    `Message(role, parts)` makes a new one, `Message.over(wire, reader)` one over what arrived.
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
    """The default estimate's memo; see core.tokens."""
    _kinds: int | None = None

    @classmethod
    def over(cls, wire: Any, reader: Reader) -> Message:
        """A message over what arrived, understood by `reader` when somebody asks."""
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
        """Which kinds of parts it has, so that nobody need look at each."""
        kinds = self._kinds
        if kinds is None:
            kinds = self._kinds = kinds_of(self.parts)
        return kinds

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What was wrong with this message when it was read, with paths relative to it."""
        if self._parts is None:
            self._read()
        return self._problems

    @property
    def wire(self) -> Any:
        """The exact bytes (`msgspec.Raw`) or the caller's own object; None once changed."""
        return self._wire

    @property
    def origin(self) -> Any:
        """What a changed message was made from; an unchanged one is its own origin."""
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
        """The same message with other parts; every field that midfold does not know stays."""
        return self if parts == self.parts else Message(self.role, parts, None, self.origin)

    def texts(self) -> Iterator[str]:
        """Every text a reader of the conversation would see in this message, tool results included."""
        for part in self.parts:
            if isinstance(part, (Text, ToolResult)):
                yield part.text

    @property
    def text(self) -> str:
        return "\n".join(self.texts())

    @property
    def digest(self) -> bytes:
        """A stable hash of the exact bytes, the same in every process: equal bytes, equal digest."""
        if self._digest is None:
            self._digest = blake2b(self._bytes(), digest_size=DIGEST_SIZE).digest()
        return self._digest

    @property
    def key(self) -> Any:
        """The bytes and who reads them: what a memory of this message must be filed under."""
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
    """A tool the model is offered. `body` is its definition as JSON text."""

    name: str
    body: str


def kinds_of(parts: tuple[Part, ...]) -> int:
    """The bits of the kinds of these parts."""
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
    """The JSON value behind bytes, a mapping, or an SDK's message object."""
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


# What a provider says a request cost, in one shape whatever the wire.


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one request as the provider counted them. `prompt_tokens` is the whole prompt, cached or not."""

    prompt_tokens: int
    completion_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


def read_usage(value: Any) -> Usage | None:
    """Usage from an OpenAI chat, OpenAI Responses or Anthropic answer, or its `usage`; None if it has no prompt size.

    Anthropic's `input_tokens` is only the uncached rest; the prompt is that plus what was read from and written to the
    cache. A prompt of zero tokens does not exist: servers that do not count report it, and it is no measurement.
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


def usage_words(usage: Usage) -> dict[str, Any]:
    """Usage as `read_usage` reads it."""
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
