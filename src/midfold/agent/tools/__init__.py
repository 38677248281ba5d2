"""The tools of the agent: one idea per file, each a value with a function in it."""

from midfold.agent.tools.base import Tool, Toolbox
from midfold.agent.tools.files import Folder

__all__ = ["Folder", "Tool", "Toolbox"]
