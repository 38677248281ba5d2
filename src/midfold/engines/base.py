"""The contract of a context engine, on one screen.

An engine holds configuration only, no session state: everything it knows about a conversation is in the request. It
decides (`should_compress`), and compacts as a generator (`compress`): it yields the summary it needs, is sent the
answer, and returns the outcome. Whoever drives it does the I/O.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from midfold.core.archive import Archive
from midfold.core.budget import Pressure
from midfold.core.compaction import CompactionRequest, Flow


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool the engine offers to the agent."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class ContextEngine(ABC):
    """Subclass this, give it a name, and implement two methods."""

    name: ClassVar[str]

    @abstractmethod
    def should_compress(self, request: CompactionRequest) -> Pressure:
        """How urgent it is. Cheap: called after every turn."""

    @abstractmethod
    def compress(self, request: CompactionRequest) -> Flow:
        """Compacts, or returns the same messages with a receipt that says why not. Never mutates the request."""

    def tools(self) -> tuple[ToolSpec, ...]:
        """Tools for the agent; none by default."""
        return ()

    def call_tool(self, name: str, arguments: Mapping[str, object], archive: Archive) -> str:
        """Runs one of `tools()`."""
        raise KeyError(name)
