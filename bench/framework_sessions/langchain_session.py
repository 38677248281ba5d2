"""One session in a LangChain agent under one policy: run by `bench.frameworks` in LangChain's environment."""

import json
import sys

from langchain.agents import create_agent
from langchain.agents.middleware import ClearToolUsesEdit, ContextEditingMiddleware, SummarizationMiddleware
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from midfold.adapters.langchain import MidfoldMiddleware

given = json.load(sys.stdin)
model = ChatOpenAI(model="gpt-4o", base_url=given["url"], api_key=given["key"], max_retries=0)
half = given["window"] // 2
POLICIES = {
    "nothing": lambda: [],
    "SummarizationMiddleware": lambda: [SummarizationMiddleware(model, trigger=("tokens", half))],
    "ContextEditingMiddleware": lambda: [ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=half)])],
    "midfold": lambda: [MidfoldMiddleware(context_length=given["window"])],
    "midfold, summaries by the model": lambda: [MidfoldMiddleware(context_length=given["window"], summarizer="agent")],
}


@tool
def read_file(path: str) -> str:
    """Read a file."""
    return str(given["files"][path])


agent = create_agent(
    model,
    [read_file],
    system_prompt=given["system"],
    middleware=POLICIES[given["policy"]](),
    checkpointer=InMemorySaver(),
)
config = {"configurable": {"thread_id": "one"}, "recursion_limit": 200}
answers = []
for ask in given["asks"]:
    try:
        answers.append(agent.invoke({"messages": [HumanMessage(ask)]}, config)["messages"][-1].text)
    except Exception as error:  # noqa: BLE001 - each provider's package has its own class for a refusal
        answers.append(f"{type(error).__name__}: {error}"[:200])
sys.stdout.write(json.dumps(answers) + "\n")
