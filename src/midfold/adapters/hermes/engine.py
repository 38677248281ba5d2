"""Hermes' context engine interface, over one conversation in memory.

For hermes-agent 0.19:
1. Hermes calls `compress` after it has decided; refusing would leave a request that the provider rejected unchanged.
   Only a cooldown, ineffective compactions and a disabled configuration refuse.
2. Hermes stores the result of `compress` by marks that it puts on messages, so kept messages are returned as copies
   without that mark and are otherwise unchanged. Generated messages have only role and content.
"""

from __future__ import annotations

import copy
import json
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from midfold import (
    Config,
    ConfigError,
    MemoryConversation,
    Setup,
    SummaryAnswer,
    SummaryRequest,
    estimate_text,
    load_config,
    local_summarizer,
)
from midfold.adapters.hermes.model_summary import Call, hermes_call, memory_lines, notes_of, summarize_with, with_memory
from midfold.adapters.hermes.storage import HermesSessions
from midfold.types import Recall

NAME = "midfold"
STORED = "_db_persisted"
"""Hermes' mark on a message that is in its store."""
TODO_FLAG, TODO_TEXT = "_todo_snapshot_synthetic", "[Your active task list was preserved"
"""Marks of Hermes' task list, which it appends again after every compaction."""
RUNTIME = ("model", "provider", "base_url", "api_key", "api_mode")

_log = logging.getLogger("midfold.hermes")


class HermesEngine(HermesSessions):
    """Engine for one conversation of a Hermes agent; `engine_class` adds Hermes' base class if Hermes is installed."""

    name = NAME
    protect_first_n = 2
    quiet_mode = True
    _memory = ""

    def __init__(
        self,
        *,
        config: Config | None = None,
        call: Call | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._call, self._clock = call, clock
        settings = _configuration() if config is None else config
        self._conversation = MemoryConversation(Setup(config=settings, summarizer=self._summarize, clock=clock))
        # Hermes asks for an engine's tools once, when it creates an agent, and counts them itself.
        self._setup.has_unfold_tool = True
        self._forget()

    def __deepcopy__(self, memo: dict[int, Any]) -> HermesEngine:
        """Copy the settings without the session; Hermes copies a registered engine for each agent."""
        fresh = type(self)(config=self._setup.config, call=self._call, clock=self._clock)
        fresh.update_model(self.model, self.context_length, self.base_url, self.api_key, self.provider, self.api_mode)
        return fresh

    def has_content_to_compress(self, messages: list[dict[str, Any]]) -> bool:
        return bool(messages) and self._conversation.has_content(list(messages))

    def compress(
        self,
        messages: list[dict[str, Any]],
        current_tokens: int | None = None,
        focus_topic: str | None = None,
        force: bool = False,
        memory_context: str = "",
    ) -> list[dict[str, Any]]:
        """Return the compacted list, or the given list itself if nothing was done."""
        self._clear_verdict()
        self._load()
        conversation = self._conversation
        conversation.sync(without_task_lists(messages))
        if not messages or (not force and self._automatic_compression_blocked()):
            return messages
        tokens = current_tokens if isinstance(current_tokens, int) and current_tokens > 0 else None
        # Hermes has decided, even if midfold would wait or has no reported size.
        force = force or tokens is None or not conversation.should_compact(tokens)
        self._memory, known = str(memory_context or ""), set(conversation.archive)
        try:
            done = conversation.compact(prompt_tokens=tokens, focus=focus_topic or None, force=force)
        finally:
            self._memory = ""
        receipt = done.receipt
        self._last_compress_aborted = receipt.status == "aborted"
        if receipt.summary.failure:
            self._last_summary_error = f"the summary model failed ({receipt.summary.failure})"
        elif self._last_compress_aborted:
            self._last_summary_error = receipt.reason
        if done.changed or self._last_compress_aborted:
            self._keep(known)
        if not done.changed:
            return messages
        result = [_fresh(message) for message in conversation.view().messages]
        self.compression_count += 1
        self._last_compression_made_progress = True
        self._last_summary_fallback_used = bool(receipt.summary.failure)
        self._last_summary_dropped_count = max(len(messages) - len(result), 0)
        return result

    def _automatic_compression_blocked(self) -> bool:
        """Return whether ineffective compactions, a cooldown or the settings block an automatic compaction."""
        return not self._conversation.should_compact(self.context_length)

    def _summarize(self, ask: SummaryRequest) -> SummaryAnswer:
        lines = memory_lines(self._memory, ask.redact, ask.budget_tokens) or notes_of(ask.previous)
        spent = sum(estimate_text(line) + 1 for line in lines)
        ask = msgspec.structs.replace(ask, budget_tokens=max(ask.budget_tokens - spent, 1))
        call = self._call or hermes_call()
        try:
            if call is None:
                answer = local_summarizer(ask)
            else:
                runtime = {key: getattr(self, key) for key in RUNTIME}
                answer = summarize_with(call, ask, runtime, self.context_length)
        except Exception as error:  # noqa: BLE001 - whatever a provider's SDK raises: notes of memory must not be lost
            answer = local_summarizer(ask, instead_of=error)
        return msgspec.structs.replace(answer, text=with_memory(answer.text, lines))

    # Tools and status

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return [copy.deepcopy(tool.definition("openai-chat")["function"]) for tool in Recall.tools]

    def handle_tool_call(self, name: str, args: dict[str, Any], **context: Any) -> str:
        """Run a tool and return its result as the JSON that Hermes expects: `result` or `error`."""
        self._load()
        answer = self._conversation.recall().run(name, args)
        output = json.dumps({"error" if answer.is_error else "result": answer.text}, ensure_ascii=False)
        return output.encode("utf-8", "backslashreplace").decode()  # lone surrogates are written as JSON escapes

    def is_available(self) -> bool:
        return True

    def get_status(self) -> dict[str, Any]:
        last = max(self.last_prompt_tokens, 0)
        receipt = self._conversation.last
        return {
            "engine": NAME,
            "last_prompt_tokens": last,
            "last_completion_tokens": self.last_completion_tokens,
            "last_total_tokens": self.last_total_tokens,
            "threshold_tokens": self.threshold_tokens,
            "threshold_percent": self.threshold_percent,
            "context_length": self.context_length,
            "effective_input_window": self._setup.budget.effective_input_window,
            "usage_percent": min(100.0, last / self.context_length * 100) if self.context_length else 0,
            "compression_count": self.compression_count,
            "ineffective_compressions": self._ineffective_compression_count,
            "handles": len(self._conversation.archive),
            "last_status": receipt.status if receipt else "",
            "last_reason": receipt.reason if receipt else "",
        }


def without_task_lists(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages without task lists that Hermes appended; it will append the current one again."""
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
    try:
        return load_config().config
    except ConfigError as error:
        _log.warning("midfold: invalid configuration, using the defaults: %s", error)
        return Config()
