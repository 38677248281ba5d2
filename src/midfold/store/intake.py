"""Read a caller's messages for a store: parse, encode and hash once, and redact if `store.redact` is set.

1. A message without a secret keeps its exact bytes. One with a secret is encoded again; its handle unfolds to the
   redacted message.
2. Providers refuse a signed thinking block whose text changed, so a block that contains a secret is dropped.
3. The result depends only on the bytes: a history that is sent again is recognized.
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
"""Replacement of a key that contained a secret. It does not name the kind of secret: then its value would be redacted
on the next pass.
"""


def redact_json(data: bytes, redactor: Redactor = redact) -> bytes:
    """Redact the JSON of a message, a system prompt or a list of tools; redact other text as text."""
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
    """Redact keys too, and apply the caller's own redactor to all strings."""
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
    """Messages to be stored, and the system prompt and tools sent with them; None if only messages were given."""

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
    """Read messages in any supported form; `otherwise` returns the dialect of messages that no dialect has read.

    Raise TranscriptError for numbers that JSON cannot represent. With a `redactor`, secrets are redacted before
    anything is stored.
    """
    if isinstance(messages, MessageBatch):
        return messages
    document = _document(messages, dialect, otherwise)
    document.require_valid_json()
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
    """Return the time of a logged message in milliseconds, or None to use the time of storage."""
    seconds = document.log.seconds(place) if document.log is not None else None
    return None if seconds is None else int(seconds * 1000)


def _redact_entry(entry: NewMessage, dialect: type[Dialect], redactor: Redactor) -> NewMessage:
    data = redact_json(entry.data, redactor)
    return entry if data is entry.data else NewMessage(Message.over(Raw(data), dialect.read), dialect, entry.at)


def _prompt(document: Document, redactor: Redactor | None) -> Prompt | None:
    """Return the prompt of a request body; what the body does not contain does not exist."""
    if document.body is None:
        return None
    system = None if document.system is None else document.system.wire
    return prompt_of(system, document.body.get("tools"), redactor)


def prompt_of(system: Any, tools: Any, redactor: Redactor | None = None) -> Prompt:
    """Encode a system prompt and tools, given as values or exact bytes."""
    return Prompt(_json("system", system, redactor), _json("tools", tools or None, redactor))


def values_of(prompt: Prompt) -> tuple[Any, list[Any]]:
    """Return the system prompt and the tools as plain values."""
    system = None if prompt.system is None else jsonio.decode(prompt.system)
    tools = None if prompt.tools is None else jsonio.decode(prompt.tools)
    return system, tools if isinstance(tools, list) else []


def _json(name: str, value: Any, redactor: Redactor | None) -> bytes | None:
    if value is None:
        return None
    if found := jsonio.find_invalid_number(value):
        raise TranscriptError(f"{name}{found[0]}: {found[1]} is not JSON; expected a finite number, null or text")
    data = bytes(value) if isinstance(value, Raw) else jsonio.encode(value)
    if not jsonio.is_json(data):
        raise TranscriptError(f"{name}: expected JSON, found {len(data):,} bytes that are not")
    if data in (b"null", b"[]", b'""'):
        return None
    return data if redactor is None else redact_json(data, redactor)


def of_messages(messages: Transcript, dialect: type[Dialect]) -> Document:
    """Return a document of parsed messages in the dialect that parsed them, else in `dialect`."""
    readers = {message.key[1] for message in messages}
    known = next((found for found in DIALECTS.values() if found.read in readers), dialect)
    document = Document([], known, ())
    document.messages = messages
    return document
