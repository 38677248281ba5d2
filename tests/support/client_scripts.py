"""Small agents on released Python packages: two user messages, a shell tool, project rules in the system prompt."""

from __future__ import annotations

_BEGIN = """
import json, os, subprocess
ASKS, MODEL = json.loads(os.environ["ASKS"]), os.environ["CLIENT_MODEL"]
SYSTEM = "You are a coding agent.\\n" + open("AGENTS.md").read()
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}

def run(command):
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout
"""

OPENAI_CHAT = f"""{_BEGIN}
from openai import OpenAI

client = OpenAI()
tools = [{{"type": "function", "function": {{"name": "shell", "description": "Run it.", "parameters": SCHEMA}}}}]
history = [{{"role": "system", "content": SYSTEM}}]
for ask in ASKS:
    history.append({{"role": "user", "content": ask}})
    while True:
        answer = client.chat.completions.create(model=MODEL, messages=history, tools=tools).choices[0].message
        history.append(answer.model_dump(exclude_none=True))
        if not answer.tool_calls:
            break
        for call in answer.tool_calls:
            said = run(json.loads(call.function.arguments)["command"])
            history.append({{"role": "tool", "tool_call_id": call.id, "content": said}})
    print(answer.content)
"""

OPENAI_KEPT = f"""{_BEGIN}
from openai import OpenAI

client = OpenAI()
tools = [{{"type": "function", "name": "shell", "description": "Run it.", "parameters": SCHEMA, "strict": False}}]
last = None
for ask in ASKS:
    said = [{{"role": "user", "content": ask}}]
    while said:
        answer = client.responses.create(
            model=MODEL, instructions=SYSTEM, input=said, tools=tools, previous_response_id=last
        )
        calls = [item for item in answer.output if item.type == "function_call"]
        told = [(call.call_id, run(json.loads(call.arguments)["command"])) for call in calls]
        said = [{{"type": "function_call_output", "call_id": call, "output": text}} for call, text in told]
        last = answer.id
    print(answer.output_text)
"""

ANTHROPIC = f"""{_BEGIN}
from anthropic import Anthropic

client = Anthropic()
tools = [{{"name": "shell", "description": "Run it.", "input_schema": SCHEMA}}]
history = []
for ask in ASKS:
    history.append({{"role": "user", "content": ask}})
    while True:
        with client.messages.stream(
            model=MODEL, system=SYSTEM, max_tokens=2000, messages=history, tools=tools,
        ) as stream:
            answer = stream.get_final_message()
        history.append({{"role": "assistant", "content": answer.content}})
        if answer.stop_reason != "tool_use":
            break
        results = [
            {{"type": "tool_result", "tool_use_id": block.id, "content": run(block.input["command"])}}
            for block in answer.content if block.type == "tool_use"
        ]
        history.append({{"role": "user", "content": results}})
    print(answer.content[0].text)
"""

AGENTS = f"""{_BEGIN}
from agents import Agent, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)

@function_tool
def shell(command: str) -> str:
    "Run it."
    return run(command)

agent = Agent(name="coder", instructions=SYSTEM, tools=[shell], model=MODEL)
history = []
for ask in ASKS:
    result = Runner.run_sync(agent, [*history, {{"role": "user", "content": ask}}], max_turns=1000)
    history = result.to_input_list()
    print(result.final_output)
"""

LANGCHAIN = f"""{_BEGIN}
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

@tool
def shell(command: str) -> str:
    "Run it."
    return run(command)

agent = create_agent(ChatOpenAI(model=MODEL), [shell], system_prompt=SYSTEM)
history = []
for ask in ASKS:
    state = agent.invoke({{"messages": [*history, ("user", ask)]}}, {{"recursion_limit": 10_000}})
    history = state["messages"]
    print(history[-1].text)
"""

PYDANTIC_AI = f"""{_BEGIN}
from pydantic_ai import Agent
from pydantic_ai.usage import UsageLimits

agent = Agent(f"anthropic:{{MODEL}}", instructions=SYSTEM, model_settings={{"max_tokens": 2000}})

@agent.tool_plain
def shell(command: str) -> str:
    "Run it."
    return run(command)

history = []
for ask in ASKS:
    result = agent.run_sync(ask, message_history=history, usage_limits=UsageLimits(request_limit=None))
    history = result.all_messages()
    print(result.output)
"""

LITELLM = f"""{_BEGIN}
import litellm

tools = [{{"type": "function", "function": {{"name": "shell", "description": "Run it.", "parameters": SCHEMA}}}}]
history = [{{"role": "system", "content": SYSTEM}}]
for ask in ASKS:
    history.append({{"role": "user", "content": ask}})
    while True:
        answer = litellm.completion(model=f"openai/{{MODEL}}", messages=history, tools=tools).choices[0].message
        history.append(answer.model_dump(exclude_none=True, exclude={{"provider_specific_fields"}}))
        if not answer.tool_calls:
            break
        for call in answer.tool_calls:
            said = run(json.loads(call.function.arguments)["command"])
            history.append({{"role": "tool", "tool_call_id": call.id, "content": said}})
    print(answer.content)
"""
