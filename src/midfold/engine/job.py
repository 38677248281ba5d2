"""One compaction at work: what was measured, and how outcomes are made of it."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from midfold.decide import Decision, paused_words
from midfold.engine.contract import ContextEngine
from midfold.errors import FailureKind
from midfold.fold.archive import DIGITS, PREFIX, Archive, fold_id, framed_handles, handle_of, handles_in
from midfold.fold.boundary import (
    SMALLEST_FLOOR,
    Plan,
    Protection,
    head_length,
    plan_fold,
    split_for_partial_compaction,
    with_anchors,
)
from midfold.fold.budget import SUMMARY_MINIMUM
from midfold.fold.digest.digest import shrink_arguments
from midfold.fold.handoff import HEAD, Generated, filler, generated_messages, newest_handoff
from midfold.fold.receipt import FAILURES, Boundary, Receipt, SummaryFacts, account
from midfold.fold.request import (
    CompactionRequest,
    CompactionState,
    Flow,
    Outcome,
    PrefixRequest,
    SummaryAnswer,
    SummaryAsk,
)
from midfold.fold.steps import HARDLY_SHORTER, SHORT_TEXT
from midfold.fold.trail import follow, parse
from midfold.transcript.laws import Repair, legal_cuts, opens, sanitize
from midfold.transcript.message import (
    CALL,
    OPAQUE,
    RESULT,
    TEXT,
    THINKING,
    Message,
    Part,
    Text,
    ToolCall,
    ToolResult,
    Transcript,
)
from midfold.transcript.tokens import MESSAGE_UNITS, Basis, FixedSize, Meter, media_units

# Sizes of very many messages: the newest are estimated one by one, older ones by their length.
#
# What is folded is measured only to know how much it is; where the tail starts must be known exactly. A rate per role
# is taken from every n-th older message.
MANY = 600
NEWEST = 250
EVERY = 5
OLDEST = 8
"""The head is exact too."""
USUAL_RATE = 0.27
"""Units per character, before anything was measured."""


def rough_units(messages: Transcript, meter: Meter) -> list[int]:
    """Units per message."""
    if len(messages) < MANY:
        return [meter.units(message) for message in messages]
    exact_from = len(messages) - NEWEST
    lengths: dict[str, int] = {}
    measured: dict[str, int] = {}
    for message in messages[OLDEST:exact_from:EVERY]:
        role = message.role
        lengths[role] = lengths.get(role, 0) + characters(message.parts)
        measured[role] = measured.get(role, 0) + meter.units(message)
    rates = {role: measured[role] / length for role, length in lengths.items() if length}
    return [
        *map(meter.units, messages[:OLDEST]),
        *(
            MESSAGE_UNITS + int(characters(message.parts) * rates.get(message.role, USUAL_RATE))
            for message in messages[OLDEST:exact_from]
        ),
        *map(meter.units, messages[exact_from:]),
    ]


def characters(parts: tuple[Part, ...]) -> int:
    """The length of what is counted in a message, pictures by their price."""
    total = 0
    part: Any
    for part in parts:
        bit = part.bit
        if bit == RESULT:
            inner = part.parts
            only = inner[0] if len(inner) == 1 else None
            total += 24 + (len(only.text) if only is not None and only.bit == TEXT else characters(inner))
        elif bit in (TEXT, THINKING):
            total += len(part.text)
        elif bit == CALL:
            total += 48 + len(part.arguments)
        elif bit == OPAQUE:
            total += len(part.body)
        else:
            total += media_units(part) * 4
    return total


# How small messages can get when they are shown by beginning and end, and which results nobody has read yet.
LONG, SHORT = 800, 150
"""Characters kept at each end of a spilled result."""


class Ends(NamedTuple):
    """Characters that stay at each end of what must be shortened for a size that was asked for."""

    results: int
    texts: int

    @property
    def leaf(self) -> int:
        """Characters of a string in a call's arguments."""
        return max(2 * self.texts, 60)


WHOLE = Ends(SHORT, 1_000_000)
"""Only results are shown by their ends."""
LADDER = (
    WHOLE,
    *(
        Ends(min(max(texts, 40), SHORT), texts)
        for texts in (4_000, 2_000, 1_000, 700, 500, 350, 250, 180, 120, 80, 50, 30)
    ),
)


