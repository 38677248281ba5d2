"""The contract of a context engine, on one screen.

An engine holds configuration only, no session state: everything it knows about a conversation is in the request. It
says how urgent a fold is (`should_compress`), and compacts as a generator (`compress`): it yields the summary it needs,
is sent the answer, and returns the outcome. Whoever drives it does the I/O.
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
    """Subclass this, give it a name, and implement two methods."""

    name: ClassVar[str]
    reads_messages: ClassVar[bool] = True
    """Whether `should_compress` looks at the messages. One that does not is asked without them, at a constant cost."""

    @abstractmethod
    def should_compress(self, request: CompactionRequest) -> Pressure:
        """How urgent it is, by `request.prompt_tokens` or whatever else the engine goes by. Called after every turn.

        HARD folds before the next request, SOFT may prepare a fold, NONE does neither. Strikes, pauses after failures
        and `enabled` are the host's business.
        """

    @abstractmethod
    def compress(self, request: CompactionRequest) -> Flow:
        """Compacts, or returns the same messages with a receipt that says why not. Never mutates the request."""

    def tools(self) -> tuple[ToolSpec, ...]:
        """Tools for the agent; none by default."""
        return ()

    def call_tool(self, name: str, arguments: Mapping[str, object], archive: Archive) -> str:
        """Runs one of `tools()`; the archive gives the originals behind the conversation's handles."""
        raise KeyError(name)
