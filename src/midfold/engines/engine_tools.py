"""Offer the tools of a context engine to a model, and run calls of them.

Tools with a name that is taken or that providers reject are omitted with a notice. Anything a plugin raises becomes a
PluginError, which is reported to the model, and the conversation continues.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from midfold.compaction.archive import Archive
from midfold.compaction.redact import redact
from midfold.engines import ContextEngine, ToolSpec
from midfold.errors import PluginError
from midfold.transcript import jsonio

MAX_RESULT_CHARACTERS = 20_000
"""Maximum characters of a tool result for the model."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class EngineTools:
    """Tools of one engine, except those with names in `taken`."""

    def __init__(self, engine: ContextEngine, taken: Collection[str]) -> None:
        self._engine = engine
        self.specs: dict[str, ToolSpec] = {}
        self.notices: tuple[str, ...] = ()
        try:
            offered: Iterable[ToolSpec] = tuple(engine.tools())
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; the host must go on
            self._omit("tools", f"tools() raised {type(error).__name__}")
            return
        for spec in offered:
            if problem := _problem(spec, {*taken, *self.specs}):
                self._omit(f'tool "{getattr(spec, "name", "")!s:.64}"', problem)
            else:
                self.specs[spec.name] = spec

    def _omit(self, what: str, why: str) -> None:
        self.notices = (*self.notices, f'Context engine "{self._engine.name}": {what} omitted: {why}')

    def call(self, name: str, arguments: Mapping[str, object], archive: Archive) -> str:
        """Return the truncated result of a tool; raise PluginError if it fails."""
        try:
            result = self._engine.call_tool(name, arguments, archive)
        except Exception as error:  # a plugin may raise anything; it is reported to the model
            raise PluginError(f"{name} failed: {type(error).__name__}: {redact(str(error))[:500]}") from error
        if not isinstance(result, str):
            raise PluginError(f"{name} failed: it gave a value of type {type(result).__name__}, expected text")
        left = len(result) - MAX_RESULT_CHARACTERS
        return result if left <= 0 else f"{result[:MAX_RESULT_CHARACTERS]}\n[... {left:,} characters left out ...]"


def _problem(spec: object, taken: Collection[str]) -> str:
    if not isinstance(spec, ToolSpec):
        return f"found a value of type {type(spec).__name__}, expected a ToolSpec"
    if not _NAME.fullmatch(str(spec.name)):
        return "a name must have 1 to 64 letters, digits, dashes or underscores"
    if spec.name in taken:
        return "the name is already taken"
    return "" if jsonio.encode(spec.parameters).startswith(b"{") else "its parameters are not a JSON Schema object"
