# Made by tools/gen_python_doc.py from the table in __init__.py. Do not edit.
from midfold.api import Compaction as Compaction
from midfold.api import compact as compact
from midfold.background import BackgroundCompaction as BackgroundCompaction
from midfold.cache import PromptCacheHint as PromptCacheHint
from midfold.cache.break_even import break_even as break_even
from midfold.cache.health import Health as Health
from midfold.cache.health import Turn as TurnHealth
from midfold.config import Auxiliary as AuxiliarySettings
from midfold.config import AuxiliaryTask as SummaryModelSettings
from midfold.config import Compression as CompressionSettings
from midfold.config import Config as Config
from midfold.config import Context as ContextSettings
from midfold.config import Loaded as LoadedConfig
from midfold.config import ModelSettings as ModelSettings
from midfold.config import PromptCaching as PromptCachingSettings
from midfold.config import Provider as ProviderSettings
from midfold.config import load as load_config
from midfold.config.schema import AgentSettings as AgentSettings
from midfold.config.schema import Gateway as GatewaySettings
from midfold.config.schema import Key as KeySettings
from midfold.config.schema import Store as StoreSettings
from midfold.config.schema import Upstream as UpstreamSettings
from midfold.core.archive import Archive as Archive
from midfold.core.boundary import Protection as Protection
from midfold.core.boundary import select_tail_by_budget as select_tail_by_budget
from midfold.core.budget import Budget as Budget
from midfold.core.budget import Pressure as Pressure
from midfold.core.budget import effective_input_window as effective_input_window
from midfold.core.budget import threshold_tokens as threshold_tokens
from midfold.core.compaction import CompactionRequest as CompactionRequest
from midfold.core.compaction import CompactionState as CompactionState
from midfold.core.compaction import Flow as Flow
from midfold.core.compaction import Options as Options
from midfold.core.compaction import Outcome as Outcome
from midfold.core.compaction import PrefixRequest as PrefixRequest
from midfold.core.compaction import Redactor as Redactor
from midfold.core.compaction import SummaryAnswer as SummaryAnswer
from midfold.core.compaction import SummaryAsk as SummaryAsk
from midfold.core.digest import Action as Action
from midfold.core.digest import describe as describe
from midfold.core.digest import digest as digest
from midfold.core.digest import register_digest as register_digest
from midfold.core.digest import shrink_arguments as shrink_arguments
from midfold.core.digest import shrink_json_string_leaves as shrink_json_string_leaves
from midfold.core.digest.registry import DigestFunction as DigestFunction
from midfold.core.estimate import estimate_text as estimate_text
from midfold.core.handoff import Generated as Handoff
from midfold.core.handoff import Keeper as Keeper
from midfold.core.message import Media as Media
from midfold.core.message import Message as Message
from midfold.core.message import Opaque as Opaque
from midfold.core.message import Part as Part
from midfold.core.message import Problem as Problem
from midfold.core.message import Role as Role
from midfold.core.message import Text as Text
from midfold.core.message import Thinking as Thinking
from midfold.core.message import Tool as Tool
from midfold.core.message import ToolCall as ToolCall
from midfold.core.message import ToolResult as ToolResult
from midfold.core.message import Transcript as Transcript
from midfold.core.recall import Window as Window
from midfold.core.redact import is_sensitive_key as is_sensitive_key
from midfold.core.redact import redact as redact
from midfold.core.redact import redact_value as redact_value
from midfold.core.report import Boundary as Boundary
from midfold.core.report import Digest as DigestFacts
from midfold.core.report import Receipt as Receipt
from midfold.core.report import SummaryFacts as SummaryFacts
from midfold.core.sanitize import Repair as Repair
from midfold.core.timing import Timing as Timing
from midfold.core.tokens import Count as Count
from midfold.core.tokens import Meter as Meter
from midfold.core.tokens import TokenCounter as TokenCounter
from midfold.core.usage import Usage as Usage
from midfold.core.usage import read_usage as read_usage
from midfold.engines import Compressor as Compressor
from midfold.engines import ContextEngine as ContextEngine
from midfold.engines import Noop as Noop
from midfold.engines import ToolSpec as ToolSpec
from midfold.errors import ConfigError as ConfigError
from midfold.errors import FailureKind as FailureKind
from midfold.errors import LeaseLost as LeaseLost
from midfold.errors import MalformedTranscript as MalformedTranscript
from midfold.errors import MidfoldError as MidfoldError
from midfold.errors import MissingExtra as MissingExtra
from midfold.errors import ModelFailed as ModelFailed
from midfold.errors import NotStored as NotStored
from midfold.errors import PluginError as PluginError
from midfold.errors import SchemaError as SchemaError
from midfold.errors import StoreConflict as StoreConflict
from midfold.errors import StoreDamaged as StoreDamaged
from midfold.errors import StoreError as StoreError
from midfold.errors import StoreUnavailable as StoreUnavailable
from midfold.errors import SummaryFailed as SummaryFailed
from midfold.errors import ToolRefused as ToolRefused
from midfold.errors import TranscriptError as TranscriptError
from midfold.errors import UpstreamError as UpstreamError
from midfold.host import EngineHost as EngineHost
from midfold.live import Draft as Draft
from midfold.models import Belief as Belief
from midfold.models import Model as Model
from midfold.models import ModelOverride as ModelOverride
from midfold.models import learn_limit as learn_limit
from midfold.models import look_up as look_up_model
from midfold.partial import Preview as Preview
from midfold.partial import preview as preview
from midfold.partial import rejoin as rejoin
from midfold.partial import split_for_partial_compaction as split_for_partial_compaction
from midfold.plugins import EngineInfo as EngineInfo
from midfold.plugins import EngineOrFactory as EngineOrFactory
from midfold.plugins import Registrar as Registrar
from midfold.plugins import Resolved as ResolvedEngine
from midfold.plugins import list_engines as list_engines
from midfold.plugins import register_context_engine as register_context_engine
from midfold.plugins import resolve_engine as resolve_engine
from midfold.service import Sessions as Sessions
from midfold.service import open_sessions as open
from midfold.session import Compacted as Compacted
from midfold.session import Session as Session
from midfold.session import Sync as Sync
from midfold.store import CompactionLease as CompactionLease
from midfold.store import Lease as Lease
from midfold.store.leases import Renewal as Renewal
from midfold.store.leases import held as held
from midfold.store.prefixes import Prefix as Prefix
from midfold.store.protocol import Record as Record
from midfold.store.protocol import SessionInfo as SessionInfo
from midfold.store.ranking import Hit as Hit
from midfold.store.views import View as View
from midfold.stored_host import StoredHost as StoredHost
from midfold.summarize import Summarizer as Summarizer
from midfold.summarize import drive as drive
from midfold.summarize import local_summarizer as local_summarizer
from midfold.summarize.client import ModelSummarizer as ModelSummarizer
from midfold.summarize.endpoint import Endpoint as Endpoint
from midfold.summarize.flow import Progress as SummaryProgress
from midfold.tokenizers import Tokenizer as Tokenizer
from midfold.wire import Document as Document
from midfold.wire import read as read
from midfold.wire import read_many as read_many
from midfold.wire import write as write
from midfold.wire.dialect import Dialect as Dialect
from midfold.wire.markers import mark as mark