def preview_text(text: str, handle: str, preview: int = LONG) -> str:
    gap = f"[… {len(text) - 2 * preview:,} characters | unfold {handle} …]"
    return f"{text[:preview]}\n{gap}\n{text[-preview:]}"


def is_long(text: str, ends: Ends) -> bool:
    return len(text) > 2 * ends.texts + HARDLY_SHORTER


def shortened(message: Message, handle: str, ends: Ends) -> Message:
    """A message that must stay, its long texts and arguments by their ends; the same one where nothing is long."""
    if message.role not in ("user", "assistant"):
        return message
    calls = any(isinstance(part, ToolCall) for part in message.parts)
    if not calls and len(message.text) <= SHORT_TEXT:
        return message
    return message.with_parts(tuple(_shown(part, handle, ends) for part in message.parts))


def _shown(part: Part, handle: str, ends: Ends) -> Part:
    if isinstance(part, Text) and is_long(part.text, ends):
        return Text(preview_text(part.text, handle, ends.texts), wire=None)
    if isinstance(part, ToolCall) and is_long(part.arguments, ends):
        return ToolCall(part.id, part.name, shrink_arguments(part.arguments, ends.leaf), wire=part.wire)
    return part


def spilled(message: Message, handle: str, preview: int) -> Message:
    """A message whose long results are shown by their ends."""
    return message.with_parts(tuple(_spilled(part, handle, preview) for part in message.parts))


def _spilled(part: Part, handle: str, preview: int) -> Part:
    if not isinstance(part, ToolResult) or len(part.text) <= smallest(preview):
        return part
    others = tuple(item for item in part.parts if not isinstance(item, Text))
    text = preview_text(part.text, handle, preview)
    return ToolResult(part.call_id, (Text(text), *others), part.is_error, part.name, wire=part.wire)


def smallest(preview: int) -> int:
    """Results up to this length are not worth spilling with such a preview."""
    return 3 * preview


def spilled_size(message: Message, size: int, preview: int) -> int:
    """About how many tokens of a message are left when its long results are spilled."""
    results = [len(part.text) for part in message.parts if isinstance(part, ToolResult)]
    saved = sum(length - smallest(preview) for length in results if length > smallest(preview))
    return round(size * (1 - saved / max(sum(results), 1))) if saved else size


