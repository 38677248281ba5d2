"""State of one compaction: measurements, the cost of a plan, and the summary request."""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property
from typing import Any

import msgspec

from midfold.compaction.archive import DIGITS, PREFIX, fold_id, framed_handles, handle_of, handles_in
from midfold.compaction.boundary import Layout, Plan, assented_answer, head_length
from midfold.compaction.budget import COMFORTABLE_SHARE
from midfold.compaction.client_instructions import (
    MAX_INSTRUCTION_SHARE,
    MAX_INSTRUCTION_TOKENS,
    ClientInstructions,
    find_client_instructions,
)
from midfold.compaction.handoff import HEAD, Generated, find_generated, newest_handoff, without_summary
from midfold.compaction.local.step_handles import can_unfold, handle_tokens, without_step_handles
from midfold.compaction.media import MediaReduction, replace_historical_media
from midfold.compaction.omissions import REDACTION_FAILED, Omissions
from midfold.compaction.previews import ALL, EXACT, WHOLE_TEXTS, Ends, shorten, spill_results
from midfold.compaction.request import (
    CompactionRequest,
    CompactionState,
    PrefixRequest,
    SummaryRequest,
    reported_tokens,
    trail_share,
)
from midfold.compaction.tracking import Trail, follow, parse, render
from midfold.compaction.user_record import parse_record
from midfold.compaction.user_words import WordsOfUser
from midfold.transcript.laws import legal_cuts
from midfold.transcript.message import (
    CALL,
    OPAQUE,
    RESULT,
    TEXT,
    THINKING,
    Message,
    Part,
    Text,
    ToolResult,
    Transcript,
)
from midfold.transcript.tokens import Basis, FixedSize, media_units


def characters(parts: tuple[Part, ...]) -> int:
    """Return the counted length of message parts; media count by their token price."""
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


SAMPLE_HANDLE = PREFIX + "0" * DIGITS
MIN_SCALE = 0.25
MAX_SCALE = 4.0
HEAD_SHARE_OF_TARGET = 0.04
"""Share of an explicit target size for the first exchange, and likewise for client instructions."""
REDUCED_SHARE = 0.1
"""Maximum share of a view for reduced pictures, newest first."""
MIN_SUMMARY_DIVISOR = 4
"""Divisor of the usual minimum that gives the minimum of a summary beside many words of the user."""
MAX_GROWTH_SHARE = 0.6
"""Maximum growth of a summary per newly covered token (folded turns and truncated results)."""
MIN_SUMMARY_TOKENS = 200
ADDED_FACTOR = 1.15
"""Factor on the summary budget that covers text added to a model's response."""
FRAME_TOKENS = 140
"""Tokens for the frame of a handoff, a filler after it, and the note in the system prompt."""
PROMPT_SHARE_OF_WINDOW = 0.85
"""Share of the conversation's window for a summary prompt if the summary model's own window is unknown."""
MIN_CHARACTERS_PER_TOKEN = 2
MAX_CHARACTERS_PER_TOKEN = 4
TERSE_FRAME_TOKENS = 60
"""Tokens of the frame of a handoff if a target size was requested."""
NOTE_TOKENS = 55
"""Tokens of the note in the system prompt."""
FILLER_TOKENS = 18
"""Tokens of a message between two of the same role."""


