"""midfold inside released Google ADK, against a provider that enforces its rules."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.frameworks import ADK, run_in
from support.reading_model import ASK, ReadingModel, file_text, offered
from support.rules_provider import RulesProvider

WINDOW = 16_000
FILES = 36
HOWS = ("folded", "streamed", "plain", "unknown", "wide")

PROBE = r'''
import asyncio, json, os, sys
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import App
from google.adk.models.lite_llm import LiteLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types
from types import SimpleNamespace
from midfold.adapters.google_adk import MidfoldPlugin

asked = json.load(sys.stdin)

def read_file(path: str) -> str:
    """Read a file."""
    return asked["files"][int(path[1:-4])]

class Watch(BasePlugin):
    """Stands before and behind: sees what midfold is given and what it hands on."""
    def __init__(self, name, seen):
        super().__init__(name=name)
        self.seen = seen
    async def before_model_callback(self, *, callback_context, llm_request):
        self.seen.append(list(llm_request.contents))

async def run(key, *, recall=True, streamed=False, first=(), plugin=None):
    reports, service, before, after = [], InMemorySessionService(), [], []
    given = plugin
    session = await service.create_session(app_name="app", user_id="u", session_id="s")
    async def ask(*parts):
        plugin = given or MidfoldPlugin(context_length=16000, report=reports.append)
        model = LiteLlm(model="openai/gpt-4o", api_base=asked["url"] + "/v1", api_key=key, max_retries=0)
        agent = LlmAgent(name="reader", model=model, instruction="You are careful.",
                         tools=[read_file, *(plugin.tools if recall else ())])
        app = App(name="app", root_agent=agent, plugins=[Watch("one", before), plugin, Watch("two", after)])
        runner, said = Runner(app=app, session_service=service), ""
        config = RunConfig(max_llm_calls=200, streaming_mode=StreamingMode.SSE if streamed else StreamingMode.NONE)
        message = types.Content(role="user", parts=list(parts))
        async for event in runner.run_async(user_id="u", session_id="s", new_message=message, run_config=config):
            if event.is_final_response() and event.content:
                said = "".join(part.text or "" for part in event.content.parts)
        return said
    refusals = []
    try:
        answer = await ask(*first, types.Part(text=asked["ask"]))
    except Exception as error:
        refusals.append(str(error))
        answer = await ask(types.Part(text="Go on."))
    state = (await service.get_session(app_name="app", user_id="u", session_id="s"))
    kept = state.state["midfold:reader"]
    same = [sum(any(a is b for b in given) for a in sent) for given, sent in zip(before, after)]
    again = await ask(types.Part(text="And now?"))   # as another process would
    later = (await service.get_session(app_name="app", user_id="u", session_id="s")).state["midfold:reader"]
    return {"answer": answer, "again": again, "folds": kept["memory"]["state"]["count"], "events": len(state.events),
            "after": later["memory"]["state"]["count"], "same": same, "reports": reports, "refusals": refusals,
            "plain": json.loads(json.dumps(kept)) == kept, "left": len(given._running) if given else 0}

async def pictures():
    """Results with a picture beside them, and results without."""
    plugin, contents = MidfoldPlugin(context_length=16000), [types.UserContent(asked["ask"])]
    for number in range(24):
        call = types.Part.from_function_call(name="read_file", args={"path": f"f{number}.txt"})
        result = types.Part.from_function_response(name="read_file", response={"result": asked["files"][1] * 2})
        seen = [types.Part.from_bytes(data=b"\x89PNG", mime_type="image/png")] * (number % 3 == 0)
        contents += [types.ModelContent([call]), types.UserContent([result, *seen])]
    request = LlmRequest(model="gpt-4o", contents=contents)
    context = SimpleNamespace(invocation_id="i", agent_name="a", state={})
    await plugin.before_model_callback(callback_context=context, llm_request=request)
    shown = [[bool(part.inline_data) for part in content.parts] for content in request.contents]
    changed = [c for c in request.contents if not any(c is one for one in contents)]
    results = [c for c in changed if any(part.function_response for part in c.parts)]
    return {"sent": len(shown), "changed": len(results), "pictures": sum(map(sum, shown)),
            "beside": sum(len(c.parts) > 1 for c in results)}

async def crowd():
    """Runs that are cancelled tell nobody."""
    plugin = MidfoldPlugin(context_length=16000)
    for number in range(1500):
        context = SimpleNamespace(invocation_id=str(number), agent_name="a", state={})
        request = LlmRequest(model="gpt-4o", contents=[types.UserContent("hello")])
        await plugin.before_model_callback(callback_context=context, llm_request=request)
    return len(plugin._running)

async def main():
    odd = types.Part(inline_data=types.Blob(data=b"\x89PNG", mime_type="image/png"))
    return {"folded": await run("folded"), "streamed": await run("streamed", streamed=True),
            "plain": await run("plain", recall=False), "unknown": await run("unknown", first=[odd]),
            "wide": await run("wide", plugin=MidfoldPlugin(context_length=60000)),
            "pictures": await pictures(), "crowd": await crowd()}
print(json.dumps(asyncio.run(main())), flush=True)
'''


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with RulesProvider(ReadingModel(FILES), window=WINDOW) as provider:
        question = {"url": provider.url, "ask": ASK, "files": [file_text(number) for number in range(FILES + 1)]}
        answer: dict[str, Any] = run_in(ADK, PROBE, question, tmp_path_factory.mktemp("adk"))
    answer["rejected"] = [problem.message for problem in provider.rejected]
    answer["bodies"] = {
        key: [one.body for one in provider.requests if one.headers["authorization"] == f"Bearer {key}"] for key in HOWS
    }
    return answer


@pytest.mark.parametrize("how", ["folded", "streamed"])
def test_a_long_task_ends_and_an_early_result_is_found_again(seen: dict[str, Any], how: str) -> None:
    run = seen[how]
    assert run["answer"] == "found it"
    assert run["again"] == "found it"
    assert run["folds"] >= 2
    assert run["events"] >= 2 * FILES
    assert run["after"] in (run["folds"], run["folds"] + 1)
    assert run["plain"]


def test_the_provider_refuses_only_where_the_window_was_wrong(seen: dict[str, Any]) -> None:
    assert len(seen["rejected"]) == 1
    assert str(WINDOW) in seen["rejected"][0]


def test_a_refused_request_fails_and_the_next_one_knows_the_window(seen: dict[str, Any]) -> None:
    run = seen["wide"]
    assert len(run["refusals"]) == 1
    assert str(WINDOW) in run["refusals"][0]
    assert run["answer"] == "found it"
    assert run["folds"] >= 2


def test_what_is_not_folded_is_the_very_object(seen: dict[str, Any]) -> None:
    same = seen["folded"]["same"]
    assert same[:8] == [1 + 2 * number for number in range(8)]
    assert min(same[10:]) > 5


def test_the_first_ask_is_never_lost(seen: dict[str, Any]) -> None:
    assert all("PLUM" in json.dumps(body["messages"]) for body in seen["bodies"]["folded"])
    system = seen["bodies"]["folded"][-1]["messages"][0]
    assert "You are careful." in json.dumps(system)
    assert "[CONTEXT COMPACTION]" in json.dumps(system)


def test_recall_tools_are_offered_if_the_agent_has_them(seen: dict[str, Any]) -> None:
    assert "context_search" in offered(seen["bodies"]["folded"][0])
    assert {tuple(offered(body)) for body in seen["bodies"]["plain"]} == {("read_file",)}
    assert seen["plain"]["answer"] == "no tool for it"
    assert seen["plain"]["folds"] >= 2


def test_a_content_of_unknown_kind_is_passed_through_and_reported_once(seen: dict[str, Any]) -> None:
    run = seen["unknown"]
    assert run["answer"] == "found it"
    assert all("image/png" in json.dumps(body["messages"]) for body in seen["bodies"]["unknown"])
    assert len(run["reports"]) == 2, "once by each of the two plugins"
    assert "inline_data" in run["reports"][0]
    assert seen["folded"]["reports"] == []


def test_a_picture_beside_a_result_that_is_shortened_stays_beside_it(seen: dict[str, Any]) -> None:
    found = seen["pictures"]
    assert found["sent"] < 1 + 2 * 24
    assert found["changed"] > 0
    assert found["beside"] > 0


def test_runs_that_failed_or_were_cancelled_leave_no_histories_behind(seen: dict[str, Any]) -> None:
    assert seen["wide"]["left"] == 0
    assert seen["crowd"] <= 256
