"""The agent's tools, one kind per module."""

from midfold.agent.tools.base import AgentTool, Toolbox
from midfold.agent.tools.files import Folder

__all__ = ["AgentTool", "Folder", "Toolbox"]


def __getattr__(name: str) -> object:
    if name != "Tool":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import warnings

    warnings.warn("midfold.agent.tools.Tool is now midfold.agent.AgentTool", DeprecationWarning, stacklevel=2)
    return AgentTool
