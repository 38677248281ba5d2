"""A framework's whole history, and what its model is to see of it: the part that every framework's adapter shares.

A framework keeps everything that was said and hands all of it over with every call. What midfold must remember between
two calls is plain JSON: which messages the view has (by their place in the history) and which stand for others (as
values), what is behind each handle (the same way), and what the conversation has learnt. It is kept where the framework
keeps state. It is believed only if the history still begins as it did; else the history is folded anew.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal

from midfold import (
    AnswerBounds,
    Memory,
    MemoryConversation,
    MidfoldError,
    Recall,
    Receipt,
    Setup,
    ToolAnswer,
    learn_limit,
    read,
)
from midfold import redact as redact_text

Report = Callable[[str], None]
Piece = int | dict[str, Any]
"""A message of the history by its place, or a message that is not in it."""

RECALL_TOOLS = Recall.tools
THRESHOLD = "threshold"
RECALL_NAMES = frozenset(spec.name for spec in RECALL_TOOLS)
log_report: Report = logging.getLogger("midfold.adapters").warning


class FoldedHistory:
    """One call's history. `wires` has a plain message for each of the framework's, None for one of unknown kind.

    `pieces` is what to send. Messages of unknown kind are always among them, and midfold reads nothing of them.
    `recall` says when the model has the tools for looking back: never, always, or once something was folded.
    """

    def __init__(
        self,
        setup: Setup,
        wires: Sequence[dict[str, Any] | None],
        kept: Mapping[str, Any] | None = None,
        *,
        dialect: str = "openai-chat",
        recall: Literal["never", "always", "folded"] = "folded",
    ) -> None:
        self.wires, self.dialect = wires, dialect
        self._given = [setup.model, setup.context_length]
        own = setup.budget.threshold_tokens
        self.threshold = min(own, (kept or {}).get(THRESHOLD) or own)
        """Tokens at which the conversation is folded: what an answer of recall may take is a share of it."""
        self._plan: dict[str, Any] = {}
        self.conversation = MemoryConversation(setup)
        self.pieces: list[Piece] = list(range(len(wires)))
        plan = (kept or {}).get("plan")
        if plan and plan["mark"] == self._mark(plan["upto"]):
            self._plan = plan
            self.pieces = [*plan["view"], *range(plan["upto"], len(wires))]
        if kept:
            self.conversation.restore(self._memory(kept))
        if recall != "never":
            setup.has_unfold_tool = True
            tools = [spec.definition(dialect) for spec in RECALL_TOOLS]
            setup.late_tools = [] if self.is_folded or recall == "always" else tools
            if not setup.late_tools:
                setup.update_prompt(setup.system, [*setup.tools, *tools])
        self._sync()

    @property
    def is_folded(self) -> bool:
        return bool(self._plan)

    @property
    def system(self) -> Any:
        """The system prompt, with the note that a fold has left."""
        return self.conversation.view().system

    @property
    def originals(self) -> dict[str, list[Any]]:
        """What was folded away, by handle: of the fold that is believed, and of all before it."""
        folded: dict[str, list[Piece]] = self._plan.get("folded", {})
        return {handle: [self._wire(piece) for piece in pieces] for handle, pieces in folded.items()}

    def fold(self, *, force: bool = False) -> Receipt | None:
        """Folds if it is time, or by `force` after a refusal; the receipt of a fold."""
        if not force and not self.conversation.should_compact():
            return None
        return self._settle(self.conversation.compact(force=force, overflowed=force).changed)

    async def fold_async(self, *, force: bool = False) -> Receipt | None:
        """The same, for an event loop."""
        if not force and not self.conversation.should_compact():
            return None
        return self._settle((await self.conversation.compact_async(force=force, overflowed=force)).changed)

    def learn_refusal(self, error: BaseException) -> bool:
        """Whether a provider's refusal told a smaller window than was believed: then fold by force and send again."""
        return self.conversation.setup.correct_window(learn_limit(str(error)))

    def observe(self, usage: Any) -> None:
        """What the provider counted for what was sent."""
        self.conversation.observe(usage)

    def keep(self) -> dict[str, Any]:
        """What the next call must be given: equal to what comes back from JSON."""
        memory = json.loads(json.dumps({**self.conversation.save(), "archive": {}}))
        threshold = self.conversation.setup.budget.threshold_tokens
        return {"plan": self._plan, "given": self._given, "memory": memory, THRESHOLD: threshold}

    def _memory(self, kept: Mapping[str, Any]) -> dict[str, Any]:
        """What was learnt about another model, or under another window, says nothing about this one.

        Of a fold that no longer fits only this is kept: until its pause is over no model is asked for a summary.
        """
        memory: dict[str, Any] = dict(kept["memory"])
        if kept["plan"] and not self._plan:
            memory["state"] = {name: memory["state"][name] for name in ("failure", "cooldown_until")}
        if kept["given"] == self._given:
            return memory
        return {"state": memory["state"], "context_length": self._given[1]}

    def _mark(self, upto: int) -> str:
        known = json.dumps(self.wires[:upto], sort_keys=True, default=repr)
        return sha256(f"{min(upto, len(self.wires))}:{known}".encode("utf-8", "surrogatepass")).hexdigest()

    def _wire(self, piece: Piece) -> dict[str, Any] | None:
        return self.wires[piece] if isinstance(piece, int) else piece

    def _sync(self) -> None:
        known = [wire for wire in map(self._wire, self.pieces) if wire is not None]
        self.conversation.sync(read(known, dialect=self.dialect))

    def _settle(self, changed: bool) -> Receipt | None:
        if not changed:
            return None
        places = {id(self.wires[piece]): piece for piece in self.pieces if isinstance(piece, int)}
        view: list[Piece] = [places.get(id(value), value) for value in self.conversation.view().messages]
        self.pieces = self._with_unknown(view)
        folded = dict(self._plan.get("folded", {}))
        for handle in self.conversation.archive:
            folded[handle] = [places.get(id(value), value) for value in self.conversation.unfold(handle)]
        upto = len(self.wires)
        self._plan = {"upto": upto, "mark": self._mark(upto), "view": self.pieces, "folded": folded}
        self._sync()
        return self.conversation.last

    def _with_unknown(self, view: list[Piece]) -> list[Piece]:
        """Messages of unknown kind stay where they were, but never between a call and its result."""
        for index in (number for number, wire in enumerate(self.wires) if wire is None):
            after = (
                place
                for place, piece in enumerate(view)
                if isinstance(piece, int) and piece > index and not _is_result(self.wires[piece])
            )
            view.insert(next(after, len(view)), index)
        return view


