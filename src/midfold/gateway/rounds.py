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
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from midfold.engine_tools import EngineTools
from midfold.errors import MidfoldError, PluginError, UpstreamError
from midfold.fold.archive import Archive
from midfold.gateway.exchange import Exchange
from midfold.gateway.hidden import JOINED, HiddenTurnMemory, JoinedStream, ShownPart, raw_messages
from midfold.gateway.limits import may_be, overflow_of
from midfold.gateway.peek import MOST_VALUES, structural_values
from midfold.gateway.prepare import LARGE
from midfold.gateway.routes import encoding_of, to_client
from midfold.gateway.upstream import MOST_OF_ERRORS, MOST_READ, decode_body
from midfold.lru import LRU
from midfold.plugins import engine_for
from midfold.recall import NAMES, NOTHING_FOLDED, TOOLS, Recall
from midfold.store.sqlstore import StoredOriginals
from midfold.store.sync import Checkpoint
from midfold.transcript import jsonio
from midfold.transcript.document import DIALECTS, read, write
from midfold.transcript.jsonio import entries
from midfold.transcript.message import ToolCall, Transcript, read_usage
from midfold.transcript.replies import ModelAnswer, read_answer, result_messages
from midfold.transcript.splice import replace_values
from midfold.transcript.sse import LONGEST_EVENT, EventReader, StreamEvent
from midfold.transcript.tools import ToolSpec

if TYPE_CHECKING:
    from midfold.gateway.app import Gateway
    from midfold.gateway.measuring import PreparedRequest
    from midfold.gateway.upstream import UpstreamAnswer

MOST_ROUNDS = 8
AT_ONCE = 4_096
"""Bytes of a stream that are read before others have their turn."""
MOST_RENAMED = 10_000
AGAIN = "Not run: it was asked for together with a tool for earlier context. If it is still needed, call it again now."


def definitions(dialect: str, specs: Iterable[ToolSpec]) -> bytes:
    """Tools as a dialect writes them, without the brackets."""
    return b",".join(jsonio.encode(spec.definition(dialect)) for spec in specs)


_OFFERED = {dialect: definitions(dialect, TOOLS) for dialect in ("anthropic", "openai-chat", "openai-responses")}


def offer_tools(body: bytes, dialect: str, more: Iterable[ToolSpec] = ()) -> bytes | None:
    """The request with our tools behind the client's; None if that cannot be, or a tool of the client has the name."""
    tools = client_tools(body)
    if not (tools.startswith(b"[") and tools.endswith(b"]")) or any(map(tools.__contains__, map(_quote, NAMES))):
        return None
    inside = tools[1:-1].rstrip()
    ours = b",".join(filter(None, [inside, _OFFERED[dialect], definitions(dialect, more)]))
    return replace_values(body, {"tools": b"[" + ours + b"]"})


def client_tools(body: bytes) -> bytes:
    """The list of tools in a request; nothing where it cannot be read."""
    try:
        tools = bytes(entries(body).get("tools", b"[]")).strip()
    except jsonio.NotJSON:
        return b""
    return b"[]" if tools == b"null" else tools


def _quote(name: str) -> bytes:
    return f'"{name}"'.encode()


