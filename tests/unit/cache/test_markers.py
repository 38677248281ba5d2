"""Markers in requests: allowed positions, format, and no other changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from midfold import read
from midfold.cache import plan_document, stable_prefix_cache_key
from midfold.cache.markers import SYSTEM, TOOLS, PromptCacheHint, mark

LONG = "word " * 6_000
MARK = {"type": "ephemeral"}


def hint(index: int, layout: Any = "anthropic", ttl: Any = "5m", provider: str = "") -> PromptCacheHint:
    placement: Any = {TOOLS: "tools", SYSTEM: "system"}.get(index, "message")
    return PromptCacheHint(
        message_index=index, placement=placement, reason="", layout=layout, ttl=ttl, provider=provider
    )


def body(**changed: Any) -> dict[str, Any]:
    return {
        "model": "claude-sonnet-4-5",
        "max_tokens": 100,
        "tools": [{"name": "read", "input_schema": {"type": "object"}}, {"name": "run", "input_schema": {}}],
        "system": "Be careful.",
        "messages": [
            {"role": "user", "content": "Go."},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "tool_use", "id": "t1", "name": "read", "input": {"x": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "42"}]},
        ],
        **changed,
    }


def marked(value: Any, *indices: int, **asked: Any) -> Any:
    document = read(json.dumps(value).encode(), dialect=asked.pop("dialect", "anthropic"))
    return json.loads(mark(document, [hint(index, **asked) for index in indices]))


def test_native_markers_stand_on_tools_system_text_calls_and_results() -> None:
    out = marked(body(), TOOLS, SYSTEM, 0, 2)
    assert out["tools"][1]["cache_control"] == MARK
    assert "cache_control" not in out["tools"][0]
    assert out["system"] == [{"type": "text", "text": "Be careful.", "cache_control": MARK}]
    assert out["messages"][0]["content"] == [{"type": "text", "text": "Go.", "cache_control": MARK}]
    assert out["messages"][2]["content"][0]["cache_control"] == MARK
    assert marked(body(), 1)["messages"][1]["content"][1]["cache_control"] == MARK


@pytest.mark.parametrize(
    "content",
    [
        "",
        "  \n",
        [],
        None,
        [{"type": "thinking", "thinking": "hm", "signature": "s"}],
        [{"type": "redacted_thinking", "data": "xx"}],
        [{"type": "text", "text": ""}],
        [{"type": "tool_result", "tool_use_id": "t1", "content": ""}],
        [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}],
        ["a bare string"],
    ],
)
def test_what_cannot_carry_a_marker_gets_none(content: Any) -> None:
    document = read(body(messages=[{"role": "user", "content": content}]), dialect="anthropic")
    assert mark(document, [hint(0)]) is document.source


def test_a_tool_that_is_loaded_later_is_not_marked() -> None:
    tools = [{"name": "a", "input_schema": {}}, {"name": "b", "input_schema": {}, "defer_loading": True}]
    out = marked(body(tools=tools), TOOLS)
    assert [("cache_control" in tool) for tool in out["tools"]] == [True, False]


def test_only_the_marked_bytes_change() -> None:
    source = (
        b'{ "model":"claude-sonnet-4-5" , "temperature": 1e-7,\n "system" : [ {"type":"text","text":"S\\u0041"} ],'
        b'"messages":[ {"role":"user","content":"Caf\\u00e9"} ,\n{"role":"assistant","content":[{"type":"tool_use",'
        b'"id":"t","name":"n","input":{"x":1e-7}}]},  {"role":"user","content":[{"type":"tool_result","tool_use_id":'
        b'"t","content":"ok"}]} ] , "stream":true}'
    )
    out = mark(read(source, dialect="anthropic"), [hint(SYSTEM), hint(0), hint(1), hint(2)])
    added = b',"cache_control":{"type":"ephemeral"}'
    assert out.count(added) == 4
    wrapped = b'[{"type":"text","text":"Caf\\u00e9"}]'
    assert out.replace(added, b"").replace(wrapped, b'"Caf\\u00e9"') == source


def test_objects_that_are_not_marked_are_the_callers_own() -> None:
    value = body()
    out = mark(read(value, dialect="anthropic"), [hint(2)])
    assert out["messages"][0] is value["messages"][0]
    assert out["messages"][1] is value["messages"][1]
    assert out["tools"] is value["tools"]
    assert "cache_control" not in json.dumps(value)


def test_the_clients_markers_count_and_stay() -> None:
    blocks = [{"type": "text", "text": f"{n}", "cache_control": MARK} for n in range(3)]
    value = body(messages=[{"role": "user", "content": blocks}, {"role": "assistant", "content": "Yes."}])
    out = marked(value, SYSTEM, 0, 1)
    assert json.dumps(out).count("cache_control") == 4
    assert out["messages"][0]["content"] == blocks
    assert "cache_control" in out["messages"][1]["content"][0]
    assert out["system"] == "Be careful."


def test_a_marker_on_the_request_itself_is_one_of_the_four() -> None:
    out = marked(body(cache_control=MARK), TOOLS, SYSTEM, 0, 2)
    assert json.dumps(out).count("cache_control") == 4
    assert "cache_control" not in json.dumps(out["tools"])


def test_a_marker_inside_a_tool_result_counts() -> None:
    inner = [{"type": "text", "text": "x", "cache_control": MARK}]
    result = [{"type": "tool_result", "tool_use_id": f"t{n}", "content": inner} for n in range(4)]
    document = read(body(messages=[{"role": "user", "content": result}]), dialect="anthropic")
    assert mark(document, [hint(SYSTEM)]) is document.source


def test_arguments_that_speak_of_markers_are_not_markers() -> None:
    call = {"type": "tool_use", "id": "t", "name": "n", "input": {"cache_control": {"type": "ephemeral"}}}
    out = marked(body(messages=[{"role": "assistant", "content": [call]}]), SYSTEM, 0)
    assert "cache_control" in out["messages"][0]["content"][0]
    assert "cache_control" in out["system"][0]


@pytest.mark.parametrize(
    ("own_system", "own_end", "wanted", "given"),
    [("5m", None, "1h", "5m"), (None, "1h", "5m", "1h"), ("1h", None, "5m", "5m"), ("1h", None, "1h", "1h")],
)
def test_a_longer_lifetime_never_stands_after_a_shorter_one(
    own_system: str | None, own_end: str | None, wanted: Any, given: str
) -> None:
    def block(text: str, ttl: str | None) -> dict[str, Any]:
        marker = {} if ttl is None else {"cache_control": {"type": "ephemeral", "ttl": ttl}}
        return {"type": "text", "text": text, **marker}

    messages = [{"role": "user", "content": "Go."}, {"role": "user", "content": [block("end", own_end)]}]
    out = marked(body(system=[block("S", own_system)], messages=messages), 0, ttl=wanted)
    assert out["messages"][0]["content"][0]["cache_control"].get("ttl", "5m") == given


def test_the_note_of_a_first_compaction_stands_after_the_breakpoint() -> None:
    from midfold.compaction.handoff import SYSTEM_NOTE

    system = [{"type": "text", "text": "S"}, {"type": "text", "text": SYSTEM_NOTE}]
    out = marked(body(system=system), SYSTEM)
    assert ["cache_control" in block for block in out["system"]] == [True, False]


def envelope() -> list[dict[str, Any]]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return [
        {"role": "system", "content": "Be careful."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Go."}, {"type": "image_url", "image_url": {"url": "x"}}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "42"},
        {"role": "assistant", "content": "Done."},
    ]


def test_an_envelope_is_marked_inside_content_parts_only() -> None:
    document = read(envelope(), dialect="openai-chat")
    out = mark(document, [hint(index, "envelope") for index in range(5)])
    assert out[0]["content"] == [{"type": "text", "text": "Be careful.", "cache_control": MARK}]
    assert out[1]["content"][0]["cache_control"] == MARK
    assert out[2] is document.source[2]
    assert out[3] is document.source[3]
    assert out[4]["content"][0]["cache_control"] == MARK
    assert all("cache_control" not in message for message in out)


def test_a_tool_message_is_marked_in_its_part_where_the_host_honours_it() -> None:
    document = read(envelope(), dialect="openai-chat")
    out = mark(document, [hint(3, "envelope", provider="openrouter")])
    assert out[3]["content"] == [{"type": "text", "text": "42", "cache_control": MARK}]
    assert mark(document, [hint(3, "envelope", provider="litellm")]) is document.source


def test_openai_breakpoints_stand_on_what_the_model_reads_and_leave_one_to_openai() -> None:
    document = read(envelope(), dialect="openai-chat")
    out = mark(document, [hint(index, "openai") for index in range(5)])
    point = {"mode": "explicit"}
    assert [json.dumps(message).count("prompt_cache_breakpoint") for message in out] == [1, 1, 0, 1, 0]
    assert out[3]["content"][0] == {"type": "text", "text": "42", "prompt_cache_breakpoint": point}


def test_responses_items_are_marked_in_their_own_blocks() -> None:
    value = {
        "model": "gpt-5.6",
        "instructions": "S",
        "input": [
            {"role": "user", "content": "Go."},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "42"},
        ],
    }
    out = marked(value, 0, 1, 2, layout="openai", dialect="openai-responses")
    assert out["input"][0]["content"][0]["type"] == "input_text"
    assert "prompt_cache_breakpoint" in out["input"][0]["content"][0]
    assert out["input"][1] == value["input"][1]
    assert "prompt_cache_breakpoint" in out["input"][2]["output"][0]
    single = marked({"model": "gpt-5.6", "input": "Go."}, 0, layout="openai", dialect="openai-responses")
    assert single["input"][0]["role"] == "user"


def test_the_key_goes_on_the_request_and_never_over_the_clients() -> None:
    value = {"model": "gpt-4o", "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Go."}]}
    document = read(json.dumps(value).encode(), dialect="openai-chat")
    hints = plan_document(document, provider="openai")
    out = json.loads(mark(document, hints))
    assert out == {**value, "prompt_cache_key": stable_prefix_cache_key("S", [])}
    mine = read({**value, "prompt_cache_key": "mine"}, dialect="openai-chat")
    assert mark(mine, hints) is mine.source


def test_converse_requests_get_cache_points_as_blocks_of_their_own() -> None:
    value = {
        "system": [{"text": "S"}],
        "toolConfig": {"tools": [{"toolSpec": {"name": "f"}}]},
        "messages": [
            {"role": "user", "content": [{"text": "Go."}]},
            {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t", "name": "f", "input": {}}}]},
            {"role": "user", "content": [{"toolResult": {"toolUseId": "t", "content": []}}, {"text": " "}]},
        ],
    }
    point = {"cachePoint": {"type": "default"}}
    for source in (value, json.dumps(value).encode()):
        out = mark(read(source, dialect="anthropic"), [hint(n, "bedrock") for n in (TOOLS, SYSTEM, 0, 1, 2)])
        out = out if isinstance(out, dict) else json.loads(out)
        assert out["system"] == [{"text": "S"}, point]
        assert out["toolConfig"]["tools"] == value["toolConfig"]["tools"]  # type: ignore[index]
        assert out["messages"][2]["content"][1] == point
        assert json.dumps(out).count("cachePoint") == 4
    again = read(out, dialect="anthropic")
    assert mark(again, [hint(TOOLS, "bedrock")]) is again.source


def test_a_marker_whose_key_is_written_with_escapes_counts() -> None:
    source = (
        b'{"model":"m","system":"S","messages":[{"role":"user","content":[{"type":"text","text":"x",'
        b'"cache\\u005fcontrol":{"type":"ephemeral"}}]}]}'
    )
    document = read(source, dialect="anthropic")
    assert mark(document, [hint(0)]) is source
