"""Answers of both wires, whole and streaming, good and broken, and which model is asked where."""

from __future__ import annotations

from typing import Any

import pytest

from midfold.agent.answers import Answer, AnswerReader
from midfold.agent.shapes import Result, ToolSpec, longest_answer, results
from midfold.agent.where import endpoint_for, secret_variables
from midfold.config import Config
from midfold.config.load import store_url
from midfold.config.schema import AgentSettings, Provider, StoreSettings
from midfold.errors import ConfigError, ModelFailed
from midfold.summarize.endpoint import Endpoint, Wire
from midfold.testing.answers import events, turn
from midfold.transcript import jsonio

CALLS = [("shell", {"command": "ls", "timeout": 5}), ("read_file", {"path": "ä/ö.txt"})]


def read(wire: Wire, body: bytes, size: int = 7) -> tuple[str, Answer]:
    reader = AnswerReader(wire)
    heard = [text for start in range(0, len(body), size) for text in reader.feed(body[start : start + size])]
    return "".join(heard), reader.finish()


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_streams_and_whole_answers_say_the_same(wire: Wire, size: int) -> None:
    made = {stream: turn(wire, "Let me see.", CALLS, prompt_tokens=90, stream=stream) for stream in (True, False)}
    heard, streamed = read(wire, made[True].body, size)
    silent, whole = read(wire, made[False].body, size)
    assert (heard, silent) == ("Let me see.", "")
    for answer in (streamed, whole):
        assert answer.text == "Let me see."
        assert [(call.name, jsonio.decode(call.arguments)) for call in answer.calls] == CALLS
        assert answer.message["role"] == "assistant"
        assert answer.usage
    names = [sorted(answer.message) for answer in (streamed, whole)]
    assert names[0] == names[1]


