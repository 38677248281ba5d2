"""Recall tools for the model, run by the gateway in turns hidden from the client.

1. A conversation is offered the tools from its first fold on (`auto`) or from its first turn on (`on`), after the
   client's own. An offer never changes: the definitions are stored under the messages that were folded first, so an
   undo, a restart or another version keeps them byte for byte. A client's tool of the same name takes precedence, and a
   client without tools is offered none.
2. A turn that calls only recall tools is answered here and continued. The client gets the final turn byte for byte as
   the provider sent it, including its usage, which clients use to decide when to compact. Hidden rounds are accounted
   separately. Stream output before a tool call is relayed at once (see `stream_merge`).
3. A turn that calls both recall tools and the client's tools is the client's turn. Recall calls are removed from it and
   run; the client's next request gets them back with their results at the same position.
4. Rounds, their tokens, their time and truncated calls are limited. At the limit the model must answer without tools;
   further recall calls are removed from its answer.
5. The tools see only what the checkpoint of this request replaces: the stored session may contain another conversation
   with the same beginning.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import msgspec
from msgspec import Raw

from midfold.compaction.archive import Archive
from midfold.compaction.receipt import RecallCost
from midfold.engines.engine_tools import EngineTools
from midfold.errors import MidfoldError, PluginError, UpstreamError
from midfold.gateway.client_compactions import (
    ClientSummaries,
    LinkedSession,
    LinkedSources,
    SummaryLink,
    may_continue,
    may_request_summary,
    summary_in,
)
from midfold.gateway.encodings import decode_body
from midfold.gateway.exchange import Exchange, Owner
from midfold.gateway.fold_request import names_of
from midfold.gateway.hidden_turns import (
    BesideCalls,
    Continuation,
    ContinuationMemory,
    HiddenRun,
    HiddenTurnMemory,
    OfferMemory,
    raw_messages,
)
from midfold.gateway.overflows import MAX_ERROR_BYTES
from midfold.gateway.peek import MOST_VALUES, structural_values
from midfold.gateway.prepare import LARGE
from midfold.gateway.request_size import ClientHistory, MeasuredRequest, ToolOffer
from midfold.gateway.routes import encoding_of, to_client
from midfold.gateway.stream_merge import MERGED_STREAMS, MergedStream
from midfold.gateway.upstream import MAX_BODY_BYTES
from midfold.plugins import engine_for
from midfold.recall import NAMES, NOTHING_FOLDED, AnswerBounds, Recall
from midfold.store.sqlstore import StoredOriginals
from midfold.store.stored_search import StoredSource
from midfold.store.sync import Checkpoint
from midfold.transcript import jsonio
from midfold.transcript.document import DIALECTS, read, write
from midfold.transcript.jsonio import entries
from midfold.transcript.message import ToolCall, Transcript, read_usage
from midfold.transcript.replies import BLANK, FIRST_OF_STREAM, ModelAnswer, read_answer, result_messages
from midfold.transcript.splice import Piece, replace_values
from midfold.transcript.sse import MAX_EVENT_BYTES, EventReader, StreamEvent
from midfold.transcript.tokens import estimate_text
from midfold.transcript.tools import ToolSpec

if TYPE_CHECKING:
    from midfold.gateway.app import Gateway
    from midfold.gateway.request_size import PreparedRequest
    from midfold.gateway.upstream import UpstreamAnswer

MAX_ROUNDS, MAX_TRUNCATED_ROUNDS = 8, 2
"""Maximum hidden rounds, and consecutive rounds with truncated calls: the next would be truncated, too."""
MAX_RESULT_TOKENS, MIN_RESULT_TOKENS = 24_000, 1_000
"""Maximum and minimum tokens of tool results in one client request; also limited by the remaining window."""
MAX_WINDOW_SHARE = 0.8
MAX_ROUND_SECONDS = 120.0
"""Seconds after which no further round starts."""
MAX_CALLS_PER_TURN = 20
MAX_SECONDS_PER_TURN = 5.0
"""Maximum recall calls per turn of the model, and seconds after which no further call starts."""
THREADS, THREADS_PER_OWNER = 8, 2
"""Concurrent searches, in total and per owner, in separate threads so that they delay neither folds nor other owners.
"""
CHARACTERS_PER_TOKEN = 2
PIECE_BYTES = 4_096
"""Bytes of a stream processed before yielding to the event loop."""
CALL_NOT_RUN = (
    f"Not run: a turn may take {MAX_CALLS_PER_TURN} calls and {MAX_SECONDS_PER_TURN:g} s. Call it again if needed."
)
UNREADABLE = "the arguments are no JSON object: they were cut off, or written wrongly"
RESULT_CUT = "[no more fits into this turn]"
NAMES_TAKEN = "recall is off: a client tool has the same name, or its tools cannot be parsed"


_SearchedPast = tuple[Recall, Checkpoint | None]
"""Searcher over the folded messages, and the checkpoint of the request."""


def definitions(dialect: str, specs: Iterable[ToolSpec]) -> bytes:
    """Return tool definitions in a dialect's format, without brackets."""
    return b",".join(jsonio.encode(spec.definition(dialect)) for spec in specs)


