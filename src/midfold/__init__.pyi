# Made by tools/gen_python_doc.py from the table in __init__.py. Do not edit.
from midfold.api import Compaction as Compaction, compact as compact
from midfold.cache.health import Health as Health, Turn as TurnHealth
from midfold.cache.markers import PromptCacheHint as PromptCacheHint, mark as mark
from midfold.cache.schedule import break_even as break_even
from midfold.config import Auxiliary as AuxiliarySettings, Compression as CompressionSettings, Config as Config, Context as ContextSettings, Loaded as LoadedConfig, PromptCaching as PromptCachingSettings, Provider as ProviderSettings, load as load_config, AuxiliaryTask as SummaryModelSettings
from midfold.config.schema import AgentSettings as AgentSettings, GatewaySettings as GatewaySettings, Key as KeySettings, StoreSettings as StoreSettings, UpstreamSettings as UpstreamSettings
from midfold.session.conversation import CompactArguments as CompactArguments, Compacted as Compacted, Conversation as Conversation, MemoryConversation as MemoryConversation, PreparedFold as PreparedFold, Sync as Sync
from midfold.decide import Decision as Decision
from midfold.errors import ConfigError as ConfigError, FailureKind as FailureKind, GatewayFull as GatewayFull, LeaseLost as LeaseLost, MalformedTranscript as MalformedTranscript, MidfoldError as MidfoldError, Misdirected as Misdirected, MissingExtra as MissingExtra, ModelFailed as ModelFailed, ModelRequestFailed as ModelRequestFailed, NotOwner as NotOwner, NotStored as NotStored, PluginError as PluginError, RouteClosed as RouteClosed, SchemaError as SchemaError, StoreConflict as StoreConflict, StoreDamaged as StoreDamaged, StoreError as StoreError, StoreUnavailable as StoreUnavailable, SummaryFailed as SummaryFailed, TooManyValues as TooManyValues, ToolRefused as ToolRefused, TranscriptError as TranscriptError, UnreadableEncoding as UnreadableEncoding, UpstreamError as UpstreamError
from midfold.compaction.archive import Archive as Archive
from midfold.compaction.boundary import Protection as Protection, select_tail_by_budget as select_tail_by_budget
from midfold.compaction.budget import Budget as Budget, Pressure as Pressure, effective_input_window as effective_input_window, threshold_tokens as threshold_tokens
from midfold.compaction.local import Action as Action, describe as describe, digest as digest, register_digest as register_digest, shrink_arguments as shrink_arguments, shrink_json_string_leaves as shrink_json_string_leaves
from midfold.compaction.local.digest import DigestFunction as DigestFunction
from midfold.engines import Compressor as Compressor, ContextEngine as ContextEngine, Noop as Noop
from midfold.compaction.handoff import Generated as Handoff, Keeper as Keeper, bare_summary as bare_summary
from midfold.compaction.media import MediaReducer as MediaReducer
from midfold.compaction.omissions import Omission as Omission, Omissions as Omissions
from midfold.compaction.local.overview import artifacts_text as artifacts_text, asks_text as asks_text, trail_of as trail_of
from midfold.compaction.partial import Preview as Preview, preview as preview, rejoin as rejoin, split_for_partial_compaction as split_for_partial_compaction
from midfold.compaction.receipt import Boundary as Boundary, Digest as DigestFacts, OmittedWords as OmittedWords, RecallCost as RecallCost, Receipt as Receipt, SummaryFacts as SummaryFacts, Timing as Timing
from midfold.compaction.redact import is_sensitive_key as is_sensitive_key, redact as redact, redact_value as redact_value
from midfold.compaction.render import render_content_search as render_content_search, render_delegated_task as render_delegated_task, render_file_read as render_file_read, render_file_search as render_file_search, render_process as render_process, render_value as render_value
from midfold.compaction.render_results import render_result as render_result
from midfold.compaction.request import CompactionRequest as CompactionRequest, CompactionState as CompactionState, Flow as Flow, Options as Options, Outcome as Outcome, PrefixRequest as PrefixRequest, Redactor as Redactor, SummaryAnswer as SummaryAnswer, SummaryRequest as SummaryRequest
from midfold.compaction.tracking import CheckRun as CheckRun, FileRead as FileRead, GitState as GitState, RunningTask as RunningTask, TrackedFile as TrackedFile, Trail as Trail, WorldAct as WorldAct
from midfold.compaction.user_record import RecordText as RecordText
from midfold.session.host import EngineHost as EngineHost
from midfold.model.run import Preparation as Preparation, Summarizer as Summarizer, drive as drive, local_summarizer as local_summarizer
from midfold.model.endpoint import Endpoint as Endpoint
from midfold.model.summarizer import ModelSummarizer as ModelSummarizer, SummaryProgress as SummaryProgress
from midfold.models import Belief as Belief, Model as Model, ModelOverride as ModelOverride, ModelOverride as ModelSettings, learn_limit as learn_limit, look_up as look_up_model
from midfold.plugins import EngineInfo as EngineInfo, EngineOrFactory as EngineOrFactory, Registrar as Registrar, Resolved as ResolvedEngine, list_engines as list_engines, register_context_engine as register_context_engine, resolve_engine as resolve_engine
from midfold.session.sessions import ImportedLog as ImportedLog, Sessions as Sessions, open_sessions as open, project_prefix as project_prefix
from midfold.session.session import Session as Session
from midfold.recall import AnswerBounds as AnswerBounds, Hit as Hit, HitPart as HitPart, InMemorySource as InMemorySource, Recall as Recall, ToolAnswer as ToolAnswer
from midfold.session.setup import Setup as Setup
from midfold.store import CompactionLease as CompactionLease, Lease as Lease
from midfold.store.leases import Renewal as Renewal, hold_lease as held
from midfold.store.protocol import Prefix as Prefix, CompactionRecord as Record, SessionInfo as SessionInfo, View as View
from midfold.transcript.tokenizers import Tokenizer as Tokenizer
from midfold.transcript import Document as Document, read as read, read_many as read_many, write as write
from midfold.transcript.breakdown import ContextBreakdown as ContextBreakdown, ContextBucket as ContextBucket, ContextShare as ContextShare, context_breakdown as context_breakdown
from midfold.transcript.dialect import Dialect as Dialect
from midfold.transcript.repairs import Repair as Repair
from midfold.transcript.message import Media as Media, Message as Message, Opaque as Opaque, Part as Part, Problem as Problem, Role as Role, Text as Text, Thinking as Thinking, Tool as Tool, ToolCall as ToolCall, ToolResult as ToolResult, Transcript as Transcript, Usage as Usage, read_usage as read_usage
from midfold.transcript.tools import ToolSpec as ToolSpec
from midfold.transcript.tokens import Count as Count, Meter as Meter, TokenCounter as TokenCounter, estimate_text as estimate_text

