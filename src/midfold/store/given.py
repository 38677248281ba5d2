"""What a caller hands over: read, written and hashed once, whatever is asked about it afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from midfold.core.message import Message, Transcript
from midfold.store.bodies import Entry
from midfold.wire import Document, read
from midfold.wire.dialect import Dialect
from midfold.wire.sniff import DIALECTS


class Given(NamedTuple):
    """Messages on their way into a store."""

    dialect: type[Dialect]
    entries: list[Entry]


def given(messages: Any, *, dialect: str | None, otherwise: Callable[[], type[Dialect]]) -> Given:
    """From anything a conversation can be; `otherwise` gives the dialect of messages that nobody has read."""
    if isinstance(messages, Given):
        return messages
    document = _document(messages, dialect, otherwise)
    return Given(document.dialect, [Entry(message, document.dialect) for message in document.messages])


def _document(messages: Any, dialect: str | None, otherwise: Callable[[], type[Dialect]]) -> Document:
    values = [messages] if isinstance(messages, dict) and "role" in messages else messages
    if isinstance(values, list | tuple) and values and all(isinstance(item, Message) for item in values):
        return of_messages(tuple(values), otherwise())
    return values if isinstance(values, Document) else read(values, dialect=dialect)


def of_messages(messages: Transcript, dialect: type[Dialect]) -> Document:
    """Messages that are read already, by the dialect that has read them, or by this one if we made them."""
    readers = {message.key[1] for message in messages}
    known = next((found for found in DIALECTS.values() if found.read in readers), dialect)
    document = Document([], known, ())
    document.messages = messages
    return document
