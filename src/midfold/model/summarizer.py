"""Summaries written by a model, as a generator that yields calls and pauses, driven sync or async.

    compact(messages, summarizer=ModelSummarizer(endpoint))
    run(summarise(request, endpoint), send, sleep)

1. The failure table decides what is retried, how often, and when the conversation's own model is used instead.
2. A fold larger than the model's window is summarized in at most `MAX_CHUNKS` pieces, which are then merged: in one
   call if they fit, else neighbours first. A previous summary that is too long for these calls is split and merged as
   the oldest parts. No call exceeds the window; after an overflow the pieces are made smaller.
3. A summary that stops at its output limit is requested again with a larger limit, or continued, while the window
   allows it. If it is still incomplete, its last line says so.
4. An answer that is not a summary counts as a failure.
5. After a broken response the call is repeated without streaming: a server that fails within a stream has already sent
   its status, and often gives no reason.
6. All sizes are estimated tokens. Splitting into pieces omits nothing; only `_cut_to` does, and adds a line that says
   so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import NamedTuple

import msgspec

from midfold.compaction.receipt import FAILURES, waiting_time
from midfold.compaction.request import SummaryAnswer, SummaryRequest, staying_text
from midfold.compaction.summary import MAX_CHUNKS, NOTHING, StayingText, build_prompt, chunks, instruction
from midfold.compaction.summary_check import lacking, rejection
from midfold.compaction.tracking import without_trail
from midfold.config import Config
from midfold.errors import FailureKind, ModelFailed, SummaryFailed
from midfold.model.client import ModelClient
from midfold.model.endpoint import Endpoint, resolve
from midfold.model.run import Summarizer, local_summarizer
from midfold.model.summary_call import SYSTEM, SummaryCall
from midfold.transcript.replies import ModelAnswer
from midfold.transcript.tokens import estimate_text

MAX_CONTINUATIONS = 2
MIN_CONTINUATION_TOKENS = 64
INPUT_SAFETY_FACTOR = 1.4
"""Factor for tokenizers that count more than the estimate."""
OUTPUT_SAFETY_FACTOR = 1.15
"""The same factor when more of an answer is requested: if that overflows, the text so far is kept."""
FRAME_TOKENS = 50
"""Tokens of a call's messages beside their text."""
MIN_INPUT_TOKENS = 300
"""Minimum tokens assumed for the input. A smaller window overflows, which the failure table handles."""
MIN_PART_TOKENS = 100
"""Minimum tokens requested for a partial summary."""
REASONING_TOKENS = 4_000
CHARACTERS_PER_TOKEN = 4
MAX_ROUNDS = 5
REFERENCE_DIVISOR = 8
"""Divisor of a call's input tokens: this share is for text that stays in context, if a summary is made in pieces."""
BRIEF_WINDOW_TOKENS = 6_000
"""Window below which the brief prompt is used."""
MAX_MISSING_CHARACTERS = 160
"""Characters reserved in the prompt for what an earlier answer lacked."""
LABEL_TOKENS = 12
"""Tokens of the label above a part."""
CUT_NOTE = "[This summary was cut by the model's output limit.]"
CONTINUE = "Your summary was cut off. Continue it exactly where it stopped. Repeat nothing and add no preface."


class Pause(NamedTuple):
    """Instruction to wait some seconds."""

    seconds: float


class SummaryProgress(NamedTuple):
    """Progress of a summary with several calls."""

    done: int
    total: int


Step = SummaryCall | Pause
Given = ModelAnswer | SummaryFailed | None
Steps = Generator[Step, Given, SummaryAnswer]
Texts = Generator[Step, Given, str]
Merging = Generator[Step, Given, list[str]]
Sent = Generator[Step, Given, ModelAnswer]
Tried = Generator[Step, Given, "ModelAnswer | None"]
Messages = tuple[tuple[str, str], ...]


