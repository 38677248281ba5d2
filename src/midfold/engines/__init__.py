"""Context engines: pure generators that decide when to fold and how."""

from midfold.engines.base import ContextEngine, ToolSpec
from midfold.engines.compressor import Compressor
from midfold.engines.noop import Noop

__all__ = ["Compressor", "ContextEngine", "Noop", "ToolSpec"]