def _is_among(name: str, tools: bytes) -> bool:
    return f'"{name}"'.encode() in tools


class Allowance:
    """Remaining rounds, tokens and time for the hidden rounds of one request."""

    def __init__(self, measured: MeasuredRequest | None) -> None:
        self._ends = time.monotonic() + MAX_ROUND_SECONDS
        self._rounds, self._cut_off = MAX_ROUNDS, 0
        self._tokens = MAX_RESULT_TOKENS
        if measured is not None:
            limits = measured.limits
            available = int((limits.window - limits.reservation - measured.size.tokens) * MAX_WINDOW_SHARE)
            self._tokens = max(min(available, MAX_RESULT_TOKENS), MIN_RESULT_TOKENS)

    @property
    def is_over(self) -> bool:
        return self._rounds <= 0 or self._tokens <= 0 or time.monotonic() >= self._ends

    def take(self, text: str) -> str:
        """Return as much of a tool result as fits, and deduct it."""
        max_chars = max(self._tokens, 0) * CHARACTERS_PER_TOKEN
        fitting = text if len(text) <= max_chars else f"{text[:max_chars]}\n{RESULT_CUT}"
        self._tokens -= max(estimate_text(fitting), 1)
        return fitting

    def end_round(self, *, is_cut_off: bool) -> None:
        self._cut_off = self._cut_off + 1 if is_cut_off else 0
        self._rounds = self._rounds - 1 if self._cut_off < MAX_TRUNCATED_ROUNDS else 0


