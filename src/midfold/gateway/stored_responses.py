"""Conversations stored by a provider: record their turns so that they can be folded before they get too long.

1. A request with `previous_response_id` or a conversation contains only the new items. Its items and its answer are
   recorded under the response id, for its owner and upstream only. The chain of ids is the whole history.
2. Below the trigger such a request is relayed unchanged, which caches best. From the trigger on the whole history is
   sent folded instead of the id. The answer has a provider id, and the client continues from that.
3. A conversation cannot be folded at its provider. Once its history was sent folded, it continues from its last
   response, although the client still names the conversation.
4. Turns are kept in memory. They are stored once their chain was folded (its beginning is in the store anyway), or
   earlier if `gateway.keep_turns` is set; redacted if originals are. Unused turns are deleted after that many days.
5. If a turn is missing (restart, another gateway, evicted from memory) the request is relayed unchanged.
"""

from __future__ import annotations

import asyncio
import logging
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Raw

from midfold.errors import MidfoldError
from midfold.gateway.encodings import incremental_decoder
from midfold.gateway.exchange import Exchange
from midfold.gateway.peek import exceeds_limits, peek_slowly
from midfold.gateway.request_size import PreparedRequest
from midfold.gateway.resource_ids import IdPlace
from midfold.gateway.routes import encoding_of
from midfold.lru import LRU
from midfold.store.intake import redact_json
from midfold.transcript import jsonio
from midfold.transcript.jsonio import NotJSON, elements, entries, first_byte
from midfold.transcript.message import Message, read_usage
from midfold.transcript.openai_responses import OpenAIResponses
from midfold.transcript.splice import replace_values
from midfold.transcript.sse import EventReader
from midfold.transcript.tokens import Count

if TYPE_CHECKING:
    from midfold.gateway.overflows import Overflow
    from midfold.gateway.prepare import RequestPreparer
    from midfold.gateway.upstream import UpstreamAnswer

MAX_TURNS, MAX_TURN_BYTES = 50_000, 64_000_000
"""Maximum turns and bytes kept in memory."""
MAX_CHAIN_TURNS = 5_000
MAX_ANSWER_BYTES = 8_000_000
"""Maximum bytes of an answer that are read."""
FOLDED_DAYS = 35
"""Days that turns of folded chains are stored; providers keep responses for 30."""
DAY_MS = 86_400_000
TURNS_PER_CLEANUP = 1_000
ENDS = frozenset(("response.completed", "response.incomplete"))
FINISHED = (None, "completed", "incomplete")
"""Statuses of complete answers; background responses are answered later on another route."""
_CONVERSATION = re.compile(r"(?:/v1)?/conversations(?:/([\w-]{1,200})/items)?")
_CHANGED = re.compile(r"(?:/v1)?/conversations/([\w-]{1,200})/items/[\w-]{1,200}")
LOST = "-"
"""Id that no response has; marks an unknown history."""
_log = logging.getLogger("midfold.gateway")


class StoredResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """New items and answer of one turn; for a conversation, the items added since its last response."""

    previous: str = ""
    """Id of the previous response."""
    items: tuple[Raw, ...] = ()
    tokens: int = 0
    """Reported tokens of everything up to this turn; 0 if unknown."""
    session: str = ""
    """Session in which the chain is stored, once it was folded."""
    is_apart: bool = False
    """For a conversation: whether it continues from its last response instead of the provider's conversation."""

    @property
    def size(self) -> int:
        return 200 + sum(memoryview(one).nbytes + 80 for one in self.items)


class ContinuedTurn(NamedTuple):
    """Request as a turn of a history stored by its provider."""

    place: IdPlace
    continues: str
    """Response or conversation it continues from; empty for a first turn."""
    is_conversation: bool
    new: tuple[Raw, ...]
    is_stored: bool
    last: StoredResponse | None
    """Turn it continues from, if known."""
    given: str = ""
    """Id of its answer."""

    @property
    def previous(self) -> str:
        """Return the id of the previous response."""
        if not self.is_conversation:
            return self.continues
        return "" if self.last is None else self.last.previous

    @property
    def pending(self) -> tuple[Raw, ...]:
        """Return the items added to a conversation since its last response."""
        return self.last.items if self.is_conversation and self.last is not None else ()

    @property
    def has_answers(self) -> bool:
        """Return whether a first turn contains model answers, so its client sends the whole history each time."""
        return not self.continues and any(b'"assistant"' in bytes(one) or b"_call" in bytes(one) for one in self.new)


