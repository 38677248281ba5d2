"""midfold keeps an LLM agent's conversation inside its context window without losing the thread.

document = midfold.read(source)       # bytes, a list of messages, or a request body in any of three shapes
midfold.write(document)               # exactly what came in
midfold.Meter().count(document.messages)
midfold.compact(messages).messages    # the middle folded, if it was time
midfold.open("sqlite:///sessions.db") # sessions that last

The table below is the public face: every name, and where it lives. `tools/gen_python_doc.py` makes of it what type
checkers read (`__init__.pyi`) and docs/reference/python.md. A module is imported when one of its names is first used.
"""

from __future__ import annotations

__version__ = "0.1.0"

_MODULES = {
    "api": "Compaction compact",
    "background": "BackgroundCompaction",
    "cache": "PromptCacheHint",
    "cache.break_even": "break_even",
    "cache.health": "Health TurnHealth=Turn",
    "config": """
        AuxiliarySettings=Auxiliary CompressionSettings=Compression Config ContextSettings=Context LoadedConfig=Loaded
        ModelSettings PromptCachingSettings=PromptCaching ProviderSettings=Provider load_config=load
        SummaryModelSettings=AuxiliaryTask
    """,
    "config.schema": """
        AgentSettings GatewaySettings=Gateway KeySettings=Key StoreSettings=Store UpstreamSettings=Upstream
    """,
    "core.archive": "Archive",
    "core.boundary": "Protection select_tail_by_budget",
    "core.budget": "Budget Pressure effective_input_window threshold_tokens",
    "core.compaction": """
        CompactionRequest CompactionState Flow Options Outcome PrefixRequest Redactor SummaryAnswer SummaryAsk
    """,
    "core.digest": "Action describe digest register_digest shrink_arguments shrink_json_string_leaves",
    "core.digest.registry": "DigestFunction",
    "core.estimate": "estimate_text",
    "core.handoff": "Handoff=Generated Keeper",
    "core.message": """
        Media Message Opaque Part Problem Role Text Thinking Tool ToolCall ToolResult Transcript
    """,
    "core.recall": "Window",
    "core.redact": "is_sensitive_key redact redact_value",
    "core.report": "Boundary DigestFacts=Digest Receipt SummaryFacts",
    "core.sanitize": "Repair",
    "core.timing": "Timing",
    "core.tokens": "Count Meter TokenCounter",
    "core.usage": "Usage read_usage",
    "engines": "Compressor ContextEngine Noop ToolSpec",
    "errors": """
        ConfigError FailureKind LeaseLost MalformedTranscript MidfoldError MissingExtra ModelFailed NotStored
        PluginError SchemaError StoreConflict StoreDamaged StoreError StoreUnavailable SummaryFailed ToolRefused
        TranscriptError UpstreamError
    """,
    "host": "EngineHost",
    "live": "Draft",
    "models": "Belief Model ModelOverride learn_limit look_up_model=look_up",
    "partial": "Preview preview rejoin split_for_partial_compaction",
    "plugins": """
        EngineInfo EngineOrFactory Registrar ResolvedEngine=Resolved list_engines register_context_engine resolve_engine
    """,
    "service": "Sessions open=open_sessions",
    "session": "Compacted Session Sync",
    "store": "CompactionLease Lease",
    "store.leases": "Renewal held",
    "store.prefixes": "Prefix",
    "store.protocol": "Record SessionInfo",
    "store.ranking": "Hit",
    "store.views": "View",
    "stored_host": "StoredHost",
    "summarize": "Summarizer drive local_summarizer",
    "summarize.client": "ModelSummarizer",
    "summarize.endpoint": "Endpoint",
    "summarize.flow": "SummaryProgress=Progress",
    "tokenizers": "Tokenizer",
    "wire": "Document read read_many write",
    "wire.dialect": "Dialect",
    "wire.markers": "mark",
}
"""Module -> names; `open=open_sessions` is `open` here and `open_sessions` there."""
_HOMES = {
    name.partition("=")[0]: (module, name.rpartition("=")[2])
    for module, names in _MODULES.items()
    for name in names.split()
}
__all__ = list(_HOMES)
__all__ += ["__version__"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'midfold' has no attribute {name!r}")
    import importlib

    module, attribute = _HOMES[name]
    value: object = getattr(importlib.import_module(f"midfold.{module}"), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