class RecallLoop:
    """Runner of the hidden recall rounds of conversations."""

    def __init__(self, gateway: Gateway) -> None:
        assert gateway.sessions is not None
        self.gateway = gateway
        self.preparer = gateway.preparer
        self.sessions = gateway.sessions
        self.hidden = HiddenTurnMemory(gateway.sessions.store, self.preparer.policy.redactor)
        self.offers = OfferMemory(gateway.sessions.store)
        self.is_always = gateway.settings.recall == "on"
        self.preparer.measurer.put_back = self._put_back
        self.preparer.measurer.reads_everything = self.is_always
        self.decode = jsonio.decode
        """Decoder for stream events; each event is decoded once for all readers."""
        self.summaries = ClientSummaries(gateway.sessions.store)
        self.preparer.measurer.may_continue = may_continue
        self.continuations = ContinuationMemory(gateway.sessions.store, self.preparer.policy.redactor)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="midfold-recall")
        self._searching: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self.engine_tools = EngineTools(engine_for(gateway.config, gateway.sessions.engine), NAMES)

    def _put_back(self, owner: Owner, conversation: ClientHistory) -> ClientHistory:
        """Add hidden turns and the tool offer, which the client does not know; runs in a thread."""
        whole = self.hidden.put_back(owner, conversation)
        source = conversation.document.source
        if isinstance(source, bytes) and may_continue(source):
            whole.link = self.summaries.find(owner, conversation.system, conversation.bare)
        whole.offer = self._offer(owner, conversation, b"" if whole.link is None else whole.link.tools.encode())
        return whole

    def _offer(self, owner: Owner, conversation: ClientHistory, linked: bytes = b"") -> ToolOffer:
        known = b"" if self.is_always else self.offers.find(owner, conversation) or linked
        theirs = conversation.raw_tools
        if theirs is None:
            return ToolOffer(problem=NAMES_TAKEN)
        if known:
            clash = any(_is_among(name, theirs) for name in names_of(known))
            return ToolOffer(problem=NAMES_TAKEN) if clash else ToolOffer(kept=known)
        if not theirs and not self.is_always:
            return ToolOffer()
        if any(_is_among(name, theirs) for name in NAMES):
            return ToolOffer(problem=NAMES_TAKEN)
        specs = self.engine_tools.specs.values()
        left_out = ", ".join(spec.name for spec in specs if _is_among(spec.name, theirs))
        problem = f"context engine tools omitted, client tools have the same names: {left_out}" if left_out else ""
        free = [spec for spec in specs if not _is_among(spec.name, theirs)]
        ours = definitions(conversation.dialect.name, [*Recall.tools, *free])
        return ToolOffer(kept=ours, problem=problem) if self.is_always else ToolOffer(new=ours, problem=problem)

    async def continue_from_last(self, exchange: Exchange) -> None:
        """Redirect a provider-stored conversation to the last hidden response, and add pending tool results.

        A merged stream has the id of its first response; the provider stored the last one under another id.
        """
        response_id = exchange.peek.previous_response_id if exchange.peek is not None else None
        if not isinstance(response_id, str):
            return
        found = self.continuations.find_in_memory(exchange.owner, response_id)
        if found is None:
            found = await self.preparer.in_thread(self.continuations.find_in_store, exchange.owner, response_id)
        if found is not None:
            exchange.body = await self.preparer.work_on(len(exchange.body), _continue_from, exchange.body, found)

    def applies(self, exchange: Exchange) -> bool:
        """Return whether the model may call recall tools in this request."""
        return bool(exchange.own_tools) and exchange.route.kind == "generate"

    async def relay(self, exchange: Exchange, prepared: PreparedRequest, answer: UpstreamAnswer | None = None) -> None:
        """Relay the first turn without recall calls, after any number of hidden turns.

        `answer` is the answer to the first request, if it was already sent.
        """
        if answer is None:
            if Allowance(prepared.measured).is_over:
                body = await self.preparer.work_on(len(prepared.body), self._body, exchange, prepared, (), True)
                prepared = prepared._replace(body=body)
            prepared, answer = await self.gateway.fetch(exchange, prepared)
        await self._note_offer(exchange, prepared)
        merged = MERGED_STREAMS[exchange.route.dialect or ""](exchange.own_tools)
        allowance = Allowance(prepared.measured)
        hidden: Transcript = ()
        while True:
            is_last = allowance.is_over
            data, decoded, turn = await self._read(exchange, answer, merged)
            if not hidden:
                self._observe(exchange, prepared, turn, answer)
            ours = [call for call in turn.calls if call.name in exchange.own_tools]
            is_for_client = merged.is_for_client or merged.calls_client(turn)
            if answer.status != 200 or not ours or is_last or is_for_client:
                break
            answers = await self._run_calls(exchange, ours, prepared, allowance)
            values = [*turn.messages, *result_messages(merged.dialect, answers)]
            hidden = (*hidden, *raw_messages(values, DIALECTS[merged.dialect]))
            allowance.end_round(is_cut_off=turn.finish == "length" or all(_arguments(call) is None for call in ours))
            self._count_round(exchange, turn)
            merged.hide()
            if _is_stream(answer):
                # The client may see the end of a stream first: its next request must find the hidden turns.
                await self._keep(exchange, prepared, HiddenRun(hidden, tuple(merged.seen), exchange.account.hidden))
            last = allowance.is_over
            body = await self.preparer.work_on(len(prepared.body), self._body, exchange, prepared, hidden, last)
            answer = await self.gateway.send(exchange, body)
        beside = None
        if ours and answer.status == 200:
            merged.end(turn)
            data = await self.preparer.work_on(len(decoded), _without_hidden, merged, decoded)
            answers = [(call.id, RESULT_CUT) for call in ours]
            if not is_last:
                answers = await self._run_calls(exchange, ours, prepared, allowance)
                beside = BesideCalls.of(merged.dialect, turn, answers)
            await self._keep_pending_results(exchange, prepared, merged, answers)
        if beside is not None or (hidden and not _is_stream(answer) and answer.status == 200):
            await self._keep(exchange, prepared, HiddenRun(hidden, tuple(merged.seen), exchange.account.hidden, beside))
        if answer.status == 200 and prepared.measured is not None:
            await self._note_summary(exchange, prepared.measured, turn)
        await self._relay_rest(exchange, prepared, answer, data, merged, decoded)

    async def _note_summary(self, exchange: Exchange, measured: MeasuredRequest, turn: ModelAnswer) -> None:
        """Record an answer that may be the client's own summary, and store the conversation it summarizes."""
        conversation, checkpoint, folder = measured.conversation, measured.checkpoint, self.preparer.folder
        if folder is None or (checkpoint is None and conversation.link is None):
            return
        summary, owner, tools = summary_in(turn), exchange.owner, measured.tools.decode()
        own = LinkedSession(_session_of(measured), 0 if checkpoint is None else checkpoint.seq, len(conversation.bare))
        if checkpoint is not None:
            folded = SummaryLink.after(conversation.link, msgspec.structs.replace(own, count=checkpoint.count), tools)
            self.summaries.note_newest(owner, conversation.as_sent.bare, folded)
        if not may_request_summary(conversation.as_sent.talk):
            return

        def keep() -> None:
            stored = folder.sync(conversation, measured.name, measured.limits).name
            link = SummaryLink.after(conversation.link, msgspec.structs.replace(own, session=stored), tools)
            self.summaries.keep(owner, self.summaries.remember(owner, summary, link), link)

        # A stream may have reached its client already: the next request must find the link.
        if self.summaries.remember(owner, summary, SummaryLink.after(conversation.link, own, tools)):
            try:
                await self.preparer.in_thread(keep)
            except MidfoldError as error:
                exchange.account.reason = f"recall: the client's summary was not stored ({type(error).__name__})"

    async def _note_offer(self, exchange: Exchange, prepared: PreparedRequest) -> None:
        """Store the tool offer of a conversation."""
        measured = prepared.measured
        if measured is None or measured.checkpoint is None or measured.conversation.offer.kept:
            return
        try:
            await self.preparer.in_thread(
                self.offers.keep, exchange.owner, measured.conversation.as_sent, measured.tools, measured.checkpoint
            )
        except MidfoldError as error:
            exchange.account.reason = f"recall: the tool offer was not stored ({type(error).__name__})"

    def _observe(
        self, exchange: Exchange, prepared: PreparedRequest, turn: ModelAnswer, answer: UpstreamAnswer
    ) -> None:
        """Record the reported usage of the request itself, without hidden turns."""
        if answer.status == 200:
            self.preparer.observe(exchange, prepared, read_usage(turn.usage))

    def _count_round(self, exchange: Exchange, turn: ModelAnswer) -> None:
        usage, account = turn.tokens, exchange.account
        account.hidden = RecallCost(
            rounds=account.hidden.rounds + 1,
            prompt_tokens=account.hidden.prompt_tokens + usage.prompt_tokens,
            cached_tokens=account.hidden.cached_tokens + usage.cache_read_tokens,
            output_tokens=account.hidden.output_tokens + usage.completion_tokens,
        )
        account.reason = f"recall: {account.hidden.rounds} hidden rounds"

    async def _read(
        self, exchange: Exchange, answer: UpstreamAnswer, merged: MergedStream
    ) -> tuple[bytes, bytes, ModelAnswer]:
        """Return the raw answer, its decoded body (empty if too large to inspect) and the parsed turn.

        Stream output before a tool call is relayed meanwhile; each event is decoded once.
        """
        if _is_stream(answer):
            size = await self._read_stream(exchange, answer, merged)
            return b"", b"", await self.preparer.work_on(size, merged.turn.finish)
        data = await answer.read()
        encoding = encoding_of(answer.headers)
        decoded = (
            await self.preparer.in_thread(decode_answer, data, encoding) if encoding or len(data) > LARGE else data
        )
        turn = await self.preparer.work_on(len(decoded), read_answer, merged.dialect, decoded)
        merged.usage = turn.usage if answer.status == 200 else {}
        return data, decoded, turn

    async def _read_stream(self, exchange: Exchange, answer: UpstreamAnswer, merged: MergedStream) -> int:
        """Relay stream events that may be shown, and return the number of bytes received."""
        events, issued, size = EventReader(self.decode), answer.issued, 0

        async def pass_on(event: StreamEvent) -> None:
            if issued is not None:
                issued.look(event)
            await self._send(exchange, answer, merged.feed(event))

        try:
            async for chunk in answer.chunks(MAX_BODY_BYTES, is_read=True):
                size += len(chunk)
                for start in range(0, len(chunk), PIECE_BYTES):
                    for event in events.feed(chunk[start : start + PIECE_BYTES]):
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

    def _body(self, exchange: Exchange, prepared: PreparedRequest, hidden: Transcript, last: bool) -> bytes:
        document = read(prepared.body, dialect=exchange.route.dialect, name="the request")
        body = bytes(write(document, messages=(*document.messages, *hidden)))
        if last:
            none = b'{"type":"none"}' if exchange.route.dialect == "anthropic" else b'"none"'
            body = replace_values(body, {"tool_choice": none})
        return body

    async def _keep(self, exchange: Exchange, prepared: PreparedRequest, run: HiddenRun) -> None:
        if prepared.measured is None:
            return
        try:
            measured = prepared.measured
            session = _session_of(measured)
            sent = measured.conversation.as_sent
            await self.preparer.in_thread(self.hidden.keep, exchange.owner, sent, run, session)
        except MidfoldError as error:
            exchange.account.reason = f"recall: the hidden turn was not stored ({type(error).__name__})"

    async def _keep_pending_results(
        self, exchange: Exchange, prepared: PreparedRequest, merged: MergedStream, answers: list[tuple[str, str]]
    ) -> None:
        """Store tool results for a response that the provider keeps with calls unknown to the client."""
        if merged.response_id:
            pending = tuple(Raw(jsonio.encode(one)) for one in result_messages(merged.dialect, answers))
            await self._keep_continuation(exchange, prepared, merged.response_id, Continuation(owed=pending))

    async def _keep_continuation(
        self, exchange: Exchange, prepared: PreparedRequest, response_id: str, found: Continuation
    ) -> None:
        """Store the continuation of a response; it is kept in memory even if the store fails."""
        measured = prepared.measured
        session = "" if measured is None else _session_of(measured)
        known = self.continuations.add(exchange.owner, response_id, found)
        try:
            await self.preparer.in_thread(self.continuations.keep, exchange.owner, response_id, known, session)
        except MidfoldError as error:
            exchange.account.reason = f"recall: the continuation was not stored ({type(error).__name__})"

    async def _relay_rest(
        self,
        exchange: Exchange,
        prepared: PreparedRequest,
        answer: UpstreamAnswer,
        data: bytes,
        merged: MergedStream,
        decoded: bytes,
    ) -> None:
        """Send the rest of the last turn, and record its usage."""
        exchange.account.usage = read_usage(merged.usage)
        if _is_stream(answer):
            rest = data + merged.rest()
            for response_id, last in merged.renamed.items():
                await self._keep_continuation(exchange, prepared, response_id, Continuation(last=last))
            await self._send(exchange, answer, rest)
            await self._end(exchange, answer)
        elif exchange.begun:
            await exchange.write(merged.error(_error_in(decoded[:MAX_ERROR_BYTES])), more=False)
        else:
            await exchange.begin(answer.status, to_client(answer.headers, without_length=merged.has_ended))
            await exchange.write(data, more=False)

    async def _end(self, exchange: Exchange, answer: UpstreamAnswer) -> None:
        if not exchange.begun:
            await exchange.begin(answer.status, to_client(answer.headers, without_length=True))
        await exchange.write(b"", more=False)

    def _past(self, prepared: PreparedRequest) -> _SearchedPast | None:
        """Return the searcher over this request's folded messages and the sessions before a client's own compaction."""
        measured, store = prepared.measured, self.sessions.store
        if measured is None:
            return None
        checkpoint, link = measured.checkpoint, measured.conversation.link
        pasts = {
            one.session: StoredSource(store, one.session, at=one.seq, stop=one.count)
            for one in (() if link is None else link.sessions)
            if store.info(one.session) is not None
        }
        if checkpoint is not None:
            session, count = checkpoint.session, checkpoint.count
            pasts.pop(session, None)
            pasts[session] = StoredSource(store, session, at=checkpoint.seq, stop=count)
        if not pasts:
            return None
        past = LinkedSources(pasts) if len(pasts) > 1 else next(iter(pasts.values()))
        bounds, seen = AnswerBounds.of(measured.limits.trigger), _visible_digests(prepared)
        return Recall(past, self.sessions.redactor, seen=seen, bounds=bounds, clock=time.monotonic), checkpoint

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run_calls(
        self, exchange: Exchange, calls: list[ToolCall], prepared: PreparedRequest, allowance: Allowance
    ) -> list[tuple[str, str]]:
        """Run recall calls of a turn in a thread; cancel them if the client disconnects."""
        searching = self._searching.setdefault(exchange.owner.id, asyncio.Semaphore(THREADS_PER_OWNER))
        is_over = threading.Event()
        async with searching:
            try:
                return await asyncio.get_running_loop().run_in_executor(
                    self._threads, self._answers, calls, prepared, allowance, is_over.is_set
                )
            finally:
                is_over.set()

    def _answers(
        self,
        calls: list[ToolCall],
        prepared: PreparedRequest,
        allowance: Allowance,
        is_cancelled: Callable[[], bool],
    ) -> list[tuple[str, str]]:
        """Return the result of each call with its id."""
        past = self._past(prepared)
        deadline, left = time.monotonic() + MAX_SECONDS_PER_TURN, MAX_CALLS_PER_TURN
        answers = []
        for call in calls:
            if left <= 0 or is_cancelled() or time.monotonic() >= deadline:
                answers.append((call.id, allowance.take(CALL_NOT_RUN)))
            else:
                left -= 1
                answers.append((call.id, allowance.take(self._answer(call, past, is_cancelled))))
        return answers

    def _answer(
        self, call: ToolCall, past: tuple[Recall, Checkpoint | None] | None, is_cancelled: Callable[[], bool]
    ) -> str:
        """Return the text of a tool result or error."""
        if call.name in self.engine_tools.specs:
            return self._engine_answer(call, None if past is None else past[1])
        given = _arguments(call)
        if past is None:
            return NOTHING_FOLDED if given is not None else f"error: {UNREADABLE}"
        answer = past[0].run(call.name, given, is_cancelled) if given is not None else past[0].refuse(UNREADABLE)
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


