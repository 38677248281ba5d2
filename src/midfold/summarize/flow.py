"""How a model is brought to write one summary: a generator that asks for calls and pauses, driven sync or async.

    answer = run(summarise(ask, endpoint), send, sleep)

Rules of this file:
1. The failure table decides: what is tried again, how often, and when the conversation's own model is asked instead.
2. A fold larger than the model's window is summarised in at most `MOST_CHUNKS` pieces, and these are merged: at once if
   they fit one call, else neighbours first. A previous summary that is too long to stand beside them is merged as their
   oldest parts. No call is larger than the window; an overflow cuts the pieces smaller.
3. An answer that stops at its length limit is asked for again with a larger limit, or continued, while the window has
   room. If that does not end it, its last line says so.
4. What is no summary is a failure, and is treated as one.
5. After a broken answer the call is made once more without a stream: a server that fails inside a stream has sent its
   status already and often says nothing; in a whole answer it says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

import msgspec

from midfold.errors import FailureKind, SummaryFailed
from midfold.fold.audit import rejection
from midfold.fold.receipt import FAILURES, waiting_time
from midfold.fold.request import SummaryAnswer, SummaryAsk
from midfold.fold.summary import MOST_CHUNKS, build_prompt, instruction
from midfold.summarize.calls import SYSTEM, Call, Finish, Reply
from midfold.summarize.endpoint import Endpoint
from midfold.summarize.pieces import CUT_NOTE, groups_of, half_of, held, numbered, pieces_of, size_of, split
from midfold.transcript.tokens import estimate_text

MOST_CONTINUATIONS = 2
SHORTEST_CONTINUATION = 64
DOUBT, SMALL_DOUBT = 1.4, 1.15
"""Tokenizers count differently, some almost half as much again as the estimate. To ask for more of an answer risks
less: if it overflows, what was written is kept."""
FRAME_TOKENS = 50
"""What the messages of a call cost beside their text."""
SMALLEST_ROOM = 300
"""A window without so much room overflows, and the table says what then."""
SMALLEST_PART = 100
"""What a partial summary is asked for at least."""
REASONING_TOKENS = 4_000
_UNUSABLE: dict[Finish, FailureKind] = {"filter": "filtered", "tool": "malformed"}
"""Ends of an answer after which its text is no summary."""
CONTINUE = "Your summary was cut off. Continue it exactly where it stopped. Repeat nothing and add no preface."


class Pause(NamedTuple):
    """Wait so many seconds, then go on."""

    seconds: float


class Progress(NamedTuple):
    """Where a summary of several calls stands."""

    done: int
    total: int


Steps = Generator["Call | Pause", "Reply | SummaryFailed | None", SummaryAnswer]
Replies = Generator["Call | Pause", "Reply | SummaryFailed | None", str]
Merging = Generator["Call | Pause", "Reply | SummaryFailed | None", list[str]]
Sent = Generator["Call | Pause", "Reply | SummaryFailed | None", Reply]
Tried = Generator["Call | Pause", "Reply | SummaryFailed | None", "Reply | None"]
Messages = tuple[tuple[str, str], ...]


def summarise(
    ask: SummaryAsk,
    endpoint: Endpoint,
    main: Endpoint | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Steps:
    """One summary, from the summary model, or from the conversation's own where the table says so."""
    work = _Work(ask, endpoint, progress)
    try:
        return work.answer((yield from work.text()))
    except SummaryFailed as failed:
        failed.calls = work.calls
        if main is None or main.same_model(endpoint) or not FAILURES[failed.kind].main_model:
            raise
        first = failed
    other = _Work(ask, msgspec.structs.replace(main, reuse_prefix=False), progress)
    other.calls = work.calls
    try:
        answer = other.answer((yield from other.text()))
    except SummaryFailed as failed:
        failed.calls = other.calls
        raise
    return msgspec.structs.replace(answer, recovered_from=first.kind)


