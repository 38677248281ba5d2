"""Split, preview and rejoin a history for a partial compaction, given as messages or plain dicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from midfold.compaction.archive import fold_id
from midfold.compaction.boundary import split_for_partial_compaction as split
from midfold.compaction.handoff import filler
from midfold.transcript.document import read
from midfold.transcript.message import Message, Transcript
from midfold.transcript.splice import message_value
from midfold.transcript.tokens import Meter


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """Effect of a partial compaction, computed without doing it. Tokens are estimates."""

    head_messages: int
    tail_messages: int
    total_messages: int
    head_tokens: int
    tail_tokens: int
    total_tokens: int


def split_for_partial_compaction(history: Sequence[Any], keep_last_exchanges: int) -> tuple[Any, Any]:
    """Return head and tail, the tail starting at the n-th newest human turn. With an empty head there is nothing to
    fold.
    """
    if not all(isinstance(item, Message) for item in history):
        head, _ = split(read(list(history)).messages, keep_last_exchanges)
        return list(history[: len(head)]), list(history[len(head) :])
    return split(tuple(history), keep_last_exchanges)


def rejoin(head: Sequence[Any], tail: Sequence[Any]) -> Any:
    """Join head and tail, with a short generated message between neighbours of the same role."""
    if all(isinstance(item, Message) for item in (*head, *tail)):
        return _join(tuple(head), tuple(tail))
    document = read([*head, *tail])
    joined = _join(document.messages[: len(head)], document.messages[len(head) :])
    return [message_value(message, document.dialect) for message in joined]


def _join(head: Transcript, tail: Transcript) -> Transcript:
    if head and tail and head[-1].role == tail[0].role and head[-1].role in ("user", "assistant"):
        between = filler(fold_id(head), "assistant" if head[-1].role == "user" else "user")
        return (*head, between, *tail)
    return (*head, *tail)


def preview(history: Sequence[Any], keep_last_exchanges: int) -> Preview:
    """Return message counts and estimated tokens of both sides; nothing is changed."""
    head, tail = split(read(list(history)).messages, keep_last_exchanges)
    meter = Meter()
    head_tokens, tail_tokens = meter.count(head).tokens, meter.count(tail).tokens
    return Preview(
        head_messages=len(head),
        tail_messages=len(tail),
        total_messages=len(head) + len(tail),
        head_tokens=head_tokens,
        tail_tokens=tail_tokens,
        total_tokens=head_tokens + tail_tokens,
    )