def _session_of(measured: MeasuredRequest) -> str:
    """Return the session that owns a request's hidden turns; they are deleted with it."""
    return measured.name if measured.checkpoint is None else measured.checkpoint.session


def _visible_digests(prepared: PreparedRequest) -> set[bytes]:
    """Return digests of stored messages that are still visible to the model."""
    measured = prepared.measured
    if measured is None or measured.checkpoint is None:
        return set()
    conversation = measured.conversation
    return {message.digest for message in measured.checkpoint.apply(conversation.bare, conversation.dialect)}


def _arguments(call: ToolCall) -> Mapping[str, Any] | None:
    """Return a call's arguments; None if the model wrote no JSON object."""
    try:
        given = jsonio.decode(call.arguments)
    except jsonio.NotJSON:
        return None
    return given if isinstance(given, Mapping) else None


def _without_hidden(merged: MergedStream, decoded: bytes) -> bytes:
    """Return the answer that ends a turn without hidden calls: the rest of a stream, or a complete body."""
    if not decoded:
        return merged.rest()
    if decoded.lstrip(BLANK)[:1] not in FIRST_OF_STREAM:
        return jsonio.encode(merged.strip(jsonio.decode(decoded)))
    events = EventReader()
    return b"".join([*map(merged.feed, (*events.feed(decoded), *events.end())), merged.rest()])


