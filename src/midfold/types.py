"""Types of public signatures that most programs never name: parts of receipts, records of a store, settings.

Functions and classes that programs start from are in `midfold` itself; errors are in `midfold.errors`.
"""

from __future__ import annotations

from midfold.cache.health import Health
from midfold.cache.health import Turn as TurnHealth
from midfold.compaction.handoff import Generated as Handoff
from midfold.compaction.handoff import Keeper, bare_summary
from midfold.compaction.local import Action
from midfold.compaction.local.digest import DigestFunction
from midfold.compaction.omissions import Omission, Omissions
from midfold.compaction.partial import Preview
from midfold.compaction.receipt import Boundary, OmittedWords, RecallCost, SummaryFacts, Timing
from midfold.compaction.receipt import Digest as DigestFacts
from midfold.compaction.request import Options, PrefixRequest, Redactor
from midfold.compaction.tracking import CheckRun, FileRead, GitState, RunningTask, TrackedFile, Trail, WorldAct
from midfold.compaction.user_record import RecordText
from midfold.config import Auxiliary as AuxiliarySettings
from midfold.config import AuxiliaryTask as SummaryModelSettings
from midfold.config import Compression as CompressionSettings
from midfold.config import Context as ContextSettings
from midfold.config import Loaded as LoadedConfig
from midfold.config import PromptCaching as PromptCachingSettings
from midfold.config import Provider as ProviderSettings
from midfold.config.schema import AgentSettings, GatewaySettings, StoreSettings, UpstreamSettings
from midfold.config.schema import Key as KeySettings
from midfold.decide import Decision
from midfold.errors import FailureKind
from midfold.model.run import Preparation
from midfold.model.summarizer import SummaryProgress
from midfold.models import Belief, Model
from midfold.plugins import EngineInfo, EngineOrFactory, Registrar
from midfold.plugins import Resolved as ResolvedEngine
from midfold.recall import AnswerBounds, Hit, HitPart, InMemorySource, Recall, ToolAnswer
from midfold.session.conversation import CompactArguments, Compacted, PreparedFold, Sync
from midfold.session.sessions import ImportedLog, project_prefix
from midfold.store import CompactionLease, Lease
from midfold.store.leases import Renewal
from midfold.store.leases import hold_lease as held
from midfold.store.protocol import CompactionRecord as Record
from midfold.store.protocol import Prefix, SessionInfo, View
from midfold.transcript.breakdown import ContextBreakdown, ContextBucket, ContextShare
from midfold.transcript.dialect import Dialect
from midfold.transcript.message import Opaque, Part, Problem, Role, Thinking, Tool, Transcript, read_usage
from midfold.transcript.repairs import Repair
from midfold.transcript.tokenizers import Tokenizer
from midfold.transcript.tokens import Count, TokenCounter

__all__ = [
    "Action",
    "AgentSettings",
    "AnswerBounds",
    "AuxiliarySettings",
    "Belief",
    "Boundary",
    "CheckRun",
    "CompactArguments",
    "Compacted",
    "CompactionLease",
    "CompressionSettings",
    "ContextBreakdown",
    "ContextBucket",
    "ContextSettings",
    "ContextShare",
    "Count",
    "Decision",
    "Dialect",
    "DigestFacts",
    "DigestFunction",
    "EngineInfo",
    "EngineOrFactory",
    "FailureKind",
    "FileRead",
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
    "LoadedConfig",
    "Model",
    "Omission",
    "Omissions",
    "OmittedWords",
    "Opaque",
    "Options",
    "Part",
    "Prefix",
    "PrefixRequest",
    "Preparation",
    "PreparedFold",
    "Preview",
    "Problem",
    "PromptCachingSettings",
    "ProviderSettings",
    "Recall",
    "RecallCost",
    "Record",
    "RecordText",
    "Redactor",
    "Registrar",
    "Renewal",
    "Repair",
    "ResolvedEngine",
    "Role",
    "RunningTask",
    "SessionInfo",
    "StoreSettings",
    "SummaryFacts",
    "SummaryModelSettings",
    "SummaryProgress",
    "Sync",
    "Thinking",
    "Timing",
    "TokenCounter",
    "Tokenizer",
    "Tool",
    "ToolAnswer",
    "TrackedFile",
    "Trail",
    "Transcript",
    "TurnHealth",
    "UpstreamSettings",
    "View",
    "WorldAct",
    "bare_summary",
    "held",
    "project_prefix",
    "read_usage",
]
