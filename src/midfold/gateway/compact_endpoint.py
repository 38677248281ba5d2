"""OpenAI's two compaction APIs, for every provider.

1. `/v1/responses/compact` returns readable items: the kept messages and a handoff with handles.
2. A request to `/v1/responses` that ends in a `compaction_trigger` is answered with one `compaction` item. Its
   content is opaque to clients, which keep it and send it again; here it is those readable items, packed. When it
   comes back, it is replaced by the same bytes every time, so that any provider can continue.
3. Histories that the provider stores (`previous_response_id`) are left to the provider to compact.
4. A packed item is untrusted client input: it is unpacked within the size limit of a request, and its messages are
   treated like any others.
"""

from __future__ import annotations

import binascii
import time
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

from midfold.errors import TranscriptError
from midfold.gateway.encodings import BodyTooLarge, Hold, decode_request, ignore_size
from midfold.gateway.exchange import Exchange
from midfold.gateway.limits import ModelLimits
from midfold.gateway.prepare import CROWDED, RequestPreparer
from midfold.gateway.request_size import ClientHistory, MeasuredRequest
from midfold.gateway.routes import Raw as Header
from midfold.transcript import jsonio
from midfold.transcript.document import read
from midfold.transcript.jsonio import NotJSON, elements, entries, first_byte
from midfold.transcript.message import Transcript
from midfold.transcript.splice import message_value, replace_values
from midfold.transcript.sse import event_bytes

TRIGGER_TYPE = b"compaction_trigger"
PACKED = "midfold1."
"""Prefix of the content of our compaction items."""
EVENT_STREAM: Header = (b"content-type", b"text/event-stream; charset=utf-8")


def has_compactions(exchange: Exchange) -> bool:
    """Return whether a request may contain compaction items of ours."""
    return exchange.route.dialect == "openai-responses" and PACKED.encode() in exchange.body


def expand_compactions(body: bytes, max_bytes: int, hold: Hold = ignore_size) -> bytes:
    """Replace our compaction items in a request by their contents; run it in a thread.

    An item that is unreadable or larger than a request may be is not changed. Raises what `hold` raises.
    """
    try:
        items = elements(entries(body)["input"])
        parts: list[bytes] = []
        for item in items:
            unpacked = _unpack(item, max_bytes, hold) if PACKED.encode() in bytes(item) else None
            parts.append(bytes(item) if unpacked is None else unpacked)
            max_bytes -= len(unpacked or b"")
        return replace_values(body, {"input": b"[" + b",".join(filter(None, parts)) + b"]"})
    except (NotJSON, LookupError):
        return body


def _pack(items: list[Any]) -> str:
    return PACKED + urlsafe_b64encode(zlib.compress(jsonio.encode(items))).decode()


def _unpack(item: Any, max_bytes: int, hold: Hold) -> bytes | None:
    """Return the items in a compaction item, without the enclosing brackets; None if it is not readable."""
    value = jsonio.decode(item)
    content = value.get("encrypted_content") if isinstance(value, dict) and value.get("type") == "compaction" else None
    if not isinstance(content, str) or not content.startswith(PACKED) or max_bytes <= 0:
        return None
    try:
        data = decode_request(urlsafe_b64decode(content.removeprefix(PACKED)), "deflate", max_bytes, hold)
        return b",".join(bytes(one) for one in elements(data))
    except (TranscriptError, BodyTooLarge, binascii.Error, ValueError):
        return None


def is_compacted_here(exchange: Exchange, preparer: RequestPreparer) -> bool:
    """Return whether the gateway answers this compaction request."""
    if exchange.route.kind != "compact" and not _is_triggered(exchange):
        return False
    if exchange.options.bypass or exchange.peek is None:
        return False
    return preparer.policy.enabled and preparer.folder is not None and not exchange.peek.is_continued


def _is_triggered(exchange: Exchange) -> bool:
    if (
        exchange.route.kind != "generate"
        or exchange.route.dialect != "openai-responses"
        or TRIGGER_TYPE not in exchange.body
    ):
        return False
    return bool(_items_before_trigger(exchange.body))


