"""Conversations that a provider keeps: their turns as they pass, so that they can be folded before they are too long.

Rules of this file:
1. A request that goes on from a response (`previous_response_id`), or in a conversation, has only what is new in it.
   What was new and what was answered is remembered by the id of the response, for its owner and its upstream alone.
   From id to id that is the whole history.
2. Below the trigger such a request passes as it came: nothing is cached better. From the trigger on the whole history
   is sent instead of the id, folded. The answer has an id of the provider's own, and the client goes on from that.
3. A conversation cannot be folded at its provider. Once its history was sent folded, it goes on from its last response,
   whatever the client calls it.
4. Turns are remembered in memory. They are written down once their chain was folded, whose beginning is in the store
   anyway, and before that only where `gateway.keep_turns` says so; redacted where originals are. Nobody's use for that
   many days is their end.
5. Where a turn is missing (a restart, another gateway, too much to remember) a request passes as it came.
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
from midfold.gateway.encodings import inflating
from midfold.gateway.exchange import Exchange
from midfold.gateway.peek import is_crowded, peek_slowly
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

MOST_TURNS, MOST_BYTES = 50_000, 64_000_000
"""That are remembered."""
LONGEST_CHAIN = 5_000
MOST_HELD = 8_000_000
"""Bytes of an answer that are read."""
FOLDED_DAYS = 35
"""Providers keep responses for 30."""
DAY = 86_400_000
TIDY_EVERY = 1_000
ENDS = frozenset(("response.completed", "response.incomplete"))
FINISHED = (None, "completed", "incomplete")
"""What is asked for in the background is answered later, and elsewhere."""
_CONVERSATION = re.compile(r"(?:/v1)?/conversations(?:/([\w-]{1,200})/items)?")
_CHANGED = re.compile(r"(?:/v1)?/conversations/([\w-]{1,200})/items/[\w-]{1,200}")
LOST = "-"
"""No response has this id: what goes on from it is not known."""
_log = logging.getLogger("midfold.gateway")


class StoredResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """One turn: what was new, and what was answered; of a conversation, what was added since its last response."""

    previous: str = ""
    """The response before it."""
    items: tuple[Raw, ...] = ()
    tokens: int = 0
    """What the provider counted for everything up to here; 0 if it did not say."""
    session: str = ""
    """Where the chain is stored, once it was folded."""
    is_apart: bool = False
    """Of a conversation: whether it goes on from its last response, and no longer at the provider."""

    @property
    def size(self) -> int:
        return 200 + sum(memoryview(one).nbytes + 80 for one in self.items)


class ContinuedTurn(NamedTuple):
    """A request as a turn of something that its provider keeps."""

    place: IdPlace
    asked: str
    """The response, or the conversation, it goes on from; empty if it begins."""
    is_conversation: bool
    new: tuple[Raw, ...]
    is_stored: bool
    last: StoredResponse | None
    """What it goes on from, where that is known."""
    given: str = ""
    """The id of its answer."""

    @property
    def previous(self) -> str:
        """The response before it."""
        if not self.is_conversation:
            return self.asked
        return "" if self.last is None else self.last.previous

    @property
    def pending(self) -> tuple[Raw, ...]:
        """What was added to a conversation since its last response."""
        return self.last.items if self.is_conversation and self.last is not None else ()

    @property
    def has_answers(self) -> bool:
        """Whether a request that begins has answers of a model in it: then its client sends all of it each time."""
        return not self.asked and any(b'"assistant"' in bytes(one) or b"_call" in bytes(one) for one in self.new)


class StoredResponses:
    """The turns of all owners; used on one event loop."""

    def __init__(self, preparer: RequestPreparer, days: int) -> None:
        self._preparer, self._days = preparer, days
        self._turns = None if preparer.sessions is None else preparer.sessions.store.hidden_turns
        self._known: LRU[str, StoredResponse] = LRU(MOST_TURNS, most_bytes=MOST_BYTES, size=lambda turn: turn.size)
        self._stored: LRU[str, bool] = LRU(MOST_TURNS)
        self._written = 0

    def __len__(self) -> int:
        """How many turns are remembered."""
        return len(self._known)

    # A request on its way.

    async def read(self, exchange: Exchange) -> None:
        """Notes in the exchange which turn it is; nothing where its provider keeps nothing."""
        asked = _continuation(exchange)
        if asked is None and exchange.method == "DELETE":
            self._forget(exchange)
        if asked is None or exchange.upstream is None or exchange.options.bypass or exchange.is_crowded:
            return
        if not self._preparer.policy.enabled or self._preparer.folder is None:
            return
        place = IdPlace(exchange.owner, exchange.upstream.base)
        try:
            new, is_stored = await self._preparer.work_on(len(exchange.body), _read_request, exchange.body)
        except NotJSON:
            return
        if not asked.id and not is_stored:
            return
        last = await self._find(place, asked.id) if asked.id else None
        exchange.turn = ContinuedTurn(place, asked.id, asked.is_conversation, new, is_stored, last)
        if exchange.route.dialect is None:
            return
        if last is not None and last.is_apart:
            exchange.body = _go_on_apart(exchange.body, last, new)
            exchange.peek = peek_slowly(exchange.body)

    def _forget(self, exchange: Exchange) -> None:
        """A conversation that something is taken out of is no longer known, unless it has left its provider."""
        found = _CHANGED.fullmatch(exchange.path)
        if found is None or exchange.upstream is None:
            return
        name = turn_name(IdPlace(exchange.owner, exchange.upstream.base), found[1])
        known = self._known.peek(name)
        if known is None or not known.is_apart:
            self._known.put(name, StoredResponse(previous=LOST))

    async def fold(self, exchange: Exchange) -> PreparedRequest | None:
        """The request with its whole history, folded; None if it passes as it is."""
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
        """A request that has its whole history in it, of so many tokens, folded; None if no fold is made."""
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
        """A request that its provider refused as too large with all that it keeps; None if it cannot be smaller."""
        return await self._with_history(
            exchange, lambda: self._preparer.recover(exchange, PreparedRequest(exchange.body), found)
        )

    def is_known(self, exchange: Exchange) -> bool:
        """Whether the history of a request that goes on from something is known here."""
        peek, turn = exchange.peek, exchange.turn
        return turn is not None and turn.last is not None and peek is not None and peek.is_continued

    async def _with_history(
        self, exchange: Exchange, work: Callable[[], Awaitable[PreparedRequest | None]]
    ) -> PreparedRequest | None:
        """What is made of a request that has its whole history in it; as it was where that is nothing."""
        turn, before = exchange.turn, (exchange.body, exchange.peek)
        assert turn is not None
        chain = await self._chain(turn)
        if chain is None:
            return None
        items = [*(one for link in chain.values() for one in link.items), *turn.pending, *turn.new]
        exchange.body = await self._preparer.in_thread(_with_input, exchange.body, items)
        exchange.peek = await self._preparer.in_thread(peek_slowly, exchange.body)
        too_much = await self._preparer.in_thread(is_crowded, exchange.body)
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
        """The turns before a request, the first one first; None if one of them is not known."""
        found: dict[str, StoredResponse] = {}
        asked = turn.previous
        while asked:
            link, name = await self._find(turn.place, asked), turn_name(turn.place, asked)
            if link is None or name in found or len(found) >= LONGEST_CHAIN:
                return None
            found[name] = link
            asked = link.previous
        return dict(reversed(found.items()))

    # An answer on its way back.

    async def through(
        self, exchange: Exchange, answer: UpstreamAnswer, chunks: AsyncIterator[bytes]
    ) -> AsyncIterator[bytes]:
        """The same bytes; a client that has read the last of them finds its turn here."""
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
        if turn is None or (turn.asked and turn.last is None):
            return
        if exchange.route.dialect is None and turn.asked:
            given = turn.asked
        if not isinstance(given, str):
            return
        place, last = turn.place, turn.last or StoredResponse()
        session = exchange.account.session or last.session if turn.asked else ""
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
            self._known.put(turn_name(place, turn.asked), end)
        exchange.turn = turn._replace(given=given)

    async def _write_noted(self, exchange: Exchange) -> None:
        """Writes the turn down, where turns are."""
        turn = exchange.turn
        if turn is None or not (turn.given or turn.is_conversation):
            return
        names = [turn_name(turn.place, one) for one in (turn.given, turn.asked if turn.is_conversation else "") if one]
        turns = {name: found for name in names if (found := self._known.peek(name)) is not None}
        session = next((one.session for one in turns.values() if one.session), "")
        if session or (self._days and not turn.has_answers):
            await self._write(turn.place, turns, session)

    # What is remembered.

    async def _find(self, place: IdPlace, asked: str) -> StoredResponse | None:
        name = turn_name(place, asked)
        known = self._known.get(name)
        if known is not None or self._turns is None:
            return known
        try:
            found = await asyncio.to_thread(self._read, _store_place(place), name)
        except MidfoldError as error:
            _log.warning("a kept turn was not read: %s", type(error).__name__)
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
            _log.warning("a kept turn was not stored: %s", type(error).__name__)

    def _store(self, place: str, turns: Mapping[str, StoredResponse], session: str) -> None:
        assert self._turns is not None
        redactor = self._preparer.policy.redactor
        for name, turn in turns.items():
            data = jsonio.encode(turn)
            self._turns.keep(place, name, data if redactor is None else redact_json(data, redactor), session=session)
            self._stored.put(name, True)
        if self._written % TIDY_EVERY == 0:
            self._turns.delete_ended(STORE_PLACE, (self._days or FOLDED_DAYS) * DAY)
        self._written += len(turns)


class _AnswerEnd:
    """The response at the end of a stream, or the one value that an answer is."""

    def __init__(self, answer: UpstreamAnswer) -> None:
        self._inflate = inflating(encoding_of(answer.headers), MOST_HELD + 1)
        self._is_stream = answer.is_stream
        self._events, self._plain, self._size = EventReader(), bytearray(), 0
        self.found: Mapping[str, Any] | None = None
        self.is_over = False
        """Whether nothing more is looked for."""

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
        self.is_over = self.is_over or (not self._is_stream and self._size > MOST_HELD)

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
    """By which a turn is known: nobody else arrives at it."""
    return place.owner.bind(b"turn", place.base.encode(), given.encode("utf-8", "surrogatepass"))


class _Continuation(NamedTuple):
    """What a request goes on from; without an id it begins."""

    id: str
    is_conversation: bool


def _continuation(exchange: Exchange) -> _Continuation | None:
    """None for what is no turn of anything: the one exception are items that are put into a conversation."""
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
    """What is new in a request, and whether its answer is kept. Raises NotJSON."""
    found = entries(body)
    new = found.get("input", found.get("items"))
    return _items(new), bytes(found.get("store", b"")).strip() != b"false"


def _items(source: Raw | None) -> tuple[Raw, ...]:
    """A text is a message of the user's. Each is a copy: nothing else of the request is kept alive by it."""
    if source is None:
        return ()
    if first_byte(source) == b"[":
        return tuple(Raw(bytes(one)) for one in elements(source))
    return (Raw(b'{"role":"user","content":' + bytes(source).strip() + b"}"),)


def _with_input(body: bytes, items: Sequence[Raw]) -> bytes:
    """The request with all items in it, and nothing that it goes on from."""
    whole = b"[" + b",".join(bytes(one) for one in items) + b"]"
    return replace_values(body, {"previous_response_id": None, "conversation": None, "input": whole})


def _go_on_apart(body: bytes, last: StoredResponse, new: Sequence[Raw]) -> bytes:
    """A request in a conversation that goes on from its last response instead."""
    items = b"[" + b",".join(bytes(one) for one in (*last.items, *new)) + b"]"
    changes = {"conversation": None, "previous_response_id": jsonio.encode(last.previous), "input": items}
    return replace_values(body, changes)
