"""A framework's whole history, and what its model is to see of it: the part that every framework's adapter shares.

A framework keeps everything that was said and hands all of it over with every call. What midfold must remember between
two calls is plain JSON: which messages the view has (by their place in the history) and which stand for others (as
values), what is behind each handle (the same way), and what the conversation has learnt. It is kept where the framework
keeps state. It is believed only if the history still begins as it did; else the history is folded anew.
"""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal, TypedDict

from midfold import (
    Config,
    MemoryConversation,
    MidfoldError,
    Protection,
    Receipt,
    Setup,
    Summarizer,
    ToolSpec,
    learn_limit,
    read,
)
from midfold import redact as redact_text
from midfold.types import AnswerBounds, InMemorySource, Recall, ToolAnswer

Report = Callable[[str], None]
Piece = int | dict[str, Any]
"""A message of the history by its place, or a message that is not in it."""

RECALL_TOOLS = Recall.tools
THRESHOLD = "threshold"
RECALL_NAMES = frozenset(spec.name for spec in RECALL_TOOLS)
MOST_KINDS = 100
"""Kinds of unknown messages that are reported: in a proxy, anybody may make some up."""
MOST_RUNNING = 256
log_report: Report = logging.getLogger("midfold.adapters").warning


def type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


class WindowSettings(TypedDict, total=False):
    """Keywords of every adapter; `Histories` says what they mean."""

    context_length: int | None
    config: Config | None
    protection: Protection | None
    report: Report


class HistorySettings(WindowSettings, total=False):
    """The same, of adapters that take a summarizer as it is."""

    summarizer: Summarizer | None


class Histories:
    """How an adapter folds, whatever the call.

    `context_length` is needed where midfold does not know a model's window. Without a `summarizer` the settings of
    `config` choose one, and without these summaries are made locally. `report` is told what a log would be: it is the
    log unless given.
    """

    def __init__(
        self,
        *,
        context_length: int | None = None,
        summarizer: Summarizer | None = None,
        config: Config | None = None,
        protection: Protection | None = None,
        report: Report = log_report,
    ) -> None:
        self._context_length, self._summarizer = context_length, summarizer
        self._config, self._protection = config, protection
        self._report, self._reported = report, set[str]()
        self._limits: dict[str, int] = {}

    def open(
        self,
        messages: Sequence[Any],
        wires: Sequence[dict[str, Any] | None],
        kept: Mapping[str, Any] | None = None,
        *,
        model: str | None,
        kind: Callable[[Any], str] = type_name,
        system: Any = None,
        tools: Iterable[ToolSpec | Any] = (),
        dialect: str = "openai-chat",
        window: int | None = None,
        summarizer: Summarizer | None = None,
        recall: Literal["never", "always", "folded"] | None = None,
    ) -> FoldedHistory:
        """One call's history; a message without a wire is reported as of its `kind`, once.

        `tools` may be definitions of the dialect. `window` is what the framework says about the model. Tools for
        looking back are counted if they are among these, unless `recall` says otherwise.
        """
        self._report_unknown(kind(one) for one, wire in zip(messages, wires, strict=True) if wire is None)
        listed = [(_tool_name(tool), tool) for tool in tools]
        others = [tool for name, tool in listed if name not in RECALL_NAMES]
        setup = Setup(
            model=model,
            context_length=self._context_length or window,
            config=self._config,
            summarizer=summarizer or self._summarizer,
            protection=self._protection,
            system=system,
            leaves_room=True,
            tools=[tool.definition(dialect) if isinstance(tool, ToolSpec) else tool for tool in others],
        )
        setup.correct_window(self._limits.get(model or ""))
        if recall is None:
            recall = "never" if len(others) == len(listed) else "always"
        return FoldedHistory(setup, wires, kept, dialect=dialect, recall=recall)

    def _report_unknown(self, kinds: Iterable[str]) -> None:
        for kind in kinds:
            if kind not in self._reported and len(self._reported) < MOST_KINDS:
                self._reported.add(kind)
                self._report(
                    f"midfold does not know messages of kind {kind}: they are sent as they are, and never folded"
                )

    def learn_refusal(self, history: FoldedHistory, error: Any) -> bool:
        """As `FoldedHistory.learn_refusal`, for every other history of the same model as well."""
        setup = history.conversation.setup
        if not history.learn_refusal(error):
            return False
        self._limits[setup.model or ""] = setup.window
        return True


