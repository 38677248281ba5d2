"""A Strands agent whose requests stay inside the window: pip install 'midfold[strands]' 'strands-agents[openai]'

OPENAI_API_KEY=... python examples/strands_agent.py "Which file defines the parser?"
"""

import sys
from pathlib import Path

from strands import Agent, tool
from strands.models.openai import OpenAIModel

from midfold.adapters.strands import MidfoldConversationManager


@tool
def read_file(path: str) -> str:
    """Read a text file."""
    return Path(path).read_text(encoding="utf-8", errors="replace")


manager = MidfoldConversationManager()
model = OpenAIModel(model_id="gpt-4o")
tools = [read_file, *manager.tools]
agent = Agent(model=model, tools=tools, conversation_manager=manager, callback_handler=None)
answer = agent(" ".join(sys.argv[1:]) or "Read README.md and say what it is.")
sys.stdout.write(f"{answer}\n")
