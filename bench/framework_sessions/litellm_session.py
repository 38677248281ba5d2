"""One session in a loop over LiteLLM under one policy: run by `bench.frameworks` in LiteLLM's environment."""

import json
import os
import sys
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm
from litellm.compression import compress
from litellm.utils import trim_messages

from midfold.adapters.litellm import MidfoldCallback

given = json.load(sys.stdin)
folding = MidfoldCallback(context_length=given["window"])
cache: dict[str, str] = {}
schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ = {"type": "function", "function": {"name": "read_file", "description": "Read a file.", "parameters": schema}}
more = {"model": "openai/gpt-4o", "api_base": given["url"], "api_key": given["key"], "max_retries": 0}


def send(messages: list[dict[str, Any]]) -> Any:
    if given["policy"] == "midfold":
        return folding.completion(messages=messages, tools=[READ, *folding.tools], **more)
    tools = [READ]
    if given["policy"] == "trim_messages":
        messages = trim_messages(messages, max_tokens=given["window"] * 3 // 4)
    if given["policy"] == "compress":
        small = compress(messages, "gpt-4o", compression_trigger=given["window"] // 2)
        messages, tools = small["messages"], [READ, *small["tools"]]
        cache.update(small["cache"])
    return litellm.completion(messages=messages, tools=tools, **more)


def answer_call(call: dict[str, Any], messages: list[dict[str, Any]]) -> Any:
    name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
    if name == "read_file":
        return given["files"][arguments["path"]]
    if name == "litellm_content_retrieve":
        return cache.get(arguments["key"], "there is no such key")
    return folding.answer(name, arguments, messages[:-1]).text


messages, answers = [{"role": "system", "content": given["system"]}], []
for ask in given["asks"]:
    begun = len(messages)
    messages.append({"role": "user", "content": ask})
    while True:
        try:
            message = send(messages).choices[0].message.model_dump()
        except litellm.BadRequestError as error:
            answers.append(f"{type(error).__name__}: {error}"[:200])
            del messages[begun:]
            break
        messages.append({key: message[key] for key in ("role", "content", "tool_calls") if message.get(key)})
        for call in message.get("tool_calls") or ():
            text = answer_call(call, messages)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
        if not message.get("tool_calls"):
            answers.append(message["content"])
            break
sys.stdout.write(json.dumps(answers) + "\n")
