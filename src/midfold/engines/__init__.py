"""Context engines: the contract, the built-in compressor, and one that never compacts. No I/O; the driver does that.

The compressor uses the parts in `compaction/`. `decide` says when to compact; an engine's `compress` only compacts.
"""

from midfold.engines.compressor import Compressor, Noop
from midfold.engines.contract import ContextEngine
from midfold.transcript.tools import ToolSpec

__all__ = ["Compressor", "ContextEngine", "Noop", "ToolSpec"]