class _Work:
    """One summary by one model."""

    def __init__(self, ask: SummaryAsk, endpoint: Endpoint, progress: Callable[[Progress], None] | None) -> None:
        self.ask = ask
        self.endpoint = endpoint
        self.progress = progress
        self.calls = 0
        self.limit = endpoint.context_length
        self.notes: list[str] = []
        self.done = 0
        self.total = 1

    def answer(self, text: str) -> SummaryAnswer:
        return SummaryAnswer(text=text, model=self.endpoint.model, calls=self.calls, notes=tuple(self.notes))

    def text(self) -> Replies:
        """The summary, in one piece or in several; smaller pieces after an overflow."""
        if self.endpoint.reuse_prefix and self.ask.prefix is not None:
            text = yield from self._from_prefix()
            if text:
                return text
        known = len(self.notes)
        for attempt in range(FAILURES["overflow"].retries + 1):
            del self.notes[known:]
            self.done = 0
            try:
                return (yield from self._from_turns())
            except SummaryFailed as failed:
                if failed.kind != "overflow" or attempt == FAILURES["overflow"].retries:
                    raise
                named = failed.limit if 0 < failed.limit < self.limit else self.limit
                self.limit = min(named, int(self.limit * 0.6)) if named == self.limit else named
        raise SummaryFailed("overflow")

    def _from_prefix(self) -> Replies:
        """The request the provider has in its cache, and one message more. If that does not work out, the usual way."""
        ask = self.ask
        if ask.prefix is None:
            return ""
        body = ask.prefix(instruction(budget_tokens=ask.asked_tokens, focus=ask.focus), self.endpoint.wire)
        if body is None:
            return ""
        call = Call(
            endpoint=self.endpoint, max_tokens=self._output(ask.asked_tokens), body=body, purpose="cached prefix"
        )
        try:
            reply = yield from self._sent(call)
            if reply.finish == "stop" and not rejection(reply.text, ask):
                self.notes.append(
                    f"{reply.cached_tokens:,} of {reply.prompt_tokens:,} prompt tokens came from the cache"
                )
                return reply.text
        except SummaryFailed as failed:
            if failed.kind in ("auth", "network"):
                raise
        self.notes.append("the cached prefix could not be used")
        return ""

    def _from_turns(self) -> Replies:
        """One call if the turns fit beside the previous summary; else pieces, and the pieces merged."""
        ask, room, previous = self.ask, self._room(), self.ask.previous
        taken, known = estimate_text(previous), list[str]()
        if taken <= half_of(room):
            pieces = pieces_of(ask, room - taken)
            if len(pieces) <= 1:
                return (yield from self._one("".join(pieces), ask.asked_tokens, previous))
        else:
            previous, known = "", split(previous, half_of(room))
        if len(known) > MOST_CHUNKS:
            raise SummaryFailed("overflow", "the previous summary does not fit the summary model's window")
        pieces = pieces_of(ask, room)
        if len(pieces) > 1:
            self.notes.append(f"summarised in {len(pieces)} pieces")
        self.total = len(pieces) + 1
        budget = self._budget(max(room - taken, room // 2) // max(len(pieces), 1))
        parts = known
        for piece in pieces:
            parts.append((yield from self._part(piece, budget, room)))
        parts = yield from self._fewer(parts, previous, room)
        self._tell()
        text = yield from self._one(numbered(parts), ask.asked_tokens, previous, of_parts=True)
        self._tell()
        return text

    def _fewer(self, parts: list[str], previous: str, room: int) -> Merging:
        """Parts that fit one call beside the previous summary: as long as they do not, neighbours are merged."""
        room_for_all = room - estimate_text(previous)
        while len(parts) > 1 and size_of(parts) > room_for_all:
            groups = groups_of(parts, room)
            self.total += sum(len(group) > 1 for group in groups)
            budget = self._budget(room_for_all // len(groups))
            parts = []
            for group in groups:
                alone = len(group) == 1
                parts.append(group[0] if alone else (yield from self._part(numbered(group), budget, room, True)))
        return parts

    def _part(self, turns: str, budget: int, room: int, of_parts: bool = False) -> Replies:
        """A partial summary, small enough that two of them fit one call."""
        self._tell()
        most = half_of(room)
        text = yield from self._one(turns, budget, "", of_parts=of_parts, enough=most)
        part = held(text, most)
        if part != text:
            self._note("a partial summary was longer than could be merged and was cut")
        return part

    def _one(
        self, turns: str, budget: int, previous: str, *, of_parts: bool = False, enough: int | None = None
    ) -> Replies:
        """One text from the model, whole, or `enough` tokens of it; a rejected one is asked for again."""
        prompt = build_prompt(turns, budget_tokens=budget, previous=previous, focus=self._focus(), of_parts=of_parts)
        attempt = 0
        while True:
            reply = yield from self._whole(prompt, budget, enough)
            kind = _UNUSABLE.get(reply.finish) or rejection(reply.text, self.ask)
            if not kind:
                return reply.text
            if waiting_time(kind, attempt) is None:
                raise SummaryFailed(kind)
            attempt += 1

    def _whole(self, prompt: str, budget: int, enough: int | None) -> Sent:
        """The answer to a prompt, not cut by its length limit if that can be helped."""
        asked: Messages = (("user", prompt),)
        limit = self._output(budget)
        reply = yield from self._sent(self._call(asked, limit))
        larger = min(limit * 3, self.endpoint.max_output or limit, self._left(asked))
        if larger > limit and _goes_on(reply, reply.text, enough):
            again = yield from self._tried(self._call(asked, larger))
            reply, limit = (again, larger) if again else (reply, limit)
        text = reply.text
        for _ in range(MOST_CONTINUATIONS):
            turns = (*asked, ("assistant", text.rstrip()), ("user", CONTINUE))
            room = min(limit, self._left(turns))
            if room < SHORTEST_CONTINUATION or not text.strip() or not _goes_on(reply, text, enough):
                break
            more = yield from self._tried(self._call(turns, room))
            if more is None:
                break
            reply = more
            text += reply.text
        if reply.finish == "length" and text.strip():
            self._note("the summary was cut by the model's output limit")
            text = f"{text.rpartition(chr(10))[0] or text}\n{CUT_NOTE}"
        return msgspec.structs.replace(reply, text=text)

    def _call(self, messages: Messages, limit: int) -> Call:
        return Call(endpoint=self.endpoint, messages=messages, max_tokens=limit)

    def _tried(self, call: Call) -> Tried:
        """The reply to a call that asks for more of an answer; None if it does not fit the window after all."""
        try:
            return (yield from self._sent(call))
        except SummaryFailed as failed:
            if failed.kind != "overflow":
                raise
            return None

    def _sent(self, call: Call) -> Sent:
        """The reply to one call; what passes by itself is waited for. Overflows are the caller's to answer."""
        attempts: dict[str, int] = {}
        while True:
            self.calls += 1
            result = yield call
            if isinstance(result, Reply):
                return result
            failed = result or SummaryFailed("other")
            number = attempts.get(failed.kind, 0)
            attempts[failed.kind] = number + 1
            pause = None if failed.kind == "overflow" else waiting_time(failed.kind, number, failed.retry_after)
            if pause is None:
                raise failed
            if failed.kind == "malformed":
                call = msgspec.structs.replace(call, stream=False)
            yield Pause(pause)

    def _room(self) -> int:
        """Tokens for what the model reads, by an estimate that may be too low for its tokenizer."""
        empty = build_prompt("", budget_tokens=self.ask.asked_tokens, previous=" ", focus=self._focus())
        left = self._left((("user", empty),), DOUBT) - self._output(self.ask.asked_tokens)
        return max(int(left / DOUBT), SMALLEST_ROOM)

    def _left(self, messages: Messages, doubt: float = SMALL_DOUBT) -> int:
        """Tokens of the window that are left beside these messages, if the estimate is so much too low."""
        asked = estimate_text(SYSTEM) + sum(estimate_text(text) for _, text in messages)
        return self.limit - int(asked * doubt) - FRAME_TOKENS

    def _output(self, budget: int) -> int:
        """Room for the answer: half as much again as was asked for, and what reasoning takes."""
        wanted = budget * 3 // 2 + min(256, budget) + (REASONING_TOKENS if self.endpoint.reasoning_effort else 0)
        return min(wanted, self.endpoint.max_output or wanted, max(self.limit // 4, 256))

    def _budget(self, share: int) -> int:
        """What a partial summary is asked for that has this share of a call: models write more than they are asked."""
        return min(self.ask.asked_tokens, max(share // 2, SMALLEST_PART))

    def _focus(self) -> str | None:
        return self.ask.redact(self.ask.focus) if self.ask.focus else None

    def _note(self, what: str) -> None:
        if what not in self.notes:
            self.notes.append(what)

    def _tell(self) -> None:
        """One more call begins, or the last one is over."""
        if self.progress is not None:
            self.progress(Progress(self.done, self.total))
        self.done += 1


def _goes_on(reply: Reply, text: str, enough: int | None) -> bool:
    """Whether an answer was cut before there was enough of it."""
    return reply.finish == "length" and (enough is None or estimate_text(text) < enough)
