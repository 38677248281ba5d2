"""Usage events for the dashboard pages: owner, size and cost of an answered request, without its content.

1. Small requests are not read while they are relayed. Their conversation is identified afterwards in another thread,
   from the first messages.
2. Requests with `x-midfold-bypass` produce no event.
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
"""Assumed bytes per token of an unread request without reported usage."""


class ConversationNames(NamedTuple):
    """Current and former names of a conversation, newest first, and its number of messages."""

    names: tuple[str, ...]
    messages: int


class AnsweredRequest(NamedTuple):
    """One answered request."""

    session: str | None
    """Stored session whose checkpoint was applied."""
    receipt: str | None
    dialect: str
    model: str | None
    usage: Usage | None
    estimated: int
    window: int
    threshold: int
    """Tokens at which requests are folded; the window if folding is off."""
    held: int
    """Bytes held in memory until the name is known."""
    named: Callable[[], ConversationNames | None]
    client: str = ""
    """Client program as `name/version`."""


Watcher = Callable[[AnsweredRequest], None]
"""Callback for every answered request; must return at once."""


def answered_request(exchange: Exchange, policy: Policy) -> AnsweredRequest | None:
    """Return the event for an exchange; None if it is not an identifiable turn of a conversation."""
    account, peek, dialect = exchange.account, exchange.peek, exchange.route.dialect
    if exchange.route.kind != "generate" or account.status != 200 or peek is None or dialect is None:
        return None
    if exchange.options.bypass or exchange.exceeds_limits or peek.is_continued:
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
    """Return the conversation's names; None if there are no messages to identify it by."""
    if conversation is None or not conversation.talk:
        return None
    return ConversationNames(session_names(exchange, conversation), len(conversation.talk))
