"""A small tool-using agent with the compressor inside its loop.

    with midfold.open("sqlite:///sessions.db") as sessions:
        session = sessions.session("fix", model="claude-sonnet-4-5", system=..., dialect="anthropic")
        Agent(session, ModelClient(endpoint), Toolbox(tools)).run("Fix the failing test.")

`loop` is the loop, `room` decides when to fold, `tools` act; `midfold.model.client` talks to the model.
"""

from midfold.agent.assembly import AgentAssembly
from midfold.agent.events import Folded, agree, refuse
from midfold.agent.loop import Agent
from midfold.agent.tools import AgentTool, Toolbox
from midfold.model.client import ModelClient
from midfold.transcript.tools import arguments

__all__ = ["Agent", "AgentAssembly", "AgentTool", "Folded", "ModelClient", "Toolbox", "agree", "arguments", "refuse"]
