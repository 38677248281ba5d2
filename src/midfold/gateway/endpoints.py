"""Requests the gateway answers itself: compaction on request, token counts nobody else makes, lists of models.

Rules of this file:
1. `/v1/responses/compact` gives readable items for every provider: the same messages, and a handoff that unfolds. What
   the provider keeps itself (`previous_response_id`) is the provider's to compact.
2. A count is the provider's wherever it counts; else ours, and a header says so.
3. Lists of several upstreams are joined. A client's own key is shown to nobody but the upstream it would go to anyway.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from midfold.errors import TranscriptError, UpstreamError
from midfold.gateway.client import Answer, Client
from midfold.gateway.conversation import Conversation
from midfold.gateway.exchange import JSON, Exchange
from midfold.gateway.headers import encoding_of, to_upstream
from midfold.gateway.policy import Limits
from midfold.gateway.steward import CROWDED, Steward
from midfold.gateway.tap import decoded
from midfold.gateway.upstreams import Upstream, Upstreams
from midfold.gateway.weighing import Weighed
from midfold.transcript import jsonio
from midfold.transcript.document import read
from midfold.transcript.message import Transcript
from midfold.transcript.splice import message_value

UNCOUNTED = frozenset((404, 405, 501))
"""What a provider answers that does not count tokens."""
MOST_LISTED = 8_000_000
"""Bytes of an upstream's list of models."""
MODELS = ("/v1/models", "/models")


def is_compacted_here(exchange: Exchange, steward: Steward) -> bool:
    """Whether a request for a compaction is ours to answer."""
    if exchange.route.kind != "compact" or exchange.asked.bypass or exchange.peek is None:
        return False
    return steward.policy.enabled and steward.folder is not None and not exchange.peek.is_continued


async def compacted(exchange: Exchange, steward: Steward) -> None:
    """Answers `/v1/responses/compact`."""
    assert exchange.peek is not None
    if exchange.is_crowded:
        await exchange.refuse(413, f"the request has {CROWDED}")
        return
    limits = steward.policy.limits_of(exchange)
    weighed = await steward.in_thread(_weighed, exchange, steward, limits)
    before = weighed.size.tokens
    again = await steward.fold(exchange, weighed, force=True)
    if again.checkpoint is None:
        exchange.account.action = "unchanged"
    account = exchange.account
    steward.tell(exchange, again)
    account.tokens_before = before
    await exchange.answer(200, await steward.in_thread(_compaction, again, before))


def _weighed(exchange: Exchange, steward: Steward, limits: Limits) -> Weighed:
    document = read(exchange.body, dialect=exchange.route.dialect, name="the request")
    conversation = Conversation(document, steward.policy.redactor, exchange.owner.id)
    if not conversation.talk:
        raise TranscriptError("the request has no input to compact")
    return steward.scales.weighed(conversation, steward.scales.name(exchange, conversation), limits)


def _compaction(weighed: Weighed, before: int) -> bytes:
    """The answer; in a thread."""
    conversation = weighed.conversation
    value = {
        "id": f"cmp_{conversation.chains[-1].hex()[:24]}",
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": _items(weighed.view, conversation),
        "usage": _usage(before, weighed.size.tokens),
    }
    return jsonio.encode(value)


def _items(view: Transcript, conversation: Conversation) -> list[Any]:
    """Items that can be sent as input again."""
    values = [message_value(message, conversation.dialect) for message in view]
    return [
        {"type": "message", **value} if isinstance(value, dict) and "role" in value and "type" not in value else value
        for value in values
    ]


def _usage(before: int, after: int) -> dict[str, Any]:
    return {
        "input_tokens": before,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": after,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": before + after,
    }


async def counted(exchange: Exchange, steward: Steward) -> None:
    """Answers a count that the upstream does not make."""
    assert exchange.peek is not None
    if exchange.is_crowded:
        await exchange.refuse(413, f"the request has {CROWDED}")
        return
    limits = steward.policy.limits_of(exchange)
    weighed: Weighed | None = await steward.in_thread(steward.scales.weigh, exchange, limits)
    if weighed is None:
        raise TranscriptError("the request has no messages to count")
    exchange.account.action, exchange.account.reason = "estimated", ""
    await exchange.answer(200, msgspec.json.encode({"input_tokens": weighed.size.tokens}))


def lists_models(exchange: Exchange, upstreams: Upstreams) -> bool:
    """Whether the models of several upstreams are asked for."""
    return exchange.method == "GET" and exchange.path in MODELS and len(_asked(upstreams)) > 1


def _asked(upstreams: Upstreams) -> list[Upstream]:
    known = upstreams.all()
    return [upstream for upstream in known if upstream is upstreams.default or upstream.key is not None]


async def models(exchange: Exchange, upstreams: Upstreams, client: Client) -> None:
    """Answers with the models of all upstreams; one that does not answer is left out."""

    async def one(upstream: Upstream) -> list[Any]:
        headers = to_upstream(exchange.headers, upstream.credential(None))
        try:
            answer = await client.send("GET", upstream, upstream.target("/v1/models"), headers, b"")
            return await asyncio.to_thread(_listed, answer, await answer.read(MOST_LISTED))
        except UpstreamError:
            return []

    found = await asyncio.gather(*map(one, _asked(upstreams)))
    data = {item["id"]: item for items in found for item in items}
    exchange.account.action = "joined"
    await exchange.answer(200, msgspec.json.encode({"object": "list", "data": list(data.values())}), [JSON])


def _listed(answer: Answer, body: bytes) -> list[Any]:
    try:
        value = msgspec.json.decode(decoded(body, encoding_of(answer.headers), MOST_LISTED))
    except msgspec.MsgspecError:
        return []
    items = value.get("data") if answer.status == 200 and isinstance(value, dict) else None
    return [item for item in items if isinstance(item, dict) and "id" in item] if isinstance(items, list) else []