def test_blocks_of_thinking_are_kept_with_their_signature() -> None:
    items: list[Any] = [
        {"type": "message_start", "message": {"usage": {"input_tokens": 5}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm, "}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "yes."}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "abc"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "redacted_thinking", "data": "xyz"}},
        {"type": "content_block_start", "index": 2, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_start", "index": 3, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 3, "delta": {"type": "text_delta", "text": "Yes."}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    ]
    heard, answer = read("anthropic", events(items, named=True).body)
    assert heard == answer.text == "Yes."
    assert answer.message["content"] == [
        {"type": "thinking", "thinking": "Hm, yes.", "signature": "abc"},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "text", "text": "Yes."},
    ]
    assert answer.usage == {"input_tokens": 5, "output_tokens": 9}


def test_servers_without_an_index_and_with_reasoning_are_understood() -> None:
    call = {"type": "function", "function": {"name": "shell", "arguments": '{"command": "ls"}'}}
    deltas: list[Any] = [
        {"reasoning_content": "I think."},
        {"tool_calls": [{**call, "id": "a"}]},
        {"tool_calls": [{**call, "id": "b"}]},
    ]
    items: list[Any] = [{"choices": [{"delta": delta}]} for delta in deltas]
    items.append({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    _, answer = read("openai", events(items, done=True).body)
    assert [call.id for call in answer.calls] == ["a", "b"]
    assert answer.message["reasoning_content"] == "I think."


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_an_answer_that_breaks_off_is_none(wire: Wire, share: float) -> None:
    body = turn(wire, "A long answer, which will not come to its end.", CALLS).cut(share).body
    with pytest.raises(ModelFailed) as failed:
        read(wire, body)
    assert failed.value.kind == "malformed"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"<html>Bad Gateway</html>", "malformed"),
        (b"[]", "malformed"),
        (b'{"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}', "malformed"),
        (b'{"error": {"code": 429, "message": "slow down"}}', "rate_limit"),
        (b'data: {"error": {"message": "maximum context length is 4096 tokens", "code": 400}}\n\n', "overflow"),
    ],
)
def test_what_is_no_answer_is_told_by_its_kind(body: bytes, kind: str) -> None:
    with pytest.raises(ModelFailed) as failed:
        read("openai", body)
    assert failed.value.kind == kind
    if kind == "overflow":
        assert failed.value.limit == 4096


def test_arguments_that_were_cut_off_are_kept_as_text_for_the_api() -> None:
    items: list[Any] = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "a", "name": "shell"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"comm'}},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}},
        {"type": "message_stop"},
    ]
    _, answer = read("anthropic", events(items, named=True).body)
    assert answer.finish == "length"
    assert answer.message["content"][0]["input"] == {"unreadable": '{"comm'}


def test_results_and_tools_in_both_shapes() -> None:
    _, answer = read("openai", turn("openai", "", CALLS).body)
    done = [Result(answer.calls[0], "fine"), Result(answer.calls[1], "no", True)]
    assert [message["role"] for message in results("openai", done)] == ["tool", "tool"]
    (message,) = results("anthropic", done)
    assert [block.get("is_error", False) for block in message["content"]] == [False, True]
    spec = ToolSpec(name="t", description="d", properties={"a": {"type": "string"}})
    assert spec.value("anthropic")["input_schema"] == spec.value("openai")["function"]["parameters"]


def test_the_longest_answer_fits_the_model_and_the_window() -> None:
    small = Endpoint(name="x", wire="openai", base_url="http://x", model="m", max_output=1_000)
    large = Endpoint(name="x", wire="openai", base_url="http://x", model="m")
    assert longest_answer(small, 200_000, None) == 1_000
    assert longest_answer(large, 16_000, None) == 2_000
    assert longest_answer(large, 1_000_000, None) == 32_000
    assert longest_answer(large, 16_000, 300) == 300


def test_the_model_is_chosen_by_what_was_asked_the_settings_and_the_keys() -> None:
    keys = {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "b", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}
    assert endpoint_for(Config(), keys).name == "anthropic"
    assert endpoint_for(Config(), keys, model="gpt-5.1").base_url == "http://127.0.0.1:1/v1"
    assert endpoint_for(Config(agent=AgentSettings(model="claude-opus-4-6")), keys).model == "claude-opus-4-6"
    local = endpoint_for(Config(), {}, base_url="http://127.0.0.1:9/v1", model="mine", wire="anthropic")
    assert (local.wire, local.key, local.name) == ("anthropic", "", "endpoint")
    section = {"home": Provider(base_url="http://127.0.0.1:8080/v1", model="mine", wire="openai")}
    named = endpoint_for(Config(providers=section, agent=AgentSettings(provider="home")), {})
    assert (named.model, named.place) == ("mine", "127.0.0.1:8080")


@pytest.mark.parametrize(
    ("settings", "asked", "words"),
    [
        (AgentSettings(), {}, "set one of ANTHROPIC_API_KEY"),
        (AgentSettings(), {"model": "claude-x"}, "set the environment variable ANTHROPIC_API_KEY"),
        (AgentSettings(), {"model": "mystery"}, "who serves mystery"),
        (AgentSettings(), {"base_url": "http://127.0.0.1:9/v1"}, "which model"),
        (AgentSettings(provider="nobody"), {}, "no section providers.nobody"),
    ],
)
def test_what_is_missing_is_said_with_what_to_do(settings: AgentSettings, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        endpoint_for(Config(agent=settings), {}, **asked)


def test_sessions_have_a_home(tmp_path: Any) -> None:
    url = store_url(Config(), {"HOME": str(tmp_path)})
    assert url == f"sqlite:///{tmp_path}/.local/share/midfold/sessions.db"
    assert (tmp_path / ".local" / "share" / "midfold").stat().st_mode & 0o077 == 0
    assert store_url(Config(store=StoreSettings(url="memory:")), {}) == "memory:"
    with pytest.raises(ConfigError, match=r"store\.url"):
        store_url(Config(), {})


def test_every_key_that_midfold_reads_is_hidden_from_commands() -> None:
    config = Config(providers={"home": Provider(api_key_env="HOME_MODEL_KEY")})
    hidden = secret_variables(config)
    assert {"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "HOME_MODEL_KEY"} <= hidden