class StoredResponses:
    """Turns of all owners; used on one event loop."""

    def __init__(self, preparer: RequestPreparer, days: int) -> None:
        self._preparer, self._days = preparer, days
        self._turns = None if preparer.sessions is None else preparer.sessions.store.hidden_turns
        self._known: LRU[str, StoredResponse] = LRU(MAX_TURNS, most_bytes=MAX_TURN_BYTES, size=lambda turn: turn.size)
        self._stored: LRU[str, bool] = LRU(MAX_TURNS)
        self._written = 0

    def __len__(self) -> int:
        """Return the number of turns in memory."""
        return len(self._known)

    # Requests.

    async def read(self, exchange: Exchange) -> None:
        """Set the exchange's turn if its provider stores the conversation."""
        continuation = _continuation(exchange)
        if continuation is None and exchange.method == "DELETE":
            self._forget(exchange)
        if continuation is None or exchange.upstream is None or exchange.options.bypass or exchange.exceeds_limits:
            return
        if not self._preparer.policy.enabled or self._preparer.folder is None:
            return
        place = IdPlace(exchange.owner, exchange.upstream.base)
        try:
            new, is_stored = await self._preparer.work_on(len(exchange.body), _read_request, exchange.body)
        except NotJSON:
            return
        if not continuation.id and not is_stored:
            return
        last = await self._find(place, continuation.id) if continuation.id else None
        exchange.turn = ContinuedTurn(place, continuation.id, continuation.is_conversation, new, is_stored, last)
        if exchange.route.dialect is None:
            return
        if last is not None and last.is_apart:
            exchange.body = _continue_from_last(exchange.body, last, new)
            exchange.peek = peek_slowly(exchange.body)

    def _forget(self, exchange: Exchange) -> None:
        """Mark a conversation as unknown after an item was deleted, unless it no longer continues at its provider."""
        found = _CHANGED.fullmatch(exchange.path)
        if found is None or exchange.upstream is None:
            return
        name = turn_name(IdPlace(exchange.owner, exchange.upstream.base), found[1])
        known = self._known.peek(name)
        if known is None or not known.is_apart:
            self._known.put(name, StoredResponse(previous=LOST))

    async def fold(self, exchange: Exchange) -> PreparedRequest | None:
        """Return the request with its whole history, folded; None if it should be sent unchanged."""
        turn = exchange.turn
        if turn is None or turn.last is None or not turn.last.tokens or exchange.peek is None:
            return None
        limits = self._preparer.policy.limits_of(exchange)
        new = [Message.over(one, OpenAIResponses.read) for one in (*turn.pending, *turn.new)]
        size = sum(memoryview(one).nbytes for one in (*turn.pending, *turn.new))
        tokens = turn.last.tokens + (await self._preparer.work_on(size, limits.meter.count, new)).tokens
        if tokens < limits.trigger:
            return None
        return await self._with_history(exchange, lambda: self._fold_history(exchange, tokens))

    async def _fold_history(self, exchange: Exchange, tokens: int) -> PreparedRequest | None:
        """Fold a request that contains its whole history of this many tokens; None if no fold was made."""
        preparer = self._preparer
        measured = await preparer.in_thread(preparer.measurer.measure, exchange, preparer.policy.limits_of(exchange))
        if measured is None:
            return None
        again = await preparer.fold(exchange, measured, at_least=Count(tokens, "reported"))
        if again.checkpoint is None or again.checkpoint == measured.checkpoint:
            return None
        preparer.tell(exchange, again)
        return await preparer.in_thread(again.prepare)

    async def recover(self, exchange: Exchange, found: Overflow) -> PreparedRequest | None:
        """Return a smaller version of a request refused as too large, with its whole history; None if impossible."""
        return await self._with_history(
            exchange, lambda: self._preparer.recover(exchange, PreparedRequest(exchange.body), found)
        )

    def is_known(self, exchange: Exchange) -> bool:
        """Return whether a request continues a history that is known here."""
        peek, turn = exchange.peek, exchange.turn
        return turn is not None and turn.last is not None and peek is not None and peek.is_continued

    async def _with_history(
        self, exchange: Exchange, work: Callable[[], Awaitable[PreparedRequest | None]]
    ) -> PreparedRequest | None:
        """Run `work` on the request with its whole history; restore the request if it returns None."""
        turn, before = exchange.turn, (exchange.body, exchange.peek)
        assert turn is not None
        chain = await self._chain(turn)
        if chain is None:
            return None
        items = [*(one for link in chain.values() for one in link.items), *turn.pending, *turn.new]
        exchange.body = await self._preparer.in_thread(_with_input, exchange.body, items)
        exchange.peek = await self._preparer.in_thread(peek_slowly, exchange.body)
        too_much = await self._preparer.in_thread(exceeds_limits, exchange.body)
        prepared = None if too_much else await work()
        if prepared is None:
            exchange.body, exchange.peek = before
            return None
        session = exchange.account.session or ""
        await self._write(
            turn.place, {name: link for name, link in chain.items() if not self._stored.peek(name)}, session
        )
        return prepared

    async def _chain(self, turn: ContinuedTurn) -> dict[str, StoredResponse] | None:
        """Return the turns before a request, oldest first; None if one is unknown."""
        found: dict[str, StoredResponse] = {}
        response_id = turn.previous
        while response_id:
            link, name = await self._find(turn.place, response_id), turn_name(turn.place, response_id)
            if link is None or name in found or len(found) >= MAX_CHAIN_TURNS:
                return None
            found[name] = link
            response_id = link.previous
        return dict(reversed(found.items()))

    # Answers.

    async def through(
        self, exchange: Exchange, answer: UpstreamAnswer, chunks: AsyncIterator[bytes]
    ) -> AsyncIterator[bytes]:
        """Yield the same bytes; the turn is recorded before the client has read the last of them."""
        reader, held = _AnswerEnd(answer), list[bytes]()
        async for chunk in chunks:
            reader.feed(chunk)
            if reader.found is not None:
                self._note(exchange, reader.found)
            held.append(chunk)
            if answer.is_stream or reader.is_over:
                for one in held:
                    yield one
                held.clear()
        if not answer.is_stream and (whole := reader.finish()) is not None:
            self._note(exchange, whole)
        await self._write_noted(exchange)
        for one in held:
            yield one

    def _note(self, exchange: Exchange, answer: Mapping[str, Any]) -> None:
        turn, given = exchange.turn, answer.get("id")
        if turn is None or (turn.continues and turn.last is None):
            return
        if exchange.route.dialect is None and turn.continues:
            given = turn.continues
        if not isinstance(given, str):
            return
        place, last = turn.place, turn.last or StoredResponse()
        session = exchange.account.session or last.session if turn.continues else ""
        if exchange.route.dialect is None:
            exchange.turn = turn._replace(given=given)
            whole = msgspec.structs.replace(last, items=(*last.items, *turn.new))
            self._known.put(turn_name(place, given), whole)
            return
        usage, output = read_usage(answer), answer.get("output")
        tokens = 0 if usage is None else usage.prompt_tokens + usage.completion_tokens
        if not turn.is_stored or not isinstance(output, list) or answer.get("status") not in FINISHED:
            return
        items = (*turn.pending, *turn.new, *(Raw(jsonio.encode(one)) for one in output))
        self._known.put(turn_name(place, given), StoredResponse(turn.previous, items, tokens, session))
        if turn.is_conversation:
            is_apart = last.is_apart or (exchange.peek is not None and not exchange.peek.is_continued)
            end = StoredResponse(given, (), tokens, session, is_apart)
            self._known.put(turn_name(place, turn.continues), end)
        exchange.turn = turn._replace(given=given)

    async def _write_noted(self, exchange: Exchange) -> None:
        """Store the recorded turn if turns of this chain are stored."""
        turn = exchange.turn
        if turn is None or not (turn.given or turn.is_conversation):
            return
        names = [
            turn_name(turn.place, one) for one in (turn.given, turn.continues if turn.is_conversation else "") if one
        ]
        turns = {name: found for name in names if (found := self._known.peek(name)) is not None}
        session = next((one.session for one in turns.values() if one.session), "")
        if session or (self._days and not turn.has_answers):
            await self._write(turn.place, turns, session)

    # Memory and store.

    async def _find(self, place: IdPlace, response_id: str) -> StoredResponse | None:
        name = turn_name(place, response_id)
        known = self._known.get(name)
        if known is not None or self._turns is None:
            return known
        try:
            found = await asyncio.to_thread(self._read, _store_place(place), name)
        except MidfoldError as error:
            _log.warning("A stored turn was not read: %s. The request is sent unfolded.", type(error).__name__)
            return None
        if found is not None:
            self._known.put(name, found)
            self._stored.put(name, True)
        return found

    def _read(self, place: str, name: str) -> StoredResponse | None:
        assert self._turns is not None
        keys = self._turns.find(place, [name])
        for data in self._turns.read(place, [name]).values() if keys else ():
            return msgspec.json.decode(data, type=StoredResponse)
        return None

    async def _write(self, place: IdPlace, turns: Mapping[str, StoredResponse], session: str) -> None:
        if self._turns is None or not turns:
            return
        try:
            await asyncio.to_thread(self._store, _store_place(place), turns, session)
        except MidfoldError as error:
            _log.warning("A turn was not stored: %s. It is kept in memory only.", type(error).__name__)

    def _store(self, place: str, turns: Mapping[str, StoredResponse], session: str) -> None:
        assert self._turns is not None
        redactor = self._preparer.policy.redactor
        for name, turn in turns.items():
            data = jsonio.encode(turn)
            self._turns.keep(place, name, data if redactor is None else redact_json(data, redactor), session=session)
            self._stored.put(name, True)
        if self._written % TURNS_PER_CLEANUP == 0:
            self._turns.delete_ended(STORE_PLACE, (self._days or FOLDED_DAYS) * DAY_MS)
        self._written += len(turns)


