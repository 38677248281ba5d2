"""What a dialect must know: how to read one message, and which fields say what a changed message means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from midfold.core.message import Message, Reading

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
