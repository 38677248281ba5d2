"""Agent requests on both wire formats, and the choice of model and address."""

from __future__ import annotations

from typing import Any

import pytest

import midfold
from midfold.agent.shapes import Result, longest_answer, results
from midfold.config import Config
from midfold.config.load import store_url
from midfold.config.schema import AgentSettings, Provider, StoreSettings
from midfold.errors import ConfigError
from midfold.model.endpoint import Endpoint, endpoint_for, secret_variables
from midfold.transcript.message import ToolCall
from midfold.transcript.tools import ToolSpec, arguments


def test_results_and_tools_in_both_shapes() -> None:
    done = [Result(ToolCall("1", "a", "{}"), "fine"), Result(ToolCall("2", "b", "{}"), "no", True)]
    assert [message["role"] for message in results("openai", done)] == ["tool", "tool"]
    (message,) = results("anthropic", done)
    assert [block.get("is_error", False) for block in message["content"]] == [False, True]
    spec = ToolSpec("t", "d", arguments({"a": {"type": "string"}}))
    assert spec.definition("anthropic")["input_schema"] == spec.definition("openai-chat")["function"]["parameters"]


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
        (AgentSettings(), {"model": "mystery"}, "provider of mystery is unknown"),
        (AgentSettings(), {"base_url": "http://127.0.0.1:9/v1"}, "no model given"),
        (AgentSettings(provider="nobody"), {}, "no section providers.nobody"),
    ],
)
def test_what_is_missing_is_said_with_what_to_do(settings: AgentSettings, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        endpoint_for(Config(agent=settings), {}, **asked)


def test_sessions_have_a_home(tmp_path: Any) -> None:
    url = store_url(Config(), {"HOME": str(tmp_path)})
    assert url == f"sqlite:///{tmp_path}/.local/share/midfold/sessions.db"
    home = tmp_path / ".local" / "share" / "midfold"
    assert not home.exists(), "who only asks where it is makes nothing"
    with midfold.open(url):
        assert home.stat().st_mode & 0o077 == 0
    assert store_url(Config(store=StoreSettings(url="memory:")), {}) == "memory:"
    with pytest.raises(ConfigError, match=r"store\.url"):
        store_url(Config(), {})


def test_every_key_that_midfold_reads_is_hidden_from_commands() -> None:
    config = Config(providers={"home": Provider(api_key_env="HOME_MODEL_KEY")})
    hidden = secret_variables(config)
    assert {"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "HOME_MODEL_KEY"} <= hidden