def summarise(
    request: SummaryRequest,
    endpoint: Endpoint,
    main: Endpoint | None = None,
    progress: Callable[[SummaryProgress], None] | None = None,
) -> Steps:
    """Write one summary with the summary model, or with the conversation's own model if the failure table says so."""
    work = _SummaryWork(request, endpoint, progress)
    try:
        return work.answer((yield from work.text()))
    except SummaryFailed as failed:
        failed.calls = work.calls
        if main is None or main.same_model(endpoint) or not FAILURES[failed.kind].main_model:
            raise
        first = failed
    other = _SummaryWork(request, msgspec.structs.replace(main, reuse_prefix=False), progress)
    other.calls = work.calls
    try:
        answer = other.answer((yield from other.text()))
    except SummaryFailed as failed:
        failed.calls = other.calls
        raise
    return msgspec.structs.replace(answer, recovered_from=first.kind)


class _SummaryWork:
    """One summary written by one model."""

    def __init__(
        self, request: SummaryRequest, endpoint: Endpoint, progress: Callable[[SummaryProgress], None] | None
    ) -> None:
        self.request = request
        self.endpoint = endpoint
        self.progress = progress
        self.calls = 0
        self.limit = endpoint.context_length
        self.notes: list[str] = []
        self.done = 0
        self.total = 1

    def answer(self, text: str) -> SummaryAnswer:
        model, notes = self.endpoint.model, tuple(self.notes)
        return SummaryAnswer(text=text, model=model, calls=self.calls, notes=notes, strict=True)

    def text(self) -> Texts:
        """Return the summary, from one call or several; use smaller pieces after an overflow."""
        if self.endpoint.reuse_prefix and (text := (yield from self._from_prefix())):
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

    def _from_prefix(self) -> Texts:
        """Add one message to the request in the provider's cache; return an empty text if that did not work."""
        request, rest = self.request, self._reference(self.limit // REFERENCE_DIVISOR)
        instructions = instruction(budget_tokens=request.asked_tokens, focus=request.focus, rest=rest)
        body = request.prefix(instructions, self.endpoint.wire) if request.prefix is not None else None
        if body is None:
            return ""
        call = SummaryCall(endpoint=self.endpoint, max_tokens=self._output(request.asked_tokens), body=body)
        try:
            reply = yield from self._send(call)
            if reply.finish == "stop" and not _rejection(reply, request):
                cached, prompt = reply.tokens.cache_read_tokens, reply.tokens.prompt_tokens
                self.notes.append(f"{cached:,} of {prompt:,} prompt tokens came from the cache")
                return reply.text
        except SummaryFailed as failed:
            if failed.kind in ("auth", "network"):
                raise
        self.notes.append("the cached prefix could not be used")
        return ""

    def _from_turns(self) -> Texts:
        """Use one call if everything fits; else summarize pieces and merge them."""
        request, input_tokens, previous = self.request, self._input_tokens(), without_trail(self.request.previous)
        taken, known = estimate_text(previous), list[str]()
        if taken <= _half_of(input_tokens):
            reference = self._reference(input_tokens // 2)
            pieces = _pieces_of(request, input_tokens - taken - _tokens_of(reference))
            if len(pieces) <= 1:
                return (yield from self._one("".join(pieces), request.asked_tokens, previous, reference))
        else:
            previous, known = "", _split(previous, _half_of(input_tokens))
        if len(known) > MAX_CHUNKS:
            raise SummaryFailed("overflow", "the previous summary does not fit the summary model's window")
        reference = self._reference(input_tokens // REFERENCE_DIVISOR)
        input_tokens -= _tokens_of(reference)
        pieces = _pieces_of(request, input_tokens)
        if len(pieces) > 1:
            self.notes.append(f"summarized in {len(pieces)} pieces")
        self.total = len(pieces) + 1
        budget = self._budget(max(input_tokens - taken, input_tokens // 2) // max(len(pieces), 1))
        parts = known
        for piece in pieces:
            parts.append((yield from self._part(piece, budget, input_tokens, reference)))
        parts = yield from self._merge_parts(parts, previous, input_tokens, reference)
        self._report_progress()
        text = yield from self._one(_label(parts), request.asked_tokens, previous, reference, of_parts=True)
        self._report_progress()
        return text

    def _reference(self, max_tokens: int) -> StayingText:
        """Return the text that stays in context, limited to `max_tokens` tokens; empty if it does not fit."""
        characters = max_tokens * CHARACTERS_PER_TOKEN
        for _ in range(MAX_ROUNDS):
            found = staying_text(self.request, characters)
            if (size := _tokens_of(found)) <= max_tokens:
                return found
            characters = int(characters * max_tokens / size * 0.9)
        return NOTHING

    def _merge_parts(self, parts: list[str], previous: str, input_tokens: int, reference: StayingText) -> Merging:
        """Merge neighbouring parts until all fit one call with the previous summary."""
        tokens_for_parts = input_tokens - estimate_text(previous)
        while len(parts) > 1 and _size_of(parts) > tokens_for_parts:
            groups = _groups_of(parts, input_tokens)
            self.total += sum(len(group) > 1 for group in groups)
            budget = self._budget(tokens_for_parts // len(groups))
            parts = []
            for group in groups:
                alone = len(group) == 1
                merged = (
                    group[0] if alone else (yield from self._part(_label(group), budget, input_tokens, reference, True))
                )
                parts.append(merged)
        return parts

    def _part(
        self, turns: str, budget: int, input_tokens: int, reference: StayingText, of_parts: bool = False
    ) -> Texts:
        """Return a partial summary, short enough that two of them fit one call."""
        self._report_progress()
        part_tokens = _half_of(input_tokens)
        text = yield from self._one(turns, budget, "", reference, of_parts=of_parts, enough=part_tokens)
        part = _cut_to(text, part_tokens)
        if part != text:
            self._note("a partial summary was too long to merge and was cut")
        return part

    def _one(
        self,
        turns: str,
        budget: int,
        previous: str,
        reference: StayingText,
        *,
        of_parts: bool = False,
        enough: int | None = None,
    ) -> Texts:
        """Return one complete text, or at least `enough` tokens of it; request a rejected text again."""
        attempt, missing = 0, self.request.missing
        while True:
            prompt = build_prompt(
                turns,
                budget_tokens=budget,
                previous=previous,
                focus=self._focus(),
                of_parts=of_parts,
                reference=reference,
                missing=missing,
                is_brief=self.is_brief,
            )
            reply = yield from self._whole(prompt, budget, enough)
            kind = _rejection(reply, self.request, is_whole=enough is None)
            if not kind:
                return reply.text
            if waiting_time(kind, attempt) is None:
                raise SummaryFailed(kind)
            missing = lacking(reply.text, self.request) or missing
            attempt += 1

    def _whole(self, prompt: str, budget: int, enough: int | None) -> Sent:
        """Return the answer to a prompt; extend it if it was cut by its output limit."""
        sent: Messages = (("user", prompt),)
        limit = self._output(budget)
        reply = yield from self._send(self._call(sent, limit))
        larger = min(limit * 3, self.endpoint.max_output or limit, self._tokens_left(sent))
        if larger > limit and _is_cut_short(reply, reply.text, enough):
            again = yield from self._try(self._call(sent, larger))
            reply, limit = (again, larger) if again else (reply, limit)
        text = reply.text
        for _ in range(MAX_CONTINUATIONS):
            turns = (*sent, ("assistant", text.rstrip()), ("user", CONTINUE))
            left = min(limit, self._tokens_left(turns))
            if left < MIN_CONTINUATION_TOKENS or not text.strip() or not _is_cut_short(reply, text, enough):
                break
            more = yield from self._try(self._call(turns, left))
            if more is None:
                break
            reply = more
            text += reply.text
        if reply.finish == "length" and text.strip():
            self._note("the summary was cut by the model's output limit")
            text = f"{text.rpartition(chr(10))[0] or text}\n{CUT_NOTE}"
        return msgspec.structs.replace(reply, text=text)

    def _call(self, messages: Messages, limit: int) -> SummaryCall:
        return SummaryCall(endpoint=self.endpoint, messages=messages, max_tokens=limit)

    def _try(self, call: SummaryCall) -> Tried:
        """Send a call that requests more of an answer; return None if it overflows."""
        try:
            return (yield from self._send(call))
        except SummaryFailed as failed:
            if failed.kind != "overflow":
                raise
            return None

    def _send(self, call: SummaryCall) -> Sent:
        """Send one call, retrying transient failures after a pause. Overflows are left to the caller."""
        attempts: dict[str, int] = {}
        while True:
            self.calls += 1
            result = yield call
            if isinstance(result, ModelAnswer):
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

    @property
    def is_brief(self) -> bool:
        """Return whether the window holds little more than the prompt."""
        return self.limit < BRIEF_WINDOW_TOKENS

    def _input_tokens(self) -> int:
        """Return the input tokens of a call, reduced by a safety factor for the estimate."""
        empty = build_prompt(
            "",
            budget_tokens=self.request.asked_tokens,
            previous=" ",
            focus=self._focus(),
            reference=StayingText(" ", " ", " "),
            missing=" " * MAX_MISSING_CHARACTERS,
            is_brief=self.is_brief,
        )
        left = self._tokens_left((("user", empty),), INPUT_SAFETY_FACTOR) - self._output(self.request.asked_tokens)
        return max(int(left / INPUT_SAFETY_FACTOR), MIN_INPUT_TOKENS)

    def _tokens_left(self, messages: Messages, safety_factor: float = OUTPUT_SAFETY_FACTOR) -> int:
        """Return the tokens left in the window beside these messages, with a safety factor."""
        sent = estimate_text(SYSTEM) + sum(estimate_text(text) for _, text in messages)
        return self.limit - int(sent * safety_factor) - FRAME_TOKENS

    def _output(self, budget: int) -> int:
        """Return the output limit: the budget and a half, plus an allowance for reasoning."""
        wanted = budget * 3 // 2 + min(256, budget) + (REASONING_TOKENS if self.endpoint.reasoning_effort else 0)
        return min(wanted, self.endpoint.max_output or wanted, max(self.limit // 4, 256))

    def _budget(self, share: int) -> int:
        """Return the budget of a partial summary: half of its share, since models exceed their budget."""
        return min(self.request.asked_tokens, max(share // 2, MIN_PART_TOKENS))

    def _focus(self) -> str | None:
        return self.request.redact(self.request.focus) if self.request.focus else None

    def _note(self, what: str) -> None:
        if what not in self.notes:
            self.notes.append(what)

    def _report_progress(self) -> None:
        """Report the progress before each call and after the last one."""
        if self.progress is not None:
            self.progress(SummaryProgress(self.done, self.total))
        self.done += 1


def _rejection(reply: ModelAnswer, request: SummaryRequest, *, is_whole: bool = True) -> FailureKind:
    """Return why an answer is not a summary; empty if it is one."""
    if reply.finish == "filter":
        return "filtered"
    return "malformed" if reply.calls else rejection(reply.text, request, is_whole=is_whole)


def _is_cut_short(reply: ModelAnswer, text: str, enough: int | None) -> bool:
    """Return whether an answer was cut before it had enough tokens."""
    return reply.finish == "length" and (enough is None or estimate_text(text) < enough)


def _pieces_of(request: SummaryRequest, max_tokens: int) -> list[str]:
    """Split the turns into pieces of at most `max_tokens` tokens; characters per token depend on the text."""
    characters = max_tokens * CHARACTERS_PER_TOKEN
    pieces: list[str] = []
    for _ in range(MAX_ROUNDS):
        pieces = chunks(request.messages, request.redact, characters)
        largest = max(map(estimate_text, pieces), default=0)
        if largest <= max_tokens:
            break
        characters = int(characters * max_tokens / largest * 0.95)
    return pieces


def _tokens_of(reference: StayingText) -> int:
    return sum(map(estimate_text, reference))


def _split(text: str, max_tokens: int) -> list[str]:
    """Split a text into pieces of at most `max_tokens` tokens, between lines if possible."""
    pieces: list[str] = []
    while estimate_text(text) > max_tokens:
        cut = _fitting(text, max_tokens)
        cut = text.rfind("\n", cut // 2, cut) + 1 or cut
        pieces.append(text[:cut])
        text = text[cut:]
    return [*pieces, text] if text else pieces


def _half_of(max_tokens: int) -> int:
    """Return the tokens of the largest part that fits twice."""
    return max_tokens // 2 - LABEL_TOKENS


def _cut_to(text: str, max_tokens: int) -> str:
    """Cut a text to `max_tokens` tokens at a line, and add a line that says so."""
    if estimate_text(text) <= max_tokens:
        return text
    return f"{_split(text, max_tokens - estimate_text(CUT_NOTE) - 2)[0].rstrip()}\n{CUT_NOTE}"


def _size_of(parts: Sequence[str]) -> int:
    """Return the tokens of labelled parts."""
    return sum(estimate_text(part) + LABEL_TOKENS for part in parts)


def _groups_of(parts: Sequence[str], max_tokens: int) -> list[list[str]]:
    """Group neighbouring parts that fit one call."""
    groups: list[list[str]] = []
    for part in parts:
        if not groups or _size_of([*groups[-1], part]) > max_tokens:
            groups.append([])
        groups[-1].append(part)
    return groups


def _label(parts: Sequence[str]) -> str:
    """Join parts under their labels."""
    return "\n\n".join(f"[PART {number} of {len(parts)}]\n{part}" for number, part in enumerate(parts, 1))


def _fitting(text: str, max_tokens: int) -> int:
    """Return the number of characters that fit `max_tokens` tokens."""
    cut = len(text)
    while cut > 1 and (size := estimate_text(text[:cut])) > max_tokens:
        cut = max(min(int(cut * max_tokens / size * 0.98), cut - 1), 1)
    return cut


class ModelSummarizer:
    """Summarizer that calls a model over HTTP: `compact(..., summarizer=ModelSummarizer(endpoint))`.

    `main` is the conversation's own model, used once if the failure table says so. `later` is the asynchronous call.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        main: Endpoint | None = None,
        *,
        progress: Callable[[SummaryProgress], None] | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        sleep_later: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.main = main
        self.progress = progress
        self._clock = clock
        self._sleep = sleep
        self._sleep_later = sleep_later

    def __call__(self, ask: SummaryRequest) -> SummaryAnswer:
        return run(self._steps(ask), self.send, self._sleep)

    async def later(self, ask: SummaryRequest) -> SummaryAnswer:
        import asyncio

        return await run_async(self._steps(ask), self._send_async, self._sleep_later or asyncio.sleep)

    def send(self, call: SummaryCall) -> ModelAnswer:
        """Send one call, without retries."""
        return ModelClient(call.endpoint, clock=self._clock).ask_once(call.request())

    async def _send_async(self, call: SummaryCall) -> ModelAnswer:
        return await ModelClient(call.endpoint, clock=self._clock).ask_once_async(call.request())

    def _steps(self, request: SummaryRequest) -> Steps:
        return summarise(request, self.endpoint, self.main, self.progress)


def summarizer_for(config: Config | None, model: str | None, talking_to: Endpoint | None = None) -> Summarizer:
    """Return the summarizer the settings choose; without settings, the built-in one."""
    if config is None:
        return local_summarizer
    found = resolve(config, os.environ, model, talking_to)
    if found.endpoint is None:
        return _no_provider if found.missing else local_summarizer
    return ModelSummarizer(found.endpoint, found.main)


def _no_provider(request: SummaryRequest) -> SummaryAnswer:
    raise SummaryFailed("no_provider")


def run(steps: Steps, send: Callable[[SummaryCall], ModelAnswer], sleep: Callable[[float], None]) -> SummaryAnswer:
    """Run the steps of a summary."""
    given: Given = None
    try:
        while True:
            step = steps.send(given)
            given = None
            try:
                if isinstance(step, Pause):
                    sleep(step.seconds)
                else:
                    given = send(step)
            except ModelFailed as failed:
                given = _as_summary_failure(failed)
    except StopIteration as stop:
        answer: SummaryAnswer = stop.value
        return answer


async def run_async(
    steps: Steps,
    send: Callable[[SummaryCall], Awaitable[ModelAnswer]],
    sleep: Callable[[float], Awaitable[None]],
) -> SummaryAnswer:
    """Run the steps of a summary on an event loop."""
    given: Given = None
    try:
        while True:
            step = steps.send(given)
            given = None
            try:
                if isinstance(step, Pause):
                    await sleep(step.seconds)
                else:
                    given = await send(step)
            except ModelFailed as failed:
                given = _as_summary_failure(failed)
    except StopIteration as stop:
        answer: SummaryAnswer = stop.value
        return answer


def _as_summary_failure(failed: ModelFailed) -> SummaryFailed:
    return SummaryFailed(failed.kind, str(failed), retry_after=failed.retry_after, limit=failed.limit)
