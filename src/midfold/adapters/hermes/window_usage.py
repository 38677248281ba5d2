"""Window usage of a Hermes conversation: the numbers that Hermes sets, reads and reports.

For hermes-agent 0.19:
1. Hermes sets `threshold_tokens`, `threshold_percent` and `context_length` from outside; derived numbers are updated.
2. Hermes sets `last_prompt_tokens` to -1 after a compaction, until a provider reports usage again. A response without
   usage ends the wait and says nothing about the size.
3. A compaction counts as effective only if the next reported prompt is below the threshold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from midfold import MemoryConversation, Setup


class HermesUsage:
    """Token counts and thresholds of one conversation."""

    _conversation: MemoryConversation
    model = base_url = api_key = provider = api_mode = ""
    max_tokens: int | None = None

    def _forget_numbers(self) -> None:
        self.last_prompt_tokens = self.last_completion_tokens = self.last_total_tokens = 0
        self.last_real_prompt_tokens = self.last_compression_rough_tokens = 0
        self.compression_count = 0
        self.awaiting_real_usage_after_compression = False
        self._rough_now = self._rough_measured = 0
        self._verify_compaction_cleared_threshold = False
        self._context_probed = self._context_probe_persistable = False
        self._clear_verdict()

    def _clear_verdict(self) -> None:
        """Reset the flags that Hermes reads about the last `compress`."""
        self._last_compression_made_progress = False
        self._last_compress_aborted = False
        self._last_summary_fallback_used = False
        self._last_summary_dropped_count = 0
        self._last_summary_error: str | None = None
        self._last_aux_model_failure_model: str | None = None
        self._last_aux_model_failure_error: str | None = None

    @property
    def _setup(self) -> Setup:
        return self._conversation.setup

    @property
    def context_length(self) -> int:
        return self._setup.window

    @context_length.setter
    def context_length(self, tokens: int) -> None:
        if tokens and tokens > 0 and tokens != self._setup.window:
            self._conversation.update_model(self._setup.model, tokens)

    @property
    def threshold_tokens(self) -> int:
        return self._setup.budget.threshold_tokens

    @threshold_tokens.setter
    def threshold_tokens(self, tokens: int) -> None:
        # Add half a token, because Hermes multiplies by the ratio and truncates.
        self.threshold_percent = (tokens + 0.5) / self._setup.budget.effective_input_window

    @property
    def threshold_percent(self) -> float:
        return self._setup.config.compression.threshold

    @threshold_percent.setter
    def threshold_percent(self, ratio: float) -> None:
        setup = self._setup
        compression = msgspec.structs.replace(setup.config.compression, threshold=min(max(ratio, 0.0), 1.0))
        setup.config = msgspec.structs.replace(setup.config, compression=compression)
        self._conversation.update_model(setup.model, setup.context_length)

    @property
    def protect_last_n(self) -> int:
        return self._setup.config.compression.protect_last_n

    @property
    def _ineffective_compression_count(self) -> int:
        return self._conversation.state.ineffective

    def update_model(
        self,
        model: str,
        context_length: int,
        base_url: str = "",
        api_key: str = "",
        provider: str = "",
        api_mode: str = "",
        max_tokens: int | None = None,
    ) -> None:
        """Switch to another model or window: recompute every number and forget failures of the old one."""
        self.model, self.base_url, self.api_key = model, base_url, api_key
        self.provider, self.api_mode = provider, api_mode
        self.max_tokens = max_tokens if max_tokens is not None else self.max_tokens
        self._setup.output_reservation = self.max_tokens
        self._conversation.update_model(model or None, _count(context_length) or None)
        self._clear_verdict()

    def update_from_response(self, usage: Mapping[str, Any] | None) -> None:
        """Record reported usage; a response without usage says nothing about the size."""
        given = usage or {}
        self.awaiting_real_usage_after_compression = False
        prompt = _count(given.get("prompt_tokens"))
        if prompt:
            self.last_prompt_tokens = self.last_real_prompt_tokens = prompt
            self.last_completion_tokens = _count(given.get("completion_tokens"))
            self.last_total_tokens = _count(given.get("total_tokens")) or prompt + self.last_completion_tokens
            self._rough_measured = self._rough_now
            self._judge(prompt)
        elif self.last_prompt_tokens < 0:
            self.last_prompt_tokens = 0
        self._verify_compaction_cleared_threshold = False

    def _judge(self, prompt: int) -> None:
        """Count a compaction as ineffective if the reported prompt is above the threshold, else reset the count."""
        if prompt < self.threshold_tokens:
            self._strike(0)
        elif self._verify_compaction_cleared_threshold:
            self._strike(self._conversation.state.ineffective + 1)

    def _strike(self, count: int) -> None:
        self._conversation.state = msgspec.structs.replace(self._conversation.state, ineffective=count)

    def record_completed_compaction(self, *, used_fallback: bool = False) -> None:
        """Note that Hermes has stored the result; the next reported usage decides whether it was effective."""
        self._verify_compaction_cleared_threshold = True

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        tokens = self.last_prompt_tokens if prompt_tokens is None else prompt_tokens
        return tokens > 0 and self._conversation.should_compact(tokens)

    def should_compress_preflight(self, messages: list[dict[str, Any]]) -> bool:
        """Return whether to compact before the first request, based on an estimate."""
        self._conversation.sync(messages)
        return self.should_compress(self._conversation.size.tokens)

    def should_defer_preflight_to_real_usage(self, rough_tokens: int) -> bool:
        """Return whether a rough estimate above the threshold is known to be too high, from the last reported usage."""
        self._rough_now = rough_tokens
        if rough_tokens < self.threshold_tokens:
            return False
        if self.awaiting_real_usage_after_compression:
            return True
        if not self.last_real_prompt_tokens or not self._rough_measured:
            return False
        grown = max(rough_tokens - self._rough_measured, 0)
        return self.last_real_prompt_tokens + grown < self.threshold_tokens

    def get_active_compression_failure_cooldown(self, *, refresh: bool = False) -> dict[str, Any] | None:
        """Return the cooldown of automatic compactions after a failure unrelated to the conversation, or None."""
        decision = self._conversation.decide(self.context_length)
        if decision.fold or not decision.pause:
            return None
        return {"remaining_seconds": decision.pause, "error": self._last_summary_error}


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
