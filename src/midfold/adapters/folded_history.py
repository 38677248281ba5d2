"""Compact a framework's history; shared by the framework adapters.

A framework keeps the full history and passes all of it with every call. What midfold keeps between two calls is plain
JSON, stored in the framework's state: the view (indexes into the history, and generated messages as values), the
originals behind each handle (the same way), and learned values such as measured sizes. It is used only if the history
still starts with the same messages; otherwise the history is compacted from scratch.
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
"""Index of a message in the history, or a generated message."""

RECALL_TOOLS = Recall.tools
THRESHOLD = "threshold"
RECALL_NAMES = frozenset(spec.name for spec in RECALL_TOOLS)
MOST_KINDS = 100
"""Maximum number of unknown message kinds that are reported; in a proxy, clients can invent any number of them."""
MOST_RUNNING = 256
log_report: Report = logging.getLogger("midfold.adapters").warning


def type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


class WindowSettings(TypedDict, total=False):
    """Keyword arguments of every adapter, documented in `Histories`."""

    context_length: int | None
    config: Config | None
    protection: Protection | None
    report: Report


class HistorySettings(WindowSettings, total=False):
    """Keyword arguments of adapters that accept a summarizer object."""

    summarizer: Summarizer | None


class Histories:
    """Compaction settings of an adapter, shared by all of its calls.

    `context_length` is required if midfold does not know the model's window. Without a `summarizer`, `config` selects
    one; without that, summaries are made locally without an LLM. `report` receives warnings; by default they are
    logged.
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
        """Open the history of one call; report each unknown message `kind` (a message without a wire) once.

        `tools` may be definitions in the dialect. `window` is the context window according to the framework. Recall
        tools are counted if they are among `tools`, unless `recall` says otherwise.
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
                self._report(f"unknown message kind {kind}: such messages are sent unchanged and never compacted")

    def learn_refusal(self, history: FoldedHistory, error: Any) -> bool:
        """Learn from a refusal like `FoldedHistory.learn_refusal`, for later histories of the same model, too."""
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
    """History of one call. `wires` has a plain message for each framework message, or None if its kind is unknown.

    `pieces` is what to send. It always includes messages of unknown kind, which midfold does not read. `recall` says
    when the model has the recall tools: never, always, or after the first compaction.
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
        """Tokens at which the conversation is compacted; recall results may take a share of it."""
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
        """The system prompt, including the note that a compaction added."""
        return self.conversation.view().system

    @property
    def note(self) -> str:
        """The text that a compaction appended to the system prompt, or an empty string."""
        given, now = self.conversation.setup.system, self.system
        return now.removeprefix(given).lstrip("\n") if isinstance(given, str) and now != given else ""

    @property
    def originals(self) -> dict[str, list[Any]]:
        """The folded messages by handle, of the current and all earlier compactions."""
        folded: dict[str, list[Piece]] = self._plan.get("folded", {})
        return {handle: [self._wire(piece) for piece in pieces] for handle, pieces in folded.items()}

    def select(self, messages: Sequence[Any], write: Callable[[dict[str, Any]], Any] = lambda wire: wire) -> list[Any]:
        """Return the messages to send: kept messages as the same objects, generated ones converted by `write`."""
        return [messages[piece] if isinstance(piece, int) else write(piece) for piece in self.pieces]

    def fold(self, *, force: bool = False) -> Receipt | None:
        """Compact if due, or always with `force` (after a refusal); return the receipt if one was made."""
        if not force and not self.conversation.should_compact():
            return None
        return self._settle(self.conversation.compact(force=force, overflowed=force).changed)

    async def fold_async(self, *, force: bool = False) -> Receipt | None:
        """Compact like `fold`, asynchronously."""
        if not force and not self.conversation.should_compact():
            return None
        return self._settle((await self.conversation.compact_async(force=force, overflowed=force)).changed)

    def learn_refusal(self, error: Any) -> bool:
        """Return whether a refusal names a smaller window than assumed; if so, compact with `force` and retry.

        Limits that only appear because the error quotes the conversation are ignored.
        """
        errors = error.exceptions if isinstance(error, BaseExceptionGroup) else [error]
        named = [text for text in map(str, errors) if learn_limit(text) is not None]
        if not named:
            return False
        said = _essence(json.dumps(self.wires, ensure_ascii=False, default=repr).replace("\\n", " "))
        limits = [learn_limit(text, is_quoted=lambda phrase: _essence(phrase) in said) for text in named]
        return self.conversation.setup.correct_window(min(filter(None, limits), default=None))

    def answer(self, name: str, arguments: Any) -> ToolAnswer:
        """Answer a call of a recall tool."""
        return answer_recall(name, arguments, self.originals, self.threshold, self.dialect)

    def observe(self, usage: Any) -> None:
        """Record the usage that the provider reported for the messages sent."""
        self.conversation.observe(usage)

    def observe_tokens(self, prompt: int | None, output: int | None, cached: int | None) -> None:
        """Record usage given as plain numbers; do nothing without a prompt count."""
        if prompt:
            counts = {"prompt_tokens": prompt, "completion_tokens": output or 0}
            self.observe({**counts, "prompt_tokens_details": {"cached_tokens": cached or 0}})

    def keep(self) -> dict[str, Any]:
        """Return the state to pass to the next call; it survives a JSON round trip unchanged."""
        memory = json.loads(json.dumps({**self.conversation.save(), "archive": {}}))
        threshold = self.conversation.setup.budget.threshold_tokens
        return {"plan": self._plan, "given": self._given, "memory": memory, THRESHOLD: threshold}

    def _memory(self, kept: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parts of the stored state that apply to this call.

        Measurements under another model or window are dropped. If the stored compaction no longer matches the history,
        only the summarizer's failure and cooldown are kept.
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
        """Insert messages of unknown kind at their old places, but never between a call and its result."""
        for index in (number for number, wire in enumerate(self.wires) if wire is None):
            after = (
                place
                for place, piece in enumerate(view)
                if isinstance(piece, int) and piece > index and not _is_result(self.wires[piece])
            )
            view.insert(next(after, len(view)), index)
        return view


class RunningHistories(OrderedDict[str, FoldedHistory]):
    """Histories of calls in flight. Cancelled calls are not reported, so only the newest are kept."""

    def __setitem__(self, key: str, history: FoldedHistory) -> None:
        super().__setitem__(key, history)
        if len(self) > MOST_RUNNING:
            self.popitem(last=False)


def _essence(text: str) -> str:
    """Reduce a text to lowercase letters and digits, to compare it regardless of escapes, line breaks and quotes."""
    return "".join(filter(str.isalnum, text.lower()))


def _pair_ids(wire: Mapping[str, Any] | None) -> tuple[set[Any], set[Any]]:
    """Return the ids of the calls a message makes and of the calls it answers."""
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
    """Treat a call as unknown if its result is in a message of unknown kind, and vice versa."""
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
    """Answer a call of a recall tool from the stored originals; `arguments` may be JSON text.

    The size limit of the answer follows from `threshold`, the tokens at which the conversation is compacted.
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
