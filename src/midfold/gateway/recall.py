"""Tools with which a model looks into what was folded, run by the gateway and hidden from the client.

Rules of this file:
1. The tools are offered from the first turn on, in the same bytes: they are part of the cached prefix.
2. A turn that calls our tools is answered by us and asked on. The client gets the turn that does not, byte for byte as
   the provider sent it. What a stream says before a call is relayed as it comes (see `joined`); the usage is that of
   all turns.
3. A turn that calls our tools and the client's at once is answered for ours; the model is told to ask for the others
   again. So no turn is ever half hidden.
4. After `MOST_ROUNDS` the model must answer without tools.
5. The tools see what the checkpoint of this very request replaces, and nothing else of the stored session: it may hold
   another conversation that began with the same messages.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from midfold.adapters.hermes.tools import SCHEMAS, SEARCH, UNFOLD, unfold
from midfold.errors import MidfoldError, NotStored, UpstreamError
from midfold.gateway.assembled import Assembled, Call, assembled, result_messages
from midfold.gateway.client import MOST_OF_ERRORS, MOST_READ
from midfold.gateway.exchange import Exchange
from midfold.gateway.headers import encoding_of, to_client
from midfold.gateway.hidden import Hidden, raw_messages
from midfold.gateway.joined import JOINED, Joined, Seen
from midfold.gateway.overflow import may_be, overflow_of
from midfold.gateway.peek import MOST_VALUES, structural_values
from midfold.gateway.steward import LARGE
from midfold.gateway.tap import decoded
from midfold.lru import LRU
from midfold.store.protocol import Candidate
from midfold.store.ranking import search
from midfold.store.sync import Checkpoint
from midfold.transcript import jsonio
from midfold.transcript.document import DIALECTS, read, write
from midfold.transcript.jsonio import entries
from midfold.transcript.message import Transcript, plain, read_usage
from midfold.transcript.splice import replace_values
from midfold.transcript.sse import LONGEST_EVENT, RawEvents

if TYPE_CHECKING:
    from midfold.gateway.app import Gateway
    from midfold.gateway.client import Answer
    from midfold.gateway.weighing import Prepared

MOST_ROUNDS = 8
AT_ONCE = 4_096
"""Bytes of a stream that are read before others have their turn."""
MOST_HITS = 20
MOST_RENAMED = 10_000
NAMES = frozenset((SEARCH, UNFOLD))
AGAIN = "Not run: it was asked for together with a tool for earlier context. If it is still needed, call it again now."
NOTHING_FOLDED = "Nothing of this conversation has been folded away yet: all of it is above."


def definitions(dialect: str) -> list[dict[str, Any]]:
    """The two tools as a dialect writes them."""
    if dialect == "anthropic":
        return [
            {"name": one["name"], "description": one["description"], "input_schema": one["parameters"]}
            for one in SCHEMAS
        ]
    if dialect == "openai-chat":
        return [{"type": "function", "function": one} for one in SCHEMAS]
    return [{"type": "function", "strict": False, **one} for one in SCHEMAS]


_OFFERED = {
    dialect: b",".join(jsonio.encode(one) for one in definitions(dialect))
    for dialect in ("anthropic", "openai-chat", "openai-responses")
}


def offered(body: bytes, dialect: str) -> bytes | None:
    """The request with our tools behind the client's; None if that cannot be, or a tool of the client has the name."""
    try:
        tools = bytes(entries(body).get("tools", b"[]")).strip()
    except jsonio.NotJSON:
        return None
    if tools == b"null":
        tools = b"[]"
    if not (tools.startswith(b"[") and tools.endswith(b"]")) or any(f'"{name}"'.encode() in tools for name in NAMES):
        return None
    inside = tools[1:-1].rstrip()
    separator = b"," if inside.strip() else b""
    return replace_values(body, {"tools": b"[" + inside + separator + _OFFERED[dialect] + b"]"})


