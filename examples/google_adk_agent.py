"""A Google ADK agent whose requests stay inside the window: pip install 'midfold[adk]' litellm mcp

OPENAI_API_KEY=... python examples/google_adk_agent.py "Which file defines the parser?"
"""

import asyncio
import sys
from pathlib import Path

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner

from midfold.adapters.google_adk import MidfoldPlugin


def read_file(path: str) -> str:
    """Read a text file."""
    return Path(path).read_text(encoding="utf-8", errors="replace")


plugin = MidfoldPlugin()
agent = LlmAgent(name="reader", model=LiteLlm(model="openai/gpt-4o"), tools=[read_file, *plugin.tools])
runner = InMemoryRunner(app=App(name="example", root_agent=agent, plugins=[plugin]))
events = asyncio.run(runner.run_debug(" ".join(sys.argv[1:]) or "Read README.md and say what it is.", quiet=True))
sys.stdout.write("".join(part.text or "" for part in events[-1].content.parts) + "\n")
