"""The engine as Hermes sees it: every method and attribute of its interface, over one `EngineHost`.

Rules of this file (hermes-agent 0.19):
1. `compress` is called when Hermes has decided; a refusal there would leave a request that the provider rejected as it
   was. Only a cooldown, compactions that did not help, and a configuration that says no refuse.
2. What `compress` returns is written to Hermes' store by marks that it puts on the messages: kept messages leave as
   copies without such a mark. Nothing else about them changes, and generated messages have role and content only.
3. A session that Hermes splits while compacting goes on; any other session starts with nothing of the one before.
"""

from __future__ import annotations

import copy
import importlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import midfold
from midfold.adapters.hermes.gauge import HermesNumbers
from midfold.adapters.hermes.memory import SessionArchives, memory_lines, notes_of, with_memory
from midfold.adapters.hermes.summarizer import Call, hermes_call, summarize_with
from midfold.errors import ConfigError, SummaryFailed
from midfold.fold.handoff import generated_messages, newest_handoff
from midfold.fold.receipt import KEEPS_HISTORY
from midfold.fold.redact import redact
from midfold.fold.request import SummaryAnswer, SummaryAsk
from midfold.host import EngineHost
from midfold.model import local_summarizer
from midfold.recall import NOTHING_FOLDED, TOOLS, AnswerBounds, Memory
from midfold.transcript.document import read
from midfold.transcript.jsonio import text_of
from midfold.transcript.message import Message
from midfold.transcript.tokens import estimate_text

if TYPE_CHECKING:
    from midfold.config import Config

NAME = "midfold"
STORED = "_db_persisted"
"""Hermes' mark on a message that its store has."""
TODO_FLAG, TODO_TEXT = "_todo_snapshot_synthetic", "[Your active task list was preserved"
"""Hermes' task list, appended by it anew after every compaction."""

_log = logging.getLogger("midfold.hermes")