def _is_stream(answer: UpstreamAnswer) -> bool:
    """Return whether an answer can be relayed while it is read."""
    return answer.status == 200 and answer.is_stream and encoding_of(answer.headers) in ("", "identity")


def decode_answer(data: bytes, encoding: str) -> bytes:
    """Decode an answer's body; return b"" if it is too large to inspect."""
    decoded = decode_body(data, encoding, MAX_EVENT_BYTES + 1)
    exceeds_limits = len(decoded) > MAX_EVENT_BYTES or structural_values(decoded, MOST_VALUES) >= MOST_VALUES
    return b"" if exceeds_limits else decoded


def _continue_from(body: bytes, found: Continuation) -> bytes:
    """Return a request that continues from the last hidden response, with the pending tool results."""
    changes: dict[str, bytes | list[Piece] | None] = {}
    if found.last:
        changes["previous_response_id"] = jsonio.encode(found.last)
    given, owed = bytes(entries(body).get("input", b"")).strip(), b",".join(map(bytes, found.owed))
    if owed and given[:1] == b"[":
        changes["input"] = b"[" + b",".join(filter(None, (owed, given[1:-1].strip()))) + b"]"
    elif owed and given[:1] == b'"':
        changes["input"] = b"[" + owed + b',{"role":"user","content":' + given + b"}]"
    return replace_values(body, changes)


def _error_in(body: bytes) -> Mapping[str, Any]:
    """Return the error in a provider's answer, or a generic one."""
    try:
        value = jsonio.decode(body)
    except jsonio.NotJSON:
        value = None
    error = value.get("error") if isinstance(value, dict) else None
    return (
        error if isinstance(error, dict) else {"type": "api_error", "message": "the upstream failed in a recall round"}
    )
