"""A pydantic-ai agent whose requests stay inside the window: pip install 'midfold[pydantic-ai]' openai

OPENAI_API_KEY=... python examples/pydantic_ai_agent.py "Which file defines the parser?"
"""

import sys
from pathlib import Path

from pydantic_ai import Agent, UsageLimits

from midfold.adapters.pydantic_ai import MidfoldCapability

agent = Agent("openai-chat:gpt-4o", capabilities=[MidfoldCapability()])


@agent.tool_plain
def read_file(path: str) -> str:
    """Read a text file."""
    return Path(path).read_text(encoding="utf-8", errors="replace")


question = " ".join(sys.argv[1:]) or "Read README.md and say what it is."
answer = agent.run_sync(question, usage_limits=UsageLimits(request_limit=200))
sys.stdout.write(f"{answer.output}\n")
