"""Context engines: their contract, the built-in compressor, and one that does nothing. Pure: who drives them does I/O.

The compressor is made of the parts in `fold/`. `decide` says when to compact; an engine's `compress` only compacts.
"""

from midfold.engines.compressor import Compressor, Noop
from midfold.engines.contract import ContextEngine
from midfold.transcript.tools import ToolSpec

__all__ = ["Compressor", "ContextEngine", "Noop", "ToolSpec"]