def _tool_name(tool: Any) -> Any:
    if not isinstance(tool, Mapping):
        return getattr(tool, "name", None)
    function = tool.get("function")
    return (function if isinstance(function, Mapping) else tool).get("name")


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
        self.wires, self.dialect = _without_halves(wires), dialect
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
    def note(self) -> str:
        """What a fold has added at the end of the system prompt; nothing where that is as it was."""
        given, now = self.conversation.setup.system, self.system
        return now.removeprefix(given).lstrip("\n") if isinstance(given, str) and now != given else ""

    @property
    def originals(self) -> dict[str, list[Any]]:
        """What was folded away, by handle: of the fold that is believed, and of all before it."""
        folded: dict[str, list[Piece]] = self._plan.get("folded", {})
        return {handle: [self._wire(piece) for piece in pieces] for handle, pieces in folded.items()}

    def select(self, messages: Sequence[Any], write: Callable[[dict[str, Any]], Any] = lambda wire: wire) -> list[Any]:
        """What to send: the very objects of what stays, and what stands for others as `write` makes it."""
        return [messages[piece] if isinstance(piece, int) else write(piece) for piece in self.pieces]

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

    def learn_refusal(self, error: Any) -> bool:
        """Whether a provider's refusal told a smaller window than was believed: then fold by force and send again.

        What it merely repeats of the conversation tells nothing.
        """
        errors = error.exceptions if isinstance(error, BaseExceptionGroup) else [error]
        named = [text for text in map(str, errors) if learn_limit(text) is not None]
        if not named:
            return False
        said = _essence(json.dumps(self.wires, ensure_ascii=False, default=repr).replace("\\n", " "))
        limits = [learn_limit(text, is_quoted=lambda phrase: _essence(phrase) in said) for text in named]
        return self.conversation.setup.correct_window(min(filter(None, limits), default=None))

    def answer(self, name: str, arguments: Any) -> ToolAnswer:
        """The answer to a call of a recall tool."""
        return answer_recall(name, arguments, self.originals, self.threshold, self.dialect)

    def observe(self, usage: Any) -> None:
        """What the provider counted for what was sent."""
        self.conversation.observe(usage)

    def observe_tokens(self, prompt: int | None, output: int | None, cached: int | None) -> None:
        """The same of a framework that counts in its own words; without a prompt nothing was counted."""
        if prompt:
            counts = {"prompt_tokens": prompt, "completion_tokens": output or 0}
            self.observe({**counts, "prompt_tokens_details": {"cached_tokens": cached or 0}})

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


class RunningHistories(OrderedDict[str, FoldedHistory]):
    """Histories whose answers are awaited. Who cancels a call tells nobody: only the newest are kept."""

    def __setitem__(self, key: str, history: FoldedHistory) -> None:
        super().__setitem__(key, history)
        if len(self) > MOST_RUNNING:
            self.popitem(last=False)


def _essence(text: str) -> str:
    """Letters and digits: escapes, line breaks and quotes are not what was said."""
    return "".join(filter(str.isalnum, text.lower()))


def _pair_ids(wire: Mapping[str, Any] | None) -> tuple[set[Any], set[Any]]:
    """The calls that a message makes and those that it answers, by id."""
    if wire is None:
        return set(), set()
    content, kind = wire.get("content"), str(wire.get("type") or wire.get("role"))
    blocks = [block for block in content if isinstance(block, Mapping)] if isinstance(content, list) else []
    calls = {call.get("id") for call in wire.get("tool_calls") or ()}
    calls |= {block.get("id") for block in blocks if block.get("type") == "tool_use"}
    results = {block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"}
    calls |= {wire["call_id"]} if kind.endswith("_call") and "call_id" in wire else set()
    answered = wire.get("call_id") if kind.endswith("_output") else wire.get("tool_call_id")
    return calls, results if answered is None else {*results, answered}


def _without_halves(wires: Sequence[dict[str, Any] | None]) -> Sequence[dict[str, Any] | None]:
    """A call whose result is in a message of unknown kind, and a result whose call is, are not read either."""
    out, known = list(wires), -1
    while None in out and out.count(None) != known:
        known, pairs = out.count(None), [_pair_ids(wire) for wire in out]
        last = max(place for place, wire in enumerate(out) if wire is None)
        made = set().union(*(calls for calls, _ in pairs))
        answered = set().union(*(results for _, results in pairs))
        for place, (calls, results) in enumerate(pairs):
            if results - made or (place < last and calls - answered):
                out[place] = None
    return wires if list(wires) == out else out


def _is_result(wire: Mapping[str, Any] | None) -> bool:
    return bool(_pair_ids(wire)[1])


def answer_recall(
    name: str,
    arguments: Any,
    originals: Mapping[str, Any] | None = None,
    threshold: int | None = None,
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
    return InMemorySource(archive).recall(redact_text, bounds, time.monotonic).run(name, arguments)
