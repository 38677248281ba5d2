"""Types of a compaction: its request, the summary request it makes, and its outcome."""

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
    TERSE_SUMMARY_TOKENS,
    WHOLE,
    StayingText,
    TextLimits,
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
"""Share of a summary's budget for verbatim text that a model left out."""
TRAIL_SHARE = 0.1
"""Share of a summary's budget for the trail."""
DENSE_TRAIL_SHARE = 0.05
"""Share of a summary's budget for the trail if a target size was requested."""
CUT_OUT = "(from here on it is cut out:)"
STAYS_AGAIN = "(and this stays again:)"
SHORTENED_CALL = "(Of long arguments only about {shown:,} characters each stay:)"
SHORT_TEXT = 360
"""Maximum characters of a user message or an answer that always stays whole."""
MIN_SAVED_CHARACTERS = 120
"""Minimum characters that truncating a text must save."""
MIN_GAP_CHARACTERS = 200
"""Minimum characters that truncating a result must save."""
Redactor = Callable[[str], str]
Prune = Literal["digest", "placeholder", "off"]
PrefixRequest = Callable[[str, str], "Mapping[str, Any] | None"]
"""Callable from an instruction and a wire name to the provider's cached request with that instruction appended."""

CachedPrefix = Callable[[Transcript, str, str], "Mapping[str, Any] | None"]
"""Callable like PrefixRequest that also takes the messages to show."""


class CompactionState(msgspec.Struct, frozen=True, kw_only=True):
    """State that one compaction passes to the next of the same conversation. Plain JSON."""

    lineage: str = ""
    """Id of the conversation: that of its first fold, or the caller's name for it."""
    count: int = 0
    summary: str = ""
    folds: tuple[str, ...] = ()
    trail: Trail = Trail()
    """Trail of the folded messages."""
    ineffective: int = 0
    ineffective_tokens: int = 0
    """Tokens left by the newest compaction that did not help."""
    failure: FailureKind = ""
    """Failure of the newest summary; empty if it succeeded."""
    cooldown_until: float = 0.0
    """Unix time by the host's clock before which no automatic compaction calls the model."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a compaction."""

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
    """Input of an engine. Never mutated."""

    messages: Transcript
    budget: Budget
    meter: Meter
    redact: Redactor
    system: Message | None = None
    tools: tuple[Tool, ...] = ()
    late_tools: tuple[Tool, ...] = ()
    """Tools that the compaction adds: not part of the prompt so far, but of the view."""
    has_unfold_tool: bool = False
    """True if the model has an unfold tool that is not in `tools`."""
    usage: Usage | None = None
    prompt_tokens: int | None = None
    """Size of the request if the host knows it; `token_basis` is the origin of that number."""
    token_basis: Basis = "reported"
    state: CompactionState = CompactionState()
    lineage: str = ""
    """Conversation id if the caller knows it: a state of the same lineage is used even if no handoff in the
    messages proves it.
    """
    options: Options = Options()
    focus: str | None = None
    force: bool = False
    overflowed: bool = False
    """True if the provider refused the request as too large; a cooldown after a failure still applies."""
    ahead: bool = False
    """True if this compaction is prepared in advance; then protected messages are never folded, even if forced."""
    trigger_tokens: int = 0
    """Size at which compactions start if the budget's threshold is lower to leave free space. Results that the
    model has not seen yet are truncated only if the view would not be below this.
    """
    target_tokens: int | None = None
    keep_last_exchanges: int | None = None
    window_source: str = "given"
    model: str | None = None
    cached_prefix: CachedPrefix | None = None
    """Callable from messages, an instruction and a wire name to the provider's cached request with the instruction."""
    cached_price: float = 0.0
    """Price of a cached token as a share of a new one. The cache is not used if a summary without it is cheaper; 0
    always uses it.
    """
    media_reducer: MediaReducer | None = None
    """Callable that makes old pictures smaller or describes them; without one each becomes a placeholder."""
    keeper: Keeper | None = None
    """Store that knows which handoffs and handles are genuine; without one their checks and frames are trusted."""

    @property
    def is_explicit(self) -> bool:
        """Return whether the caller requested this compaction regardless of the prompt size."""
        return self.force or self.target_tokens is not None or self.keep_last_exchanges is not None


def reported_tokens(request: CompactionRequest) -> int:
    """Return the size reported by the host or the provider; 0 if unknown."""
    return request.prompt_tokens or (request.usage.prompt_tokens if request.usage else 0)


class SummaryRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request for a summary of these raw messages that updates the previous summary."""

    messages: Transcript
    budget_tokens: int
    fold: str
    redact: Redactor
    previous: str = ""
    focus: str | None = None
    prompt_characters: int = 400_000
    prefix: PrefixRequest | None = None
    before: Transcript = ()
    """Messages that stay before the fold (`before`) and after it (`after`); a summary need not repeat them."""
    after: Transcript = ()
    pinned: tuple[int, ...] = ()
    """For each leading message of `after` that was inside the fold: the number of `messages` before it."""
    trail: Trail = Trail()
    """Trail up to now, kept messages included; `midfold.compaction.tracking.render` formats it."""
    folded_trail: Trail = Trail()
    """Trail up to the end of the fold, with which the next compaction continues."""
    shown_results: int = 0
    """Characters visible at each end of a long kept result; 0 if all of it is."""
    shown_texts: int = 0
    """Characters visible at each end of other long kept texts; 0 if all of them are."""
    shown_user_words: int = 0
    """Minimum characters visible of the user's words in them."""
    shown_answer: int = 0
    """Characters visible at each end of an answer that the newest user message assents to."""
    assented: int = -1
    """Index of that answer in `before`, `messages` and `after` joined; -1 if there is none or it is folded."""
    words: RecordText = NO_RECORD
    """User's own words, quoted in the handoff before the summary; a summary need not repeat them."""
    dense: bool = False
    """True if the summary must fit a requested target size: more verbatim lines, less prose about them."""
    trail_lines: Mapping[str, Sequence[str]] = {}
    """Lines of the trail added verbatim to the sections of a summary."""
    handle_tokens: int = 0
    """Tokens of the budget reserved for step handles."""
    omissions: Omissions = msgspec.field(default_factory=Omissions)
    """Collector of derivations that fail while the request is answered."""
    missing: str = ""
    """Deficiency of a previous answer to the same request; empty on the first attempt."""

    @property
    def asked_tokens(self) -> int:
        """Tokens to request from a model: the budget, minus what is added if a target size was requested."""
        budget = self.budget_tokens
        return max(budget - self._added_tokens, budget // 2) if self.dense else budget

    @property
    def max_answer_tokens(self) -> int:
        """Maximum tokens of a model's answer including what is added to it."""
        return self.budget_tokens if self.dense else self.budget_tokens + self._added_tokens

    @property
    def _added_tokens(self) -> int:
        trail = sum(estimate_text(line) + 1 for lines in self.trail_lines.values() for line in lines)
        return trail + int(self.budget_tokens * ADDED_SHARE) + self.handle_tokens

    def shows_text(self, text: str, at: int) -> bool:
        """Return whether all of a text is visible in the kept message at index `at`."""
        return not self.shown_texts or len(text) <= max(SHORT_TEXT, 2 * self._ends_of(at) + MIN_SAVED_CHARACTERS)

    def _ends_of(self, at: int) -> int:
        return max(self.shown_texts, self.shown_answer if at == self.assented else 0)

    def shows_call(self, arguments: str) -> bool:
        """Return whether all of a call's arguments are visible."""
        return not self.shown_texts or len(arguments) <= 2 * self.shown_texts + MIN_SAVED_CHARACTERS

    def shows_result(self, text: str) -> bool:
        """Return whether all of a result is visible."""
        return not self.shown_results or len(text) <= max_whole_characters(self.shown_results)

    def visible_result(self, text: str) -> tuple[str, str]:
        """Return the beginning and the end of a long kept result that are visible."""
        return ends_of_result(text, self.shown_results)

    def visible_text(self, text: str, role: Role, at: int) -> tuple[str, str]:
        """Return the visible beginning and end of a text in the kept message at index `at`."""
        return shown_words(text, self._ends_of(at), self.shown_user_words if role == "user" else 0)

    def pieces(self, characters: int) -> Iterator[Transcript]:
        """Yield the messages in runs of at most so many characters, at least one message each.

        For models with a small window: each run is summarized with the summary of the previous runs as `previous`.
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
        """Return the prompt for a model: the template, the previous summary, the kept text and the raw turns,
        redacted.
        """
        limit = self.prompt_characters
        previous = without_trail(self.previous)
        needed = len(serialize_turns(self.messages, self.redact, limit)) if self.shown_results else limit
        reference = staying_text(self, max(limit - needed - len(previous), limit // 4))
        left = limit - sum(map(len, reference)) - len(previous)
        turns = serialize_turns(self.messages, self.redact, max(left, limit // 2))
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
    """Return the share of a summary for the trail; none of a small one, where the model knows best what matters."""
    if is_dense:
        return 0.0 if budget_tokens < TERSE_SUMMARY_TOKENS else DENSE_TRAIL_SHARE
    return TRAIL_SHARE


def max_whole_characters(preview: int) -> int:
    """Return the maximum length of a result that is not worth spilling with this preview."""
    return max(3 * preview, 2 * preview + MIN_GAP_CHARACTERS)


def leaf_characters(ends: int) -> int:
    """Return the characters kept of a long string in a call's arguments if `ends` stay at each end of a text."""
    return max(2 * ends, 60)


def staying_text(request: SummaryRequest, characters: int) -> StayingText:
    """Return the redacted text that stays before and after the fold, in about so many characters."""
    words = request.words.text if len(request.words.text) <= characters // 2 else ""
    before, after = (
        _staying(request, request.before, 0),
        _staying(request, request.after, len(request.before) + len(request.messages)),
    )
    if len(before) + len(after) > characters:
        before = serialize_turns(_without_prompt(request.before), request.redact, characters // 4)
        after = serialize_turns(_without_prompt(request.after), request.redact, characters * 3 // 4)
    return StayingText("\n\n".join(filter(None, [words, before])), after, sections_text(request.trail_lines))


def _staying(request: SummaryRequest, messages: Transcript, first: int) -> str:
    placed = [(at, message) for at, message in enumerate(messages, first) if message.role != "system"]
    texts = ((message, _marked_text(request, message, at)) for at, message in placed)
    return "\n\n".join(f"{_shortened_call(request, message)}{text}" for message, text in texts if text)


def _shortened_call(request: SummaryRequest, message: Message) -> str:
    """Return the note on a message with calls whose arguments are truncated."""
    calls = (part.arguments for part in message.parts if isinstance(part, ToolCall))
    return (
        ""
        if all(map(request.shows_call, calls))
        else f"{SHORTENED_CALL.format(shown=leaf_characters(request.shown_texts))}\n"
    )


def _marked_text(request: SummaryRequest, message: Message, at: int) -> str:
    """Return a kept message, redacted, with marks around the parts that will be cut."""
    marked = message.with_parts(tuple(_marked_part(request, part, message.role, at) for part in message.parts))
    return turn_text(marked, TextLimits(WHOLE, WHOLE), request.redact)


def _marked_part(request: SummaryRequest, part: Part, role: Role, at: int) -> Part:
    if isinstance(part, ToolResult) and not request.shows_result(part.text):
        text = request.redact(part.text)
        return ToolResult(
            part.call_id, (Text(_with_marks(text, *request.visible_result(text))),), part.is_error, part.name
        )
    if isinstance(part, Text) and not request.shows_text(part.text, at):
        text = request.redact(part.text)
        return Text(_with_marks(text, *request.visible_text(text, role, at)))
    return part


def _with_marks(text: str, head: str, tail: str) -> str:
    """Return a text with marks where it is cut: after its beginning, and before its end if that is visible."""
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
    """Summary, or the failure that prevented it."""

    text: str = ""
    source: Literal["model", "local"] = "model"
    failure: FailureKind = ""
    retry_after: float = 0.0
    pause_left: float = 0.0
    """Seconds left of the cooldown after an earlier failure; the model was not called."""
    model: str = ""
    calls: int = 0
    recovered_from: FailureKind = ""
    notes: tuple[str, ...] = ()
    facts: tuple[int, int, float] | None = None
    """Names kept, names behind the handle and the estimated share of needed facts, if the summarizer knows them."""
    strict: bool = False
    """True to apply the checks for answers of models; without it any non-empty text is accepted."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a compaction: the new view, and everything needed to account for it or to undo it."""

    messages: Transcript
    system: Message | None
    receipt: Receipt
    state: CompactionState
    archive: Archive

    @property
    def changed(self) -> bool:
        return self.receipt.status in ("compacted", "pruned")

    def with_readiness(self, readiness: Readiness) -> Outcome:
        """Return the outcome with `readiness` in its receipt."""
        if not self.changed:
            return self
        summary = msgspec.structs.replace(self.receipt.summary, readiness=readiness)
        return msgspec.structs.replace(self, receipt=msgspec.structs.replace(self.receipt, summary=summary))

    def with_recovery(self, messages: Transcript) -> Outcome:
        """Return the outcome, its receipt saying whether all these originals are still accessible."""
        present = [*self.messages, *(message for kept in self.archive.values() for message in kept)]
        present_ids = set(map(id, present))
        left = [message for message in messages if id(message) not in present_ids] if self.changed else []
        if left:
            digests = {message.digest for message in present}
            left = [message for message in left if message.digest not in digests]
        return msgspec.structs.replace(self, receipt=self.receipt.with_originals(kept=not left))


Flow = Generator[SummaryRequest, SummaryAnswer, Outcome]