def _is_result(wire: Mapping[str, Any] | None) -> bool:
    return wire is not None and (wire.get("role") == "tool" or wire.get("type") == "function_call_output")


def answer_recall(
    name: str,
    arguments: Any,
    originals: Mapping[str, Any] | None,
    threshold: int | None,
    dialect: str = "openai-chat",
) -> ToolAnswer:
    """The answer to a call of a recall tool, from the originals that were kept; arguments may be JSON text.

    It takes what a conversation bears that is folded at `threshold` tokens.
    """
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            return ToolAnswer("the arguments are not JSON", is_error=True)
    try:
        archive = {handle: read(messages, dialect=dialect).messages for handle, messages in (originals or {}).items()}
    except MidfoldError as error:
        return ToolAnswer(f"the originals cannot be read ({type(error).__name__})", is_error=True)
    bounds = AnswerBounds() if threshold is None else AnswerBounds.of(threshold)
    return Memory(archive).recall(redact_text, bounds).run(name, arguments)


def report_unknown(kinds: Iterable[str], reported: set[str], report: Report) -> None:
    """Says once of each kind of message that it is passed through."""
    for kind in kinds:
        if kind not in reported:
            reported.add(kind)
            report(f"midfold does not know messages of kind {kind}: they are sent as they are, and never folded")
