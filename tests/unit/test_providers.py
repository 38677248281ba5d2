"""Who writes the summaries: every branch of the choice, from settings and from an environment that is passed in."""

from __future__ import annotations

import os
from typing import Any

import pytest

from midfold import ConfigError
from midfold.config import Config
from midfold.config.schema import Auxiliary, AuxiliaryTask, ModelSettings, Provider
from midfold.providers import KNOWN, Resolution, provider_of, resolve, summarizer_for
from midfold.summarize import local_summarizer
from midfold.summarize.client import ModelSummarizer

KEY = "sk-" + "test" * 4
OTHER = "sk-" + "other" * 4


def chosen(
    environment: dict[str, str], own: str | None = None, config: Config | None = None, **task: Any
) -> Resolution:
    config = config or Config()
    settings = Config(
        auxiliary=Auxiliary(compression=AuxiliaryTask(**task)), providers=config.providers, models=config.models
    )
    return resolve(settings, environment, own)


def test_without_a_key_nobody_is_asked_and_it_says_which_keys_are_missing() -> None:
    found = chosen({})
    assert found.endpoint is None
    assert found.main is None
    assert all(known.key_variable in found.why for known in KNOWN.values())
    assert found.told.startswith("local, without a model")


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_auto_takes_whose_key_is_there(name: str) -> None:
    known = KNOWN[name]
    found = chosen({known.key_variable: KEY})
    assert found.endpoint is not None
    assert (found.endpoint.name, found.endpoint.base_url, found.endpoint.wire) == (name, known.base_url, known.wire)
    assert (found.endpoint.model, found.endpoint.key) == (known.small_model, KEY)
    assert known.key_variable in found.why
    assert KEY not in f"{found} {found!r} {found.told}"


@pytest.mark.parametrize("blank", ["", "  ", "\n"])
def test_an_empty_key_is_no_key(blank: str) -> None:
    assert chosen({"OPENAI_API_KEY": blank}).endpoint is None


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("claude-opus-4-6", "anthropic"),
        ("gpt-4o", "openai"),
        ("o3-mini", "openai"),
        ("meta-llama/llama-4", "openrouter"),
    ],
)
def test_auto_prefers_who_serves_the_conversation(model: str, name: str) -> None:
    environment = {known.key_variable: f"{KEY}-{key}" for key, known in KNOWN.items()}
    found = chosen(environment, model)
    assert provider_of(model) == name
    assert found.endpoint is not None
    assert found.endpoint.name == name
    assert found.endpoint.key == f"{KEY}-{name}"
    assert found.main is not None
    assert found.main.model == model
    assert "own model is served there" in found.why


def test_a_conversations_model_of_nobody_known_has_no_main() -> None:
    found = chosen({"OPENAI_API_KEY": KEY}, "my-own-model")
    assert provider_of("my-own-model") is None
    assert provider_of(None) is None
    assert found.main is None
    assert found.endpoint is not None


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_key_is_only_ever_sent_to_the_provider_it_belongs_to(name: str) -> None:
    """`api_key_env` names a known provider's variable: that provider is meant, not the first of the list."""
    variable = KNOWN[name].key_variable
    found = chosen({variable: KEY}, api_key_env=variable)
    assert found.endpoint is not None
    assert found.endpoint.base_url == KNOWN[name].base_url


def test_a_key_of_ones_own_name_belongs_to_who_serves_the_conversation_or_to_nobody() -> None:
    found = chosen({"MY_KEY": KEY}, "gpt-4o", api_key_env="MY_KEY")
    assert found.endpoint is not None
    assert found.endpoint.name == "openai"
    nobody = chosen({"MY_KEY": KEY, "ANTHROPIC_API_KEY": OTHER}, api_key_env="MY_KEY")
    assert nobody.endpoint is None
    assert "MY_KEY" in nobody.why
    assert chosen({}, "gpt-4o", api_key_env="MY_KEY").endpoint is None


def test_a_base_url_alone_is_an_endpoint_and_gets_only_the_key_that_is_named_for_it() -> None:
    environment = {"OPENAI_API_KEY": OTHER, "MY_KEY": KEY}
    plain = chosen(environment, base_url="http://localhost:8080/v1", model="qwen").endpoint
    assert plain is not None
    assert (plain.base_url, plain.model, plain.key, plain.wire) == ("http://localhost:8080/v1", "qwen", "", "openai")
    keyed = chosen(environment, base_url="http://localhost:8080/v1", model="qwen", api_key_env="MY_KEY").endpoint
    assert keyed is not None
    assert keyed.key == KEY
    with pytest.raises(ConfigError, match="needs the name of a model"):
        chosen(environment, base_url="http://localhost:8080/v1")


def test_local_is_local_whatever_keys_are_there() -> None:
    found = chosen({"OPENAI_API_KEY": KEY}, "gpt-4o", provider="local")
    assert found.endpoint is None
    assert found.why == "auxiliary.compression.provider is local"


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_named_provider_is_asked_or_its_missing_key_is_named(name: str) -> None:
    variable = KNOWN[name].key_variable
    found = chosen({variable: KEY}, provider=name, model="m").endpoint
    assert found is not None
    assert (found.name, found.model) == (name, "m")
    missing = chosen({}, provider=name)
    assert missing.endpoint is None
    assert missing.why == f"{name} is configured, but {variable} is not set"