class RecallRounds:
    """Conversations with hidden turns."""

    def __init__(self, gateway: Gateway) -> None:
        assert gateway.sessions is not None
        self.gateway = gateway
        self.preparer = gateway.preparer
        self.sessions = gateway.sessions
        self.hidden = HiddenTurnMemory(gateway.sessions.store, self.preparer.policy.redactor)
        self.preparer.measurer.put_back = self.hidden.put_back
        self.decode = jsonio.decode
        """Reads an event of a stream, once for all who look at it."""
        self._renamed: LRU[tuple[str, str], str] = LRU(MOST_RENAMED)
        self.engine_tools = EngineTools(engine_for(gateway.config, gateway.sessions.engine), NAMES)

    async def applies(self, exchange: Exchange) -> bool:
        """Offers the tools where they belong, and says whether it did."""
        asked = exchange.peek.previous_response_id if exchange.peek is not None else None
        last = self._renamed.get((exchange.owner.id, asked)) if isinstance(asked, str) else None
        if last is not None:
            # A stream has one id from its beginning on; the provider has what came last under another one.
            renamed = {"previous_response_id": jsonio.encode(last)}
            exchange.body = await self.preparer.work_on(len(exchange.body), replace_values, exchange.body, renamed)
        if not self.preparer.looks_at(exchange) or exchange.route.kind != "generate":
            return False
        dialect = exchange.route.dialect or ""
        more = await self._free_tools(exchange)
        body = await self.preparer.work_on(len(exchange.body), offer_tools, exchange.body, dialect, more)
        if body is None:
            exchange.account.reason = "recall is not possible: the client has such a tool, or tools that cannot be read"
            return False
        exchange.body = body
        if exchange.peek is not None and exchange.peek.is_streaming:
            # What is encoded cannot be read before its end.
            others = [pair for pair in exchange.headers if pair[0] != b"accept-encoding"]
            exchange.headers = [*others, (b"accept-encoding", b"identity")]
        exchange.own_tools = NAMES | {spec.name for spec in more}
        return True

    async def _free_tools(self, exchange: Exchange) -> list[ToolSpec]:
        """The engine's tools, without those whose names the client's have."""
        specs = list(self.engine_tools.specs.values())
        if not specs:
            return specs
        theirs = await self.preparer.work_on(len(exchange.body), client_tools, exchange.body)
        free = [spec for spec in specs if _quote(spec.name) not in theirs]
        if len(free) < len(specs):
            left_out = ", ".join(spec.name for spec in specs if spec not in free)
            exchange.account.reason = f"tools of the context engine left out, the client has such: {left_out}"
        return free

    async def relay(self, exchange: Exchange) -> None:
        """The turn that does not call our tools, after as many hidden ones as the model wants."""
        prepared = await self.preparer.prepare(exchange)
        joined = JOINED[exchange.route.dialect or ""]()
        hidden: Transcript = ()
        for left in reversed(range(MOST_ROUNDS + 1)):
            body = await self.preparer.work_on(len(prepared.body), self._body, exchange, prepared, hidden, not left)
            answer = await self.gateway.send(exchange, body)
            data, told, turn = await self._read(exchange, answer, joined)
            smaller = None if hidden else await self._smaller(exchange, prepared, answer, told)
            if smaller is not None:
                prepared = smaller
                answer = await self.gateway.send(exchange, prepared.body)
                data, told, turn = await self._read(exchange, answer, joined)
            ours = [call for call in turn.calls if call.name in exchange.own_tools]
            if answer.status != 200 or not ours or not left:
                break
            answers = await self.preparer.in_thread(self._answers, turn, prepared, exchange.own_tools)
            values = [*turn.messages, *result_messages(exchange.route.dialect or "", answers)]
            hidden = (*hidden, *raw_messages(values, DIALECTS[exchange.route.dialect or ""]))
            joined.hide()
            if _is_stream(answer):
                # The end of a stream reaches the client before we know it: its next request must find the turns.
                await self._keep(exchange, prepared, hidden, answer.status, joined.seen)
        if hidden and not _is_stream(answer):
            await self._keep(exchange, prepared, hidden, answer.status, joined.seen)
        await self._relay_rest(exchange, prepared, answer, data, told, joined)

    async def _read(
        self, exchange: Exchange, answer: UpstreamAnswer, joined: JoinedStream
    ) -> tuple[bytes, bytes, ModelAnswer]:
        """An answer in one piece, what is looked at of it (no encoding, and nothing of a crowded one), and the turn.

        What a stream says before it calls a tool is relayed meanwhile; no event of it is decoded twice.
        """
        if _is_stream(answer):
            size = await self._read_stream(exchange, answer, joined)
            return b"", b"", await self.preparer.work_on(size, joined.turn.finish)
        data = await answer.read()
        encoding = encoding_of(answer.headers)
        told = await self.preparer.in_thread(decode_answer, data, encoding) if encoding or len(data) > LARGE else data
        turn = await self.preparer.work_on(len(told), read_answer, joined.dialect, told)
        joined.usage = turn.usage if answer.status == 200 else {}
        return data, told, turn

    async def _read_stream(self, exchange: Exchange, answer: UpstreamAnswer, joined: JoinedStream) -> int:
        """Passes on what may be, and says how many bytes came."""
        events, issued, size = EventReader(self.decode), answer.issued, 0

        async def pass_on(event: StreamEvent) -> None:
            if issued is not None:
                issued.look(event)
            await self._send(exchange, answer, joined.feed(event))

        try:
            async for chunk in answer.chunks(MOST_READ, is_read=True):
                size += len(chunk)
                for start in range(0, len(chunk), AT_ONCE):
                    for event in events.feed(chunk[start : start + AT_ONCE]):
                        await pass_on(event)
                    if start:
                        await asyncio.sleep(0)
            for event in events.end():
                await pass_on(event)
            if issued is not None:
                await issued.settle()
        except ValueError as error:
            raise UpstreamError(str(error)) from None
        finally:
            answer.close()
        return size

    async def _send(self, exchange: Exchange, answer: UpstreamAnswer, data: bytes) -> None:
        if data and not exchange.begun:
            await exchange.begin(answer.status, to_client(answer.headers, without_length=True))
        if data:
            await exchange.write(data)

    async def _smaller(
        self, exchange: Exchange, prepared: PreparedRequest, answer: UpstreamAnswer, told: bytes
    ) -> PreparedRequest | None:
        """The request after an overflow, if it can be made smaller."""
        if not may_be(answer.status):
            return None
        found = overflow_of(answer.status, told[:MOST_OF_ERRORS])
        return None if found is None else await self.preparer.recover(exchange, prepared, found)

    def _body(self, exchange: Exchange, prepared: PreparedRequest, hidden: Transcript, last: bool) -> bytes:
        body = prepared.body
        if hidden:
            document = read(body, dialect=exchange.route.dialect, name="the request")
            body = bytes(write(document, messages=(*document.messages, *hidden)))
        if last:
            none = b'{"type":"none"}' if exchange.route.dialect == "anthropic" else b'"none"'
            body = replace_values(body, {"tool_choice": none})
        return body

    async def _keep(
        self, exchange: Exchange, prepared: PreparedRequest, hidden: Transcript, status: int, seen: list[ShownPart]
    ) -> None:
        exchange.account.reason = f"recall: {len(hidden)} hidden messages"
        if status != 200 or prepared.measured is None:
            return
        try:
            measured = prepared.measured
            session = measured.name if measured.checkpoint is None else measured.checkpoint.session
            sent = measured.conversation.as_sent
            await self.preparer.in_thread(self.hidden.keep, exchange.owner, sent, hidden, seen, session)
        except MidfoldError as error:
            exchange.account.reason = f"recall: the hidden turn was not kept ({type(error).__name__})"

    async def _relay_rest(
        self,
        exchange: Exchange,
        prepared: PreparedRequest,
        answer: UpstreamAnswer,
        data: bytes,
        told: bytes,
        joined: JoinedStream,
    ) -> None:
        """What is still to be sent of the last turn, and its account."""
        usage = exchange.account.usage = read_usage(joined.all_usage)
        if usage is not None and not joined.hidden_usage and answer.status == 200:
            self.preparer.observe(exchange, prepared, usage)
        if _is_stream(answer):
            await self._send(exchange, answer, joined.rest())
            self._rename(exchange, joined.renamed)
            await self._end(exchange, answer)
        elif exchange.begun:
            await exchange.write(joined.error(_error_in(told[:MOST_OF_ERRORS])), more=False)
        else:
            is_counted = bool(told and joined.hidden_usage and joined.usage)
            if is_counted:
                data = await self.preparer.work_on(len(told), with_usage, told, joined.all_usage)
            await exchange.begin(answer.status, to_client(answer.headers, without_length=is_counted))
            await exchange.write(data, more=False)

    def _rename(self, exchange: Exchange, told: Mapping[str, str]) -> None:
        for asked, last in told.items():
            self._renamed.put((exchange.owner.id, asked), last)

    async def _end(self, exchange: Exchange, answer: UpstreamAnswer) -> None:
        if not exchange.begun:
            await exchange.begin(answer.status, to_client(answer.headers, without_length=True))
        await exchange.write(b"", more=False)

    def _answers(self, turn: ModelAnswer, prepared: PreparedRequest, names: frozenset[str]) -> list[tuple[str, str]]:
        checkpoint = prepared.measured.checkpoint if prepared.measured else None
        return [(call.id, self._answer(call, checkpoint) if call.name in names else AGAIN) for call in turn.calls]

    def _answer(self, call: ToolCall, checkpoint: Checkpoint | None) -> str:
        """What a tool says; an error is an answer, too."""
        if call.name in self.engine_tools.specs:
            return self._engine_answer(call, checkpoint)
        if checkpoint is None:
            return NOTHING_FOLDED
        session, store, count = checkpoint.session, self.sessions.store, checkpoint.count
        past = Recall(
            partial(store.find, name=session),
            partial(store.unfold, session, at=checkpoint.seq, stop=count),
            self.sessions.redactor,
            wanted=lambda found: found.position < count,
        )
        answer = past.run(call.name, _arguments(call) or {})
        return f"error: {answer.text}" if answer.is_error else answer.text

    def _engine_answer(self, call: ToolCall, checkpoint: Checkpoint | None) -> str:
        originals = None
        if checkpoint is not None:
            originals = StoredOriginals(
                self.sessions.store, checkpoint.session, at=checkpoint.seq, stop=checkpoint.count
            )
        try:
            given = _arguments(call)
            if given is None:
                raise PluginError(f"{call.name}: the arguments are not a JSON object")
            return self.engine_tools.call(call.name, given, Archive(originals))
        except PluginError as error:
            return f"error: {error}"


