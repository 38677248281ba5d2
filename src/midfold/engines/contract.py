"""The contract of a context engine.

An engine holds configuration only, no session state: everything about a conversation is in the request.
`should_compress` returns how urgent a compaction is. `compress` is a generator: it yields summary requests, is sent the
responses, and returns the outcome. The driver does the I/O.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from midfold.compaction.archive import Archive
from midfold.compaction.budget import Pressure
from midfold.compaction.request import CompactionRequest, Flow
from midfold.transcript.tools import ToolSpec


class ContextEngine(ABC):
    """Base class of context engines: set a name and implement two methods."""

    name: ClassVar[str]
    reads_messages: ClassVar[bool] = True
    """True if `should_compress` reads the messages; otherwise it is called without them, at constant cost."""

    @abstractmethod
    def should_compress(self, request: CompactionRequest) -> Pressure:
        """Return how urgent a compaction is, by `request.prompt_tokens` or any other measure. Called after every turn.

        HARD compacts before the next request, SOFT may prepare a compaction, NONE does neither. The host handles
        strikes, cooldowns after failures and `enabled`.
        """

    @abstractmethod
    def compress(self, request: CompactionRequest) -> Flow:
        """Compact, or return the same messages with a receipt that says why not. Never mutate the request."""

    def tools(self) -> tuple[ToolSpec, ...]:
        """Return tools for the agent, none by default."""
        return ()

    def call_tool(self, name: str, arguments: Mapping[str, object], archive: Archive) -> str:
        """Run one of `tools()`; the archive provides the originals of the conversation's handles."""
        raise KeyError(name)
