"""The interface of a provider dialect, and helpers to read malformed values with a note of the problem."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from msgspec import Raw, Struct

from midfold.transcript import jsonio
from midfold.transcript.message import NULL, Message, Opaque, Part, Problem, Reading, Role

REMOVE = object()  # marks a field to delete from a changed message


class Dialect(Protocol):
    """Message format of one provider API."""

    name: ClassVar[str]
    list_key: ClassVar[str]
    """Key of the message list in a request body."""
    system_key: ClassVar[str | None]
    """Key of the system prompt in a request body, None if it is a message."""
    output_keys: ClassVar[tuple[str, ...]]
    """Keys that limit the response length in a request body."""

    @staticmethod
    def read(value: Any) -> Reading:
        """Return role, parts and problems of one message; never raise."""
        ...

    @staticmethod
    def read_system(value: Any) -> Reading:
        """Return the same for a system prompt outside the list."""
        ...

    @staticmethod
    def fields(message: Message, origin: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the fields that carry role and parts, REMOVE for fields to delete; other fields of `origin` stay."""
        ...

    @staticmethod
    def system_value(message: Message, origin: Any) -> Any:
        """Return a changed system prompt as the value of `system_key`."""
        ...


def original(part: Part) -> Any:
    """Return the value a part was read from."""
    return None if part.wire is NULL else part.wire


def describe(value: Any) -> str:
    """Return the JSON type of the value in words, without its content."""
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
    """Collector for the problems of one message, with paths relative to it (`.tool_calls[0].function`)."""

    problems: list[Problem] = []

    def add(self, path: str, what: str) -> None:
        self.problems.append(Problem(path, what))

    def expect(self, path: str, what: str, found: Any) -> None:
        self.add(path, f"expected {what}, found {describe(found)}")

    def reading(self, role: Role, parts: list[Part]) -> Reading:
        return Reading(role, tuple(parts), tuple(self.problems))

    def mapping(self, path: str, value: Any) -> Mapping[str, Any]:
        """Return the value if it is an object, else note the problem and return an empty one."""
        if isinstance(value, Mapping):
            return value
        self.expect(path, "an object", value)
        return {}

    def items(self, path: str, value: Any) -> list[Any] | tuple[Any, ...]:
        """Return the value if it is a list, else an empty one; note the problem unless it is None."""
        if isinstance(value, (list, tuple)):
            return value
        if value is not None:
            self.expect(path, "a list", value)
        return []

    def name(self, path: str, value: Any, what: str) -> str:
        """Return an identifier; numbers are converted to text, anything else to ''."""
        if isinstance(value, str):
            if not value:
                self.add(path, f"expected {what}, found an empty string")
            return value
        self.expect(path, what, value)
        return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""

    def arguments(self, path: str, value: Any) -> str:
        """Return tool call arguments as JSON text."""
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
    """Return the `type` of a block, or '' if it is not a string."""
    kind = value.get("type")
    return kind if isinstance(kind, str) else ""


def string(value: Any) -> str:
    """Return a string unchanged, None as '', and any other value as JSON text."""
    return value if isinstance(value, str) else "" if value is None else jsonio.text_of(value)
