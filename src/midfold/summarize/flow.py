"""How a model is brought to write one summary: a generator that asks for calls and pauses, driven sync or async.

    answer = run(summarise(ask, endpoint), send, sleep)

Rules of this file:
1. The failure table decides: what is tried again, how often, and when the conversation's own model is asked instead.
2. A fold larger than the model's window is summarised in pieces, and the pieces are merged: at most `MOST_CHUNKS` calls
   and one, not counting what is tried again. An overflow cuts the pieces smaller. A previous summary that leaves no
   room beside it is summarised with the turns. Nothing is left out.
3. An answer that stops at its length limit is asked for again with a larger limit, or continued. If that does not end
   it, its last line says so.
4. What is no summary is a failure, and is treated as one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

import msgspec

from midfold.core.audit import rejection
from midfold.core.chunks import chunks
from midfold.core.compaction import SummaryAnswer, SummaryAsk
from midfold.core.estimate import estimate_text
from midfold.core.failures import FAILURES, waiting_time
from midfold.core.summary import build_prompt, instruction
from midfold.errors import FailureKind, SummaryFailed
from midfold.summarize.calls import Call, Finish, Reply
from midfold.summarize.endpoint import Endpoint

MOST_CONTINUATIONS = 2
PROMPT_TOKENS = 700
"""The template, its rules, and the frame of a call."""
SAFETY = 0.7
"""Of the room that is left: tokenizers count differently, some half as much again as the estimate."""
SMALLEST_ROOM = 300
SMALLEST_PART = 100
PART_FRAME = 12
"""Tokens: what a partial summary is asked for at least, and what the label of one takes."""
CHARACTERS_PER_TOKEN = 4
MOST_ROUNDS = 5
REASONING_TOKENS = 4_000
FRAME_TOKENS = 300
"""The system prompt of a call, and what its messages cost beside their text."""
_UNUSABLE: dict[Finish, FailureKind] = {"filter": "filtered", "tool": "malformed"}
"""Ends of an answer after which its text is no summary."""
CONTINUE = "Your summary was cut off. Continue it exactly where it stopped. Repeat nothing and add no preface."
CUT_NOTE = "[This summary was cut by the model's output limit.]"


def pieces_of(ask: SummaryAsk, room: int) -> list[str]:
    """The turns in pieces of at most `room` tokens. How long such a piece is depends on what it is made of."""
    characters = room * CHARACTERS_PER_TOKEN
    pieces: list[str] = []
    for _ in range(MOST_ROUNDS):
        pieces = chunks(ask.messages, ask.redact, characters)
        largest = max(map(estimate_text, pieces), default=0)
        if largest <= room:
            break
        characters = int(characters * room / largest * 0.95)
    return pieces


def split(text: str, room: int) -> list[str]:
    """A text in pieces of at most `room` tokens, cut between lines where there are any."""
    pieces: list[list[str]] = [[]]
    used = 0
    for line in text.split("\n"):
        step = len(line) if estimate_text(line) <= room else room
        for start in range(0, max(len(line), 1), max(step, 1)):
            cost = estimate_text(line[start : start + step]) + 1
            used += cost
            if used > room and pieces[-1]:
                pieces.append([])
                used = cost
            pieces[-1].append(line[start : start + step])
    return ["\n".join(lines) for lines in pieces]


class Pause(NamedTuple):
    """Wait so many seconds, then go on."""

    seconds: float


class Progress(NamedTuple):
    """Where a summary of several calls stands."""

    done: int
    total: int


Steps = Generator["Call | Pause", "Reply | SummaryFailed | None", SummaryAnswer]
Replies = Generator["Call | Pause", "Reply | SummaryFailed | None", str]
Sent = Generator["Call | Pause", "Reply | SummaryFailed | None", Reply]


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
        if main is None or main.same_model(endpoint) or not FAILURES[failed.kind].main_model:
            raise
        first = failed
    other = _Work(ask, msgspec.structs.replace(main, reuse_prefix=False), progress)
    answer = other.answer((yield from other.text()))
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

    def answer(self, text: str) -> SummaryAnswer:
        return SummaryAnswer(text=text, model=self.endpoint.model, calls=self.calls, notes=tuple(self.notes))

    def text(self) -> Replies:
        """The summary, in one piece or in several; smaller pieces after an overflow."""
        if self.endpoint.reuse_prefix and self.ask.prefix is not None:
            text = yield from self._from_prefix()
            if text:
                return text
        for attempt in range(FAILURES["overflow"].retries + 1):
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
        body = ask.prefix(instruction(budget_tokens=ask.budget_tokens, focus=ask.focus), self.endpoint.wire)
        if body is None:
            return ""
        call = Call(
            endpoint=self.endpoint, max_tokens=self._output(ask.budget_tokens), body=body, purpose="cached prefix"
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
        ask, previous = self.ask, self.ask.previous
        room = self._room() - estimate_text(previous)
        earlier: list[str] = []
        if room < self._room() // 2:
            room, previous, earlier = self._room(), "", split(previous, self._room())
        pieces = earlier + pieces_of(ask, room)
        if len(pieces) <= 1:
            text = yield from self._one("".join(pieces), ask.budget_tokens, previous)
            return text
        share = room // len(pieces)
        budget = min(ask.budget_tokens, max(share // 2, SMALLEST_PART))
        total = len(pieces) + 1
        parts: list[str] = []
        for number, piece in enumerate(pieces):
            self._tell(number, total)
            parts.append((yield from self._one(piece, budget, "")))
        self._tell(len(pieces), total)
        self.notes.append(f"summarised in {len(pieces)} pieces")
        merged = "\n\n".join(
            f"[PART {number} of {len(parts)}]\n{split(part, share - PART_FRAME)[0]}"
            for number, part in enumerate(parts, 1)
        )
        text = yield from self._one(merged, ask.budget_tokens, previous, of_parts=True)
        self._tell(total, total)
        return text

    def _one(self, turns: str, budget: int, previous: str, *, of_parts: bool = False) -> Replies:
        """One text from the model, whole; a rejected one is asked for again as the table says."""
        focus = self.ask.redact(self.ask.focus) if self.ask.focus else None
        prompt = build_prompt(turns, budget_tokens=budget, previous=previous, focus=focus, of_parts=of_parts)
        attempt = 0
        while True:
            reply = yield from self._whole(prompt, budget)
            kind = _UNUSABLE.get(reply.finish) or rejection(reply.text, self.ask)
            if not kind:
                return reply.text
            if waiting_time(kind, attempt) is None:
                raise SummaryFailed(kind)
            attempt += 1

    def _whole(self, prompt: str, budget: int) -> Sent:
        """The answer to a prompt, not cut by its length limit if that can be helped."""
        limit = self._output(budget)
        reply = yield from self._sent(self._call((("user", prompt),), limit))
        larger = self._larger(limit, prompt)
        if reply.finish == "length" and larger > limit:
            limit = larger
            reply = yield from self._sent(self._call((("user", prompt),), limit))
        text = reply.text
        for _ in range(MOST_CONTINUATIONS):
            if reply.finish != "length" or not text.strip():
                break
            turns = (("user", prompt), ("assistant", text.rstrip()), ("user", CONTINUE))
            reply = yield from self._sent(self._call(turns, limit))
            text += reply.text
        if reply.finish == "length" and text.strip():
            self.notes.append("the summary was cut by the model's output limit")
            text = f"{text.rpartition(chr(10))[0] or text}\n{CUT_NOTE}"
        return msgspec.structs.replace(reply, text=text)

    def _call(self, messages: tuple[tuple[str, str], ...], limit: int) -> Call:
        return Call(endpoint=self.endpoint, messages=messages, max_tokens=limit)

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
            yield Pause(pause)

    def _room(self) -> int:
        """Tokens for what the model reads, by an estimate that may be too low for its tokenizer."""
        left = self.limit - PROMPT_TOKENS - self._output(self.ask.budget_tokens)
        return max(int(left * SAFETY), SMALLEST_ROOM)

    def _output(self, budget: int) -> int:
        """Room for the answer: half as much again as was asked for, and what reasoning takes."""
        wanted = budget * 3 // 2 + min(256, budget) + (REASONING_TOKENS if self.endpoint.reasoning_effort else 0)
        return min(wanted, self.endpoint.max_output or wanted, max(self.limit // 4, 256))

    def _larger(self, limit: int, prompt: str) -> int:
        """More room for an answer that was cut: as much as the model can write and its window leaves."""
        left = self.limit - int(estimate_text(prompt) * 1.1) - FRAME_TOKENS
        return min(limit * 3, self.endpoint.max_output or limit, left)

    def _tell(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(Progress(done, total))