def _items_before_trigger(body: bytes) -> list[bytes]:
    """Return the input items before the trigger; empty if the request does not end in one."""
    try:
        source = entries(body).get("input")
        items = elements(source) if source is not None and first_byte(source) == b"[" else []
        last = jsonio.decode(items[-1]) if items and TRIGGER_TYPE in bytes(items[-1]) else None
    except NotJSON:
        return []
    is_trigger = isinstance(last, dict) and last.get("type") == TRIGGER_TYPE.decode()
    return [bytes(item) for item in items[:-1]] if is_trigger else []


async def answer_compaction(exchange: Exchange, preparer: RequestPreparer) -> None:
    """Answer a request to `/v1/responses/compact` or one that ends in a trigger."""
    assert exchange.peek is not None
    if exchange.exceeds_limits:
        await exchange.refuse(413, f"the request has {CROWDED}")
        return
    is_triggered = exchange.route.kind == "generate"
    if is_triggered:
        exchange.body = await preparer.in_thread(_without_trigger, exchange.body)
    limits = preparer.policy.limits_of(exchange)
    measured = await preparer.in_thread(_measure, exchange, preparer, limits)
    before = measured.came
    again = await preparer.fold(exchange, measured, force=True, is_patient=True)
    if again.checkpoint is None:
        exchange.account.action = "unchanged"
    preparer.tell(exchange, again)
    if not is_triggered:
        await exchange.answer(200, await preparer.in_thread(_compaction, again, before))
    elif exchange.peek.is_streaming:
        await exchange.answer(200, await preparer.in_thread(_events, again, before), [EVENT_STREAM])
    else:
        whole = await preparer.in_thread(_response, again, before)
        await exchange.answer(200, jsonio.encode(whole))


def _without_trigger(body: bytes) -> bytes:
    return replace_values(body, {"input": b"[" + b",".join(_items_before_trigger(body)) + b"]"})


def _measure(exchange: Exchange, preparer: RequestPreparer, limits: ModelLimits) -> MeasuredRequest:
    document = read(exchange.body, dialect=exchange.route.dialect, name="the request")
    conversation = ClientHistory(document, preparer.policy.redactor, exchange.owner.id)
    if not conversation.talk:
        raise TranscriptError("the request has no input to compact")
    return preparer.measurer.look_up(conversation, preparer.measurer.name(exchange, conversation), limits)


def _compaction(measured: MeasuredRequest, before: int) -> bytes:
    """Return the response to `/v1/responses/compact`; run it in a thread."""
    value = {
        "id": f"cmp_{_short_id(measured)}",
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": _items(measured.view, measured.conversation),
        "usage": _usage(before, measured.size.tokens),
    }
    return jsonio.encode(value)


def _events(measured: MeasuredRequest, before: int) -> bytes:
    """Return the response to a trigger as an event stream; run it in a thread."""
    whole = _response(measured, before)
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    place = {"output_index": 0, "item": whole["output"][0]}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", **place},
        {"type": "response.output_item.done", **place},
        {"type": "response.completed", "response": whole},
    ]
    return b"".join(
        event_bytes(event["type"], {**event, "sequence_number": number}) for number, event in enumerate(events)
    )


def _response(measured: MeasuredRequest, before: int) -> dict[str, Any]:
    """Return the response to a trigger, with one item."""
    packed = _pack(_items(measured.view, measured.conversation))
    return {
        "id": f"resp_{_short_id(measured)}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "completed",
        "model": measured.conversation.document.model,
        "output": [{"type": "compaction", "id": f"cmp_{_short_id(measured)}", "encrypted_content": packed}],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": _usage(before, measured.size.tokens),
    }


def _short_id(measured: MeasuredRequest) -> str:
    return measured.conversation.chains[-1].hex()[:24]


def _items(view: Transcript, conversation: ClientHistory) -> list[Any]:
    """Return the items of a view in a form that is valid as input."""
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
