"""What goes into a compaction, what it asks for on the way, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from midfold.compaction.archive import Archive
from midfold.compaction.boundary import Protection
from midfold.compaction.budget import Budget
from midfold.compaction.handoff import Keeper
from midfold.compaction.media import MediaReducer
from midfold.compaction.omissions import Omissions
from midfold.compaction.receipt import Readiness, Receipt
from midfold.compaction.summary import (
    LITTLE_ROOM,
    WHOLE,
    StayingText,
    TextRoom,
    build_prompt,
    sections_text,
    serialize_turns,
    turn_text,
)
from midfold.compaction.tracking import Trail, without_trail
from midfold.compaction.truncate import ends_of_result, shown_words
from midfold.compaction.user_record import NO_RECORD, RecordText
from midfold.errors import FailureKind
from midfold.transcript.message import Message, Part, Role, Text, Tool, ToolCall, ToolResult, Transcript, Usage
from midfold.transcript.repairs import OrphanCalls
from midfold.transcript.tokens import Basis, Meter, estimate_text

ADDED_SHARE = 0.03
"""Of a summary's budget: what the user said and a model left out, added word for word."""
TRAIL_SHARE, DENSE_TRAIL_SHARE = 0.1, 0.05
"""The same: what was made and changed, as calls and results tell it; and where a size was asked for."""
CUT_OUT, STAYS_AGAIN = "(from here on it is cut out:)", "(and this stays again:)"
SHORTENED_CALL = "(Of long arguments only about {shown:,} characters each stay:)"
SHORT_TEXT = 360
"""Characters of an ask or an answer that always stays whole."""
HARDLY_SHORTER, LEAST_GAP = 120, 200
"""Characters; no text, and no result, is shortened that is only so much longer than what would be left of it."""
Redactor = Callable[[str], str]
Prune = Literal["digest", "placeholder", "off"]
PrefixRequest = Callable[[str, str], "Mapping[str, Any] | None"]
"""An instruction and a wire's name -> the request the provider has in its cache, with that instruction at its end."""

CachedPrefix = Callable[[Transcript, str, str], "Mapping[str, Any] | None"]
"""The same of any messages: those that are to be shown, an instruction and a wire's name."""


class CompactionState(msgspec.Struct, frozen=True, kw_only=True):
    """What one compaction hands to the next one of the same conversation. Plain JSON."""

    lineage: str = ""
    """The conversation it is of: the id of its first fold, or what the caller calls it."""
    count: int = 0
    summary: str = ""
    folds: tuple[str, ...] = ()
    trail: Trail = Trail()
    """What the folded messages did."""
    ineffective: int = 0
    ineffective_tokens: int = 0
    """The size that the newest fold left that did not help."""
    failure: FailureKind = ""
    """Why the newest summary failed; empty after one that did not."""
    cooldown_until: float = 0.0
    """Seconds since 1970, by the host's clock; before that no automatic compaction asks the model again."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to compact."""

    enabled: bool = True
    protection: Protection = Protection()
    prune: Prune = "digest"
    orphan_calls: OrphanCalls = "bridge"
    lossy_fallback: bool = True
    verify: bool = True
    result_role: Role = "tool"
    batches_of_items: bool = False
    argument_characters: int = 500


class CompactionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an engine may know. Nothing in it is mutated."""

    messages: Transcript
    budget: Budget
    meter: Meter
    redact: Redactor
    system: Message | None = None
    tools: tuple[Tool, ...] = ()
    late_tools: tuple[Tool, ...] = ()
    """Tools that a fold brings along: no part of the prompt so far, and part of what it leaves."""
    has_unfold_tool: bool = False
    """Whether the model can have originals shown by a tool that is not among these."""
    usage: Usage | None = None
    prompt_tokens: int | None = None
    """The size of the request where the host knows it, and what that number rests on."""
    token_basis: Basis = "reported"
    state: CompactionState = CompactionState()
    lineage: str = ""
    """The conversation these messages are of, where the caller knows: a state of the same lineage is used, also where
    no handoff in the messages proves it."""
    options: Options = Options()
    focus: str | None = None
    force: bool = False
    overflowed: bool = False
    """Whether it is wanted because a provider refused the request as too large: a pause after a failure is kept."""
    ahead: bool = False
    """Whether this is made before it is time: then nothing is folded that the settings keep, forced or not."""
    trigger_tokens: int = 0
    """The size at which folds begin, where the budget's threshold is lower to leave room: results that the model has
    not seen yet are shortened only where the view would not be below this."""
    target_tokens: int | None = None
    keep_last_exchanges: int | None = None
    window_source: str = "given"
    model: str | None = None
    cached_prefix: CachedPrefix | None = None
    """Messages, an instruction and a wire's name -> the request the provider has cached, with the instruction."""
    cached_price: float = 0.0
    """What a token of that request costs, as a share of a new one's price: where that is more than a summary without
    the cache, it is not used. 0: whatever it costs."""
    media_reducer: MediaReducer | None = None
    """Makes old pictures smaller, or says what they show; without one a line stands for each."""
    keeper: Keeper | None = None
    """Who knows which handoffs and handles are ours; without one, their checks and frames are believed."""

    @property
    def is_explicit(self) -> bool:
        """Return whether the caller asked for this compaction, whatever the size of the prompt."""
        return self.force or self.target_tokens is not None or self.keep_last_exchanges is not None


def reported_tokens(request: CompactionRequest) -> int:
    """The size that the host or the provider told; 0 where neither did."""
    return request.prompt_tokens or (request.usage.prompt_tokens if request.usage else 0)


class SummaryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A summary is needed: of these raw messages, updating the previous one."""

    messages: Transcript
    budget_tokens: int
    fold: str
    redact: Redactor
    previous: str = ""
    focus: str | None = None
    prompt_characters: int = 400_000
    prefix: PrefixRequest | None = None
    before: Transcript = ()
    """What stays before the fold, and after it: a summary need not repeat it."""
    after: Transcript = ()
    pinned: tuple[int, ...] = ()
    """For each of the first messages after the fold that stood within it: how many of `messages` came before it."""
    trail: Trail = Trail()
    """What was done so far, kept messages included; `midfold.compaction.tracking.render` shows it."""
    folded_trail: Trail = Trail()
    """The same up to the end of the fold: what the next compaction goes on with."""
    shown_results: int = 0
    """Characters that are surely seen at each end of a long result that stays; 0 if all of it is."""
    shown_texts: int = 0
    """The same of other long texts that stay."""
    shown_asks: int = 0
    """Characters that are seen at least of what the user said in them."""
    shown_answer: int = 0
    """Characters that are seen at each end of an answer that the newest ask takes up."""
    taken_up: int = -1
    """The place of that answer among `before`, `messages` and `after`; -1 where there is none, or it is folded."""
    words: RecordText = NO_RECORD
    """The user's own words, which the handoff quotes before the summary: a summary need not repeat them."""
    dense: bool = False
    """Whether the summary must make do with a size that was asked for: more verbatim lines, less told about them."""
    trail_lines: Mapping[str, Sequence[str]] = {}
    """What of the trail is added to the sections of a summary, as it is."""
    handle_tokens: int = 0
    """Tokens of the budget that stay free for handles of steps."""
    omissions: Omissions = msgspec.field(default_factory=Omissions)
    """Collects what cannot be derived while the request is answered."""
    missing: str = ""
    """What an answer to the same question lacked; empty where it is asked for the first time."""

    @property
    def asked_tokens(self) -> int:
        """How long a model's answer should be: the budget, less what is added where a size was asked for."""
        budget = self.budget_tokens
        return max(budget - self._added_tokens, budget // 2) if self.dense else budget

    @property
    def room_tokens(self) -> int:
        """How long a model's answer may be with what is added to it."""
        return self.budget_tokens if self.dense else self.budget_tokens + self._added_tokens

    @property
    def _added_tokens(self) -> int:
        trail = sum(estimate_text(line) + 1 for lines in self.trail_lines.values() for line in lines)
        return trail + int(self.budget_tokens * ADDED_SHARE) + self.handle_tokens

    def shows_text(self, text: str, at: int) -> bool:
        """Whether all of a text is seen in a message that stays, the one at this place."""
        return not self.shown_texts or len(text) <= max(SHORT_TEXT, 2 * self._ends_of(at) + HARDLY_SHORTER)

    def _ends_of(self, at: int) -> int:
        return max(self.shown_texts, self.shown_answer if at == self.taken_up else 0)

    def shows_call(self, arguments: str) -> bool:
        """The same of a call's arguments."""
        return not self.shown_texts or len(arguments) <= 2 * self.shown_texts + HARDLY_SHORTER

    def shows_result(self, text: str) -> bool:
        """The same of a result."""
        return not self.shown_results or len(text) <= longest_whole(self.shown_results)

    def visible_result(self, text: str) -> tuple[str, str]:
        """The beginning and the end that are surely seen of a long result that stays."""
        return ends_of_result(text, self.shown_results)

    def visible_text(self, text: str, role: Role, at: int) -> tuple[str, str]:
        """The same of what somebody said, in the message at this place."""
        return shown_words(text, self._ends_of(at), self.shown_asks if role == "user" else 0)

    def pieces(self, characters: int) -> Iterator[Transcript]:
        """The messages in runs of at most so many characters, at least one each: for models that read no more at once.

        Each run is asked about with the summary of those before it as `previous`.
        """
        start, used = 0, 0
        for index, message in enumerate(self.messages):
            size = len(serialize_turns((message,), str))
            if used + size > characters and index > start:
                yield self.messages[start:index]
                start, used = index, 0
            used += size
        yield self.messages[start:]

    def prompt(self) -> str:
        """What to ask a model: the template, the previous summary, what stays, and the raw turns, redacted."""
        most = self.prompt_characters
        previous = without_trail(self.previous)
        needed = len(serialize_turns(self.messages, self.redact, most)) if self.shown_results else most
        reference = staying_text(self, max(most - needed - len(previous), most // 4))
        left = most - sum(map(len, reference)) - len(previous)
        turns = serialize_turns(self.messages, self.redact, max(left, most // 2))
        focus = self.redact(self.focus) if self.focus else None
        return build_prompt(
            turns,
            budget_tokens=self.asked_tokens,
            previous=previous,
            focus=focus,
            reference=reference,
            missing=self.missing,
        )


def trail_share(budget_tokens: int, *, is_dense: bool) -> float:
    """What the trail may take of a model's summary: of a small one the model knows best what matters."""
    if is_dense:
        return 0.0 if budget_tokens < LITTLE_ROOM else DENSE_TRAIL_SHARE
    return TRAIL_SHARE


def longest_whole(preview: int) -> int:
    """Results up to this length are not worth spilling with such a preview."""
    return max(3 * preview, 2 * preview + LEAST_GAP)


def leaf_characters(ends: int) -> int:
    """Characters that stay of a long string in a call's arguments, where so many stay at each end of a text."""
    return max(2 * ends, 60)


def staying_text(ask: SummaryRequest, characters: int) -> StayingText:
    """What stays before and after the fold, redacted, in at most about so many characters."""
    words = ask.words.text if len(ask.words.text) <= characters // 2 else ""
    before, after = _staying(ask, ask.before, 0), _staying(ask, ask.after, len(ask.before) + len(ask.messages))
    if len(before) + len(after) > characters:
        before = serialize_turns(_without_prompt(ask.before), ask.redact, characters // 4)
        after = serialize_turns(_without_prompt(ask.after), ask.redact, characters * 3 // 4)
    return StayingText("\n\n".join(filter(None, [words, before])), after, sections_text(ask.trail_lines))


def _staying(ask: SummaryRequest, messages: Transcript, first: int) -> str:
    placed = [(at, message) for at, message in enumerate(messages, first) if message.role != "system"]
    texts = ((message, _marked_text(ask, message, at)) for at, message in placed)
    return "\n\n".join(f"{_shortened_call(ask, message)}{text}" for message, text in texts if text)


def _shortened_call(ask: SummaryRequest, message: Message) -> str:
    """What is told of a message with calls that do not stay whole."""
    calls = (part.arguments for part in message.parts if isinstance(part, ToolCall))
    return (
        "" if all(map(ask.shows_call, calls)) else f"{SHORTENED_CALL.format(shown=leaf_characters(ask.shown_texts))}\n"
    )


def _marked_text(ask: SummaryRequest, message: Message, at: int) -> str:
    """A message that stays, redacted, with marks around what will not be seen of it."""
    marked = message.with_parts(tuple(_marked_part(ask, part, message.role, at) for part in message.parts))
    return turn_text(marked, TextRoom(WHOLE, WHOLE), ask.redact)


def _marked_part(ask: SummaryRequest, part: Part, role: Role, at: int) -> Part:
    if isinstance(part, ToolResult) and not ask.shows_result(part.text):
        text = ask.redact(part.text)
        return ToolResult(part.call_id, (Text(_with_marks(text, *ask.visible_result(text))),), part.is_error, part.name)
    if isinstance(part, Text) and not ask.shows_text(part.text, at):
        text = ask.redact(part.text)
        return Text(_with_marks(text, *ask.visible_text(text, role, at)))
    return part


def _with_marks(text: str, head: str, tail: str) -> str:
    """A text in which it is marked where it is cut: after its beginning, and before its end where that is seen."""
    body, head, tail = text.rstrip(), head.rstrip(), tail.rstrip()
    end = len(body) - len(tail) if body.endswith(tail) else len(body)
    start = len(head) if body.startswith(head) else 0
    if start >= end:
        return text
    pieces = (
        body[:start],
        CUT_OUT,
        body[start:end].strip("\n"),
        STAYS_AGAIN if body[end:] else "",
        body[end:].strip("\n"),
    )
    return "\n".join(filter(None, pieces))


def _without_prompt(messages: Transcript) -> Transcript:
    return tuple(message for message in messages if message.role != "system")


class SummaryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A summary, or why there is none."""

    text: str = ""
    source: Literal["model", "local"] = "model"
    failure: FailureKind = ""
    retry_after: float = 0.0
    pause_left: float = 0.0
    """Seconds that are left of the pause after an earlier failure: nobody was asked."""
    model: str = ""
    calls: int = 0
    recovered_from: FailureKind = ""
    notes: tuple[str, ...] = ()
    facts: tuple[int, int, float] | None = None
    """Names kept, names behind the handle, and the estimated share of what is needed; where the summarizer knows."""
    strict: bool = False
    """Whether to apply the checks for answers of models; without it any non-empty text is accepted."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result: the view from now on, and everything needed to account for it or to undo it."""

    messages: Transcript
    system: Message | None
    receipt: Receipt
    state: CompactionState
    archive: Archive

    @property
    def changed(self) -> bool:
        return self.receipt.status in ("compacted", "pruned")

    def with_readiness(self, readiness: Readiness) -> Outcome:
        """The outcome whose receipt says when its summary was made."""
        if not self.changed:
            return self
        summary = msgspec.structs.replace(self.receipt.summary, readiness=readiness)
        return msgspec.structs.replace(self, receipt=msgspec.structs.replace(self.receipt, summary=summary))

    def with_recovery(self, messages: Transcript) -> Outcome:
        """The outcome whose receipt says whether every one of these originals is in the view or behind a handle."""
        there = [*self.messages, *(message for kept in self.archive.values() for message in kept)]
        known = set(map(id, there))
        left = [message for message in messages if id(message) not in known] if self.changed else []
        if left:
            digests = {message.digest for message in there}
            left = [message for message in left if message.digest not in digests]
        return msgspec.structs.replace(self, receipt=self.receipt.with_originals(kept=not left))


Flow = Generator[SummaryRequest, SummaryAnswer, Outcome]
