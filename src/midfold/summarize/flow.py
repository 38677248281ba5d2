"""How a model is brought to write one summary: a generator that asks for calls and pauses, driven sync or async.

    answer = run(summarise(ask, endpoint), send, sleep)

Rules of this file:
1. The failure table decides: what is tried again, how often, and when the conversation's own model is asked instead.
2. A fold larger than the model's window is summarised in at most `MOST_CHUNKS` pieces, and these are merged: at once if
   they fit one call, else neighbours first. A previous summary that is too long to stand beside them is merged as their
   oldest parts. No call is larger than the window; an overflow cuts the pieces smaller.
3. An answer that stops at its length limit is asked for again with a larger limit, or continued while the window has
   room. If that does not end it, its last line says so.
4. What is no summary is a failure, and is treated as one.
5. After a broken answer the call is made once more without a stream: a server that fails inside a stream has sent its
   status already and often says nothing; in a whole answer it says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

import msgspec

from midfold.core.audit import rejection
from midfold.core.chunks import MOST_CHUNKS, chunks, split
from midfold.core.compaction import SummaryAnswer, SummaryAsk
from midfold.core.estimate import estimate_text
from midfold.core.failures import FAILURES, waiting_time
from midfold.core.summary import build_prompt, instruction
from midfold.errors import SummaryFailed
from midfold.summarize.calls import SYSTEM, Call, Reply
from midfold.summarize.endpoint import Endpoint

MOST_CONTINUATIONS = 2
CHARACTERS_PER_TOKEN = 2.4
"""Low on purpose: dense text must not overflow."""
SMALLEST_ROOM = 600
"""Characters; a window that has no room for so much overflows, and the table says what then."""
SMALLEST_PART = 200
SHORTEST_CONTINUATION = 64
LABEL = 30
"""Characters of the line above a part."""
REASONING_TOKENS = 4_000
CONTINUE = "Your summary was cut off. Continue it exactly where it stopped. Repeat nothing and add no preface."
CUT_NOTE = "[This summary was cut by the model's output limit.]"


class Pause(NamedTuple):
    """Wait so many seconds, then go on."""

    seconds: float


class Progress(NamedTuple):
    """Where a summary of several calls stands."""

    done: int
    total: int


Steps = Generator["Call | Pause", "Reply | SummaryFailed | None", SummaryAnswer]
Replies = Generator["Call | Pause", "Reply | SummaryFailed | None", str]


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
    try:
        answer = other.answer((yield from other.text()))
    except SummaryFailed as failed:
        failed.calls = work.calls + other.calls
        raise
    return msgspec.structs.replace(answer, recovered_from=first.kind, calls=work.calls + other.calls)


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
        for attempt in range(FAILURES["overflow"].retries + 1):
            try:
                return (yield from self._from_turns())
            except SummaryFailed as failed:
                if failed.kind != "overflow" or attempt == FAILURES["overflow"].retries:
                    raise
                named = failed.limit if 0 < failed.limit < self.limit else self.limit
                self.limit = min(named, int(self.limit * 0.6)) if named == self.limit else named
                self.notes.clear()
                self.done = 0
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
        """One call if the turns fit beside the previous summary; else pieces, and the pieces merged."""
        ask, room, previous = self.ask, self._room(), self.ask.previous
        if len(previous) <= room // 2:
            pieces = chunks(ask.messages, ask.redact, room - len(previous))
            if len(pieces) <= 1:
                return (yield from self._one("".join(pieces), ask.budget_tokens, previous))
        half = room // 2 - LABEL
        known: list[str] = []
        if len(previous) > half:
            known, previous = split(previous, half), ""
        if len(known) > MOST_CHUNKS:
            raise SummaryFailed("overflow", "the previous summary does not fit the summary model's window")
        pieces = chunks(ask.messages, ask.redact, room)
        self.notes.append(f"summarised in {len(pieces)} pieces")
        self.total = len(pieces) + 1
        budget = min(ask.budget_tokens, self._share(len(pieces) + len(known) + bool(previous)))
        parts: list[str] = []
        for piece in pieces:
            self._tell()
            parts.append(_held((yield from self._one(piece, budget, "", enough=half)), half))
        return (yield from self._merged([*known, *parts], previous, budget))

    def _merged(self, parts: list[str], previous: str, budget: int) -> Replies:
        """One text of all parts: neighbours are merged first as long as one call cannot take them all."""
        room = self._room()
        while len(parts) > 1 and sum(len(part) + LABEL for part in parts) + len(previous) > room:
            groups = _groups(parts, room)
            self.total += len(groups)
            parts = []
            for group in groups:
                self._tell()
                merged = group[0]
                if len(group) > 1:
                    merged = yield from self._one(_numbered(group), budget, "", of_parts=True, enough=room // 2 - LABEL)
                parts.append(_held(merged, room // 2 - LABEL))
        self._tell()
        text = yield from self._one(_numbered(parts), self.ask.budget_tokens, previous, of_parts=True)
        self._tell()
        return text

    def _one(self, turns: str, budget: int, previous: str, *, of_parts: bool = False, enough: int = 0) -> Replies:
        """One text from the model, whole; a rejected one is asked for again as the table says.

        `enough` is how many characters of it can be used at most, 0 for all.
        """
        focus = self.ask.redact(self.ask.focus) if self.ask.focus else None
        prompt = build_prompt(turns, budget_tokens=budget, previous=previous, focus=focus, of_parts=of_parts)
        attempt = 0
        while True:
            text = yield from self._whole(prompt, budget, enough)
            kind = rejection(text, self.ask)
            if not kind:
                return text
            if waiting_time(kind, attempt) is None:
                raise SummaryFailed(kind)
            attempt += 1

    def _whole(self, prompt: str, budget: int, enough: int) -> Replies:
        """The answer to a prompt, not cut by its length limit if that can be helped."""
        limit = self._output(budget)
        reply = yield from self._sent(self._call((("user", prompt),), limit))
        if reply.finish == "length" and self.endpoint.max_output is not None and limit < self.endpoint.max_output:
            limit = min(limit * 3, self.endpoint.max_output)
            reply = yield from self._sent(self._call((("user", prompt),), limit))
        text = reply.text
        for _ in range(MOST_CONTINUATIONS):
            room = min(limit, self.limit - _tokens(f"{SYSTEM}{prompt}{text}{CONTINUE}"))
            if reply.finish != "length" or not text.strip() or 0 < enough <= len(text) or room < SHORTEST_CONTINUATION:
                break
            turns = (("user", prompt), ("assistant", text.rstrip()), ("user", CONTINUE))
            try:
                reply = yield from self._sent(self._call(turns, room))
            except SummaryFailed as failed:
                if failed.kind != "overflow":
                    raise
                break
            text += reply.text
        if reply.finish == "length":
            self._note("the summary was cut by the model's output limit")
            text = f"{text.rpartition(chr(10))[0] or text}\n{CUT_NOTE}"
        if reply.finish == "filter":
            raise SummaryFailed("filtered", "the model declined to summarise")
        if reply.finish == "tool":
            raise SummaryFailed("malformed", "the model called a tool instead of answering")
        return text

    def _call(self, messages: tuple[tuple[str, str], ...], limit: int) -> Call:
        return Call(endpoint=self.endpoint, messages=messages, max_tokens=limit)

    def _sent(self, call: Call) -> Generator[Call | Pause, Reply | SummaryFailed | None, Reply]:
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
        """Characters of turns, parts and previous summary that fit beside the instructions and the answer."""
        focus = self.ask.redact(self.ask.focus) if self.ask.focus else None
        asked = _tokens(SYSTEM + build_prompt("", budget_tokens=self.ask.budget_tokens, previous=" ", focus=focus))
        tokens = max(self.limit - asked - self._output(self.ask.budget_tokens), self.limit // 4)
        return max(int(tokens * CHARACTERS_PER_TOKEN), SMALLEST_ROOM)

    def _share(self, parts: int) -> int:
        """Tokens for each of so many parts, such that one call can merge them, unless they would say too little."""
        tokens = int(self._room() / CHARACTERS_PER_TOKEN)
        return min(max(tokens // (parts + 1), SMALLEST_PART), tokens // 3)

    def _output(self, budget: int) -> int:
        """Room for the answer: half as much again as was asked for, and what reasoning takes."""
        wanted = budget * 3 // 2 + 256 + (REASONING_TOKENS if self.endpoint.reasoning_effort else 0)
        return min(wanted, self.endpoint.max_output or wanted, max(self.limit // 4, 256))

    def _note(self, what: str) -> None:
        if what not in self.notes:
            self.notes.append(what)

    def _tell(self) -> None:
        if self.progress is not None:
            self.progress(Progress(self.done, self.total))
        self.done += 1


def _tokens(text: str) -> int:
    """Tokens that a text may have at most, as a rule: small models have small vocabularies."""
    return int(estimate_text(text) * 1.3) + 50


def _numbered(parts: list[str]) -> str:
    return "\n\n".join(f"[PART {number} of {len(parts)}]\n{part}" for number, part in enumerate(parts, 1))


def _groups(parts: list[str], room: int) -> list[list[str]]:
    """Neighbours that fit a call together; no part is longer than half of one."""
    groups: list[list[str]] = []
    size = room + 1
    for part in parts:
        if size + len(part) + LABEL > room:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += len(part) + LABEL
    return groups


def _held(text: str, characters: int) -> str:
    """A part that keeps to its room: cut at a line, and its end says so."""
    if len(text) <= characters:
        return text
    cut = text[: max(characters - len(CUT_NOTE) - 1, 0)]
    return f"{cut.rpartition(chr(10))[0] or cut}\n{CUT_NOTE}"
