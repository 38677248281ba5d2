"""What pages are told about an answered request: whose it was, how large, what it cost. Not what was said.

Rules of this file:
1. A small request is never read on its way. What it belongs to is worked out afterwards, in another thread, from its
   first messages.
2. A request that asks to be left alone (`x-midfold-bypass`) is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from midfold.errors import TranscriptError
from midfold.gateway.exchange import Exchange
from midfold.gateway.limits import Policy
from midfold.gateway.request_size import ClientHistory, session_names
from midfold.gateway.routes import client_product
from midfold.transcript.document import read
from midfold.transcript.message import Usage

BYTES_PER_TOKEN = 4
"""Of a request nobody has read, and whose provider does not say."""


class ConversationNames(NamedTuple):
    """What a conversation is called, then what it was called while it was shorter; and how many messages it has."""

    names: tuple[str, ...]
    messages: int


class AnsweredRequest(NamedTuple):
    """One answered request."""

    session: str | None
    """The stored session whose fold it was sent with."""
    receipt: str | None
    dialect: str
    model: str | None
    usage: Usage | None
    estimated: int
    window: int
    threshold: int
    """The window's size where nothing is ever folded."""
    held: int
    """Bytes that are kept until the name is known."""
    named: Callable[[], ConversationNames | None]
    client: str = ""
    """The program that asks, as `name/version`."""


Watcher = Callable[[AnsweredRequest], None]
"""Told about every answered request; must return at once."""


def answered_request(exchange: Exchange, policy: Policy) -> AnsweredRequest | None:
    """None for what is no turn of a conversation that can be told from others."""
    account, peek, dialect = exchange.account, exchange.peek, exchange.route.dialect
    if exchange.route.kind != "generate" or account.status != 200 or peek is None or dialect is None:
        return None
    if exchange.options.bypass or exchange.is_crowded or peek.is_continued:
        return None
    limits = policy.limits_of(exchange)
    conversation, body = exchange.conversation, exchange.body

    def name_later() -> ConversationNames | None:
        return name_of(exchange, conversation or conversation_of(body, dialect, policy))

    model = peek.name or ""
    return AnsweredRequest(
        session=account.session,
        receipt=account.receipt,
        dialect=dialect,
        model=model if model and model.isprintable() else None,
        usage=account.usage,
        estimated=account.tokens_after or len(body) // BYTES_PER_TOKEN,
        window=limits.window,
        threshold=limits.trigger if policy.enabled else limits.window,
        held=len(body),
        named=name_later,
        client=client_product(exchange.headers),
    )


def conversation_of(body: bytes, dialect: str, policy: Policy) -> ClientHistory | None:
    try:
        return ClientHistory(read(body, dialect=dialect, name="the request"), policy.redactor)
    except TranscriptError:
        return None


def name_of(exchange: Exchange, conversation: ClientHistory | None) -> ConversationNames | None:
    """None where there is nothing to tell it by."""
    if conversation is None or not conversation.talk:
        return None
    return ConversationNames(session_names(exchange, conversation), len(conversation.talk))