def test_main_is_the_conversations_own_model() -> None:
    found = chosen({"ANTHROPIC_API_KEY": KEY}, "claude-opus-4-6", provider="main", timeout=7.0, reuse_prefix=True)
    assert found.endpoint is not None
    assert (found.endpoint.model, found.endpoint.timeout, found.endpoint.reuse_prefix) == ("claude-opus-4-6", 7.0, True)
    assert found.main is None
    assert "key for claude-opus-4-6 is not set" in chosen({}, "claude-opus-4-6", provider="main").why
    assert "the model is not known" in chosen({"OPENAI_API_KEY": KEY}, None, provider="main").why
    smaller = chosen({"ANTHROPIC_API_KEY": KEY}, "claude-opus-4-6", provider="main", model="claude-haiku-4-5")
    assert smaller.endpoint is not None
    assert smaller.endpoint.model == "claude-haiku-4-5"
    assert not smaller.endpoint.reuse_prefix


def test_reuse_of_the_prefix_is_for_the_same_model_only() -> None:
    environment = {"OPENAI_API_KEY": KEY}
    same = chosen(environment, "gpt-4o", model="gpt-4o", reuse_prefix=True).endpoint
    other = chosen(environment, "gpt-4o", model="gpt-5-mini", reuse_prefix=True).endpoint
    assert same is not None
    assert other is not None
    assert same.reuse_prefix
    assert not other.reuse_prefix


def test_a_section_of_ones_own_is_an_endpoint() -> None:
    sections = {
        "lab": Provider(base_url="http://lab:1/v1", api_key_env="LAB_KEY", model="big"),
        "claudish": Provider(wire="anthropic", model="c", api_key_env="LAB_KEY"),
        "open": Provider(base_url="http://open:1/v1", model="free"),
        "openai": Provider(base_url="https://proxy.example/v1"),
    }
    config = Config(providers=sections)
    environment = {"LAB_KEY": KEY, "OPENAI_API_KEY": OTHER}
    lab = chosen(environment, config=config, provider="lab").endpoint
    assert lab is not None
    assert (lab.base_url, lab.model, lab.key) == ("http://lab:1/v1", "big", KEY)
    claudish = chosen(environment, config=config, provider="claudish").endpoint
    assert claudish is not None
    assert (claudish.wire, claudish.base_url) == ("anthropic", "https://api.anthropic.com")
    free = chosen({}, config=config, provider="open").endpoint
    assert free is not None
    assert free.key == ""
    corrected = chosen(environment, config=config, provider="openai").endpoint
    assert corrected is not None
    assert (corrected.base_url, corrected.key, corrected.model) == ("https://proxy.example/v1", OTHER, "gpt-5-mini")
    assert "LAB_KEY is not set" in chosen({}, config=config, provider="lab").why
    with pytest.raises(ConfigError, match=r"providers\.nowhere"):
        chosen({}, config=config, provider="nowhere")
    nameless = Config(providers={"nameless": Provider(base_url="http://n:1/v1")})
    with pytest.raises(ConfigError, match="needs the name of a model"):
        chosen({}, config=nameless, provider="nameless")


def test_the_environment_may_move_a_known_provider() -> None:
    found = chosen({"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://proxy:9/v1"}).endpoint
    assert found is not None
    assert found.base_url == "http://proxy:9/v1"


def test_windows_come_from_the_setting_then_the_users_table_then_ours() -> None:
    environment = {"OPENAI_API_KEY": KEY}
    table = Config(models={"gpt-5-mini": ModelSettings(context_window=77_000, max_output=3_000)})
    ours = chosen(environment).endpoint
    theirs = chosen(environment, config=table).endpoint
    given = chosen(environment, config=table, context_length=9_000).endpoint
    assert ours is not None
    assert theirs is not None
    assert given is not None
    assert ours.context_length > 77_000
    assert (theirs.context_length, theirs.max_output) == (77_000, 3_000)
    assert given.context_length == 9_000


def test_an_extra_body_must_be_an_object() -> None:
    environment = {"OPENAI_API_KEY": KEY}
    found = chosen(environment, extra_body='{"temperature": 0}').endpoint
    assert found is not None
    assert found.extra_body == {"temperature": 0}
    for wrong in ("[1]", "{", "7"):
        with pytest.raises(ConfigError, match="extra_body"):
            chosen(environment, extra_body=wrong)


def test_the_real_environment_is_read_only_where_settings_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for known in KNOWN.values():
        monkeypatch.delenv(known.key_variable, raising=False)
        monkeypatch.delenv(known.base_url_variable or "MIDFOLD_NOTHING", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert summarizer_for(None, "gpt-4o") is local_summarizer
    chosen_by_key = summarizer_for(Config(), "gpt-4o")
    assert isinstance(chosen_by_key, ModelSummarizer)
    assert chosen_by_key.endpoint.key == KEY
    monkeypatch.delenv("OPENAI_API_KEY")
    assert summarizer_for(Config(), "gpt-4o") is local_summarizer
    assert "OPENAI_API_KEY" not in os.environ