class CompactionContext:
    """Measurements and decisions of one compaction, computed once; the request is never changed."""

    def __init__(self, request: CompactionRequest) -> None:
        self.omissions = Omissions()
        self.request = request = msgspec.structs.replace(request, redact=self.omissions.redactor(request.redact))
        self.messages = request.messages
        self.new_system = request.system
        """Separate system prompt of the view, with the compaction note once that is added."""
        self.notices: list[str] = list(request.budget.notices)
        self._short_sizes: dict[tuple[int, Ends], int] = {}
        target = request.target_tokens
        self.limit = request.budget.threshold_tokens - 1 if target is None else target
        """Maximum tokens of the view: the requested target size, else just below the threshold."""
        self.comfortable_limit = self.limit if request.trigger_tokens else int(self.limit * COMFORTABLE_SHARE)
        """Size that leaves space for some turns; a limit lowered for that purpose already is one."""
        self.words = WordsOfUser(self, lambda context: context._generated_messages[1])
        self.budget = (
            request.budget if target is None else request.budget.for_target(max(target - self.fixed_tokens, 1))
        )

    @cached_property
    def _units(self) -> list[int]:
        return [self.request.meter.units(message) for message in self.messages]

    @cached_property
    def _cuts(self) -> list[int]:
        return legal_cuts(self.messages)

    @cached_property
    def _fixed_size(self) -> FixedSize:
        return self.request.meter.fixed_size(self.request.system, (*self.request.tools, *self.request.late_tools))

    @cached_property
    def fixed_tokens(self) -> int:
        """Tokens of the separate system prompt and the tool definitions, which a compaction cannot reduce."""
        return self.request.meter.tokens(*self._fixed_size)

    @cached_property
    def prompt_tokens(self) -> int:
        """Prompt tokens reported by the host or the provider for this prompt, else the estimate."""
        return reported_tokens(self.request) or self.estimated_tokens

    @cached_property
    def estimated_tokens(self) -> int:
        sent = self.request.meter.fixed_size(self.request.system, self.request.tools)
        return self.request.meter.request(sum(self._units), len(self.messages), sent)

    @property
    def basis(self) -> Basis:
        return self.request.token_basis if reported_tokens(self.request) else "estimated"

    @cached_property
    def scale(self) -> float:
        """Ratio of reported to estimated tokens, used to correct sizes."""
        if self.basis == "estimated":
            return 1.0
        ratio = self.prompt_tokens / max(self.estimated_tokens, 1)
        return min(max(ratio, MIN_SCALE), MAX_SCALE)

    @cached_property
    def sizes(self) -> list[int]:
        """Tokens of each message as kept, that is without older pictures."""
        factor, overhead, scale = self.request.meter.factor, self.request.meter.message_overhead, self.scale
        sizes = [round((round(units * factor) + overhead) * scale) for units in self._units]
        for index in self.media:
            sizes[index] = self.size(self.view[index])
        return sizes

    @cached_property
    def media(self) -> dict[int, str]:
        """Handles of the messages whose pictures are older than the newest, by index."""
        return self._without_media[1]

    @property
    def view(self) -> Transcript:
        """Messages with older pictures replaced by placeholders or reduced."""
        return self._without_media[0]

    @cached_property
    def _without_media(self) -> tuple[Transcript, dict[int, str]]:
        request = self.request
        if request.media_reducer is None:
            return replace_historical_media(self.messages, handle_of)
        reduction = MediaReduction(request.media_reducer, request.redact, int(self.limit * REDUCED_SHARE))
        found = replace_historical_media(self.messages, handle_of, reduction)
        self.notices += reduction.notices
        return found

    def size(self, message: Message) -> int:
        meter = self.request.meter
        return round(meter.tokens(meter.units(message), 1) * self.scale)

    @cached_property
    def _generated_messages(self) -> tuple[dict[int, Generated], dict[int, Generated]]:
        """Generated messages of earlier compactions, and client summaries in messages with words of the user."""
        protection = self.request.options.protection
        head, known = max(protection.protect_first_n_messages, HEAD), self.request.state.folds
        found, beside = find_generated(self.messages, head, known, protection.protect_last_n)
        if not any(map(self._is_known, found.values())):
            return found, beside
        return {
            index: generated
            for index, generated in found.items()
            if generated.kind != "fold" or self._is_known(generated)
        }, {}

    @property
    def generated_messages(self) -> dict[int, Generated]:
        """Generated messages of earlier compactions and messages that only hold a client summary, by index."""
        return self._generated_messages[0]

    @cached_property
    def _previous(self) -> tuple[int, Generated] | None:
        """Index and content of the newest summary."""
        generated, beside = map(newest_handoff, self._generated_messages)
        return max(filter(None, (generated, beside)), default=None)

    def _is_known(self, generated: Generated) -> bool:
        """Return whether a message belongs to a fold of this conversation and its body is unchanged."""
        state = self.request.state
        if generated.fold not in state.folds:
            return False
        if generated.kind != "fold" or (generated.fold, generated.body) == (state.folds[-1], state.summary.strip()):
            return True
        return self._is_believed(generated)

    def _is_believed(self, handoff: Generated) -> bool:
        """Return whether the keeper has this handoff; without a keeper the valid check is enough."""
        keeper = self.request.keeper
        return not handoff.is_foreign and (keeper is None or keeper.has_handoff(handoff))

    def is_handle(self, handle: str) -> bool:
        """Return whether a handle resolves to originals."""
        if handle.removeprefix(PREFIX) in self.state.folds:
            return True
        keeper = self.request.keeper
        return handle in self._framed_handles if keeper is None else keeper.has_handle(handle)

    @cached_property
    def _framed_handles(self) -> set[str]:
        """Handles in frames written by midfold and in the previous summary."""
        parts = (part for message in self.messages for part in message.parts)
        texts = (part.text for part in parts if isinstance(part, (Text, ToolResult)) and "unfold" in part.text)
        return framed_handles(texts) | handles_in(self.state.summary)

    @cached_property
    def state(self) -> CompactionState:
        """State of these messages: from the handoff in them, or from the lineage the caller names."""
        given, found, lineage = self.request.state, self._previous, self.request.lineage
        fresh = msgspec.structs.replace(given, lineage=lineage, count=0, summary="", folds=(), trail=Trail())
        if found is None:
            if not given.summary or (lineage and lineage == given.lineage):
                return given if not lineage else msgspec.structs.replace(given, lineage=lineage)
            self.notices.append("Ignored the compaction state: it belongs to another conversation.")
            return fresh
        _, handoff = found
        if self._is_known(handoff):
            trail = self._parse_trail(handoff.body) if given.trail.is_empty else given.trail
            return msgspec.structs.replace(given, summary=handoff.body, trail=trail)
        if not self._is_believed(handoff):
            self.notices.append("Found a compaction summary written by another tool; kept it as context.")
            alike = (
                generated.body
                for generated in self.generated_messages.values()
                if generated.kind == "fold" and not handoff.is_foreign
            )
            text, redact = "\n\n".join(alike) or handoff.body, self.request.redact
            brought = self.omissions.attempt("redaction", lambda: redact(text), REDACTION_FAILED)
            return msgspec.structs.replace(fresh, count=1, summary=brought)
        if given.folds:
            self.notices.append("The handoff in the messages does not match the state; continued from the messages.")
        trail = self._parse_trail(handoff.body)
        return msgspec.structs.replace(fresh, count=1, summary=handoff.body, folds=(handoff.fold,), trail=trail)

    def _parse_trail(self, handoff: str) -> Trail:
        return self.omissions.attempt("file tracking", lambda: parse(parse_record(handoff)[1]), Trail())

    def _follow(self, trail: Trail, messages: Transcript) -> Trail:
        """Return the trail extended by these messages; if that fails, with only its counters advanced."""
        passed = msgspec.structs.replace(
            trail, messages=trail.messages + len(messages), ahead=max(trail.ahead - len(messages), 0)
        )
        redact, omissions = self.request.redact, self.omissions
        return omissions.attempt("file tracking", lambda: follow(trail, messages, redact, omissions), passed)

    @cached_property
    def instructions(self) -> ClientInstructions:
        """Client instructions that fit into their limit."""
        share = MAX_INSTRUCTION_SHARE if self.request.target_tokens is None else HEAD_SHARE_OF_TARGET
        # A compaction with a lower target, to be followed by another one, keeps the same instructions.
        limit = self.limit if self.request.target_tokens is not None else max(self.limit, self.request.trigger_tokens)
        max_tokens = min(int(limit * share), MAX_INSTRUCTION_TOKENS)
        found = self.omissions.attempt(
            "client instructions", lambda: find_client_instructions(self.messages, max_tokens), ClientInstructions()
        )
        if found.left_out:
            self.notices.append(
                f"Client instructions exceed their {max_tokens:,}-token budget; {found.left_out:,} tokens of them were "
                "summarized."
            )
        return found

    @cached_property
    def layout(self) -> Layout:
        """Plans that these messages allow."""
        protection, target = self.request.options.protection, self.request.target_tokens
        if target is not None and not self._head_is_small:
            protection = msgspec.structs.replace(protection, protect_first_n_messages=0)
        previous = newest_handoff(
            {index: generated for index, generated in self.generated_messages.items() if not generated.is_foreign}
        )
        earliest = 0
        if previous is not None:
            # Keep one live summary: no earlier handoff stays in the tail.
            earliest = next(cut for cut in self._cuts if cut > previous[0] and cut not in self.generated_messages)
        return Layout(
            self.messages,
            self.sizes,
            protection,
            self.state.count,
            tail_tokens=self.budget.tail_tokens,
            max_picture_tokens=None if target is None else target // 2,
            earliest=earliest,
            cuts=self._cuts,
            generated=self.generated_messages,
            instructions=self.instructions,
        )

    @property
    def _head_is_small(self) -> bool:
        """Return whether the first exchange fits into its share of the requested target size."""
        fixed = self.instructions.whole
        end = head_length(self.messages, self._cuts, self.request.options.protection, self.state.count, fixed)
        said = [index for index in range(end) if self.messages[index].role != "system" and index not in fixed]
        return sum(map(self.sizes.__getitem__, said)) + FILLER_TOKENS <= self.limit * HEAD_SHARE_OF_TARGET

    def new_turns(self, plan: Plan) -> Transcript:
        """Return the messages to summarize: the folded ones without generated messages and kept instructions."""
        turns = self._turns(plan)
        return tuple(
            [without_summary(turns[index]) if index in self._generated_messages[1] else turns[index] for index in turns]
        )

    def _turns(self, plan: Plan) -> dict[int, Message]:
        left = {index: self.instructions.rest.get(index, self.messages[index]) for index in plan.fold()}
        return {
            index: message
            for index, message in left.items()
            if message is not None and index not in self.generated_messages
        }

    def ask(self, plan: Plan, new: Transcript) -> SummaryRequest:
        ends, generated, start = self.ends(plan), self.generated_messages, self._previous[0] if self._previous else 0
        behind = self._behind(plan)
        pinned = [index for index in behind if index < plan.tail_start]
        turns = [*self._turns(plan)] if pinned else []
        done = [at for at in (*range(plan.head_end), *plan.fold()) if at >= start and at not in generated]
        folded = self._follow(self.state.trail, tuple(map(self.messages.__getitem__, done)))
        after = tuple(map(self.messages.__getitem__, behind))
        budget, is_dense = self.summary_budget(plan, spare=True), self.request.target_tokens is not None
        trail = msgspec.structs.replace(self._follow(folded, after), ahead=len(after))
        share = int(budget * trail_share(budget, is_dense=is_dense))
        return SummaryRequest(
            messages=new,
            budget_tokens=budget,
            fold=fold_id(tuple(self.messages[index] for index in plan.fold())),
            redact=self.request.redact,
            previous=without_step_handles(self.words.previous_summary),
            words=self.words.record(plan),
            focus=self.request.focus,
            prompt_characters=self._prompt_characters(plan),
            prefix=self._prefix(plan),
            before=self._before(plan),
            after=after,
            pinned=tuple(bisect_left(turns, index) for index in pinned),
            trail=trail,
            trail_lines=self.omissions.attempt("file tracking", lambda: render(trail, share), {}),
            omissions=self.omissions,
            folded_trail=folded,
            dense=is_dense,
            handle_tokens=handle_tokens(budget) if can_unfold(self.request) else 0,
            shown_results=ends.results if ends.results < ALL else 0,
            shown_texts=ends.texts if ends.texts < ALL else 0,
            shown_user_words=ends.asks,
            shown_answer=ends.answers,
            assented=self._assented_index(self._before(plan), len(new), behind),
        )

    def _assented_index(self, before: Transcript, folded: int, behind: list[int]) -> int:
        """Return the index, within a `SummaryRequest`, of the answer the newest user message assents to; -1 if not
        kept.
        """
        if self._answer < 0:
            return -1
        answer = self.messages[self._answer]
        places = [place for place, message in enumerate(before) if message is answer]
        places += [len(before) + folded + place for place, index in enumerate(behind) if index == self._answer]
        return places[0] if places else -1

    def _prompt_characters(self, plan: Plan) -> int:
        """Return the maximum characters of one summary prompt: what fits the window beside the response, at this
        fold's rate.
        """
        read = sum(characters(self.messages[index].parts) for index in plan.fold())
        size = self._folded_tokens(plan)
        available = self.budget.effective_input_window * PROMPT_SHARE_OF_WINDOW - self.summary_budget(plan) * 1.5
        return max(
            int(available * min(max(read / max(size, 1), MIN_CHARACTERS_PER_TOKEN), MAX_CHARACTERS_PER_TOKEN)), 8_000
        )

    def summary_budget(self, plan: Plan, *, spare: bool = False) -> int:
        """Return the tokens for the summary.

        Without a target size: by the size of the fold, with `spare` also from the free tokens of the view. With a
        target size: what the rest of the view leaves.
        """
        if self.request.target_tokens is None:
            folded = self._folded_tokens(plan)
            earlier = sum(map(self.sizes.__getitem__, self.generated_messages.keys() & plan.fold())) - FRAME_TOKENS
            before = max(earlier - round(self.words.previous_tokens * self.scale), 0)
            new, stays = folded - max(earlier, 0), self.staying(plan) + FRAME_TOKENS + self.words.tokens(plan)
            if stays > self.limit - self.budget.summary_tokens(new, before):
                new += self.staying(plan) - self.staying(plan, WHOLE_TEXTS)
            maximum = max(before + int(new * MAX_GROWTH_SHARE), MIN_SUMMARY_TOKENS)
            use_free = spare and not self.request.trigger_tokens
            available = int((self.comfortable_limit - stays) / ADDED_FACTOR) if use_free else 0
            return min(self.budget.summary_tokens(new, before, available), maximum)
        words, maximum = self.words.tokens(plan), self.budget.summary_maximum
        left = self.limit - self.staying(plan, self.ends(plan)) - self._frame_tokens(plan) - words
        minimum = maximum - words - round(self.words.newest_tokens * self.scale)
        return max(minimum, maximum // MIN_SUMMARY_DIVISOR, int(left / max(self.scale, 0.01)))

    @cached_property
    def _all_tokens(self) -> int:
        return sum(self.sizes)

    def _folded_tokens(self, plan: Plan) -> int:
        between = range(plan.head_end, plan.tail_start)
        pinned = sum(self.sizes[at] for group in plan.pinned for at in group if at in between)
        return sum(self.sizes[plan.head_end : plan.tail_start]) - pinned - self._partial_tokens(plan)

    def _partial_tokens(self, plan: Plan) -> int:
        return sum(self.size(self.instructions.stays[place]) for place in plan.partial)

    def _frame_tokens(self, plan: Plan) -> int:
        """Return the tokens of a handoff beside its body if a target size was requested."""
        has_system = self.request.system is not None or any(message.role == "system" for message in self.messages[:1])
        segments = (
            len(plan.pinned)
            + len(plan.partial)
            + any(message.role != "system" for message in self.messages[: plan.head_end])
        )
        return TERSE_FRAME_TOKENS + NOTE_TOKENS * has_system + FILLER_TOKENS * segments

    def staying(self, plan: Plan, ends: Ends = EXACT) -> int:
        """Return the tokens of a request with what a plan keeps, truncated to `ends`, without a summary."""
        fixed = round(self.fixed_tokens * self.scale)
        if ends is EXACT:
            return fixed + self._all_tokens - self._folded_tokens(plan)
        fold = set(plan.fold())
        stays = (index for index in range(len(self.messages)) if index not in fold)
        return fixed + self._partial_tokens(plan) + sum(self._short_size(index, ends) for index in stays)

    def ends(self, plan: Plan) -> Ends:
        """Return how far long messages are truncated: not at all if everything fits, else to the first level that
        fits.
        """
        target = self.request.target_tokens
        if target is None:
            available = self.limit - self.summary_budget(plan) - FRAME_TOKENS - self.words.tokens(plan)
            return EXACT if self.staying(plan) <= available else WHOLE_TEXTS
        available = self.words.staying_tokens if plan.fold() else target
        ladder = self.words.ladder
        return next((ends for ends in ladder if self.staying(plan, ends) <= available), ladder[-1])

    def _short_size(self, index: int, ends: Ends) -> int:
        found = self._short_sizes.get((index, ends))
        if found is None:
            message, own = self.view[index], ends.of_answer if index == self._answer else ends
            short = shorten(spill_results(message, SAMPLE_HANDLE, ends.results), SAMPLE_HANDLE, own)
            found = self.sizes[index] if short is message else min(self.size(short), self.sizes[index])
            self._short_sizes[index, ends] = found
        return found

    @cached_property
    def _answer(self) -> int:
        return assented_answer(self.messages, self.generated_messages)

    def _behind(self, plan: Plan) -> list[int]:
        """Return the indices of the kept messages after the handoff."""
        pinned = [index for group in plan.pinned for index in group if index not in self.instructions.whole]
        return [
            index
            for index in (*pinned, *range(plan.tail_start, len(self.messages)))
            if index not in self.generated_messages
        ]

    def _before(self, plan: Plan) -> Transcript:
        """Return the head and the client instructions that stay on their own."""
        pinned = (index for group in plan.pinned for index in group if index in self.instructions.whole)
        stays = (self.instructions.stays[place] for place in sorted((*pinned, *plan.partial)))
        return (*self.messages[: plan.head_end], *stays)

    def _prefix(self, plan: Plan) -> PrefixRequest | None:
        write = self.request.cached_prefix
        if write is None or self._prefix_price(plan) > self._folded_tokens(plan):
            return None
        shown = self.messages[: plan.tail_start]
        return lambda instruction, wire: write(shown, instruction, wire)

    def _prefix_price(self, plan: Plan) -> float:
        """Return the cost of reading a summary prompt that reuses the cached prefix, in uncached tokens."""
        return self.request.cached_price * (self.fixed_tokens * self.scale + sum(self.sizes[: plan.tail_start]))

    def total(self, messages: Transcript) -> int:
        """Return the size of a request with these messages and the view's system prompt."""
        meter, tools = self.request.meter, (*self.request.tools, *self.request.late_tools)
        return round(meter.count(messages, meter.fixed_size(self.new_system, tools)).tokens * self.scale)


def with_size(request: CompactionRequest) -> CompactionRequest:
    """Return the request with its size filled in: the reported one, else the estimate."""
    job = CompactionContext(request)
    return msgspec.structs.replace(request, prompt_tokens=job.prompt_tokens, token_basis=job.basis)