def _arguments(call: ToolCall) -> Mapping[str, Any] | None:
    """What a call gives its tool; None where the model wrote no object."""
    try:
        given = jsonio.decode(call.arguments)
    except jsonio.NotJSON:
        return None
    return given if isinstance(given, Mapping) else None


def _is_stream(answer: UpstreamAnswer) -> bool:
    """Whether an answer can be relayed while it is read."""
    return answer.status == 200 and answer.is_stream and encoding_of(answer.headers) in ("", "identity")


def decode_answer(data: bytes, encoding: str) -> bytes:
    """An answer without its encoding; nothing of one with more in it than anybody looks at."""
    told = decode_body(data, encoding, LONGEST_EVENT + 1)
    is_crowded = len(told) > LONGEST_EVENT or structural_values(told, MOST_VALUES) >= MOST_VALUES
    return b"" if is_crowded else told


def with_usage(body: bytes, usage: Mapping[str, Any]) -> bytes:
    """An answer with the usage of all turns."""
    return replace_values(body, {"usage": jsonio.encode(usage)})


def _error_in(body: bytes) -> Mapping[str, Any]:
    """The error in a provider's answer; one of our own if there is none."""
    try:
        value = jsonio.decode(body)
    except jsonio.NotJSON:
        value = None
    error = value.get("error") if isinstance(value, dict) else None
    return error if isinstance(error, dict) else {"type": "api_error", "message": "the upstream refused to go on"}
