"""One session in a pydantic-ai agent under one policy: run by `bench.frameworks` in its environment."""

import asyncio
import json
import sys
from typing import Any

from openai import AsyncOpenAI
from pydantic_ai import Agent, UsageLimits, capture_run_messages
from pydantic_ai.models.openai import OpenAICompaction, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from midfold.adapters.pydantic_ai import MidfoldCapability

given = json.load(sys.stdin)
provider = OpenAIProvider(openai_client=AsyncOpenAI(base_url=given["url"], api_key=given["key"], max_retries=0))
POLICIES = {
    "nothing": lambda: [],
    "OpenAICompaction": lambda: [OpenAICompaction(message_count_threshold=20)],
    "midfold": lambda: [MidfoldCapability(context_length=given["window"])],
}
agent = Agent(
    OpenAIResponsesModel("gpt-4o", provider=provider),
    instructions=given["system"],
    capabilities=POLICIES[given["policy"]](),
)


@agent.tool_plain
def read_file(path: str) -> str:
    """Read a file."""
    return str(given["files"][path])


async def main() -> list[str]:
    answers: list[str] = []
    history: list[Any] = []
    for ask in given["asks"]:
        with capture_run_messages() as messages:
            try:
                limits = UsageLimits(request_limit=None)
                answers.append((await agent.run(ask, message_history=history, usage_limits=limits)).output)
            except Exception as error:  # noqa: BLE001 - each provider's package has its own class for a refusal
                answers.append(f"{type(error).__name__}: {error}"[:200])
                continue
        history = list(messages)
    return answers


sys.stdout.write(json.dumps(asyncio.run(main())) + "\n")
