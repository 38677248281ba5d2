"""What a caller hands over: read, written and hashed once, whatever is asked about it afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec import Raw

from midfold.errors import TranscriptError
from midfold.fold.request import Redactor
from midfold.store.bodies import Entry
from midfold.store.protocol import Prompt
from midfold.store.redacting import redacted
from midfold.transcript import jsonio
from midfold.transcript.dialect import Dialect
from midfold.transcript.document import DIALECTS, Document, read
from midfold.transcript.message import Message, Transcript


class Given(NamedTuple):
    """Messages on their way into a store, and what stood beside them; None if only messages were given."""

    dialect: type[Dialect]
    entries: list[Entry]
    prompt: Prompt | None = None


def given(
    messages: Any,
    *,
    dialect: str | None,
    otherwise: Callable[[], type[Dialect]],
    redactor: Redactor | None = None,
) -> Given:
    """From anything a conversation can be; `otherwise` gives the dialect of messages that nobody has read.

    What is stored is JSON: a number that JSON does not have is refused. With a `redactor` nothing is stored as it was
    given if it holds a secret.
    """
    if isinstance(messages, Given):
        return messages
    document = _document(messages, dialect, otherwise)
    document.refuse_what_is_no_json()
    entries = [Entry(message, document.dialect) for message in document.messages]
    if redactor is not None:
        entries = [_redacted(entry, document.dialect, redactor) for entry in entries]
    return Given(document.dialect, entries, _prompt(document, redactor))


def _document(messages: Any, dialect: str | None, otherwise: Callable[[], type[Dialect]]) -> Document:
    values = [messages] if isinstance(messages, dict) and "role" in messages else messages
    if isinstance(values, list | tuple) and values and all(isinstance(item, Message) for item in values):
        return of_messages(tuple(values), otherwise())
    return values if isinstance(values, Document) else read(values, dialect=dialect)


def _redacted(entry: Entry, dialect: type[Dialect], redactor: Redactor) -> Entry:
    data = redacted(entry.data, redactor)
    return entry if data is entry.data else Entry(Message.over(Raw(data), dialect.read), dialect, entry.at)


def _prompt(document: Document, redactor: Redactor | None) -> Prompt | None:
    """Of a request body: it says everything that is sent, so what it does not have is not there."""
    if document.body is None:
        return None
    system = None if document.system is None else document.system.wire
    return prompt_of(system, document.body.get("tools"), redactor)


def prompt_of(system: Any, tools: Any, redactor: Redactor | None = None) -> Prompt:
    """A system prompt and tools, as values or as exact bytes."""
    return Prompt(_json("system", system, redactor), _json("tools", tools or None, redactor))


def values_of(prompt: Prompt) -> tuple[Any, list[Any]]:
    """A system prompt and tools as plain values."""
    system = None if prompt.system is None else jsonio.decode(prompt.system)
    tools = None if prompt.tools is None else jsonio.decode(prompt.tools)
    return system, tools if isinstance(tools, list) else []


def _json(name: str, value: Any, redactor: Redactor | None) -> bytes | None:
    if value is None:
        return None
    if found := jsonio.no_number(value):
        raise TranscriptError(f"{name}{found[0]}: {found[1]} is not JSON; expected a finite number, null or text")
    data = bytes(value) if isinstance(value, Raw) else jsonio.encode(value)
    if data in (b"null", b"[]", b'""'):
        return None
    return data if redactor is None else redacted(data, redactor)


def of_messages(messages: Transcript, dialect: type[Dialect]) -> Document:
    """Messages that are read already, by the dialect that has read them, or by this one if we made them."""
    readers = {message.key[1] for message in messages}
    known = next((found for found in DIALECTS.values() if found.read in readers), dialect)
    document = Document([], known, ())
    document.messages = messages
    return document