__version__: str

__all__ = [
    "Action",
    "AgentSettings",
    "Archive",
    "AuxiliarySettings",
    "BackgroundCompaction",
    "Belief",
    "Boundary",
    "Budget",
    "Compacted",
    "Compaction",
    "CompactionLease",
    "CompactionRequest",
    "CompactionState",
    "CompressionSettings",
    "Compressor",
    "Config",
    "ConfigError",
    "ContextEngine",
    "ContextSettings",
    "Count",
    "Dialect",
    "DigestFacts",
    "DigestFunction",
    "Document",
    "Draft",
    "Endpoint",
    "EngineHost",
    "EngineInfo",
    "EngineOrFactory",
    "FailureKind",
    "Flow",
    "GatewaySettings",
    "Handoff",
    "Health",
    "Hit",
    "Keeper",
    "KeySettings",
    "Lease",
    "LeaseLost",
    "LoadedConfig",
    "MalformedTranscript",
    "Media",
    "Message",
    "Meter",
    "MidfoldError",
    "MissingExtra",
    "Model",
    "ModelFailed",
    "ModelOverride",
    "ModelSettings",
    "ModelSummarizer",
    "Noop",
    "NotStored",
    "Opaque",
    "Options",
    "Outcome",
    "Part",
    "PluginError",
    "Prefix",
    "PrefixRequest",
    "Pressure",
    "Preview",
    "Problem",
    "PromptCacheHint",
    "PromptCachingSettings",
    "Protection",
    "ProviderSettings",
    "Receipt",
    "Record",
    "Redactor",
    "Registrar",
    "Renewal",
    "Repair",
    "ResolvedEngine",
    "Role",
    "SchemaError",
    "Session",
    "SessionInfo",
    "Sessions",
    "StoreConflict",
    "StoreDamaged",
    "StoreError",
    "StoreSettings",
    "StoreUnavailable",
    "StoredHost",
    "Summarizer",
    "SummaryAnswer",
    "SummaryAsk",
    "SummaryFacts",
    "SummaryFailed",
    "SummaryModelSettings",
    "SummaryProgress",
    "Sync",
    "Text",
    "Thinking",
    "Timing",
    "TokenCounter",
    "Tokenizer",
    "Tool",
    "ToolCall",
    "ToolRefused",
    "ToolResult",
    "ToolSpec",
    "Transcript",
    "TranscriptError",
    "TurnHealth",
    "UpstreamError",
    "UpstreamSettings",
    "Usage",
    "View",
    "Window",
    "__version__",
    "break_even",
    "compact",
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
    "read",
    "read_many",
    "read_usage",
    "redact",
    "redact_value",
    "register_context_engine",
    "register_digest",
    "rejoin",
    "resolve_engine",
    "select_tail_by_budget",
    "shrink_arguments",
    "shrink_json_string_leaves",
    "split_for_partial_compaction",
    "threshold_tokens",
    "write",
]