class HermesEngine(HermesNumbers):
    """One conversation of a Hermes agent. `engine_class` adds Hermes' own base class where Hermes is present."""

    name = NAME
    protect_first_n = 2

    def __init__(
        self,
        *,
        config: Config | None = None,
        call: Call | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._call = call
        self._clock = clock
        settings = _configuration() if config is None else config
        self._host = EngineHost(config=settings, summarizer=self._summarize, clock=clock)
        # Hermes asks for an engine's tools once, when an agent is made, and counts them itself.
        self._host.conversation.setup.has_unfold_tool = True
        self.quiet_mode = True
        self._session_id = ""
        self._shelf: SessionArchives | None = None
        self._loaded = False
        self._forget()

    def __deepcopy__(self, memo: dict[int, Any]) -> HermesEngine:
        """Hermes copies a registered engine for each agent: the settings, nothing of the session."""
        fresh = type(self)(config=self._host.config, call=self._call, clock=self._clock)
        fresh.update_model(self.model, self.context_length, self.base_url, self.api_key, self.provider, self.api_mode)
        return fresh

    def _forget(self) -> None:
        self._host.reset()
        self._memory = ""
        self._forget_numbers()

    def has_content_to_compress(self, messages: list[dict[str, Any]]) -> bool:
        return bool(messages) and self._host.has_content_to_compress(list(messages))

    def compress(
        self,
        messages: list[dict[str, Any]],
        current_tokens: int | None = None,
        focus_topic: str | None = None,
        force: bool = False,
        memory_context: str = "",
    ) -> list[dict[str, Any]]:
        """The shorter list, or the very list that was given if there was nothing to do."""
        self._clear_verdict()
        self._load()
        tokens = current_tokens if isinstance(current_tokens, int) and current_tokens > 0 else None
        given = without_task_lists(messages)
        self._host.conversation.sync(given)
        if not messages or not (force or self._may_act()):
            return messages
        self._memory = str(memory_context or "")
        before = set(self._host.archive)
        try:
            result = self._host.compress(given, tokens, focus_topic or None, force=force or not self._is_hard(tokens))
        finally:
            self._memory = ""
        if result is given:
            self._note_nothing_done()
            return messages
        self._note_done(len(messages) - len(result), before)
        return [_fresh(message) for message in result]

    def _may_act(self) -> bool:
        """Hermes has decided that the window is full; strikes, a pause and the settings may still refuse."""
        return self._host.should_compress(self.context_length)

    def _automatic_compression_blocked(self) -> bool:
        """Hermes asks this before it compacts by itself."""
        return not self._may_act()

    def _is_hard(self, tokens: int | None) -> bool:
        """Whether the host acts by itself at this size; without a size it estimates, and Hermes has decided."""
        return tokens is not None and self._host.should_compress(tokens)

    def _note_nothing_done(self) -> None:
        receipt = self._host.last
        if receipt is not None and receipt.status == "aborted":
            self._last_compress_aborted = True
            self._last_summary_error = self._last_summary_error or receipt.reason
            self._keep({})

    def _note_done(self, dropped: int, before: set[str]) -> None:
        self.compression_count += 1
        self._last_compression_made_progress = True
        self._last_summary_dropped_count = max(dropped, 0)
        self._keep({handle: kept for handle, kept in self._host.archive.items() if handle not in before})

    def _keep(self, new: Mapping[str, tuple[Message, ...]]) -> None:
        """Originals, and what must be known after a restart: a pause after a failure is part of it."""
        if self._shelf is None or not self._session_id:
            return
        try:
            self._shelf.keep(self._session_id, new, {**self._host.export(), "archive": {}})
        except OSError as error:
            _log.warning("midfold: the originals of this fold stay in memory only: %s", error.strerror)

    def _summarize(self, ask: SummaryAsk) -> SummaryAnswer:
        lines = memory_lines(self._memory, ask.redact, ask.budget_tokens) or notes_of(ask.previous)
        spent = sum(estimate_text(line) + 1 for line in lines)
        answer = self._ask_model(msgspec.structs.replace(ask, budget_tokens=max(ask.budget_tokens - spent, 1)))
        return msgspec.structs.replace(answer, text=with_memory(answer.text, lines) if answer.text else "")

    def _ask_model(self, ask: SummaryAsk) -> SummaryAnswer:
        call = self._call or hermes_call()
        if call is None:
            return local_summarizer(ask)
        keys = ("model", "provider", "base_url", "api_key", "api_mode")
        try:
            return summarize_with(call, ask, {key: getattr(self, key) for key in keys}, self.context_length)
        except SummaryFailed as failed:
            self._last_summary_error = f"the summary model failed ({failed.kind})"
            if failed.kind in KEEPS_HISTORY or not self._host.config.compression.lossy_fallback:
                return SummaryAnswer(failure=failed.kind, retry_after=failed.retry_after)
            self._last_summary_fallback_used = True
            return msgspec.structs.replace(local_summarizer(ask), failure=failed.kind, retry_after=failed.retry_after)

    # Sessions.

    def on_session_start(self, session_id: str, **context: Any) -> None:
        """A new session, the same one again, or the continuation of one that was just compacted."""
        home = context.get("hermes_home")
        if home:
            self._shelf = SessionArchives(Path(str(home)) / NAME)
        session_id = str(session_id or "")
        parent = str(context.get("old_session_id") or "")
        goes_on = context.get("boundary_reason") == "compression" or bool(context.get("carry_over_context"))
        if session_id and session_id != self._session_id:
            if goes_on and parent and parent != session_id:
                self._continue(session_id, parent)
            elif self._session_id:
                self._forget()
            self._session_id = session_id
            self._loaded = self._loaded and goes_on
        if isinstance(context.get("messages"), list):
            self.rehydrate(context["messages"])

    def _continue(self, session_id: str, parent: str) -> None:
        if self._shelf is not None:
            try:
                self._shelf.continues(session_id, parent)
            except OSError as error:
                _log.warning("midfold: the continuation of a session was not recorded: %s", error.strerror)

    def carry_over_new_session_context(self, old_session_id: str, new_session_id: str) -> None:
        """Hermes has told `on_session_start` already; what is kept was kept there."""

    def bind_session_state(self, session_db: Any = None, session_id: str = "") -> None:
        if session_id and session_id != self._session_id:
            self.on_session_start(session_id)

    def on_session_end(self, session_id: str, messages: list[dict[str, Any]]) -> None:
        """Everything is on the shelf already. What follows is told by `on_session_start` or `on_session_reset`."""

    def on_session_reset(self) -> None:
        self._forget()
        self._session_id = ""
        self._loaded = False

    def rehydrate(self, messages: list[dict[str, Any]]) -> None:
        """Takes up what the messages of a resumed session, and the shelf, know about earlier compactions."""
        self._load()
        found = newest_handoff(generated_messages(read(messages).messages))
        if found is not None and not found[1].is_foreign:
            state = self._host.state
            _, handoff = found
            folds = state.folds if handoff.fold in state.folds else (*state.folds, handoff.fold)
            self._host.state = msgspec.structs.replace(
                state, summary=handoff.body, folds=folds, count=max(state.count, 1), lineage=state.lineage or folds[0]
            )
            self.compression_count = max(self.compression_count, self._host.state.count)

    def _load(self) -> None:
        """The shelf is read when something needs it, once per session."""
        if self._loaded or self._shelf is None or not self._session_id:
            return
        self._loaded = True
        entries, state = self._shelf.load(self._session_id)
        known = dict(self._host.archive)
        if state and not self._host.state.count:
            try:
                self._host.restore({**state, "context_length": self._host.conversation.setup.context_length})
            except msgspec.ValidationError:
                _log.warning("midfold: the stored state of this session cannot be read and was left out")
        self._host.archive = entries | self._host.archive | known
        self.compression_count = max(self.compression_count, self._host.state.count)

    # Tools and status.

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return [copy.deepcopy(tool.definition("openai-chat")["function"]) for tool in TOOLS]

    def handle_tool_call(self, name: str, args: dict[str, Any], **context: Any) -> str:
        """What the tool says, as the JSON that Hermes wants: a `result` or an `error`."""
        self._load()
        if not self._host.archive:
            return text_of({"result": NOTHING_FOLDED})
        setup = self._host.conversation.setup
        recall = Memory(self._host.archive).recall(
            setup.redactor or redact, AnswerBounds.of(setup.budget.threshold_tokens)
        )
        answer = recall.run(name, args)
        return text_of({"error" if answer.is_error else "result": answer.text})

    def is_available(self) -> bool:
        return True

    def get_status(self) -> dict[str, Any]:
        last = max(self.last_prompt_tokens, 0)
        receipt = self._host.last
        return {
            "engine": NAME,
            "last_prompt_tokens": last,
            "last_completion_tokens": self.last_completion_tokens,
            "last_total_tokens": self.last_total_tokens,
            "threshold_tokens": self.threshold_tokens,
            "threshold_percent": self.threshold_percent,
            "context_length": self.context_length,
            "effective_input_window": self._host.budget.effective_input_window,
            "usage_percent": min(100.0, last / self.context_length * 100) if self.context_length else 0,
            "compression_count": self.compression_count,
            "ineffective_compressions": self._ineffective_compression_count,
            "handles": len(self._host.archive),
            "last_status": receipt.status if receipt else "",
            "last_reason": receipt.reason if receipt else "",
        }


def without_task_lists(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages less task lists that Hermes appended: it will append the current one, and none is a user's ask."""
    kept: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        after = messages[index + 1] if index + 1 < len(messages) else None
        if _is_task_list(message) and not (kept and after and _role(kept[-1]) == _role(after) != "tool"):
            continue
        kept.append(message)
    return kept or messages


def _is_task_list(message: Any) -> bool:
    if not isinstance(message, dict) or message.get("role") != "user":
        return False
    content = message.get("content")
    return bool(message.get(TODO_FLAG)) or (isinstance(content, str) and content.startswith(TODO_TEXT))


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _fresh(message: Any) -> Any:
    return {key: value for key, value in message.items() if key != STORED} if isinstance(message, dict) else message


def _configuration() -> Config:
    from midfold.config import Config, load

    try:
        return load().config
    except ConfigError as error:
        _log.warning("midfold: the configuration is not valid, defaults are used: %s", error)
        return Config()


def engine_class() -> type[HermesEngine]:
    """The engine as a subclass of Hermes' own base class; the plain class where there is no Hermes."""
    try:
        base = getattr(importlib.import_module("agent.context_engine"), "ContextEngine", None)
    except ImportError:
        base = None
    if not isinstance(base, type):
        return HermesEngine
    return type("MidfoldContextEngine", (HermesEngine, base), {"__doc__": HermesEngine.__doc__, "__module__": __name__})


def create_engine(**settings: Any) -> HermesEngine:
    """An engine for one agent, with midfold's own configuration unless another is given."""
    return engine_class()(**settings)


# Writes the folder that Hermes' plugin loader looks for. It holds a few lines that import midfold, and no code.

MODULE = '''"""midfold as a context engine; written by `python -m midfold.adapters.hermes install`."""

from midfold.adapters.hermes import register

__all__ = ["register"]
'''
MANIFEST = """name: {name}
version: {version}
description: "midfold: folds the middle of a conversation, keeps every original within reach of a tool."
"""


def install(plugins_dir: str | os.PathLike[str]) -> Path:
    """Makes `<plugins_dir>/midfold/`, or brings it up to date; returns it."""
    folder = Path(plugins_dir) / NAME
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").write_text(MODULE, encoding="utf-8")
    (folder / "plugin.yaml").write_text(MANIFEST.format(name=NAME, version=midfold.__version__), encoding="utf-8")
    return folder
