"""What goes into a compaction, what it asks for on the way, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Literal

import msgspec

from midfold.errors import FailureKind
from midfold.fold.archive import Archive
from midfold.fold.boundary import Protection
from midfold.fold.budget import Budget
from midfold.fold.handoff import Keeper
from midfold.fold.receipt import Receipt
from midfold.fold.summary import build_prompt, serialize_turns
from midfold.fold.trail import Trail
from midfold.transcript.laws import OrphanCalls
from midfold.transcript.message import Message, Role, Tool, Transcript, Usage
from midfold.transcript.tokens import Basis, Meter

Redactor = Callable[[str], str]
Prune = Literal["digest", "placeholder", "off"]
PrefixRequest = Callable[[str, str], "Mapping[str, Any] | None"]
"""An instruction and a wire's name -> the request the provider has in its cache, with that instruction at its end."""


class CompactionState(msgspec.Struct, frozen=True, kw_only=True):
    """What one compaction hands to the next one of the same conversation. Plain JSON."""

    lineage: str = ""
    count: int = 0
    summary: str = ""
    folds: tuple[str, ...] = ()
    trail: Trail = Trail()
    """What the folded messages did."""
    ineffective: int = 0
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
    usage: Usage | None = None
    prompt_tokens: int | None = None
    """The size of the request where the host knows it, and what that number rests on."""
    token_basis: Basis = "reported"
    state: CompactionState = CompactionState()
    options: Options = Options()
    focus: str | None = None
    force: bool = False
    target_tokens: int | None = None
    keep_last_exchanges: int | None = None
    window_source: str = "given"
    model: str | None = None
    cached_prefix: Callable[[Transcript, str, str], Mapping[str, Any] | None] | None = None
    """Messages, an instruction and a wire's name -> the request the provider has cached, with the instruction."""
    keeper: Keeper | None = None
    """Who knows which handoffs and handles are ours; without one, their checks and frames are believed."""


class SummaryAsk(msgspec.Struct, frozen=True, kw_only=True):
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
    trail: Trail = Trail()
    """What was done so far, the messages that stay included: a summary may show it (`midfold.fold.trail.render`)."""
    folded_trail: Trail = Trail()
    """The same up to the end of the fold: what the next compaction goes on with."""
    shown_results: int = 0
    """Characters that are surely seen at each end of a long result that stays; 0 if all of it is."""
    shown_texts: int = 0
    """The same of other long texts that stay."""
    dense: bool = False
    """Whether the summary must make do with a size that was asked for: more verbatim lines, less told about them."""
    prose_tokens: int = 0
    """What a model is asked to write of the budget; the rest is filled with verbatim lines of the fold. 0: all."""

    @property
    def asked_tokens(self) -> int:
        """How long a model's answer should be."""
        return min(self.prose_tokens, self.budget_tokens) if self.prose_tokens else self.budget_tokens

    def prompt(self) -> str:
        """What to ask a model: the template, the previous summary, and the raw turns, redacted."""
        turns = serialize_turns(self.messages, self.redact, self.prompt_characters)
        focus = self.redact(self.focus) if self.focus else None
        return build_prompt(turns, budget_tokens=self.asked_tokens, previous=self.previous, focus=focus)


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


Flow = Generator[SummaryAsk, SummaryAnswer, Outcome]
