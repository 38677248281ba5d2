"""Keep an LLM agent's conversation inside its context window without losing the thread.

document = midfold.read(source)       # bytes, a list of messages, or a request body in any of three shapes
midfold.write(document)               # exactly what came in
midfold.Meter().count(document.messages)
midfold.compact(messages).messages    # compacted, if the threshold was reached
midfold.open("sqlite:///sessions.db") # durable sessions

The table below is the public API: every name and its module. `tools/gen_python_doc.py` generates `__init__.pyi` (for
type checkers) and docs/reference/python.md from it. A module is imported when one of its names is first used.
"""

from __future__ import annotations

__version__ = "0.2.0"

_MODULES = {
    "api": "Compaction compact",
    "cache.markers": "PromptCacheHint mark",
    "config": "Config load_config=load",
    "session.conversation": "Conversation MemoryConversation",
    "errors": "ConfigError MidfoldError MissingExtra PluginError StoreError SummaryFailed TranscriptError",
    "compaction.archive": "Archive",
    "compaction.boundary": "Protection select_tail_by_budget",
    "compaction.budget": "Budget Pressure effective_input_window threshold_tokens",
    "compaction.local": "describe digest register_digest shrink_arguments shrink_json_string_leaves",
    "engines": "Compressor ContextEngine Noop",
    "compaction.media": "MediaReducer",
    "compaction.local.overview": "artifacts_text asks_text trail_of",
    "compaction.partial": "preview rejoin split_for_partial_compaction",
    "compaction.receipt": "Receipt",
    "compaction.redact": "is_sensitive_key redact redact_value",
    "compaction.render": """
        render_content_search render_delegated_task render_file_read render_file_search render_process
        render_value
    """,
    "compaction.render_results": "render_result",
    "compaction.request": "CompactionRequest CompactionState Flow Outcome SummaryAnswer SummaryRequest",
    "session.host": "EngineHost",
    "model.run": "Summarizer drive local_summarizer",
    "model.endpoint": "Endpoint",
    "model.summarizer": "ModelSummarizer",
    "models": "ModelSettings=ModelOverride learn_limit look_up_model=look_up",
    "plugins": "list_engines register_context_engine resolve_engine",
    "session.sessions": "Sessions open=open_sessions",
    "session.session": "Session",
    "session.setup": "Setup",
    "transcript": "Document read read_many write",
    "transcript.breakdown": "context_breakdown",
    "transcript.message": "Media Message Text ToolCall ToolResult Usage",
    "transcript.tools": "ToolSpec",
    "transcript.tokens": "Meter estimate_text",
}
"""Module -> names; `open=open_sessions` is `open` here and `open_sessions` there."""
_HOMES = {
    name.partition("=")[0]: (module, name.rpartition("=")[2])
    for module, names in _MODULES.items()
    for name in names.split()
}
_SUBMODULES = ("config", "errors", "types")
"""Modules with further public names; they need no import of their own."""
__all__ = list(_HOMES)
__all__ += ["__version__"]


def __getattr__(name: str) -> object:
    import importlib

    if name in _SUBMODULES:
        return importlib.import_module(f"midfold.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'midfold' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    value: object = getattr(importlib.import_module(f"midfold.{module}"), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