class Recall:
    """Conversations with hidden turns."""

    def __init__(self, gateway: Gateway) -> None:
        assert gateway.sessions is not None
        self.gateway = gateway
        self.steward = gateway.steward
        self.sessions = gateway.sessions
        self.hidden = Hidden(gateway.sessions.store, self.steward.policy.redactor)
        self.steward.scales.put_back = self.hidden.put_back
        self._renamed: LRU[tuple[str, str], str] = LRU(MOST_RENAMED)

    async def applies(self, exchange: Exchange) -> bool:
        """Offers the tools where they belong, and says whether it did."""
        asked = exchange.peek.previous_response_id if exchange.peek is not None else None
        last = self._renamed.get((exchange.owner.id, asked)) if isinstance(asked, str) else None
        if last is not None:
            # A stream has one id from its beginning on; the provider has what came last under another one.
            renamed = {"previous_response_id": jsonio.encode(last)}
            exchange.body = await self.steward.beside(len(exchange.body), replace_values, exchange.body, renamed)
        if not self.steward.looks_at(exchange) or exchange.route.kind != "generate":
            return False
        dialect = exchange.route.dialect or ""
        body = await self.steward.beside(len(exchange.body), offered, exchange.body, dialect)
        if body is None:
            exchange.account.reason = "recall is not possible: the client has such a tool, or tools that cannot be read"
            return False
        exchange.body = body
        if exchange.peek is not None and exchange.peek.is_streaming:
            # What is encoded cannot be read before its end.
            others = [pair for pair in exchange.headers if pair[0] != b"accept-encoding"]
            exchange.headers = [*others, (b"accept-encoding", b"identity")]
        return True

    async def relay(self, exchange: Exchange) -> None:
        """The turn that does not call our tools, after as many hidden ones as the model wants."""
        prepared = await self.steward.prepare(exchange)
        joined = JOINED[exchange.route.dialect or ""]()
        hidden: Transcript = ()
        for left in reversed(range(MOST_ROUNDS + 1)):
            body = await self.steward.beside(len(prepared.body), self._body, exchange, prepared, hidden, not left)
            answer = await self.gateway.send(exchange, body)
            data, told = await self._read(exchange, answer, joined)
            smaller = None if hidden else await self._smaller(exchange, prepared, answer, told)
            if smaller is not None:
                prepared = smaller
                answer = await self.gateway.send(exchange, prepared.body)
                data, told = await self._read(exchange, answer, joined)
            turn = await self.steward.beside(len(told), assembled, exchange.route.dialect or "", told)
            ours = [call for call in turn.calls if call.name in NAMES]
            if answer.status != 200 or not ours or not left:
                break
            answers = await self.steward.in_thread(self._answers, turn, prepared)
            values = [*turn.messages, *result_messages(exchange.route.dialect or "", answers)]
            hidden = (*hidden, *raw_messages(values, DIALECTS[exchange.route.dialect or ""]))
            joined.hide()
            if _is_stream(answer):
                # The end of a stream reaches the client before we know it: its next request must find the turns.
                await self._kept(exchange, prepared, hidden, answer.status, joined.seen)
        if hidden and not _is_stream(answer):
            await self._kept(exchange, prepared, hidden, answer.status, joined.seen)
        await self._relayed(exchange, prepared, answer, data, told, joined)

    async def _read(self, exchange: Exchange, answer: Answer, joined: Joined) -> tuple[bytes, bytes]:
        """The whole answer as it came, and what is looked at of it: without its encoding, and nothing of a crowded one.

        What a stream says before it calls a tool is relayed meanwhile.
        """
        if not _is_stream(answer):
            data = await answer.read()
            encoding = encoding_of(answer.headers)
            told = await self.steward.in_thread(looked_at, data, encoding) if encoding or len(data) > LARGE else data
            if answer.status == 200:
                joined.usage = await self.steward.beside(len(told), usage_in, told)
            return data, told
        events = RawEvents()
        try:
            async for chunk in answer.chunks(MOST_READ):
                for start in range(0, len(chunk), AT_ONCE):
                    for event in events.feed(chunk[start : start + AT_ONCE]):
                        await self._sent(exchange, answer, joined.feed(event))
                    if start:
                        await asyncio.sleep(0)
            for event in events.end():
                await self._sent(exchange, answer, joined.feed(event))
        except ValueError as error:
            raise UpstreamError(str(error)) from None
        finally:
            answer.close()
        data = b"".join(joined.raw)
        return data, b"" if events.is_crowded else data

    async def _sent(self, exchange: Exchange, answer: Answer, data: bytes) -> None:
        if data and not exchange.begun:
            await exchange.begin(answer.status, to_client(answer.headers, without_length=True))
        if data:
            await exchange.write(data)

    async def _smaller(self, exchange: Exchange, prepared: Prepared, answer: Answer, told: bytes) -> Prepared | None:
        """The request after an overflow, if it can be made smaller."""
        if not may_be(answer.status):
            return None
        found = overflow_of(answer.status, told[:MOST_OF_ERRORS])
        return None if found is None else await self.steward.recover(exchange, prepared, found)

    def _body(self, exchange: Exchange, prepared: Prepared, hidden: Transcript, last: bool) -> bytes:
        body = prepared.body
        if hidden:
            document = read(body, dialect=exchange.route.dialect, name="the request")
            body = bytes(write(document, messages=(*document.messages, *hidden)))
        if last:
            none = b'{"type":"none"}' if exchange.route.dialect == "anthropic" else b'"none"'
            body = replace_values(body, {"tool_choice": none})
        return body

    async def _kept(
        self, exchange: Exchange, prepared: Prepared, hidden: Transcript, status: int, seen: list[Seen]
    ) -> None:
        exchange.account.reason = f"recall: {len(hidden)} hidden messages"
        if status != 200 or prepared.weighed is None:
            return
        try:
            weighed = prepared.weighed
            session = weighed.name if weighed.checkpoint is None else weighed.checkpoint.session
            sent = weighed.conversation.as_sent
            await self.steward.in_thread(self.hidden.keep, exchange.owner, sent, hidden, seen, session)
        except MidfoldError as error:
            exchange.account.reason = f"recall: the hidden turn was not kept ({type(error).__name__})"

    async def _relayed(
        self, exchange: Exchange, prepared: Prepared, answer: Answer, data: bytes, told: bytes, joined: Joined
    ) -> None:
        """What is still to be sent of the last turn, and its account."""
        usage = exchange.account.usage = read_usage(joined.all_usage)
        if usage is not None and not joined.hidden_usage and answer.status == 200:
            self.steward.observe(exchange, prepared, usage)
        if _is_stream(answer):
            await self._sent(exchange, answer, joined.rest())
            self._rename(exchange, joined.renamed)
            await self._ended(exchange, answer)
        elif exchange.begun:
            await exchange.write(joined.error(_error_in(told[:MOST_OF_ERRORS])), more=False)
        else:
            plainly = told if joined.hidden_usage else b""
            counted = await self.steward.beside(len(plainly), with_usage, plainly, joined.all_usage)
            kept = to_client(answer.headers, without_length=counted is not None)
            await exchange.begin(answer.status, kept)
            await exchange.write(data if counted is None else counted, more=False)

    def _rename(self, exchange: Exchange, told: Mapping[str, str]) -> None:
        for asked, last in told.items():
            self._renamed.put((exchange.owner.id, asked), last)

    async def _ended(self, exchange: Exchange, answer: Answer) -> None:
        if not exchange.begun:
            await exchange.begin(answer.status, to_client(answer.headers, without_length=True))
        await exchange.write(b"", more=False)

    def _answers(self, turn: Assembled, prepared: Prepared) -> list[tuple[str, str]]:
        checkpoint = prepared.weighed.checkpoint if prepared.weighed else None
        return [(call.id, self._answer(call, checkpoint)) for call in turn.calls]

    def _answer(self, call: Call, checkpoint: Checkpoint | None) -> str:
        """What a tool says; an error is an answer, too."""
        if call.name not in NAMES:
            return AGAIN
        if checkpoint is None:
            return NOTHING_FOLDED
        given: Mapping[str, Any] = call.arguments or {}
        try:
            found = self._found(given, checkpoint) if call.name == SEARCH else self._unfolded(given, checkpoint)
        except NotStored as error:
            found = {"error": str(error).partition(": ")[2] or str(error)}
        except MidfoldError as error:
            found = {"error": f"the archive cannot be read now ({type(error).__name__})"}
        return json.dumps(found, ensure_ascii=False)

    def _found(self, given: Mapping[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
        query = str(given.get("query") or "").strip()
        limit = given.get("limit")
        most = min(max(limit, 1), MOST_HITS) if type(limit) is int else MOST_HITS // 2
        session, count = checkpoint.session, checkpoint.count

        def is_folded(found: Candidate) -> bool:
            return found.position < count

        store, redactor = self.sessions.store, self.sessions.redactor
        hits = search(store, query, redactor, most, is_folded, name=session) if query else []
        shown = [{"handle": hit.handle, "role": hit.role, "snippet": hit.text} for hit in hits]
        return {"query": query, "hits": shown} if query else {"error": "the query is empty"}

    def _unfolded(self, given: Mapping[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
        handle = str(given.get("handle") or "").strip().strip("[]()")
        found = {"at": checkpoint.seq, "stop": checkpoint.count}
        messages = self.sessions.store.unfold(checkpoint.session, handle, **found)
        start, offset = (value if type(value := given.get(key)) is int else 0 for key in ("start", "offset"))
        full = handle if handle.startswith("mf-") else f"mf-{handle}"
        return unfold({full: messages}, full, start, offset)


def _is_stream(answer: Answer) -> bool:
    """Whether an answer can be relayed while it is read."""
    kind = next((value for name, value in answer.headers if name == b"content-type"), b"")
    encoded = encoding_of(answer.headers) not in ("", "identity")
    return answer.status == 200 and kind.lower().startswith(b"text/event-stream") and not encoded


def looked_at(data: bytes, encoding: str) -> bytes:
    """An answer without its encoding; nothing of one with more in it than anybody looks at."""
    told = decoded(data, encoding, LONGEST_EVENT + 1)
    is_crowded = len(told) > LONGEST_EVENT or structural_values(told, MOST_VALUES) >= MOST_VALUES
    return b"" if is_crowded else told


def usage_in(body: bytes) -> dict[str, Any]:
    """What an answer says about its usage."""
    try:
        usage = plain(entries(body).get("usage"))
    except jsonio.NotJSON:
        return {}
    return usage if isinstance(usage, dict) else {}


def with_usage(body: bytes, usage: Mapping[str, Any]) -> bytes | None:
    """An answer with the usage of all turns; None if it has none, or cannot be read."""
    return replace_values(body, {"usage": jsonio.encode(usage)}) if body and usage_in(body) else None


def _error_in(body: bytes) -> Mapping[str, Any]:
    """The error in a provider's answer; one of our own if there is none."""
    try:
        value = jsonio.decode(body)
    except jsonio.NotJSON:
        value = None
    error = value.get("error") if isinstance(value, dict) else None
    return error if isinstance(error, dict) else {"type": "api_error", "message": "the upstream refused to go on"}
