# Made by tools/gen_python_doc.py from the table in __init__.py. Do not edit.
from midfold.api import Compaction as Compaction, compact as compact
from midfold.cache.markers import PromptCacheHint as PromptCacheHint, mark as mark
from midfold.config import Config as Config, load as load_config
from midfold.session.conversation import Conversation as Conversation, MemoryConversation as MemoryConversation
from midfold.errors import ConfigError as ConfigError, MidfoldError as MidfoldError, MissingExtra as MissingExtra, PluginError as PluginError, StoreError as StoreError, SummaryFailed as SummaryFailed, TranscriptError as TranscriptError
from midfold.compaction.archive import Archive as Archive
from midfold.compaction.boundary import Protection as Protection, select_tail_by_budget as select_tail_by_budget
from midfold.compaction.budget import Budget as Budget, Pressure as Pressure, effective_input_window as effective_input_window, threshold_tokens as threshold_tokens
from midfold.compaction.local import describe as describe, digest as digest, register_digest as register_digest, shrink_arguments as shrink_arguments, shrink_json_string_leaves as shrink_json_string_leaves
from midfold.engines import Compressor as Compressor, ContextEngine as ContextEngine, Noop as Noop
from midfold.compaction.media import MediaReducer as MediaReducer
from midfold.compaction.local.overview import artifacts_text as artifacts_text, asks_text as asks_text, trail_of as trail_of
from midfold.compaction.partial import preview as preview, rejoin as rejoin, split_for_partial_compaction as split_for_partial_compaction
from midfold.compaction.receipt import Receipt as Receipt
from midfold.compaction.redact import is_sensitive_key as is_sensitive_key, redact as redact, redact_value as redact_value
from midfold.compaction.render import render_content_search as render_content_search, render_delegated_task as render_delegated_task, render_file_read as render_file_read, render_file_search as render_file_search, render_process as render_process, render_value as render_value
from midfold.compaction.render_results import render_result as render_result
from midfold.compaction.request import CompactionRequest as CompactionRequest, CompactionState as CompactionState, Flow as Flow, Outcome as Outcome, SummaryAnswer as SummaryAnswer, SummaryRequest as SummaryRequest
from midfold.session.host import EngineHost as EngineHost
from midfold.model.run import Summarizer as Summarizer, drive as drive, local_summarizer as local_summarizer
from midfold.model.endpoint import Endpoint as Endpoint
from midfold.model.summarizer import ModelSummarizer as ModelSummarizer
from midfold.models import ModelOverride as ModelSettings, learn_limit as learn_limit, look_up as look_up_model
from midfold.plugins import list_engines as list_engines, register_context_engine as register_context_engine, resolve_engine as resolve_engine
from midfold.session.sessions import Sessions as Sessions, open_sessions as open
from midfold.session.session import Session as Session
from midfold.session.setup import Setup as Setup
from midfold.transcript import Document as Document, read as read, read_many as read_many, write as write
from midfold.transcript.breakdown import context_breakdown as context_breakdown
from midfold.transcript.message import Media as Media, Message as Message, Text as Text, ToolCall as ToolCall, ToolResult as ToolResult, Usage as Usage
from midfold.transcript.tools import ToolSpec as ToolSpec
from midfold.transcript.tokens import Meter as Meter, estimate_text as estimate_text
from midfold import config as config, errors as errors, types as types

__version__: str

__all__ = [
    "Archive",
    "Budget",
    "Compaction",
    "CompactionRequest",
    "CompactionState",
    "Compressor",
    "Config",
    "ConfigError",
    "ContextEngine",
    "Conversation",
    "Document",
    "Endpoint",
    "EngineHost",
    "Flow",
    "Media",
    "MediaReducer",
    "MemoryConversation",
    "Message",
    "Meter",
    "MidfoldError",
    "MissingExtra",
    "ModelSettings",
    "ModelSummarizer",
    "Noop",
    "Outcome",
    "PluginError",
    "Pressure",
    "PromptCacheHint",
    "Protection",
    "Receipt",
    "Session",
    "Sessions",
    "Setup",
    "StoreError",
    "Summarizer",
    "SummaryAnswer",
    "SummaryFailed",
    "SummaryRequest",
    "Text",
    "ToolCall",
    "ToolResult",
    "ToolSpec",
    "TranscriptError",
    "Usage",
    "__version__",
    "artifacts_text",
    "asks_text",
    "compact",
    "context_breakdown",
    "describe",
    "digest",
    "drive",
    "effective_input_window",
    "estimate_text",
    "is_sensitive_key",
    "learn_limit",
    "list_engines",
    "load_config",
    "local_summarizer",
    "look_up_model",
    "mark",
    "open",
    "preview",
    "read",
    "read_many",
    "redact",
    "redact_value",
    "register_context_engine",
    "register_digest",
    "rejoin",
    "render_content_search",
    "render_delegated_task",
    "render_file_read",
    "render_file_search",
    "render_process",
    "render_result",
    "render_value",
    "resolve_engine",
    "select_tail_by_budget",
    "shrink_arguments",
    "shrink_json_string_leaves",
    "split_for_partial_compaction",
    "threshold_tokens",
    "trail_of",
    "write",
]
