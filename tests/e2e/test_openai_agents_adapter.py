"""midfold inside the released OpenAI Agents SDK, against a provider that enforces its rules."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.frameworks import AGENTS, run_in
from support.provider_replies import Turn
from support.reading_model import ASK, ReadingModel, file_text, offered
from support.rules_provider import RulesProvider

WINDOW = 16_000
FILES = 36
HOWS = ("stored", "streamed", "sync", "chat", "loose", "unknown", "plain", "conversation", "response")
AT_ONCE = 20

PROBE = r'''
import asyncio, json, sys
import midfold
from agents import (Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, RunConfig, Runner,
                    SQLiteSession, function_tool, set_tracing_disabled)
from agents import ModelResponse, Usage
from agents.run import CallModelData, ModelInputData
from openai import AsyncOpenAI
from midfold.adapters.openai_agents import Folding, MidfoldSession

asked = json.load(sys.stdin)
set_tracing_disabled(True)
URL = "sqlite:///sessions.db"

@function_tool
def read_file(path: str) -> str:
    """Read a file."""
    return asked["files"][int(path[1:-4])]

def make(key, folding, *, chat=False, recall=True):
    client = AsyncOpenAI(base_url=asked["url"] + "/v1", api_key=key, max_retries=0)
    model = (OpenAIChatCompletionsModel if chat else OpenAIResponsesModel)("gpt-4o", client)
    tools = [read_file, *(folding.tools if recall else ())]
    return Agent("reader", instructions="You are careful.", model=model, tools=tools)

async def stream(*given, **more):
    result = Runner.run_streamed(*given, **more)
    async for _ in result.stream_events():
        pass
    return result

async def run(key, *, runner=Runner.run, loose=False, first=(), **how):
    seen, reports = [], []
    def parts():
        session = SQLiteSession(key) if loose else MidfoldSession(key, midfold.open(URL))
        folding = Folding(None if loose else session, context_length=16000, report=reports.append)
        async def filter(data):
            out = await folding(data)
            given = data.model_data.input
            seen.append([sum(any(a is b for b in given) for a in out.input), len(given)])
            return out
        around = {"session": session, "hooks": folding, "max_turns": 100,
                  "run_config": RunConfig(call_model_input_filter=filter)}
        return session, folding, make(key, folding, **how), around
    session, folding, agent, around = parts()
    if first:
        await session.add_items(list(first))
    out = await runner(agent, asked["ask"], **around)
    calls, items = len(seen), await session.get_items()
    folds = lambda folding: max(k["memory"]["state"]["count"] for k in folding._folds.values())
    before = folds(folding)
    if not loose:
        session, folding, agent, around = parts()          # as another process would
    again = await runner(agent, "And now?", **around)
    counted = max(kept["memory"]["samples"] for kept in folding._folds.values())
    return {"answer": out.final_output, "items": items, "folds": before, "counted": counted,
            "after": folds(folding), "seen": seen[:calls],
            "reports": reports, "again": len(await session.get_items())}

async def interleave():
    """Two agents that share a run config, as one that is a tool of the other does."""
    folding, sizes = Folding(context_length=16000), []
    agent = make("none", folding)
    for turn in range(2):
        for name in "ab":
            texts = [f"{name}: {asked['files'][1]} {number}" for number in range(30 + turn)]
            items = [{"role": "user", "content": text} for text in texts]
            out = await folding(CallModelData(ModelInputData(items, "You are careful."), agent, None))
            sizes.append(len(json.dumps(out.input)))
    return [sizes, [kept["memory"]["state"]["count"] for kept in folding._folds.values()]]

async def together():
    """Two agents at the same time, as tools of a third one are."""
    session = MidfoldSession("together", midfold.open(URL))
    await session.add_items([{"role": "user", "content": "Ask both."}])
    folding, both = Folding(session, context_length=16000), asyncio.Barrier(2)
    agent = make("none", folding)
    async def one(name):
        items = [{"role": "user", "content": f"{name}: {asked['files'][1]} {number}"} for number in range(30)]
        await folding(CallModelData(ModelInputData(items, "You are careful."), agent, None))
        await both.wait()
        await folding.on_llm_end(None, agent, ModelResponse([], Usage(input_tokens=3000, output_tokens=5), None))
    await asyncio.gather(one("a"), one("b"))
    kept = (await session.load_folds()).values()
    return [[one["memory"]["state"]["count"], one["memory"]["samples"]] for one in kept]

def run_sync(*given, **more):
    async def later():
        return await asyncio.to_thread(Runner.run_sync, *given, **more)
    return later()

async def store():
    """What a session of the SDK must do."""
    session = MidfoldSession("s", midfold.open(URL))
    a, b, c = ({"role": "user", "content": text} for text in "abc")
    did = [await session.get_items(), await session.pop_item()]
    await session.clear_session()
    await session.add_items([a, b])
    did += [await session.pop_item(), await session.get_items()]
    await session.add_items([])
    await session.add_items([b, c])
    other = MidfoldSession("s", midfold.open(URL))
    did += [await other.get_items(), await other.get_items(2), await other.get_items(limit=0)]
    await other.clear_session()
    did += [await session.get_items()]
    return did

async def elsewhere(key):
    """The provider keeps the history; a round of results is larger than the size from which on is folded."""
    folding, seen = Folding(context_length=16000), []
    async def filter(data):
        out = await folding(data)
        seen.append(out is data.model_data)
        return out
    agent = make(key, folding)
    more = {"auto_previous_response_id": True}
    if key == "conversation":
        more = {"conversation_id": (await agent.model._client.conversations.create()).id}
    config = RunConfig(call_model_input_filter=filter)
    out = await Runner.run(agent, asked["ask"], hooks=folding, run_config=config, **more)
    return {"answer": out.final_output, "untouched": seen}

async def main():
    odd = {"type": "item_reference", "id": "msg_PEAR"}
    return {
        "stored": await run("stored"), "streamed": await run("streamed", runner=stream),
        "sync": await run("sync", runner=run_sync), "chat": await run("chat", chat=True),
        "loose": await run("loose", loose=True), "unknown": await run("unknown", first=[odd]),
        "plain": await run("plain", recall=False), "store": await store(), "interleaved": await interleave(),
        "together": await together(),
        "conversation": await elsewhere("conversation"), "response": await elsewhere("response"),
    }
print(json.dumps(asyncio.run(main())))
'''


READER = ReadingModel(FILES)


def answer(request: Any) -> Turn:
    """Answer as the reader; if the provider stores the history, make twenty calls at once and then end."""
    if request.headers["authorization"].split()[-1] not in ("conversation", "response"):
        return READER(request)
    if len(request.body["input"]) == AT_ONCE:
        return Turn("read them all")
    names = [f"f{number}.txt" for number in range(AT_ONCE)]
    return Turn("", tuple((f"call_{name}", "read_file", {"path": name}) for name in names))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with RulesProvider(answer, window=WINDOW) as provider:
        question = {"url": provider.url, "ask": ASK, "files": [file_text(number) for number in range(FILES + 1)]}
        found: dict[str, Any] = run_in(AGENTS, PROBE, question, tmp_path_factory.mktemp("agents"))
    found["rejected"] = [problem.message for problem in provider.rejected]
    found["bodies"] = {
        key: [one.body for one in provider.requests if one.headers["authorization"] == f"Bearer {key}"] for key in HOWS
    }
    return found


@pytest.mark.parametrize("how", ["stored", "streamed", "sync", "chat", "loose"])
def test_a_long_task_ends_and_an_early_result_is_found_again(seen: dict[str, Any], how: str) -> None:
    run = seen[how]
    assert run["answer"] == "found it"
    assert run["folds"] >= 2
    assert run["counted"] > 0
    assert len(run["items"]) == 1 + 2 * FILES + 2 + 1
    assert run["items"][0] == {"content": ASK, "role": "user"}


def test_the_provider_refuses_nothing(seen: dict[str, Any]) -> None:
    assert seen["rejected"] == []


@pytest.mark.parametrize("how", ["stored", "streamed", "sync"])
def test_another_process_goes_on_with_the_same_fold(seen: dict[str, Any], how: str) -> None:
    run = seen[how]
    assert run["after"] in (run["folds"], run["folds"] + 1)
    assert run["again"] > len(run["items"])
    assert "[CONTEXT COMPACTION]" in seen["bodies"][how][-1]["instructions"]
    assert seen["bodies"][how][-1]["instructions"].startswith("You are careful.\n")


def test_what_is_not_folded_is_the_very_object(seen: dict[str, Any]) -> None:
    counts = seen["stored"]["seen"]
    assert counts[:8] == [[1 + 2 * number, 1 + 2 * number] for number in range(8)]
    assert min(same for same, _ in counts[10:]) > 5
    assert counts[-1][1] == 1 + 2 * FILES + 2


def test_the_first_ask_is_never_lost(seen: dict[str, Any]) -> None:
    for how in ("stored", "chat"):
        assert all("PLUM" in json.dumps(body) for body in seen["bodies"][how])


def test_recall_tools_are_offered_from_the_first_call_on_if_the_agent_has_them(seen: dict[str, Any]) -> None:
    assert {tuple(offered(body)) for body in seen["bodies"]["stored"]} == {
        ("read_file", "context_search", "context_unfold", "context_timeline")
    }
    assert {tuple(offered(body)) for body in seen["bodies"]["plain"]} == {("read_file",)}
    assert seen["plain"]["answer"] == "no tool for it"
    assert seen["plain"]["folds"] >= 2


def test_an_item_of_unknown_kind_is_passed_through_and_reported_once(seen: dict[str, Any]) -> None:
    run = seen["unknown"]
    assert run["answer"] == "found it"
    assert all("msg_PEAR" in json.dumps(body["input"]) for body in seen["bodies"]["unknown"])
    assert len(run["reports"]) == 2, "once by each of the two objects"
    assert all("item_reference" in text for text in run["reports"])
    assert seen["stored"]["reports"] == []


def test_a_session_keeps_items_as_the_sdk_asks_of_it(seen: dict[str, Any]) -> None:
    a, b, c = ({"role": "user", "content": text} for text in "abc")
    assert seen["store"] == [[], None, b, [a], [a, b, c], [b, c], [], []]


def test_two_agents_with_one_run_config_do_not_undo_each_others_folds(seen: dict[str, Any]) -> None:
    sizes, folds = seen["interleaved"]
    assert folds == [1, 1]
    assert max(sizes) < 32_000


def test_two_agents_at_the_same_time_keep_both_folds_and_what_was_counted_for_each(seen: dict[str, Any]) -> None:
    assert seen["together"] == [[1, 1], [1, 1]]


@pytest.mark.parametrize("how", ["conversation", "response"])
def test_a_history_that_the_provider_keeps_is_left_alone(seen: dict[str, Any], how: str) -> None:
    assert seen[how] == {"answer": "read them all", "untouched": [True, True]}
    results = seen["bodies"][how][-1]["input"]
    assert [item["call_id"] for item in results] == [f"call_f{number}.txt" for number in range(AT_ONCE)]