class _AnswerEnd:
    """Reader of the final response of a stream, or of a complete answer."""

    def __init__(self, answer: UpstreamAnswer) -> None:
        self._inflate = incremental_decoder(encoding_of(answer.headers), MAX_ANSWER_BYTES + 1)
        self._is_stream = answer.is_stream
        self._events, self._plain, self._size = EventReader(), bytearray(), 0
        self.found: Mapping[str, Any] | None = None
        self.is_over = False
        """Whether the search is finished."""

    def feed(self, chunk: bytes) -> None:
        self.found = None
        if self.is_over:
            return
        try:
            plain = self._inflate(chunk)
            self._size += len(plain)
            if self._is_stream:
                for event in self._events.feed(plain):
                    if event.name in ENDS or (not event.name and '"response.' in event.data[:80]):
                        self._look(event.value or {})
            else:
                self._plain += plain
        except (ValueError, zlib.error):
            self.is_over = True
        self.is_over = self.is_over or (not self._is_stream and self._size > MAX_ANSWER_BYTES)

    def _look(self, value: Mapping[str, Any]) -> None:
        response = value.get("response")
        if value.get("type") in ENDS and isinstance(response, Mapping):
            self.found, self.is_over = response, True

    def finish(self) -> Mapping[str, Any] | None:
        try:
            value = None if self.is_over else jsonio.decode(bytes(self._plain))
        except NotJSON:
            return None
        return value if isinstance(value, Mapping) else None


