"""midfold inside released LangChain 1.x agents, against a provider that enforces its rules.

The agent runs in its own environment under .bench; the provider and the scripted model run here.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from support.frameworks import LANGCHAIN, run_in
from support.provider_replies import Turn
from support.reading_model import SUMMARY
from support.rules_provider import RulesProvider

WINDOW = 16_000
FILES = 36


def reader(request: Any) -> Turn:
    """Read files one by one, look up an early one, and report it."""
    body = request.body
    if "tools" not in body:
        return Turn(SUMMARY)
    messages = body["messages"]
    last = messages[-1]
    offered = [tool["function"]["name"] for tool in body["tools"]]
    if last.get("tool_call_id") == "call_search":
        return Turn("found it" if "the number of f2.txt is 14" in last["content"] else "lost it")
    count = len(set(sent(request)))
    if count < FILES:
        return Turn("", ((f"call_{count + 1}", "read_file", {"path": f"f{count + 1}.txt"}),))
    if "context_search" not in offered:
        return Turn("never folded")
    return Turn("", (("call_search", "context_search", {"query": "number f2.txt"}),))


SEEN: dict[str, list[str]] = {}


def sent(request: Any) -> list[str]:
    """Return every call that the model of this key has received."""
    seen = SEEN.setdefault(request.headers["authorization"], [])
    for message in request.body["messages"]:
        seen.extend(call["id"] for call in message.get("tool_calls", ()) if call["function"]["name"] == "read_file")
    return seen


PROBE = r'''
import asyncio, json, sys
from langchain.agents import create_agent
from langchain.agents.middleware.types import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, ChatMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from midfold.adapters.langchain import MidfoldMiddleware

asked, loop = json.load(sys.stdin), asyncio.new_event_loop()  # langchain-openai shares its connections: one loop

@tool
def read_file(path: str) -> str:
    """Read a file."""
    number = int(path[1:-4])
    return f"the number of {path} is {number * 7} " + "lorem ipsum dolor sit amet " * 110

class Watch(AgentMiddleware):
    """Stands inside: sees what midfold hands on."""
    def __init__(self): self.same, self.ids, self.system = [], [], []
    def look(self, request):
        stored = {id(m) for m in request.state["messages"]}
        self.same.append(sum(id(m) in stored for m in request.messages))
        known = {m.id for m in request.state["messages"]}
        self.ids.append(sum(m.id in known for m in request.messages))
        self.system.append(request.system_message.text)
        self.last = [type(m).__name__ for m in request.messages]
    def wrap_model_call(self, request, handler):
        self.look(request); return handler(request)
    async def awrap_model_call(self, request, handler):
        self.look(request); return await handler(request)

def run(key, *, asynchronous=False, first=(), **settings):
    reports, watch, saver = [], Watch(), InMemorySaver()
    def agent():
        folding = MidfoldMiddleware(report=reports.append, **settings)
        model = ChatOpenAI(model="gpt-4o", base_url=asked["url"] + "/v1", api_key=key, max_retries=0)
        around = {"middleware": [folding, watch], "checkpointer": saver}
        return create_agent(model, [read_file], system_prompt="You are careful.", **around)
    config = {"configurable": {"thread_id": key}, "recursion_limit": 300}
    given = {"messages": [HumanMessage("Read all of the files. The word is PLUM."), *first]}
    out = loop.run_until_complete(agent().ainvoke(given, config)) if asynchronous else agent().invoke(given, config)
    state = agent().get_state(config).values
    folds = state["midfold"]["memory"]["state"].get("count", 0)
    calls = len(watch.same)
    again = agent().invoke({"messages": [HumanMessage("And now?")]}, config)  # a new process would do the same
    after = agent().get_state(config).values["midfold"]["memory"]["state"].get("count", 0)
    return {
        "answer": out["messages"][-1].text, "messages": len(out["messages"]), "keys": sorted(out),
        "folds": folds, "after": after, "again": len(again["messages"]), "reports": reports,
        "same": watch.same[:calls], "ids": watch.ids[:calls], "system": watch.system[-1], "kinds": watch.last,
        "plain": json.loads(json.dumps(state["midfold"])) == state["midfold"],
        "originals": len(state.get("midfold_originals", {})),
    }

def failed():
    """Results of calls that failed, some of them shortened on their way."""
    said = [HumanMessage("Read all of the files.")]
    for number in range(24):
        call = {"name": "read_file", "args": {"path": "f1.txt"}, "id": f"c{number}"}
        text = read_file.invoke({"path": "f1.txt"}) * (18 if number == 23 else 2)
        result = ToolMessage(text, tool_call_id=f"c{number}", status="error", artifact={"n": number}, id=f"r{number}")
        said += [AIMessage("", tool_calls=[call]), result]
    sent = []
    def handler(request):
        sent.extend(request.messages)
        return ModelResponse(result=[AIMessage("fine")])
    model = ChatOpenAI(model="gpt-4o", base_url=asked["url"] + "/v1", api_key="none")
    request = ModelRequest(model=model, messages=said, state={"messages": said})
    MidfoldMiddleware(context_length=16000).wrap_model_call(request, handler)
    known = {id(one) for one in said}
    changed = [one for one in sent if isinstance(one, ToolMessage) and id(one) not in known]
    return [[one.status, one.artifact["n"] == int(one.id[1:]) == int(one.tool_call_id[1:])] for one in changed]

word = ChatMessage(role="user", content="The other word is PEAR.")
# A block that LangChain itself cannot read, beside a call; the model behind it drops what it does not know.
call = {"name": "read_file", "args": {"path": "f0.txt"}, "id": "call_odd"}
odd = [AIMessage([{"type": "image_url"}], tool_calls=[call]), ToolMessage("a result of PEAR", tool_call_id="call_odd")]
print(json.dumps({
    "failed": failed(),
    "sync": run("sync", context_length=16000),
    "async": run("async", asynchronous=True, context_length=16000),
    "agent": run("agent", summarizer="agent", context_length=16000),
    "agent_async": run("agent_async", summarizer="agent", asynchronous=True, context_length=16000),
    "unknown": run("unknown", first=[word, *odd], context_length=16000),
    "wide": run("wide", context_length=60000),
    "plain": run("plain", recall=False, context_length=16000),
}))
'''


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    SEEN.clear()
    with RulesProvider(reader, window=WINDOW) as provider:
        answer: dict[str, Any] = run_in(LANGCHAIN, PROBE, {"url": provider.url}, tmp_path_factory.mktemp("langchain"))
    answer["rejected"] = [problem.message for problem in provider.rejected]
    answer["bodies"] = {
        key: [one.body for one in provider.requests if one.headers["authorization"] == f"Bearer {key}"]
        for key in ("sync", "async", "agent", "agent_async", "unknown", "wide", "plain")
    }
    return answer


@pytest.mark.parametrize(("how", "most"), [("sync", 2_000), ("async", 2_000), ("wide", 4_000)])
def test_an_answer_of_recall_takes_what_the_window_bears(seen: dict[str, Any], how: str, most: int) -> None:
    messages = [message for body in seen["bodies"][how] for message in body["messages"]]
    sizes = [len(one["content"]) for one in messages if one.get("tool_call_id") == "call_search"]
    assert sizes and max(sizes) <= most


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_long_task_ends_and_an_early_result_is_found_again(seen: dict[str, Any], how: str) -> None:
    run = seen[how]
    assert run["answer"] == "found it"
    assert run["messages"] == 1 + 2 * FILES + 2 + 1
    assert run["keys"] == ["messages"]
    assert run["folds"] >= 2
    assert run["plain"]
    assert run["originals"] >= run["folds"]


def test_the_provider_refuses_only_where_the_window_was_wrong(seen: dict[str, Any]) -> None:
    assert seen["wide"]["answer"] == "found it"
    assert len(seen["rejected"]) == 1
    assert str(WINDOW) in seen["rejected"][0]


def test_what_is_not_folded_is_the_very_object(seen: dict[str, Any]) -> None:
    run = seen["sync"]
    bodies = seen["bodies"]["sync"][: len(run["same"])]
    for body, same, ids in zip(bodies, run["same"], run["ids"], strict=True):
        messages = [message for message in body["messages"] if message["role"] != "system"]
        assert 1 <= same <= ids <= len(messages)
    assert run["same"][:8] == [1 + 2 * number for number in range(8)]
    assert min(run["same"][10:]) >= 6, "the first ask, and more than the newest two rounds"


def test_a_result_that_is_shortened_keeps_all_else_of_the_one_it_stands_for(seen: dict[str, Any]) -> None:
    assert seen["failed"]
    assert all(one == ["error", True] for one in seen["failed"])


def test_the_first_ask_is_never_lost(seen: dict[str, Any]) -> None:
    for body in seen["bodies"]["sync"]:
        assert "PLUM" in json.dumps(body["messages"])


def test_another_middleware_on_the_same_thread_goes_on_with_the_same_fold(seen: dict[str, Any]) -> None:
    run = seen["sync"]
    assert run["after"] in (run["folds"], run["folds"] + 1)
    assert "[CONTEXT COMPACTION]" in run["system"]
    assert run["system"].startswith("You are careful.\n")


def test_recall_tools_come_with_the_first_fold_and_stand_last(seen: dict[str, Any]) -> None:
    offered = [[tool["function"]["name"] for tool in body["tools"]] for body in seen["bodies"]["sync"]]
    assert offered[0] == ["read_file"]
    assert offered[-1] == ["read_file", "context_search", "context_unfold", "context_timeline"]
    assert all("context_search" not in json.dumps(body["tools"]) for body in seen["bodies"]["plain"])
    assert seen["plain"]["answer"] == "never folded"
    assert seen["plain"]["folds"] >= 2


@pytest.mark.parametrize("how", ["agent", "agent_async"])
def test_the_agents_own_model_writes_summaries(seen: dict[str, Any], how: str) -> None:
    assert seen[how]["answer"] == "found it"
    assert any("tools" not in body for body in seen["bodies"][how])
    assert "WRITTEN BY THE MODEL" in json.dumps(seen["bodies"][how][-1]["messages"])
    assert all("tools" in body for body in seen["bodies"]["sync"])


def test_a_message_of_unknown_kind_is_passed_through_and_reported_once(seen: dict[str, Any]) -> None:
    run = seen["unknown"]
    assert run["answer"] == "found it"
    assert run["kinds"].count("ChatMessage") == 1
    assert all("PEAR" in json.dumps(body["messages"]) for body in seen["bodies"]["unknown"])
    assert all("a result of PEAR" in json.dumps(body["messages"]) for body in seen["bodies"]["unknown"])
    kinds = re.findall(r"unknown message kind (?:[\w.]+\.)?(\w+):", "\n".join(run["reports"]))
    assert kinds == ["ChatMessage", "AIMessage"] * 2, "once by each of the two middlewares that ran on this thread"
    assert seen["sync"]["reports"] == []
