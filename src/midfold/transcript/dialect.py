"""What a dialect must know: how to read one message, and which fields say what a changed message means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from msgspec import Raw, Struct

from midfold.transcript import jsonio
from midfold.transcript.message import NULL, Message, Opaque, Part, Problem, Reading, Role

REMOVE = object()  # the value of a field that a changed message must not have


class Dialect(Protocol):
    """One of the shapes in which providers exchange conversations."""

    name: ClassVar[str]
    list_key: ClassVar[str]
    """Where a request body keeps its messages."""
    system_key: ClassVar[str | None]
    """Where a request body keeps a system prompt that is not a message."""
    output_keys: ClassVar[tuple[str, ...]]
    """Where a request body limits the length of the answer."""

    @staticmethod
    def read(value: Any) -> Reading:
        """Role, parts and problems of one message; never raises."""
        ...

    @staticmethod
    def read_system(value: Any) -> Reading:
        """The same for a system prompt that stands outside the list."""
        ...

    @staticmethod
    def fields(message: Message, origin: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fields that carry role and parts; REMOVE for those that must go. All other fields of `origin` stay."""
        ...

    @staticmethod
    def system_value(message: Message, origin: Any) -> Any:
        """A changed system prompt as the value of `system_key`."""
        ...


# Collects what is wrong with one message while a dialect reads it, and reads the odd values that clients send.


def original(part: Part) -> Any:
    """The value a part was read from."""
    return None if part.wire is NULL else part.wire


def describe(value: Any) -> str:
    """What kind of JSON value this is, in words, never its content."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float() | Raw():
            return "a number"
        case str():
            return "a string"
        case Mapping():
            return "an object"
        case list() | tuple():
            return "a list"
    return f"a {type(value).__name__}"


class Notes(Struct, gc=False):
    """The problems of one message, with paths relative to it (`.tool_calls[0].function`)."""

    problems: list[Problem] = []

    def add(self, path: str, what: str) -> None:
        self.problems.append(Problem(path, what))

    def expect(self, path: str, what: str, found: Any) -> None:
        self.add(path, f"expected {what}, found {describe(found)}")

    def reading(self, role: Role, parts: list[Part]) -> Reading:
        return Reading(role, tuple(parts), tuple(self.problems))

    def mapping(self, path: str, value: Any) -> Mapping[str, Any]:
        """An object, or an empty one with a note."""
        if isinstance(value, Mapping):
            return value
        self.expect(path, "an object", value)
        return {}

    def items(self, path: str, value: Any) -> list[Any] | tuple[Any, ...]:
        """A list, or an empty one with a note; an absent or null list is simply empty."""
        if isinstance(value, (list, tuple)):
            return value
        if value is not None:
            self.expect(path, "a list", value)
        return []

    def name(self, path: str, value: Any, what: str) -> str:
        """A string that identifies something; numbers are read as text, anything else as ''."""
        if isinstance(value, str):
            if not value:
                self.add(path, f"expected {what}, found an empty string")
            return value
        self.expect(path, what, value)
        return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""

    def arguments(self, path: str, value: Any) -> str:
        """Tool-call arguments as JSON text."""
        if isinstance(value, str):
            if value and not jsonio.is_json(value):
                self.add(path, "expected JSON text, found a string that is not JSON")
            return value
        self.expect(path, "JSON text", value)
        return "" if value is None else jsonio.text_of(value)

    def opaque(self, path: str, kind: str, value: Any, expected: str) -> Opaque:
        self.expect(path, expected, value)
        return Opaque(kind, jsonio.text_of(value), wire=NULL if value is None else value)


def kind_of(value: Mapping[str, Any]) -> str:
    """The `type` of a block, '' if it has none that is a string."""
    kind = value.get("type")
    return kind if isinstance(kind, str) else ""


def string(value: Any) -> str:
    """A string as it is, anything else as its JSON text."""
    return value if isinstance(value, str) else "" if value is None else jsonio.text_of(value)
