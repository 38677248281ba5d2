"""First difference of two requests: its position, cost and cause."""

from __future__ import annotations

import copy
import json
from typing import Any

import midfold
from midfold import read
from midfold.cache.prefix import Difference, prefix_diff
from midfold.cache.prices import Prices
from midfold.compaction.handoff import SYSTEM_NOTE

CLAUDE = Prices(read=0.1, write=1.25, base=3.0)


def request() -> dict[str, Any]:
    return {
        "model": "claude-sonnet-4-5",
        "max_tokens": 9,
        "tools": [{"name": "read", "input_schema": {}}, {"name": "run", "input_schema": {}}],
        "system": [{"type": "text", "text": "Be careful."}],
        "messages": [
            {"role": "user", "content": "Go. " * 200},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "read", "input": {"path": "a"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "line\n" * 300}]},
            {"role": "assistant", "content": "Done."},
        ],
    }


def between(old: Any, new: Any) -> Difference:
    return prefix_diff(read(old, dialect="anthropic"), read(new, dialect="anthropic"), prices=CLAUDE)


def test_markers_and_strings_as_blocks_are_no_difference() -> None:
    new = copy.deepcopy(request())
    new["system"][0]["cache_control"] = {"type": "ephemeral"}
    new["messages"][0]["content"] = [{"type": "text", "text": "Go. " * 200, "cache_control": {"type": "ephemeral"}}]
    new["messages"].append({"role": "user", "content": "More."})
    found = between(json.dumps(request()).encode(), json.dumps(new).encode())
    assert found.same
    assert "continues the first by 1" in found.what


def test_a_changed_message_is_named_to_the_byte() -> None:
    new = copy.deepcopy(request())
    new["messages"][1]["content"][0]["input"]["path"] = "b"
    found = between(request(), new)
    assert (found.block, found.field, found.who) == ("messages[1]", "content[0].input.path", "client")
    value = json.dumps(request()["messages"][1], separators=(",", ":"))
    assert value[found.byte] == "a"
    assert found.shared_tokens > 100
    assert found.extra_units > 300
    assert found.extra_money > 0


def test_tools_model_system_and_settings_have_names_of_their_own() -> None:
    for change, block, who in (
        ({"tools": request()["tools"][::-1]}, "tools[0]", "tool list"),
        ({"tools": request()["tools"][:1]}, "system[0]", "tool list"),
        ({"model": "claude-opus-4-6"}, "model", "model"),
        ({"system": [{"type": "text", "text": "Be quick."}]}, "system[0]", "client"),
        ({"system": [*request()["system"], {"type": "text", "text": SYSTEM_NOTE}]}, "system[1]", "compaction"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "client"),
    ):
        found = between(request(), {**request(), **change})
        assert (found.block, found.who) == (block, who)


def test_a_fold_and_a_digest_are_recognised() -> None:
    talk = [turn for n in range(60) for turn in (_said("user", f"Why {n}? "), _said("assistant", f"So {n}. "))]
    body = {**request(), "messages": talk}
    folded = midfold.compact(body, context_length=16_000)
    assert folded.receipt.status == "compacted"
    plain = [message for message in folded.messages["messages"] if message in talk]
    assert plain
    found = between({**body, "system": folded.messages["system"]}, folded.messages)
    assert found.who == "compaction"
    runs = [message for n in range(30) for message in _run(n)]
    tail = midfold.Protection(protect_last_n=4)
    before = {**request(), "messages": [_said("user", "Go. "), *runs]}
    pruned = midfold.compact(before, context_length=64_000, force=True, protection=tail)
    assert pruned.receipt.status == "pruned"
    assert between(before, pruned.messages).who == "digest"


def test_a_shorter_second_request_is_told() -> None:
    found = between(request(), {**request(), "messages": request()["messages"][:2]})
    assert not found.same
    assert found.who == "client"
    assert "ends here" in found.what


def _said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text * 60}


def _run(n: int) -> list[dict[str, Any]]:
    call = {"type": "tool_use", "id": f"t{n}", "name": "terminal", "input": {"command": f"make {n}"}}
    result = {"type": "tool_result", "tool_use_id": f"t{n}", "content": f"output {n}\n" * 120}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