STORE_PLACE = "turns-"


def _store_place(place: IdPlace) -> str:
    return STORE_PLACE + place.owner.bind(b"turns", place.base.encode())


def turn_name(place: IdPlace, given: str) -> str:
    """Return the name of a turn, a hash that only its owner can compute."""
    return place.owner.bind(b"turn", place.base.encode(), given.encode("utf-8", "surrogatepass"))


class _Continuation(NamedTuple):
    """Response or conversation that a request continues from; without an id it starts one."""

    id: str
    is_conversation: bool


def _continuation(exchange: Exchange) -> _Continuation | None:
    """Return what a request continues from; None if it is neither a turn nor items added to a conversation."""
    if exchange.route.dialect is None:
        found = _CONVERSATION.fullmatch(exchange.path) if exchange.method == "POST" else None
        return None if found is None else _Continuation(found[1] or "", True)
    peek = exchange.peek
    if exchange.route.kind != "generate" or exchange.route.dialect != "openai-responses" or peek is None:
        return None
    given = peek.previous_response_id or peek.conversation or ""
    given = given.get("id") if isinstance(given, Mapping) else given
    return _Continuation(given, not peek.previous_response_id and bool(given)) if isinstance(given, str) else None


def _read_request(body: bytes) -> tuple[tuple[Raw, ...], bool]:
    """Return the new items of a request, and whether its answer is stored. Raises NotJSON."""
    found = entries(body)
    new = found.get("input", found.get("items"))
    return _items(new), bytes(found.get("store", b"")).strip() != b"false"


def _items(source: Raw | None) -> tuple[Raw, ...]:
    """Return copies of the items, which do not keep the request alive; a plain text becomes a user message."""
    if source is None:
        return ()
    if first_byte(source) == b"[":
        return tuple(Raw(bytes(one)) for one in elements(source))
    return (Raw(b'{"role":"user","content":' + bytes(source).strip() + b"}"),)


def _with_input(body: bytes, items: Sequence[Raw]) -> bytes:
    """Return the request with all items and without a reference to continue from."""
    whole = b"[" + b",".join(bytes(one) for one in items) + b"]"
    return replace_values(body, {"previous_response_id": None, "conversation": None, "input": whole})


def _continue_from_last(body: bytes, last: StoredResponse, new: Sequence[Raw]) -> bytes:
    """Return a conversation's request that continues from its last response instead."""
    items = b"[" + b",".join(bytes(one) for one in (*last.items, *new)) + b"]"
    changes = {"conversation": None, "previous_response_id": jsonio.encode(last.previous), "input": items}
    return replace_values(body, changes)
