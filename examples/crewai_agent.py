"""A CrewAI agent whose requests stay inside the window: pip install midfold crewai"""

import sys
from pathlib import Path

from crewai import Agent
from crewai.hooks import before_llm_call
from crewai.tools import tool

from midfold import MemoryConversation, Setup

talk = MemoryConversation(Setup(model="gpt-4o"))  # one for each agent


@before_llm_call
def fold(context):
    talk.sync(context.messages)
    if talk.compact().changed:
        context.messages[:] = talk.view().messages


@tool
def read_file(path: str) -> str:
    """Read a text file."""
    return Path(path).read_text(encoding="utf-8", errors="replace")


agent = Agent(role="reader", goal="answer", backstory="", llm="gpt-4o", tools=[read_file], max_iter=200)
sys.stdout.write(f"{agent.kickoff(' '.join(sys.argv[1:])).raw}\n")
