"""midfold inside released pydantic-ai 2.x agents, against a provider that enforces its rules."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.frameworks import PYDANTIC_AI, run_in
from support.provider_rules import prompt_tokens
from support.reading_model import ASK, ReadingModel, file_text, offered
from support.rules_provider import RulesProvider

WINDOW = 16_000
FILES = 36
HOWS = ("async", "sync", "streamed", "responses", "unknown", "wide", "plain", "taken", "grouped", "moved", "images")
OLD, NEWER, NEWEST = ("data:image/png;base64,iVBORwE=", "https://example.com/a.png", "data:image/png;base64,iVBORwI=")

PROBE = r'''
import asyncio, json, sys
from types import SimpleNamespace
from openai import AsyncOpenAI
from pydantic_ai import Agent, ModelMessagesTypeAdapter, UsageLimits
from pydantic_ai.capabilities import AbstractCapability, ModelFallback
from pydantic_ai.messages import (BinaryContent, CompactionPart, ImageUrl, ModelRequest, ModelResponse, TextPart,
                                  ToolCallPart, ToolReturnPart, UserPromptPart)
from pydantic_ai.models import ModelRequestContext, ModelRequestParameters
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from midfold.adapters.pydantic_ai import MidfoldCapability

asked, loop = json.load(sys.stdin), asyncio.new_event_loop()
asyncio.set_event_loop(loop)

class Watch(AbstractCapability):
    """Stands behind: sees what midfold hands on."""
    def __init__(self):
        self.same, self.whole = [], []
    async def prepare_model_request(self, ctx, request_context):
        known = {id(message) for message in ctx.messages}
        self.same.append(sum(id(message) in known for message in request_context.messages))
        self.whole.append([len(request_context.messages), len(ctx.messages)])
        return request_context

async def stream(agent, *given, **more):
    async with agent.run_stream(*given, **more) as result:
        await result.get_output()
    return result

def run(key, *, how="async", model=OpenAIChatModel, name="gpt-4o", first=(), prompt=None, window=16000, more=(),
        **settings):
    reports, watch = [], Watch()
    def agent():
        client = AsyncOpenAI(base_url=asked["url"] + "/v1", api_key=key, max_retries=0)
        folding = MidfoldCapability(report=reports.append, context_length=window, **settings)
        made = Agent(model(name, provider=OpenAIProvider(openai_client=client)), instructions="You are careful.",
                     capabilities=[folding, watch, *(one(key) for one in more)])
        @made.tool_plain
        def read_file(path: str) -> str:
            """Read a file."""
            return asked["files"][int(path[1:-4])]
        return made
    def do(prompt, history):
        more = {"message_history": history, "usage_limits": UsageLimits(request_limit=None)}
        if how == "sync":
            return agent().run_sync(prompt, **more)
        work = stream(agent(), prompt, **more) if how == "streamed" else agent().run(prompt, **more)
        return loop.run_until_complete(work)
    counts = lambda messages: [m.metadata["midfold"]["memory"]["state"]["count"] for m in messages
                               if isinstance(m, ModelResponse) and "midfold" in (m.metadata or {})]
    out = do(prompt or asked["ask"], list(first))
    calls, messages = len(watch.same), out.all_messages()
    kept = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))
    again = do("And now?", kept)     # as another process would
    last = messages[-1].parts[-1]
    seen = [one for message in messages for part in message.parts if isinstance(part, UserPromptPart)
            for one in (part.content if isinstance(part.content, list) else [])]
    return {"images": sum(not isinstance(one, str) for one in seen), "answer": last.content,
            "messages": len(messages), "folds": counts(messages),
            "after": counts(again.all_messages()), "same": watch.same[:calls], "whole": watch.whole[:calls],
            "reports": reports, "again": len(again.all_messages())}

def results():
    """Results with a picture beside long words, the newest of them too long to stay whole."""
    messages = [ModelRequest([UserPromptPart(asked["ask"])])]
    for number in range(24):
        text, key = asked["files"][1] * (30 if number == 23 else 2), f"c{number}"
        content = [text, pictures[0]] if number > 21 else text
        messages += [ModelResponse([ToolCallPart("read_file", {"path": "f1.txt"}, tool_call_id=key)]),
                     ModelRequest([ToolReturnPart("read_file", content, tool_call_id=key)])]
    folding = loop.run_until_complete(MidfoldCapability(context_length=16000).for_run(SimpleNamespace(messages=[])))
    model = OpenAIChatModel("gpt-4o", provider=client("none"))
    more = {"model_settings": None, "model_request_parameters": ModelRequestParameters()}
    given = ModelRequestContext(model=model, messages=messages, **more)
    sent = loop.run_until_complete(folding.prepare_model_request(None, given)).messages
    parts = [part for message in sent for part in message.parts if isinstance(part, ToolReturnPart)]
    kept = {part.tool_call_id: [len(part.model_response_str()), len(part.files)] for part in parts}
    return {"sent": len(sent), "whole": len(text), "newest": kept.get("c23")}

def client(key, url=asked["url"]):
    return OpenAIProvider(openai_client=AsyncOpenAI(base_url=url + "/v1", api_key=key, max_retries=0))

dead = OpenAIChatModel("gpt-4o", provider=client("dead", "http://127.0.0.1:9"))
behind = lambda name, provider: FallbackModel(dead, OpenAIChatModel(name, provider=provider))
other = lambda key: ModelFallback(OpenAIChatModel("gpt-4", provider=client(key)))
pictures = [BinaryContent(bytes([137, 80, 78, 71, number]), media_type="image/png") for number in (1, 2)]
looked = ModelRequest([UserPromptPart(["Look at these.", pictures[0], ImageUrl("https://example.com/a.png")])])
odd = ModelRequest([UserPromptPart("Hello."), CompactionPart("The other word is PEAR.")])
print(json.dumps({
    "results": results(),
    "async": run("async"), "sync": run("sync", how="sync"), "streamed": run("streamed", how="streamed"),
    "responses": run("responses", model=OpenAIResponsesModel),
    "unknown": run("unknown", first=[odd, ModelResponse([TextPart("Hello!")])]),
    "wide": run("wide", window=60000), "plain": run("plain", recall=False),
    "taken": run("taken", model=behind, name="gpt-4", window=None),
    "grouped": run("grouped", model=behind, window=None),
    "moved": run("moved", model=lambda name, provider: dead, window=None, more=[other]),
    "images": run("images", first=[looked, ModelResponse([TextPart("Nice.")])],
                  prompt=["And at this.", pictures[1], asked["ask"]]),
}))
'''


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with RulesProvider(ReadingModel(FILES), window=WINDOW) as provider:
        question = {"url": provider.url, "ask": ASK, "files": [file_text(number) for number in range(FILES + 1)]}
        answer: dict[str, Any] = run_in(PYDANTIC_AI, PROBE, question, tmp_path_factory.mktemp("pydantic_ai"))
    answer["rejected"] = [problem.message for problem in provider.rejected]
    answer["bodies"] = {
        key: [one.body for one in provider.requests if one.headers["authorization"] == f"Bearer {key}"] for key in HOWS
    }
    return answer


@pytest.mark.parametrize("how", ["async", "sync", "streamed", "responses", "wide", "taken", "grouped", "moved"])
def test_a_long_task_ends_and_an_early_result_is_found_again(seen: dict[str, Any], how: str) -> None:
    run = seen[how]
    assert run["answer"] == "found it"
    assert run["messages"] == 1 + 2 * FILES + 2 + 1
    assert run["folds"][-1] >= 2


def test_the_provider_refuses_only_where_the_window_was_wrong(seen: dict[str, Any]) -> None:
    assert len(seen["rejected"]) == 2, "`wide` was told a wrong window, and `grouped` knows none for its model"
    assert all(str(WINDOW) in text for text in seen["rejected"])


@pytest.mark.parametrize("how", ["taken", "moved"])
def test_a_fallback_model_with_a_smaller_window_is_folded_for(seen: dict[str, Any], how: str) -> None:
    bodies = seen["bodies"][how]
    assert {body["model"] for body in bodies} == {"gpt-4"}
    assert max(prompt_tokens("chat", body) for body in bodies) < 8_192


def test_older_pictures_go_with_a_fold_and_the_newest_stays(seen: dict[str, Any]) -> None:
    run, bodies = seen["images"], [json.dumps(body["messages"]) for body in seen["bodies"]["images"]]
    assert run["answer"] == "found it"
    assert run["images"] == 3, "the run's own messages have all of them"
    assert all(url in bodies[0] for url in (OLD, NEWER, NEWEST))
    assert all(NEWEST in body for body in bodies)
    assert not any(url in body for body in bodies if "[CONTEXT COMPACTION]" in body for url in (OLD, NEWER))


def test_a_picture_beside_a_result_that_is_shortened_stays_beside_it(seen: dict[str, Any]) -> None:
    found = seen["results"]
    assert found["sent"] < 50
    characters, pictures = found["newest"]
    assert characters < found["whole"]
    assert pictures == 1


def test_messages_that_were_stored_bring_their_fold_along(seen: dict[str, Any]) -> None:
    run = seen["async"]
    assert run["after"][-1] in (run["folds"][-1], run["folds"][-1] + 1)
    assert run["again"] > run["messages"]
    system = [one["content"] for one in seen["bodies"]["async"][-1]["messages"] if one["role"] == "system"]
    assert system[0] == "You are careful."
    assert "[CONTEXT COMPACTION]" in system[1]


def test_what_is_remembered_is_written_when_it_changes_and_not_with_every_response(seen: dict[str, Any]) -> None:
    run = seen["async"]
    assert run["folds"][:2] == [0, 1]
    assert len(run["folds"]) < run["messages"] / 4


def test_what_is_not_folded_is_the_very_object(seen: dict[str, Any]) -> None:
    run = seen["async"]
    assert run["same"][:8] == [1 + 2 * number for number in range(8)]
    assert min(run["same"][10:]) > 5
    assert run["whole"][-1][1] == 1 + 2 * FILES + 2


def test_the_first_ask_is_never_lost(seen: dict[str, Any]) -> None:
    assert all("PLUM" in json.dumps(body) for how in ("async", "responses") for body in seen["bodies"][how])


def test_recall_tools_are_offered_from_the_first_call_on_unless_they_are_not_wanted(seen: dict[str, Any]) -> None:
    assert {tuple(offered(body)) for body in seen["bodies"]["async"]} == {
        ("read_file", "context_search", "context_unfold", "context_timeline")
    }
    assert {tuple(offered(body)) for body in seen["bodies"]["plain"]} == {("read_file",)}
    assert seen["plain"]["answer"] == "no tool for it"
    assert seen["plain"]["folds"][-1] >= 2


def test_a_part_of_unknown_kind_is_passed_through_and_reported_once(seen: dict[str, Any]) -> None:
    run = seen["unknown"]
    assert run["answer"] == "found it"
    assert all("PEAR" in json.dumps(body["messages"]) for body in seen["bodies"]["unknown"])
    assert len(run["reports"]) == 2, "once by each of the two agents"
    assert all("CompactionPart" in text for text in run["reports"])
    assert seen["async"]["reports"] == []
