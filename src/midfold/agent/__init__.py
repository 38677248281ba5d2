"""A small tool-using agent that compacts its own session.

    with midfold.open("sqlite:///sessions.db") as sessions:
        session = sessions.session("fix", model="claude-sonnet-4-5", system=..., dialect="anthropic")
        Agent(session, ModelClient(endpoint), Toolbox(tools)).run("Fix the failing test.")

`loop` runs the turns, `window` decides when to compact, `tools` holds the tools; `midfold.model.client` calls the
model.
"""

from midfold.agent.assembly import AgentAssembly
from midfold.agent.events import Folded, agree, refuse
from midfold.agent.loop import Agent
from midfold.agent.tools import AgentTool, Toolbox
from midfold.model.client import ModelClient
from midfold.transcript.tools import arguments

__all__ = ["Agent", "AgentAssembly", "AgentTool", "Folded", "ModelClient", "Toolbox", "agree", "arguments", "refuse"]
