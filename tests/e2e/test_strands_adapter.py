"""midfold inside released Strands agents, against a provider that enforces its rules."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.frameworks import STRANDS, run_in
from support.reading_model import ASK, ReadingModel, file_text, offered
from support.rules_provider import RulesProvider

WINDOW = 16_000
FILES = 36
HOWS = ("sync", "async", "wide", "plain", "unknown")

PROBE = r'''
import asyncio, json, sys
from types import SimpleNamespace
from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.session.file_session_manager import FileSessionManager
from strands.types.session import encode_bytes_values
from midfold.adapters.strands import MidfoldConversationManager

asked = json.load(sys.stdin)

@tool
def read_file(path: str) -> str:
    """Read a file."""
    return asked["files"][int(path[1:-4])]

def run(key, *, window=16000, recall=True, later=False, first=()):
    reports = []
    def make():
        manager = MidfoldConversationManager(context_length=window, report=reports.append)
        args = {"base_url": asked["url"] + "/v1", "api_key": key, "max_retries": 0}
        model = OpenAIModel(client_args=args, model_id="gpt-4o")
        tools = [read_file, *(manager.tools if recall else ())]
        agent = Agent(model=model, system_prompt="You are careful.", tools=tools, conversation_manager=manager,
                      callback_handler=None, agent_id="a",
                      session_manager=FileSessionManager(session_id=key, storage_dir="sessions"))
        return manager, agent
    manager, agent = make()
    for message in first:
        agent.messages.append(message)
    said = str(asyncio.run(agent.invoke_async(asked["ask"])) if later else agent(asked["ask"])).strip()
    folds, before = manager._kept["memory"]["state"]["count"], list(agent.messages)
    manager, agent = make()     # as another process would
    restored = agent.messages == before
    again = str(agent("And now?")).strip()
    return {"answer": said, "again": again, "folds": folds, "after": manager._kept["memory"]["state"]["count"],
            "restored": restored, "messages": len(before), "reports": reports}

odd = [{"role": "user", "content": [{"document": {"format": "txt", "name": "PEAR", "source": {"bytes": b"PEAR"}}},
                                    {"text": "the file is PEAR"}]},
       {"role": "assistant", "content": [{"text": "Thank you."},
        {"toolUse": {"toolUseId": "call_odd", "name": "read_file", "input": {"path": "f0.txt"}}}]},
       {"role": "user", "content": [{"toolResult": {"toolUseId": "call_odd", "status": "success",
                                                    "content": [{"text": "a result of PEAR"}]}},
                                    {"document": {"format": "txt", "name": "PEAR", "source": {"bytes": b"PEAR"}}}]},
       {"role": "assistant", "content": [{"text": "I have it."}]}]
def agent_with(messages):
    model = SimpleNamespace(get_config=lambda: {"model_id": "gpt-4o"}, context_window_limit=None)
    registry = SimpleNamespace(get_all_tool_specs=lambda: [])
    return SimpleNamespace(messages=messages, model=model, tool_registry=registry, system_prompt="You are careful.")

def cleared():
    """Somebody empties the list of messages after a fold, and talks about something else."""
    manager, removed = MidfoldConversationManager(context_length=16000), []
    agent = agent_with([])
    for topic in "ab":
        texts = [f"{topic}{number}: {asked['files'][1]}" for number in range(24)]
        agent.messages[:] = [{"role": ("user", "assistant")[number % 2], "content": [{"text": text}]}
                             for number, text in enumerate(texts)]
        before, known = manager.removed_message_count, list(agent.messages)
        manager._fold(agent)
        tail = next(n for n in range(1, 99) if not any(agent.messages[-n] is old for old in known)) - 1
        removed.append([manager.removed_message_count - before, len(known) - tail])
    return removed

def pictures():
    """Results with a picture in them, a picture of the user's, one that is kept elsewhere, and results without."""
    def image(name): return {"image": {"format": "png", "source": {"bytes": name.encode() * 100}}}
    reports = []
    manager, messages = MidfoldConversationManager(context_length=16000, report=reports.append), []
    for number in range(30):
        use = {"toolUseId": f"c{number}", "name": "read_file", "input": {}}
        parts = [{"text": asked["files"][1]}, *([image(f"P{number}")] if number in (3, 4, 29) else ())]
        result = {"toolUseId": f"c{number}", "status": "success", "content": parts}
        messages += [{"role": "assistant", "content": [{"toolUse": use}]},
                     {"role": "user", "content": [{"toolResult": result}]}]
    messages[:0] = [{"role": "user", "content": [{"text": "Hello."}, image("FIRST")]},
                    {"role": "assistant", "content": [{"text": "Hello."}]},
                    {"role": "user", "content": [{"text": asked["ask"]}, image("ASKED")]}]
    agent, newest = agent_with(messages), messages[-1]
    folded = manager._fold(agent)
    stored = json.dumps(encode_bytes_values(manager.get_state()))
    sent = repr(messages)
    elsewhere = {"image": {"format": "png", "source": {"location": {"type": "s3", "uri": "s3://bucket/one"}}}}
    agent.messages.insert(1, {"role": "user", "content": [elsewhere]})
    manager._fold(agent, force=True)
    return {"folded": folded, "newest": messages[-1] is newest, "sent": len(messages), "reports": reports,
            "seen": [name for name in ("FIRSTFIRST", "P3P3", "P4P4", "P29P29", "ASKEDASKED") if name in sent],
            "elsewhere": elsewhere in [block for one in messages for block in one["content"]],
            "stored": "image/png" in stored}