def unread(messages: Transcript) -> int:
    """From where on nobody has worked with the results yet: the assistant has not spoken since."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role == "assistant":
            waits = any(isinstance(part, ToolCall) for part in messages[index].parts)
            return index if waits else len(messages)
    return 0


SAMPLE_HANDLE = PREFIX + "0" * DIGITS
LOWEST_SCALE, HIGHEST_SCALE = 0.25, 4.0
HEAD_OF_TARGET = 0.04
STAYING_OF_TARGET = 0.2
"""Of a size that was asked for: where what must stay takes more, it is shortened."""
FRAME_TOKENS = 140
"""The frame of a handoff, a message between it and the tail, and the note in the system prompt."""
TERSE_FRAME_TOKENS = 105
"""The same without the note, where a size was asked for."""


class Job:
    """Measurements are made once and kept; the request is never changed."""

    def __init__(self, request: CompactionRequest) -> None:
        self.request = request
        self.messages = request.messages
        self.notices: list[str] = list(request.budget.notices)
        self._short_sizes: dict[tuple[int, Ends], int] = {}
        target = request.target_tokens
        self.budget = request.budget if target is None else request.budget.aiming_at(max(target - self.fixed_tokens, 1))

    @cached_property
    def _units(self) -> list[int]:
        return rough_units(self.messages, self.request.meter)

    @cached_property
    def estimated(self) -> list[int]:
        meter = self.request.meter
        factor, overhead = meter.factor, meter.message_overhead
        return [round(units * factor) + overhead for units in self._units]

    @cached_property
    def cuts(self) -> list[int]:
        return legal_cuts(self.messages)

    @cached_property
    def _fixed(self) -> FixedSize:
        return self.request.meter.fixed_size(self.request.system, self.request.tools)

    @cached_property
    def fixed_tokens(self) -> int:
        """The system prompt beside the messages, and the tool definitions: they count, and no fold can shrink them."""
        return self.request.meter.tokens(*self._fixed)

    @cached_property
    def prompt_tokens(self) -> int:
        """What the provider reported for this very prompt, else the estimate."""
        reported = self.request.prompt_tokens or (self.request.usage.prompt_tokens if self.request.usage else None)
        return reported or self.estimated_tokens

    @cached_property
    def estimated_tokens(self) -> int:
        return self.request.meter.request(sum(self._units), len(self.messages), self._fixed)

    @property
    def basis(self) -> Basis:
        known = self.request.prompt_tokens or self.request.usage
        return self.request.token_basis if known else "estimated"

    @cached_property
    def scale(self) -> float:
        """Reported tokens against estimated ones: sizes are corrected by it."""
        if self.basis == "estimated":
            return 1.0
        ratio = self.prompt_tokens / max(self.estimated_tokens, 1)
        return min(max(ratio, LOWEST_SCALE), HIGHEST_SCALE)

    @cached_property
    def sizes(self) -> list[int]:
        return self.estimated if self.scale == 1 else [round(size * self.scale) for size in self.estimated]

    def size(self, message: Message) -> int:
        meter = self.request.meter
        return round(meter.tokens(meter.units(message), 1) * self.scale)

    @cached_property
    def ours(self) -> dict[int, Generated]:
        """The messages we wrote in earlier compactions, by their places."""
        head = self.request.options.protection.protect_first_n_messages
        known = self.request.state.folds
        found = generated_messages(self.messages, max(head, HEAD), known)
        if not any(map(self._is_known, found.values())):
            return found
        return {index: ours for index, ours in found.items() if ours.kind != "fold" or self._is_known(ours)}

    def _is_known(self, ours: Generated) -> bool:
        """Whether this is of a fold of this conversation, and says what was written then."""
        state = self.request.state
        if ours.fold not in state.folds:
            return False
        if ours.kind != "fold" or (ours.fold, ours.body) == (state.folds[-1], state.summary.strip()):
            return True
        return self.is_believed(ours)

    def is_believed(self, handoff: Generated) -> bool:
        """Whether whoever keeps the originals has this handoff; where nobody does, its check is enough."""
        return self.request.keeper is None or self.request.keeper.has_handoff(handoff)

    def is_handle(self, handle: str) -> bool:
        """Whether a handle leads to originals."""
        if handle.removeprefix(PREFIX) in self.state.folds:
            return True
        keeper = self.request.keeper
        return handle in self._framed if keeper is None else keeper.has_handle(handle)

    @cached_property
    def _framed(self) -> set[str]:
        """Handles that the messages name as we do, and those of the summary so far."""
        parts = (part for message in self.messages for part in message.parts)
        texts = (part.text for part in parts if isinstance(part, Text | ToolResult) and "unfold" in part.text)
        return framed_handles(texts) | handles_in(self.state.summary)

    @cached_property
    def previous(self) -> tuple[int, Generated] | None:
        return newest_handoff(self.ours)

    @cached_property
    def state(self) -> CompactionState:
        """The state that belongs to these messages: a handoff in them is believed, a state without one is not."""
        given, found = self.request.state, self.previous
        fresh = CompactionState(
            ineffective=given.ineffective, failure=given.failure, cooldown_until=given.cooldown_until
        )
        if found is None:
            if given.summary:
                self.notices.append("the state of another conversation was not used")
            return msgspec.structs.replace(fresh, lineage="" if given.summary else given.lineage)
        _, handoff = found
        if self._is_known(handoff):
            trail = parse(handoff.body) if given.trail.is_empty else given.trail
            return msgspec.structs.replace(given, summary=handoff.body, trail=trail)
        if not self.is_believed(handoff):
            self.notices.append("a handoff that is not from here was carried on as a summary of the client's own")
            brought = "\n\n".join(ours.body for ours in self.ours.values() if ours.kind == "fold")
            return msgspec.structs.replace(fresh, count=1, summary=brought)
        if given.folds:
            self.notices.append("the handoff in the messages is not the state's; it was taken from the messages")
        trail = parse(handoff.body)
        return msgspec.structs.replace(fresh, count=1, summary=handoff.body, folds=(handoff.fold,), trail=trail)

    @cached_property
    def tails(self) -> list[tuple[int, int]]:
        """Tails to choose from, the shortest first: at least so many messages, and up to so many tokens."""
        asked, tokens = self.request.options.protection.protect_last_n, self.budget.tail_tokens
        least = min(asked, SMALLEST_FLOOR)
        shorter = [(least, tokens * share // 4) for share in range(4)]
        most = least if self.request.target_tokens is not None else asked
        return [*shorter, *((floor, tokens) for floor in range(least, most + 1))]

    def plan(self, tail: tuple[int, int] | None = None) -> Plan:
        """Head, fold and tail. No handoff of ours stays in the tail: there is only ever one live summary."""
        floor, tokens = tail or self.tails[-1]
        protection = msgspec.structs.replace(self.request.options.protection, protect_last_n=floor)
        if self.request.target_tokens is not None and not self._head_is_small(protection):
            protection = msgspec.structs.replace(protection, protect_first_n_messages=0)
        count = self.state.count
        if self.request.keep_last_exchanges is not None:
            return self._partial(protection, count)
        plan = plan_fold(self.messages, self.sizes, tokens, protection, count, self.cuts, self.ours)
        if self.previous is None or self.previous[0] < plan.tail_start:
            return plan
        after = [cut for cut in self.cuts if cut > self.previous[0]]
        while after[0] in self.ours:
            del after[0]
        return with_anchors(
            self.messages, self.sizes, self.cuts, Plan(plan.head_end, after[0]), 0, protection, self.ours
        )

    def _head_is_small(self, protection: Protection) -> bool:
        """Whether the first exchange takes no more than its share of a size that was asked for."""
        end = head_length(self.messages, self.cuts, protection, self.state.count)
        sizes = [
            size for size, message in zip(self.sizes[:end], self.messages, strict=False) if message.role != "system"
        ]
        return sum(sizes) <= self.landing * HEAD_OF_TARGET

    def _partial(self, protection: Protection, count: int) -> Plan:
        head, _ = split_for_partial_compaction(self.messages, self.request.keep_last_exchanges or 1)
        base = plan_fold(self.messages, self.sizes, 1, protection, count, self.cuts, self.ours)
        start = max((cut for cut in self.cuts if cut <= len(head)), default=0)
        if self.previous is not None and self.previous[0] >= start:
            return Plan(start, start)
        plan = Plan(min(base.head_end, start), start)
        return with_anchors(self.messages, self.sizes, self.cuts, plan, 0, protection, self.ours)

    def new_turns(self, plan: Plan) -> Transcript:
        """The raw messages to summarise: what is folded, less what we wrote ourselves."""
        return tuple(self.messages[index] for index in plan.folded() if index not in self.ours)

    def ask(self, plan: Plan, new: Transcript) -> SummaryAsk:
        ends, start = self.ends(plan), self.previous[0] if self.previous else 0
        done = [at for at in (*range(plan.head_end), *plan.folded()) if at >= start and at not in self.ours]
        folded = follow(self.state.trail, tuple(map(self.messages.__getitem__, done)), self.request.redact)
        after = tuple(map(self.messages.__getitem__, self._behind(plan)))
        return SummaryAsk(
            messages=new,
            budget_tokens=self.summary_budget(plan),
            fold=fold_id(tuple(self.messages[index] for index in plan.folded())),
            redact=self.request.redact,
            previous=self.state.summary,
            focus=self.request.focus,
            prompt_characters=max(self.budget.effective_input_window * 2, 8_000),
            prefix=self._prefix(plan),
            before=self.messages[: plan.head_end],
            after=after,
            trail=msgspec.structs.replace(follow(folded, after, self.request.redact), ahead=len(after)),
            folded_trail=folded,
            dense=self.request.target_tokens is not None,
            shown_results=LONG if ends is None else ends.results,
            shown_texts=0 if ends is None else ends.texts,
            prose_tokens=self.prose_tokens,
        )

    @property
    def prose_tokens(self) -> int:
        """What a model writes where a size was asked for: lines of the fold say more, and cost nothing.

        Without the audit nothing would fill the rest; then the model writes all of it.
        """
        request = self.request
        return SUMMARY_MINIMUM if request.target_tokens is not None and request.options.verify else 0

    def summary_budget(self, plan: Plan) -> int:
        """Tokens for the summary: by the size of the fold, or what is left of the size that was asked for."""
        folded = plan.folded()
        if self.request.target_tokens is None:
            return self.budget.summary_tokens(sum(self.sizes[index] for index in folded))
        left = self.landing - self.staying(plan) - self.frame_tokens
        return max(self.budget.summary_maximum, int(left / max(self.scale, 0.01)))

    @cached_property
    def frame_tokens(self) -> int:
        """What a handoff costs beside its body."""
        has_system = self.request.system is not None or any(message.role == "system" for message in self.messages[:1])
        return FRAME_TOKENS if self.request.target_tokens is None or has_system else TERSE_FRAME_TOKENS

    def staying(self, plan: Plan) -> int:
        """Tokens of a request with what a plan keeps, without a summary, what is long shown by its ends."""
        fixed = round(self.fixed_tokens * self.scale)
        ends = self.ends(plan)
        if ends is not None:
            return fixed + self._shortened(plan, ends)
        new = unread(self.messages)
        sizes = self.sizes
        kept = self._kept(plan)
        return fixed + sum(spilled_size(self.messages[at], sizes[at], LONG) if at < new else sizes[at] for at in kept)

    def ends(self, plan: Plan) -> Ends | None:
        """How much of what is long stays, so that what must stay takes no more than its part of a size asked for."""
        target = self.request.target_tokens
        if target is None:
            return None
        share = STAYING_OF_TARGET if plan.folded() else 1
        room = target * share - round(self.fixed_tokens * self.scale)
        return next((ends for ends in LADDER if self._shortened(plan, ends) <= room), LADDER[-1])

    def _shortened(self, plan: Plan, ends: Ends) -> int:
        return sum(self._short_size(index, ends) for index in self._kept(plan))

    def _short_size(self, index: int, ends: Ends) -> int:
        found = self._short_sizes.get((index, ends))
        if found is None:
            message = self.messages[index]
            short = shortened(spilled(message, SAMPLE_HANDLE, ends.results), SAMPLE_HANDLE, ends)
            found = self.sizes[index] if short is message else min(self.size(short), self.sizes[index])
            self._short_sizes[index, ends] = found
        return found

    def _kept(self, plan: Plan) -> list[int]:
        folded = set(plan.folded())
        return [index for index in range(len(self.messages)) if index not in folded]

    def _behind(self, plan: Plan) -> list[int]:
        """The places of what stays after the handoff."""
        pinned = [index for group in plan.pinned for index in group]
        return [index for index in (*pinned, *range(plan.tail_start, len(self.messages))) if index not in self.ours]

    def _prefix(self, plan: Plan) -> PrefixRequest | None:
        write = self.request.cached_prefix
        if write is None:
            return None
        shown = self.messages[: plan.tail_start]
        return lambda instruction, wire: write(shown, instruction, wire)

    def unchanged(self, reason: str, plan: Plan | None = None, *, strike: bool = False) -> Outcome:
        state = self.state
        if strike:
            state = msgspec.structs.replace(state, ineffective=state.ineffective + 1)
        receipt = self.receipt(status="unchanged", reason=reason, plan=plan)
        return self.outcome(self.messages, receipt, state)

    def declined(self, decision: Decision) -> Outcome:
        """The outcome of a decision not to fold; a pause after a failure is told as the failure was."""
        if not decision.pause:
            return decision.settle(self.unchanged(decision.reason))
        kind = decision.failure
        told = account(kind, kept=True, left=decision.pause)._asdict()
        self.notices.append(paused_words(kind, decision.pause))
        receipt = self.receipt(status="aborted", reason=decision.reason, summary=SummaryFacts(failure=kind, **told))
        return self.outcome(self.messages, receipt, self.request.state)

    def aborted(self, failure: FailureKind, answer: SummaryAnswer, plan: Plan) -> Outcome:
        reason = f"the summary failed ({failure}): {FAILURES[failure].told}; the conversation stays as it was"
        told = account(failure, kept=True, asked=answer.retry_after, left=answer.pause_left)
        summary = SummaryFacts(failure=failure, retry_after=answer.retry_after, calls=answer.calls, **told._asdict())
        receipt = self.receipt(status="aborted", reason=reason, plan=plan, summary=summary)
        return self.outcome(self.messages, receipt, msgspec.structs.replace(self.state, failure=failure))

    def outcome(
        self,
        messages: Transcript,
        receipt: Receipt,
        state: CompactionState,
        archive: Archive | None = None,
        system: Message | None = None,
    ) -> Outcome:
        return Outcome(
            messages=messages,
            system=system or self.request.system,
            receipt=receipt,
            state=state,
            archive=archive or Archive(),
        )

    def receipt(self, *, plan: Plan | None = None, new: Transcript | None = None, **facts: Any) -> Receipt:
        budget = self.request.budget
        pinned = tuple(index for group in plan.pinned for index in group) if plan else ()
        new_tokens = self.prompt_tokens if new is None else self.total(new)
        defaults: dict[str, Any] = {
            "old_messages": len(self.messages),
            "new_messages": len(self.messages if new is None else new),
            "old_tokens": self.prompt_tokens,
            "new_tokens": new_tokens,
            "token_basis": self.basis,
            "estimated_prompt_tokens": self.estimated_tokens,
            "threshold_tokens": budget.threshold_tokens,
            "effective_input_window": budget.effective_input_window,
            "context_length": budget.context_length,
            "window_source": self.request.window_source,
            "landing_tokens": self.budget.landing_tokens + (self.fixed_tokens if self.request.target_tokens else 0),
            "fixed_tokens": self.fixed_tokens,
            "compaction_count": self.state.count,
            "boundary": Boundary(start=plan.head_end, end=plan.tail_start, pinned=pinned) if plan else None,
            "notices": tuple(dict.fromkeys(self.notices)),
        }
        return Receipt(**{**defaults, **facts})

    def sanitized(self, messages: Transcript, view: Transcript) -> tuple[Transcript, tuple[Repair, ...]]:
        """Legal messages and the repairs, by their places in the old transcript; `view` is that, message by message."""
        options = self.request.options
        clean, repairs = sanitize(
            messages,
            orphan_calls=options.orphan_calls,
            result_role=options.result_role,
            batches_of_items=options.batches_of_items,
        )
        places = {id(message): index for index, message in enumerate(view)}
        return clean, tuple(Repair(places.get(id(messages[repair.message]), -1), repair.what) for repair in repairs)

    def user_first(
        self, messages: Transcript, repairs: tuple[Repair, ...], fold: str
    ) -> tuple[Transcript, tuple[Repair, ...]]:
        """After the system prompt a user speaks first, if only a short generated message does."""
        first = next((index for index, message in enumerate(messages) if message.role != "system"), None)
        if first is None or opens(messages[first]):
            return messages, repairs
        opened = (*messages[:first], filler(fold, "user"), *messages[first:])
        return opened, (*repairs, Repair(-1, "let a user message come first"))

    def missing(self, view: Transcript, folded: Transcript) -> dict[str, tuple[Message, ...]]:
        """Originals that neither the view nor the fold has: repaired, noted or replaced ones, by their handles."""
        there = {id(message) for message in (*view, *folded)}
        return {handle_of(message): (message,) for message in self.messages if id(message) not in there}

    def total(self, messages: Transcript) -> int:
        """The size of a request with these messages."""
        return round(self.fixed_tokens * self.scale) + sum(map(self.size, messages))

    @property
    def landing(self) -> int:
        """The size of a request to aim at."""
        if self.request.target_tokens is not None:
            return self.request.target_tokens
        return self.budget.landing_tokens


def with_size(request: CompactionRequest) -> CompactionRequest:
    """The request with its size in it: what was reported for it, else the estimate."""
    job = Job(request)
    return msgspec.structs.replace(request, prompt_tokens=job.prompt_tokens, token_basis=job.basis)


def carry_out(engine: ContextEngine, request: CompactionRequest, decision: Decision) -> Flow:
    """A compaction as it was decided: the engine's, or a receipt that says why there is none."""
    if not decision.fold:
        return Job(request).declined(decision)
    outcome = yield from engine.compress(decision.apply(request))
    return decision.settle(outcome)
