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
from midfold.errors import ConfigError, MalformedTranscript, MidfoldError, MissingExtra, TranscriptError
from midfold.wire import Document, read, read_many, write

if TYPE_CHECKING:
    from midfold.config import Config, load
    from midfold.models import look_up

__version__ = "0.1.0"

__all__ = [
    "Config",
    "ConfigError",
    "Count",
    "Document",
    "MalformedTranscript",
    "Media",
    "Message",
    "Meter",
    "MidfoldError",
    "MissingExtra",
    "Opaque",
    "Part",
    "Problem",
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
    "load_config",
    "look_up_model",
    "read",
    "read_many",
    "read_usage",
    "write",
]

_LATER = {
    "Config": ("midfold.config", "Config"),
    "load_config": ("midfold.config", "load"),
    "look_up_model": ("midfold.models", "look_up"),
}
"""Names whose modules are imported when they are first used: configuration needs PyYAML, which costs time."""

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