__version__: str

__all__ = [
    "Action",
    "AgentSettings",
    "AnswerBounds",
    "Archive",
    "AuxiliarySettings",
    "Belief",
    "Boundary",
    "Budget",
    "CheckRun",
    "CompactArguments",
    "Compacted",
    "Compaction",
    "CompactionLease",
    "CompactionRequest",
    "CompactionState",
    "CompressionSettings",
    "Compressor",
    "Config",
    "ConfigError",
    "ContextBreakdown",
    "ContextBucket",
    "ContextEngine",
    "ContextSettings",
    "ContextShare",
    "Conversation",
    "Count",
    "Decision",
    "Dialect",
    "DigestFacts",
    "DigestFunction",
    "Document",
    "Endpoint",
    "EngineHost",
    "EngineInfo",
    "EngineOrFactory",
    "FailureKind",
    "FileRead",
    "Flow",
    "GatewayFull",
    "GatewaySettings",
    "GitState",
    "Handoff",
    "Health",
    "Hit",
    "HitPart",
    "ImportedLog",
    "InMemorySource",
    "Keeper",
    "KeySettings",
    "Lease",
    "LeaseLost",
    "LoadedConfig",
    "MalformedTranscript",
    "Media",
    "MediaReducer",
    "MemoryConversation",
    "Message",
    "Meter",
    "MidfoldError",
    "Misdirected",
    "MissingExtra",
    "Model",
    "ModelFailed",
    "ModelOverride",
    "ModelRequestFailed",
    "ModelSettings",
    "ModelSummarizer",
    "Noop",
    "NotOwner",
    "NotStored",
    "Omission",
    "Omissions",
    "OmittedWords",
    "Opaque",
    "Options",
    "Outcome",
    "Part",
    "PluginError",
    "Prefix",
    "PrefixRequest",
    "Preparation",
    "PreparedFold",
    "Pressure",
    "Preview",
    "Problem",
    "PromptCacheHint",
    "PromptCachingSettings",
    "Protection",
    "ProviderSettings",
    "Recall",
    "RecallCost",
    "Receipt",
    "Record",
    "RecordText",
    "Redactor",
    "Registrar",
    "Renewal",
    "Repair",
    "ResolvedEngine",
    "Role",
    "RouteClosed",
    "RunningTask",
    "SchemaError",
    "Session",
    "SessionInfo",
    "Sessions",
    "Setup",
    "StoreConflict",
    "StoreDamaged",
    "StoreError",
    "StoreSettings",
    "StoreUnavailable",
    "Summarizer",
    "SummaryAnswer",
    "SummaryFacts",
    "SummaryFailed",
    "SummaryModelSettings",
    "SummaryProgress",
    "SummaryRequest",
    "Sync",
    "Text",
    "Thinking",
    "Timing",
    "TokenCounter",
    "Tokenizer",
    "TooManyValues",
    "Tool",
    "ToolAnswer",
    "ToolCall",
    "ToolRefused",
    "ToolResult",
    "ToolSpec",
    "TrackedFile",
    "Trail",
    "Transcript",
    "TranscriptError",
    "TurnHealth",
    "UnreadableEncoding",
    "UpstreamError",
    "UpstreamSettings",
    "Usage",
    "View",
    "WorldAct",
    "__version__",
    "artifacts_text",
    "asks_text",
    "bare_summary",
    "break_even",
    "compact",
    "context_breakdown",
    "describe",
    "digest",
    "drive",
    "effective_input_window",
    "estimate_text",
    "held",
    "is_sensitive_key",
    "learn_limit",
    "list_engines",
    "load_config",
    "local_summarizer",
    "look_up_model",
    "mark",
    "open",
    "preview",
    "project_prefix",
    "read",
    "read_many",
    "read_usage",
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