def shrunk():
    """A fold that shortens a result beside a picture, which stays."""
    picture = {"image": {"format": "jpeg", "source": {"bytes": b"JPG" * 100}}}
    uses = [{"toolUseId": f"c{n}", "name": "read_file", "input": {}} for n in range(2)]
    results = [{"toolUseId": use["toolUseId"], "status": "success", "content": [{"text": "word " * 20000}, picture]}
               for use in uses]
    messages = [{"role": "user", "content": [{"text": asked["ask"]}]},
                {"role": "assistant", "content": [{"toolUse": use} for use in uses]},
                {"role": "user", "content": [{"toolResult": result} for result in results]}]
    folded = MidfoldConversationManager(context_length=16000)._fold(agent_with(messages), force=True)
    return {"folded": folded, "kept": sum(picture in block["toolResult"]["content"] for one in messages
                                          for block in one["content"] if "toolResult" in block)}

print(json.dumps({
    "pictures": pictures(), "shrunk": shrunk(), "cleared": cleared(),
    "sync": run("sync"), "async": run("async", later=True), "wide": run("wide", window=60000),
    "plain": run("plain", recall=False), "unknown": run("unknown", first=odd),
}))
'''


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with RulesProvider(ReadingModel(FILES), window=WINDOW) as provider:
        question = {"url": provider.url, "ask": ASK, "files": [file_text(number) for number in range(FILES + 1)]}
        answer: dict[str, Any] = run_in(STRANDS, PROBE, question, tmp_path_factory.mktemp("strands"))
    answer["rejected"] = [problem.message for problem in provider.rejected]
    answer["bodies"] = {
        key: [one.body for one in provider.requests if one.headers["authorization"] == f"Bearer {key}"] for key in HOWS
    }
    return answer


@pytest.mark.parametrize("how", ["sync", "async", "wide"])
def test_a_long_task_ends_and_an_early_result_is_found_again(seen: dict[str, Any], how: str) -> None:
    run = seen[how]
    assert run["answer"] == "found it"
    assert run["again"] == "found it"
    assert run["folds"] >= 2
    assert run["messages"] < 2 * FILES


def test_the_provider_refuses_only_where_the_window_was_wrong(seen: dict[str, Any]) -> None:
    assert len(seen["rejected"]) == 1
    assert str(WINDOW) in seen["rejected"][0]


def test_a_session_manager_brings_the_same_messages_back(seen: dict[str, Any]) -> None:
    for how in ("sync", "plain"):
        run = seen[how]
        assert run["restored"]
        assert run["after"] in (run["folds"], run["folds"] + 1)


def test_the_first_ask_is_never_lost(seen: dict[str, Any]) -> None:
    assert all("PLUM" in json.dumps(body["messages"]) for body in seen["bodies"]["sync"])


def test_recall_tools_are_offered_if_the_agent_has_them(seen: dict[str, Any]) -> None:
    assert "context_search" in offered(seen["bodies"]["sync"][0])
    assert {tuple(offered(body)) for body in seen["bodies"]["plain"]} == {("read_file",)}
    assert seen["plain"]["answer"] == "no tool for it"
    assert seen["plain"]["folds"] >= 2


def test_a_message_of_unknown_kind_is_passed_through_and_reported_once(seen: dict[str, Any]) -> None:
    run = seen["unknown"]
    assert run["answer"] == "found it"
    assert all("the file is PEAR" in json.dumps(body["messages"]) for body in seen["bodies"]["unknown"])
    assert all("a result of PEAR" in json.dumps(body["messages"]) for body in seen["bodies"]["unknown"])
    assert len(run["reports"]) >= 1
    assert "document" in run["reports"][0]
    assert seen["sync"]["reports"] == []


def test_pictures_are_folded_from_the_newest_ask_with_one_backwards_and_with_their_messages(
    seen: dict[str, Any],
) -> None:
    found = seen["pictures"]
    assert found["folded"] and found["sent"] < 30
    assert found["newest"] and found["seen"] == ["P29P29", "ASKEDASKED"]
    assert found["stored"]


def test_a_picture_that_is_kept_elsewhere_is_passed_through_and_reported_once(seen: dict[str, Any]) -> None:
    found = seen["pictures"]
    assert found["elsewhere"]
    assert [report.partition(":")[0] for report in found["reports"]] == ["unknown message kind with image"]


def test_a_result_that_is_shortened_keeps_the_picture_beside_it(seen: dict[str, Any]) -> None:
    assert seen["shrunk"] == {"folded": True, "kept": 2}


def test_messages_that_somebody_cleared_after_a_fold_are_not_counted_as_of_it(seen: dict[str, Any]) -> None:
    for counted, gone in seen["cleared"]:
        assert counted == gone > 0
