"""One session in the OpenAI Agents SDK under one policy: run by `bench.frameworks` in its environment."""

import json
import sys

from agents import (
    Agent,
    OpenAIResponsesCompactionSession,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

import midfold
from midfold.adapters.openai_agents import Folding, MidfoldSession

given = json.load(sys.stdin)
set_tracing_disabled(True)
client = AsyncOpenAI(base_url=given["url"], api_key=given["key"], max_retries=0)
store = midfold.open("memory:")


@function_tool
def read_file(path: str) -> str:
    """Read a file."""
    return str(given["files"][path])


def setting() -> tuple[object, dict[str, object], list[object]]:
    if given["policy"] == "nothing":
        return SQLiteSession("one"), {}, []
    if given["policy"] == "OpenAIResponsesCompactionSession":
        kept = SQLiteSession("one")
        return OpenAIResponsesCompactionSession("one", kept, client=client, compaction_mode="input"), {}, []
    session = MidfoldSession("one", store)
    folding = Folding(session, context_length=given["window"])
    return session, {"hooks": folding, "run_config": RunConfig(call_model_input_filter=folding)}, folding.tools


session, around, tools = setting()
agent = Agent(
    "reader",
    instructions=given["system"],
    model=OpenAIResponsesModel("gpt-4o", client),
    tools=[read_file, *tools],
)
answers = []
for ask in given["asks"]:
    try:
        answers.append(Runner.run_sync(agent, ask, session=session, max_turns=100, **around).final_output)
    except Exception as error:  # noqa: BLE001 - each provider's package has its own class for a refusal
        answers.append(f"{type(error).__name__}: {error}"[:200])
sys.stdout.write(json.dumps(answers) + "\n")
