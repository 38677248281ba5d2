"""midfold inside released LiteLLM, the library and its proxy, against a provider that enforces its rules."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from support.frameworks import LITELLM, run_in
from support.reading_model import ASK, ReadingModel, file_text, offered
from support.rules_provider import RulesProvider

WINDOW = 16_000
FILES = 36
HOWS = ("sync", "async", "learning", "proxy", "wide", "plain", "streams", "workers")

PROBE = r'''
import asyncio, json, os, socket, subprocess, sys, time
from pathlib import Path
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import httpx, litellm
from midfold.adapters.litellm import MidfoldCallback

asked = json.load(sys.stdin)
litellm.telemetry = False
READ = {"type": "function", "function": {"name": "read_file", "description": "Read a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}}}

def agent(key, folding, send, *, first=(), recall=True):
    """A loop as users of LiteLLM write it."""
    messages = [{"role": "system", "content": "You are careful."}, *first, {"role": "user", "content": asked["ask"]}]
    tools = [READ, *(folding.tools if recall else ())]
    for prompt in (None, "And now?"):
        if prompt:
            messages.append({"role": "user", "content": prompt})
        for _ in range(100):
            message = send(model="openai/gpt-4o", messages=messages, tools=tools, api_key=key)
            message = message if isinstance(message, dict) else message.model_dump()
            # LiteLLM's own fields are refused where it sends them back.
            messages.append({name: message[name] for name in ("role", "content", "tool_calls") if message.get(name)})
            calls = message.get("tool_calls")
            for call in calls or ():
                name, arguments = call["function"]["name"], call["function"]["arguments"]
                if name == "read_file":
                    text = asked["files"][int(json.loads(arguments)["path"][1:-4])]
                else:
                    text = folding.answer(name, arguments, messages[:-1]).text
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
            if not calls:
                break
    answers = [m["content"] for m in messages if m["role"] == "assistant" and not m.get("tool_calls")]
    folds = [kept["memory"]["state"]["count"] for branches in folding._kept.values() for kept in branches]
    return {"answers": answers, "messages": len(messages), "folds": folds}

def library(folding):
    more = {"api_base": asked["url"] + "/v1", "max_retries": 0}
    return lambda **request: folding.completion(**more, **request).choices[0].message

def run_async(folding):
    loop = asyncio.new_event_loop()
    litellm.callbacks = [folding]
    async def ask(**request):
        more = {"api_base": asked["url"] + "/v1", "max_retries": 0}
        try:
            return await litellm.acompletion(**more, **request)
        except litellm.ContextWindowExceededError:
            await asyncio.sleep(1)  # LiteLLM tells its callbacks of a failure after the caller
            return await litellm.acompletion(**more, **request)
    return lambda **request: loop.run_until_complete(ask(**request)).choices[0].message

def workers(folding):
    """As behind a proxy of two workers, each with an object of its own."""
    sends = [library(folding), library(make())]
    def send(**request):
        sends.reverse()
        return sends[0](**request)
    return send

def proxy():
    Path("midfold_proxy.py").write_text("from midfold.adapters.litellm import MidfoldCallback\n"
                                        "folding = MidfoldCallback(context_length=60000)\n")
    Path("config.yaml").write_text(json.dumps({
        "model_list": [{"model_name": "house-model", "litellm_params": {
            "model": "openai/gpt-4o", "api_base": asked["url"] + "/v1", "api_key": "proxy"}}],
        "litellm_settings": {"callbacks": "midfold_proxy.folding"}}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = open("proxy.log", "w")
    program = Path(sys.executable).with_name("litellm")
    command = [sys.executable, str(program), "--config", "config.yaml", "--port", str(port), "--host", "127.0.0.1"]
    around = {"PYTHONPATH": os.environ["PYTHONPATH"] + ":.",
              "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"}
    server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **around})
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
    try:
        for _ in range(240):
            try:
                client.get("/health/liveliness").raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.5)
        def send(**request):
            body = {"model": "house-model", "messages": request["messages"], "tools": request["tools"]}
            answer = client.post("/v1/chat/completions", json=body)
            if answer.status_code == 400:
                time.sleep(1)
                answer = client.post("/v1/chat/completions", json=body)
            answer.raise_for_status()
            return answer.json()["choices"][0]["message"]
        return agent("proxy", MidfoldCallback(), send, recall=False)
    finally:
        server.terminate()
        server.wait()

reports = []
make = lambda **more: MidfoldCallback(**{"context_length": 16000, "report": reports.append, **more})
odd = {"role": "critic", "content": "The other word is PEAR."}
out = {}
for key, folding, send, more in [("sync", make(), library, {}), ("wide", make(context_length=60000), library, {}),
                                 ("plain", make(), library, {"recall": False}), ("async", make(), run_async, {}),
                                 ("learning", make(context_length=60000), run_async, {}),
                                 ("workers", make(), workers, {"recall": False})]:
    out[key] = agent(key, folding, send(folding), **more)
folding = make()
litellm.callbacks = [folding]
more = {"model": "openai/gpt-4o", "api_base": asked["url"] + "/v1", "api_key": "streams", "stream": True}
talk = [{"role": "user", "content": text} for text in asked["files"]]
async def stream():
    return [chunk async for chunk in await litellm.acompletion(messages=talk, tools=[READ], **more)]
chunks = [list(folding.completion(messages=talk, tools=[READ], **more)), asyncio.run(stream())]
out["streams"] = [len(one) for one in chunks]
litellm.callbacks = []
wires = [{"role": "system", "content": "s"}, odd] + [{"role": "user", "content": text} for text in asked["files"]]
hook = folding.async_pre_call_hook(None, None, {"model": "gpt-4o", "messages": wires}, "acompletion")
sent = asyncio.run(hook)["messages"]
out["unknown"] = {"reports": reports, "sent": [sum(one is odd for one in sent), len(sent), len(wires)]}
out["proxy"] = proxy()
print(json.dumps(out))
'''


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with RulesProvider(ReadingModel(FILES), window=WINDOW) as provider:
        question = {"url": provider.url, "ask": ASK, "files": [file_text(number) for number in range(FILES + 1)]}
        answer: dict[str, Any] = run_in(LITELLM, PROBE, question, tmp_path_factory.mktemp("litellm"))
    answer["rejected"] = [problem.message for problem in provider.rejected]
    answer["bodies"] = {
        key: [
            one.body
            for one in provider.requests
            if one.method == "POST" and one.headers["authorization"] == f"Bearer {key}"
        ]
        for key in HOWS
    }
    return answer


@pytest.mark.parametrize("how", ["sync", "async", "wide", "learning"])
def test_a_long_task_ends_and_an_early_result_is_found_again(seen: dict[str, Any], how: str) -> None:
    run = seen[how]
    assert run["answers"] == ["found it", "found it"]
    assert run["messages"] == 2 + 2 * FILES + 2 + 1 + 1 + 2 + 1
    assert max(run["folds"]) >= 2


@pytest.mark.parametrize("how", ["proxy", "plain", "workers"])
def test_a_long_task_ends_without_tools_for_looking_back(seen: dict[str, Any], how: str) -> None:
    assert seen[how]["answers"] == ["no tool for it", "no tool for it"]
    assert {tuple(offered(body)) for body in seen["bodies"][how]} == {("read_file",)}
    assert "[CONTEXT COMPACTION]" in json.dumps(seen["bodies"][how][-1]["messages"])


def test_the_provider_refuses_only_where_the_window_was_wrong_and_only_once(seen: dict[str, Any]) -> None:
    """`wide` by sync calls, `learning` by async ones, and the proxy, whose clients use the model's alias."""
    assert len(seen["rejected"]) == 3
    assert all(str(WINDOW) in text for text in seen["rejected"])


@pytest.mark.parametrize("how", ["sync", "async", "proxy"])
def test_the_first_ask_is_never_lost_and_the_prefix_stays_between_folds(seen: dict[str, Any], how: str) -> None:
    bodies = seen["bodies"][how]
    assert all("PLUM" in json.dumps(body["messages"]) for body in bodies)
    goes_on = [after["messages"][: len(before["messages"])] == before["messages"] for before, after in pairwise(bodies)]
    assert goes_on.count(True) > len(bodies) / 2


def test_a_message_of_unknown_kind_is_passed_through_and_reported_once(seen: dict[str, Any]) -> None:
    run = seen["unknown"]
    there, sent, given = run["sent"]
    assert there == 1
    assert sent < given
    assert len(run["reports"]) == 1
    assert "role 'critic'" in run["reports"][0]


def test_a_streamed_call_is_folded_on_its_way(seen: dict[str, Any]) -> None:
    assert min(seen["streams"]) > 1
    assert len(seen["bodies"]["streams"]) == 2
    for body in seen["bodies"]["streams"]:
        assert body["stream"] is True
        assert "[CONTEXT COMPACTION]" in json.dumps(body["messages"])
