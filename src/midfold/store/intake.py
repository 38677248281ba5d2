"""What a caller hands over, on its way into a store: read, written and hashed once, and redacted where `store.redact`
asks for it.

1. What holds no secret keeps its exact bytes. What does is written anew: its handle unfolds to the redacted message.
2. A provider refuses a signed block of thinking whose text was changed. One that holds a secret is left out.
3. The result depends on the bytes alone: a history that is sent again is the same history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec import Raw

from midfold.compaction.redact import redact, redact_value
from midfold.compaction.request import Redactor
from midfold.errors import TranscriptError
from midfold.store.bodies import NewMessage
from midfold.store.protocol import Prompt
from midfold.transcript import jsonio
from midfold.transcript.dialect import Dialect
from midfold.transcript.document import DIALECTS, Document, read
from midfold.transcript.message import Message, Transcript

HIDDEN = "[REDACTED]"
"""A key that held a secret. It does not say which kind: that would make its value one when it is read again."""


def redact_json(data: bytes, redactor: Redactor = redact) -> bytes:
    """The JSON of a message, a system prompt or a list of tools; other text is redacted as text."""
    try:
        value = jsonio.decode(data)
    except jsonio.NotJSON:
        text = data.decode("utf-8", "surrogateescape")
        clean = redactor(redact(text))
        return data if clean == text else clean.encode("utf-8", "surrogateescape")
    after = _clean(value, redactor)
    return data if after == value else jsonio.encode(after)


def _clean(value: Any, redactor: Redactor) -> Any:
    own = None if redactor is redact else redactor
    return _without_broken_signatures(value, _redact_keys(redact_value(value), own))


def _redact_keys(value: Any, own: Redactor | None) -> Any:
    """With the keys redacted as well, and everything by the caller's own redactor too."""
    if isinstance(value, str):
        return own(value) if own else value
    if isinstance(value, list):
        return [_redact_keys(item, own) for item in value]
    if not isinstance(value, Mapping):
        return value
    after: dict[str, Any] = {}
    for key, item in value.items():
        name = plain = key if key == (own or redact)(redact(key)) else HIDDEN
        while name in after:
            name = f"{plain} {len(after)}"
        after[name] = _redact_keys(item, own)
    return after


def _without_broken_signatures(before: Any, after: Any) -> Any:
    content = after.get("content") if isinstance(after, Mapping) else None
    if not isinstance(content, list) or not isinstance(before, Mapping):
        return after
    pairs = zip(before["content"], content, strict=True)
    kept = [new for old, new in pairs if old == new or not (isinstance(new, Mapping) and new.get("signature"))]
    return after if len(kept) == len(content) else {**after, "content": kept}


class MessageBatch(NamedTuple):
    """Messages on their way into a store, and what stood beside them; None if only messages were given."""

    dialect: type[Dialect]
    entries: list[NewMessage]
    prompt: Prompt | None = None


def read_batch(
    messages: Any,
    *,
    dialect: str | None,
    otherwise: Callable[[], type[Dialect]],
    redactor: Redactor | None = None,
) -> MessageBatch:
    """From anything a conversation can be; `otherwise` gives the dialect of messages that nobody has read.

    What is stored is JSON: a number that JSON does not have is refused. With a `redactor` nothing is stored as it was
    given if it holds a secret.
    """
    if isinstance(messages, MessageBatch):
        return messages
    document = _document(messages, dialect, otherwise)
    document.refuse_what_is_no_json()
    entries = [
        NewMessage(message, document.dialect, _moment(document, place))
        for place, message in enumerate(document.messages)
    ]
    if redactor is not None:
        entries = [_redact_entry(entry, document.dialect, redactor) for entry in entries]
    return MessageBatch(document.dialect, entries, _prompt(document, redactor))


def _document(messages: Any, dialect: str | None, otherwise: Callable[[], type[Dialect]]) -> Document:
    values = [messages] if isinstance(messages, dict) and "role" in messages else messages
    if isinstance(values, list | tuple) and values and all(isinstance(item, Message) for item in values):
        return of_messages(tuple(values), otherwise())
    return values if isinstance(values, Document) else read(values, dialect=dialect)


def _moment(document: Document, place: int) -> int | None:
    """When a message of a log was said, in milliseconds; None: when it is stored."""
    seconds = document.log.seconds(place) if document.log is not None else None
    return None if seconds is None else int(seconds * 1000)


def _redact_entry(entry: NewMessage, dialect: type[Dialect], redactor: Redactor) -> NewMessage:
    data = redact_json(entry.data, redactor)
    return entry if data is entry.data else NewMessage(Message.over(Raw(data), dialect.read), dialect, entry.at)


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
    if not jsonio.is_json(data):
        raise TranscriptError(f"{name}: expected JSON, found {len(data):,} bytes that are not")
    if data in (b"null", b"[]", b'""'):
        return None
    return data if redactor is None else redact_json(data, redactor)


def of_messages(messages: Transcript, dialect: type[Dialect]) -> Document:
    """Messages that are read already, by the dialect that has read them, or by this one if we made them."""
    readers = {message.key[1] for message in messages}
    known = next((found for found in DIALECTS.values() if found.read in readers), dialect)
    document = Document([], known, ())
    document.messages = messages
    return document
