"""An agent of the OpenAI Agents SDK whose requests stay inside the window: pip install 'midfold[agents]'

OPENAI_API_KEY=... python examples/openai_agents_agent.py "Which file defines the parser?"
"""

import sys
from pathlib import Path

from agents import Agent, RunConfig, Runner, function_tool

import midfold
from midfold.adapters.openai_agents import Folding, MidfoldSession


@function_tool
def read_file(path: str) -> str:
    """Read a text file."""
    return Path(path).read_text(encoding="utf-8", errors="replace")


question = " ".join(sys.argv[1:]) or "Read README.md and say what it is."
with midfold.open("sqlite:///sessions.db") as sessions:
    session = MidfoldSession("example", sessions)
    folding = Folding(session)
    agent = Agent("reader", model="gpt-4o", tools=[read_file, *folding.tools])
    config = RunConfig(call_model_input_filter=folding)
    answer = Runner.run_sync(agent, question, session=session, hooks=folding, run_config=config, max_turns=200)
sys.stdout.write(f"{answer.final_output}\n")
