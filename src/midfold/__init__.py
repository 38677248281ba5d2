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
    "cache.health": "Health TurnHealth=Turn",
    "cache.markers": "PromptCacheHint mark",
    "cache.schedule": "break_even",
    "config": """
        AuxiliarySettings=Auxiliary CompressionSettings=Compression Config ContextSettings=Context LoadedConfig=Loaded
        PromptCachingSettings=PromptCaching ProviderSettings=Provider load_config=load
        SummaryModelSettings=AuxiliaryTask
    """,
    "config.schema": "AgentSettings GatewaySettings KeySettings=Key StoreSettings UpstreamSettings",
    "session.conversation": "CompactArguments Compacted Conversation MemoryConversation PreparedFold Sync",
    "decide": "Decision",
    "errors": """
        ConfigError FailureKind GatewayFull LeaseLost MalformedTranscript MidfoldError Misdirected MissingExtra
        ModelFailed ModelRequestFailed NotOwner NotStored PluginError RouteClosed SchemaError StoreConflict
        StoreDamaged StoreError StoreUnavailable SummaryFailed TooManyValues ToolRefused TranscriptError
        UnreadableEncoding UpstreamError
    """,
    "compaction.archive": "Archive",
    "compaction.boundary": "Protection select_tail_by_budget",
    "compaction.budget": "Budget Pressure effective_input_window threshold_tokens",
    "compaction.local": "Action describe digest register_digest shrink_arguments shrink_json_string_leaves",
    "compaction.local.digest": "DigestFunction",
    "engines": "Compressor ContextEngine Noop",
    "compaction.handoff": "Handoff=Generated Keeper bare_summary",
    "compaction.media": "MediaReducer",
    "compaction.omissions": "Omission Omissions",
    "compaction.local.overview": "artifacts_text asks_text trail_of",
    "compaction.partial": "Preview preview rejoin split_for_partial_compaction",
    "compaction.receipt": "Boundary DigestFacts=Digest OmittedWords RecallCost Receipt SummaryFacts Timing",
    "compaction.redact": "is_sensitive_key redact redact_value",
    "compaction.render": """
        render_content_search render_delegated_task render_file_read render_file_search render_process render_value
    """,
    "compaction.render_results": "render_result",
    "compaction.request": """
        CompactionRequest CompactionState Flow Options Outcome PrefixRequest Redactor SummaryAnswer SummaryRequest
    """,
    "compaction.tracking": "CheckRun FileRead GitState RunningTask TrackedFile Trail WorldAct",
    "compaction.user_record": "RecordText",
    "session.host": "EngineHost",
    "model.run": "Preparation Summarizer drive local_summarizer",
    "model.endpoint": "Endpoint",
    "model.summarizer": "ModelSummarizer SummaryProgress",
    "models": "Belief Model ModelOverride ModelSettings=ModelOverride learn_limit look_up_model=look_up",
    "plugins": """
        EngineInfo EngineOrFactory Registrar ResolvedEngine=Resolved list_engines register_context_engine resolve_engine
    """,
    "session.sessions": "ImportedLog Sessions open=open_sessions project_prefix",
    "session.session": "Session",
    "recall": "AnswerBounds Hit HitPart InMemorySource Recall ToolAnswer",
    "session.setup": "Setup",
    "store": "CompactionLease Lease",
    "store.leases": "Renewal held=hold_lease",
    "store.protocol": "Prefix Record=CompactionRecord SessionInfo View",
    "transcript.tokenizers": "Tokenizer",
    "transcript": "Document read read_many write",
    "transcript.breakdown": "ContextBreakdown ContextBucket ContextShare context_breakdown",
    "transcript.dialect": "Dialect",
    "transcript.repairs": "Repair",
    "transcript.message": """
        Media Message Opaque Part Problem Role Text Thinking Tool ToolCall ToolResult Transcript Usage read_usage
    """,
    "transcript.tools": "ToolSpec",
    "transcript.tokens": "Count Meter TokenCounter estimate_text",
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
