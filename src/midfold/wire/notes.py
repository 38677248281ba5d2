"""Collects what is wrong with one message while a dialect reads it, and reads the odd values that clients send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from midfold.core import jsonio
from midfold.core.message import NULL, Opaque, Part, Problem, Reading, Role


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


class Notes:
    """The problems of one message, with paths relative to it (`.tool_calls[0].function`)."""

    __slots__ = ("problems",)

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def add(self, path: str, what: str) -> None:
        self.problems.append(Problem(path, what))

    def expected(self, path: str, what: str, found: Any) -> None:
        self.add(path, f"expected {what}, found {describe(found)}")

    def reading(self, role: Role, parts: list[Part]) -> Reading:
        return Reading(role, tuple(parts), tuple(self.problems))

    def mapping(self, path: str, value: Any) -> Mapping[str, Any]:
        """An object, or an empty one with a note."""
        if isinstance(value, Mapping):
            return value
        self.expected(path, "an object", value)
        return {}

    def items(self, path: str, value: Any) -> list[Any] | tuple[Any, ...]:
        """A list, or an empty one with a note; an absent or null list is simply empty."""
        if isinstance(value, list | tuple):
            return value
        if value is not None:
            self.expected(path, "a list", value)
        return []

    def name(self, path: str, value: Any, what: str) -> str:
        """A string that identifies something; numbers are read as text, anything else as ''."""
        if isinstance(value, str):
            if not value:
                self.add(path, f"expected {what}, found an empty string")
            return value
        self.expected(path, what, value)
        return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""

    def arguments(self, path: str, value: Any) -> str:
        """Tool-call arguments as JSON text."""
        if isinstance(value, str):
            if value and not jsonio.is_json(value):
                self.add(path, "expected JSON text, found a string that is not JSON")
            return value
        self.expected(path, "JSON text", value)
        return "" if value is None else jsonio.text_of(value)

    def opaque(self, path: str, kind: str, value: Any, expected: str) -> Opaque:
        self.expected(path, expected, value)
        return Opaque(kind, jsonio.text_of(value), wire=NULL if value is None else value)


def kind_of(value: Mapping[str, Any]) -> str:
    """The `type` of a block, '' if it has none that is a string."""
    kind = value.get("type")
    return kind if isinstance(kind, str) else ""


def string(value: Any) -> str:
    """A string as it is, anything else as its JSON text."""
    return value if isinstance(value, str) else "" if value is None else jsonio.text_of(value)
