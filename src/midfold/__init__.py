"""midfold keeps an LLM agent's conversation inside its context window without losing the thread.

document = midfold.read(source)       # bytes, a list of messages, or a request body in any of three shapes
midfold.write(document)               # exactly what came in
midfold.Meter().count(document.messages)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from midfold.core.message import (
    Media,
    Message,
    Opaque,
    Part,
    Problem,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Transcript,
)
from midfold.core.tokens import Count, Meter, TokenCounter
from midfold.core.usage import Usage, read_usage
from midfold.errors import (
    ConfigError,
    MalformedTranscript,
    MidfoldError,
    MissingExtra,
    PluginError,
    SummaryFailed,
    TranscriptError,
)
from midfold.wire import Document, read, read_many, write

if TYPE_CHECKING:
    from midfold.api import Compaction, compact
    from midfold.config import Config, load
    from midfold.core.boundary import Protection, select_tail_by_budget
    from midfold.core.budget import Pressure, effective_input_window, threshold_tokens
    from midfold.core.compaction import CompactionState, SummaryAnswer, SummaryAsk
    from midfold.core.digest import register_digest, shrink_json_string_leaves
    from midfold.engines import ContextEngine
    from midfold.host import EngineHost
    from midfold.models import look_up
    from midfold.partial import preview, rejoin, split_for_partial_compaction
    from midfold.plugins import register_context_engine

__version__ = "0.1.0"

__all__ = [
    "Compaction",
    "CompactionState",
    "Config",
    "ConfigError",
    "ContextEngine",
    "Count",
    "Document",
    "EngineHost",
    "MalformedTranscript",
    "Media",
    "Message",
    "Meter",
    "MidfoldError",
    "MissingExtra",
    "Opaque",
    "Part",
    "PluginError",
    "Pressure",
    "Problem",
    "Protection",
    "SummaryAnswer",
    "SummaryAsk",
    "SummaryFailed",
    "Text",
    "Thinking",
    "TokenCounter",
    "Tool",
    "ToolCall",
    "ToolResult",
    "Transcript",
    "TranscriptError",
    "Usage",
    "__version__",
    "compact",
    "effective_input_window",
    "load_config",
    "look_up_model",
    "preview",
    "read",
    "read_many",
    "read_usage",
    "register_context_engine",
    "register_digest",
    "rejoin",
    "select_tail_by_budget",
    "shrink_json_string_leaves",
    "split_for_partial_compaction",
    "threshold_tokens",
    "write",
]

_LATER = {
    "Protection": ("midfold.core.boundary", "Protection"),
    "register_digest": ("midfold.core.digest", "register_digest"),
    "select_tail_by_budget": ("midfold.core.boundary", "select_tail_by_budget"),
    "Pressure": ("midfold.core.budget", "Pressure"),
    "effective_input_window": ("midfold.core.budget", "effective_input_window"),
    "threshold_tokens": ("midfold.core.budget", "threshold_tokens"),
    "CompactionState": ("midfold.core.compaction", "CompactionState"),
    "SummaryAnswer": ("midfold.core.compaction", "SummaryAnswer"),
    "SummaryAsk": ("midfold.core.compaction", "SummaryAsk"),
    "Compaction": ("midfold.api", "Compaction"),
    "ContextEngine": ("midfold.engines", "ContextEngine"),
    "EngineHost": ("midfold.host", "EngineHost"),
    "compact": ("midfold.api", "compact"),
    "preview": ("midfold.partial", "preview"),
    "register_context_engine": ("midfold.plugins", "register_context_engine"),
    "rejoin": ("midfold.partial", "rejoin"),
    "shrink_json_string_leaves": ("midfold.core.digest", "shrink_json_string_leaves"),
    "split_for_partial_compaction": ("midfold.partial", "split_for_partial_compaction"),
    "Config": ("midfold.config", "Config"),
    "load_config": ("midfold.config", "load"),
    "look_up_model": ("midfold.models", "look_up"),
}
"""Names whose modules are imported when they are first used, so that importing midfold stays cheap."""

if TYPE_CHECKING:
    load_config = load
    look_up_model = look_up


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'midfold' has no attribute {name!r}")
    import importlib

    module, attribute = _LATER[name]
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
