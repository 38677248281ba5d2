"""midfold keeps an LLM agent's conversation inside its context window without losing the thread.

document = midfold.read(source)       # bytes, a list of messages, or a request body in any of three shapes
midfold.write(document)               # exactly what came in
midfold.Meter().count(document.messages)
midfold.compact(messages).messages    # the middle folded, if it was time
midfold.open("sqlite:///sessions.db") # sessions that last
"""

from __future__ import annotations

from midfold import _moved

TYPE_CHECKING = False  # what type checkers read as true, without the cost of importing typing
if TYPE_CHECKING:
    from midfold.api import Compaction, compact
    from midfold.background import BackgroundCompaction
    from midfold.config import Config, load
    from midfold.errors import (
        ConfigError,
        LeaseLost,
        MalformedTranscript,
        MidfoldError,
        MissingExtra,
        PluginError,
        StoreError,
        SummaryFailed,
        TranscriptError,
    )
    from midfold.fold.boundary import Protection, select_tail_by_budget
    from midfold.fold.budget import Pressure, effective_input_window, threshold_tokens
    from midfold.fold.digest.digest import register_digest, shrink_json_string_leaves
    from midfold.fold.engine import ContextEngine
    from midfold.fold.partial import preview, rejoin, split_for_partial_compaction
    from midfold.fold.request import CompactionState, SummaryAnswer, SummaryAsk
    from midfold.host import EngineHost
    from midfold.models import look_up
    from midfold.plugins import register_context_engine
    from midfold.service import Sessions, open_sessions
    from midfold.session import Session
    from midfold.stored_host import StoredHost
    from midfold.transcript.document import Document, read, read_many, write
    from midfold.transcript.message import (
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
        Usage,
        read_usage,
    )
    from midfold.transcript.tokens import Count, Meter, TokenCounter

__version__ = "0.1.0"

__all__ = [
    "BackgroundCompaction",
    "Compaction",
    "CompactionState",
    "Config",
    "ConfigError",
    "ContextEngine",
    "Count",
    "Document",
    "EngineHost",
    "LeaseLost",
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
    "Session",
    "Sessions",
    "StoreError",
    "StoredHost",
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
    "open",
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

_HOMES = {
    "BackgroundCompaction": ("midfold.background", "BackgroundCompaction"),
    "Compaction": ("midfold.api", "Compaction"),
    "CompactionState": ("midfold.fold.request", "CompactionState"),
    "Config": ("midfold.config", "Config"),
    "ConfigError": ("midfold.errors", "ConfigError"),
    "ContextEngine": ("midfold.fold.engine", "ContextEngine"),
    "Count": ("midfold.transcript.tokens", "Count"),
    "Document": ("midfold.transcript.document", "Document"),
    "EngineHost": ("midfold.host", "EngineHost"),
    "LeaseLost": ("midfold.errors", "LeaseLost"),
    "MalformedTranscript": ("midfold.errors", "MalformedTranscript"),
    "Media": ("midfold.transcript.message", "Media"),
    "Message": ("midfold.transcript.message", "Message"),
    "Meter": ("midfold.transcript.tokens", "Meter"),
    "MidfoldError": ("midfold.errors", "MidfoldError"),
    "MissingExtra": ("midfold.errors", "MissingExtra"),
    "Opaque": ("midfold.transcript.message", "Opaque"),
    "Part": ("midfold.transcript.message", "Part"),
    "PluginError": ("midfold.errors", "PluginError"),
    "Pressure": ("midfold.fold.budget", "Pressure"),
    "Problem": ("midfold.transcript.message", "Problem"),
    "Protection": ("midfold.fold.boundary", "Protection"),
    "Session": ("midfold.session", "Session"),
    "Sessions": ("midfold.service", "Sessions"),
    "StoreError": ("midfold.errors", "StoreError"),
    "StoredHost": ("midfold.stored_host", "StoredHost"),
    "SummaryAnswer": ("midfold.fold.request", "SummaryAnswer"),
    "SummaryAsk": ("midfold.fold.request", "SummaryAsk"),
    "SummaryFailed": ("midfold.errors", "SummaryFailed"),
    "Text": ("midfold.transcript.message", "Text"),
    "Thinking": ("midfold.transcript.message", "Thinking"),
    "TokenCounter": ("midfold.transcript.tokens", "TokenCounter"),
    "Tool": ("midfold.transcript.message", "Tool"),
    "ToolCall": ("midfold.transcript.message", "ToolCall"),
    "ToolResult": ("midfold.transcript.message", "ToolResult"),
    "Transcript": ("midfold.transcript.message", "Transcript"),
    "TranscriptError": ("midfold.errors", "TranscriptError"),
    "Usage": ("midfold.transcript.message", "Usage"),
    "compact": ("midfold.api", "compact"),
    "effective_input_window": ("midfold.fold.budget", "effective_input_window"),
    "load_config": ("midfold.config", "load"),
    "look_up_model": ("midfold.models", "look_up"),
    "open": ("midfold.service", "open_sessions"),
    "preview": ("midfold.fold.partial", "preview"),
    "read": ("midfold.transcript.document", "read"),
    "read_many": ("midfold.transcript.document", "read_many"),
    "read_usage": ("midfold.transcript.message", "read_usage"),
    "register_context_engine": ("midfold.plugins", "register_context_engine"),
    "register_digest": ("midfold.fold.digest.digest", "register_digest"),
    "rejoin": ("midfold.fold.partial", "rejoin"),
    "select_tail_by_budget": ("midfold.fold.boundary", "select_tail_by_budget"),
    "shrink_json_string_leaves": ("midfold.fold.digest.digest", "shrink_json_string_leaves"),
    "split_for_partial_compaction": ("midfold.fold.partial", "split_for_partial_compaction"),
    "threshold_tokens": ("midfold.fold.budget", "threshold_tokens"),
    "write": ("midfold.transcript.document", "write"),
}
"""Where each name lives: its module is imported when the name is first used; importing midfold itself costs nothing."""

if TYPE_CHECKING:
    load_config = load
    look_up_model = look_up
    open = open_sessions  # noqa: A001 - midfold.open reads well; this module opens no file


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'midfold' has no attribute {name!r}")
    import importlib

    module, attribute = _HOMES[name]
    value: object = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


_moved.install()
