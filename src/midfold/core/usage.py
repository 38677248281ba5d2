"""What a provider says a request cost, in one shape whatever the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from midfold.core.message import plain


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one request as the provider counted them. `prompt_tokens` is the whole prompt, cached or not."""

    prompt_tokens: int
    completion_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


def read_usage(value: Any) -> Usage | None:
    """Usage from an OpenAI chat, OpenAI Responses or Anthropic answer, or its `usage`; None if it has no prompt size.

    Anthropic's `input_tokens` is only the uncached rest; the prompt is that plus what was read from and written to the
    cache. A prompt of zero tokens does not exist: servers that do not count report it, and it is no measurement.
    """
    value = plain(value)
    if isinstance(value, Mapping) and "usage" in value:
        value = plain(value["usage"])
    if not isinstance(value, Mapping):
        return None
    read = _number(value, "cache_read_input_tokens") or _detail(value, "cached_tokens")
    written = _number(value, "cache_creation_input_tokens")
    if "prompt_tokens" in value:
        prompt = _number(value, "prompt_tokens")
    else:
        prompt = _number(value, "input_tokens")
        if "cache_read_input_tokens" in value or "cache_creation_input_tokens" in value:
            prompt += read + written
    if prompt <= 0:
        return None
    output = _number(value, "completion_tokens") or _number(value, "output_tokens")
    return Usage(prompt_tokens=prompt, completion_tokens=output, cache_read_tokens=read, cache_write_tokens=written)


def _detail(value: Mapping[str, Any], key: str) -> int:
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = value.get(name)
        if isinstance(details, Mapping):
            return _number(details, key)
    return _number(value, "prompt_cache_hit_tokens")


def _number(value: Mapping[str, Any], key: str) -> int:
    number = value.get(key)
    return max(number, 0) if isinstance(number, int) and not isinstance(number, bool) else 0
