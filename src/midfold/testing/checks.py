"""What the contract of an engine checks, one compaction at a time; `midfold.testing.engines` is the suite."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import strategies as st

from midfold.api import request_for
from midfold.engine import ContextEngine
from midfold.fold.archive import handle_of
from midfold.fold.boundary import latest_human, latest_visible_answer
from midfold.fold.handoff import recognise
from midfold.fold.receipt import receipt_schema
from midfold.fold.request import CompactionRequest, CompactionState, Outcome, SummaryAnswer
from midfold.model import drive, local_summarizer
from midfold.testing import strategies
from midfold.testing.conversations import rounds
from midfold.transcript import jsonio
from midfold.transcript.document import Document, read, write
from midfold.transcript.laws import is_empty, violations
from midfold.transcript.message import Message, Text, Transcript


class Run:
    """One compaction: what went in, what came out, and the conversation in its own shape."""

    def __init__(
        self,
        engine: ContextEngine,
        messages: list[Any],
        dialect: str,
        *,
        summarizer: Callable[..., str | SummaryAnswer] | None = None,
        state: CompactionState | None = None,
        context_length: int | None = None,
        **changes: Any,
    ) -> None:
        self.document: Document = read(messages, dialect=dialect)
        self.request = request(self.document, state=state, context_length=context_length, **changes)
        self.outcome: Outcome = drive(engine.compress(self.request), summarizer or local_summarizer)

    @property
    def written(self) -> list[Any]:
        written: list[Any] = write(self.document, messages=self.outcome.messages)
        return written

    def fingerprint(self) -> bytes:
        """Everything that comes out, as bytes."""
        out = self.outcome
        facts = [self.written, out.receipt.to_dict(), msgspec.to_builtins(out.state), sorted(out.archive)]
        return jsonio.encode(facts)


def size(messages: list[Any], dialect: str) -> int:
    document = read(messages, dialect=dialect)
    return request_for(document).meter.count(document.messages).tokens


def request(
    document: Document, *, state: CompactionState | None = None, context_length: int | None = None, **changes: Any
) -> CompactionRequest:
    """A request that must be folded now: the threshold is half of what the conversation has."""
    if context_length is None:
        context_length = max(request_for(document).meter.count(document.messages).tokens, 200)
    made = request_for(document, state=state, context_length=context_length)
    return msgspec.structs.replace(made, **changes)


def gaps(dialect: str) -> st.SearchStrategy[list[list[Any]]]:
    """What stands between the messages of a conversation: generated messages, well-formed and malformed."""
    between = st.lists(strategies.messages(dialect) | strategies.malformed_messages(dialect), max_size=3)
    return st.lists(between, min_size=4, max_size=6)


def woven(dialect: str, between: list[list[Any]]) -> list[Any]:
    """Whole rounds, long enough to be folded, with the messages of a gap after each of a round's first messages."""
    out: list[Any] = []
    for messages, gap in zip(rounds(dialect, len(between)), between, strict=True):
        for place, message in enumerate(messages):
            out += [message, *gap[place : place + 1]]
    return out


def legal(run: Run) -> None:
    """What changed keeps every law, as it stands and after a round trip through the dialect's own shape."""
    if run.outcome.changed:
        assert violations(run.outcome.messages) == ()
        assert violations(read(run.written, dialect=run.document.dialect.name).messages) == ()
    else:
        assert run.outcome.messages is run.request.messages


def shorter(run: Run) -> None:
    if not run.outcome.changed:
        return
    count = run.request.meter.count
    assert count(run.outcome.messages).tokens < count(run.request.messages).tokens
    assert run.outcome.receipt.new_tokens < run.outcome.receipt.old_tokens


def anchored(run: Run) -> None:
    if not run.outcome.changed:
        return
    before, boundary = run.request.messages, run.outcome.receipt.boundary
    for index in (latest_human(before), latest_visible_answer(before)):
        if index is None:
            continue
        assert _is_shown(before[index], run.outcome.messages), f"messages[{index}] is gone"
        if boundary is not None and run.outcome.receipt.status == "compacted":
            assert not boundary.start <= index < boundary.end or index in boundary.pinned


def recoverable(run: Run) -> None:
    """Every message that is not there any more, or not as it was, is behind a handle."""
    archived = {message.digest for messages in run.outcome.archive.values() for message in messages}
    there = {id(message) for message in run.outcome.messages}
    for index, message in enumerate(run.request.messages):
        if id(message) not in there and message.digest not in archived and not is_empty(message):
            assert _is_contained(message, run.outcome.messages), f"messages[{index}] {message!r} is lost"
    for handle, messages in run.outcome.archive.items():
        assert len(messages) > 1 or handle in (handle_of(messages[0]), run.outcome.receipt.fold)


def is_handoff(message: Message) -> bool:
    found = recognise(message)
    return found is not None and found.kind == "fold"


def _is_shown(message: Message, messages: Transcript) -> bool:
    """Whether the message is there, or another one that is not ours says all it said."""
    if any(other is message for other in messages):
        return True
    said = [part.text for part in message.parts if isinstance(part, Text) and part.text.strip()]
    return not said or any(
        other.role == message.role and recognise(other) is None and all(text in other.text for text in said)
        for other in messages
    )


def _is_contained(message: Message, messages: Transcript) -> bool:
    """Whether a message was only added to: a note in a system prompt, a stub beside its calls."""
    return any(
        other.role == message.role
        and all(
            part in other.parts or (isinstance(part, Text) and any(part.text in text for text in other.texts()))
            for part in message.parts
        )
        for other in messages
    )


def validate(receipt: dict[str, Any]) -> None:
    """Against the published JSON Schema, where jsonschema is installed."""
    try:
        checker = importlib.import_module("jsonschema")
    except ImportError:
        return
    checker.validate(receipt, receipt_schema())
