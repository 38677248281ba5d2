"""A LangChain agent whose requests stay inside the window: pip install 'midfold[langchain]' langchain-openai

OPENAI_API_KEY=... python examples/langchain_agent.py "Which file defines the parser?"
"""

import sys
from pathlib import Path

from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langgraph.checkpoint.memory import InMemorySaver

from midfold.adapters.langchain import MidfoldMiddleware


def read_file(path: str) -> str:
    """Read a text file."""
    return Path(path).read_text(encoding="utf-8", errors="replace")


agent = create_agent(
    init_chat_model("openai:gpt-4o"),
    [read_file],
    middleware=[MidfoldMiddleware(summarizer="agent")],
    checkpointer=InMemorySaver(),
)
asked = {"messages": [{"role": "user", "content": " ".join(sys.argv[1:]) or "Read README.md and say what it is."}]}
answer = agent.invoke(asked, {"configurable": {"thread_id": "example"}, "recursion_limit": 200})
sys.stdout.write(f"{answer['messages'][-1].text}\n")
