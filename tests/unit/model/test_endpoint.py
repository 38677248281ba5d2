"""Choice of the summary model: every branch, from settings and from a given environment."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from midfold import ConfigError
from midfold.config import Config
from midfold.config.schema import Auxiliary, AuxiliaryTask, Provider
from midfold.model import local_summarizer
from midfold.model.endpoint import KNOWN, Endpoint, Resolution, provider_of, resolve
from midfold.model.summarizer import ModelSummarizer, summarizer_for
from midfold.models import ModelOverride

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


EVERY_KEY = {known.key_variable: f"{KEY}-{name}" for name, known in KNOWN.items()}


@pytest.mark.parametrize("own", [None, "claude-opus-4-6", "gpt-4o", "meta-llama/llama-4", "my-own-model"])
def test_a_key_alone_asks_nobody_and_it_says_which_key_was_not_used(own: str | None) -> None:
    for name, known in KNOWN.items():
        found = chosen({known.key_variable: KEY}, own)
        assert (found.endpoint, found.main, found.missing) == (None, None, False), name
        assert found.unused == (known.key_variable,)
        assert f"{known.key_variable} is set, but a key alone sends nothing" in found.description
        assert KEY not in f"{found} {found!r} {found.description}"
    every = chosen(EVERY_KEY, own)
    assert every.endpoint is None
    assert every.unused == tuple(EVERY_KEY)
    assert "NOUS_API_KEY are set, but keys alone" in every.why


@pytest.mark.parametrize("blank", ["", "  ", "\n"])
def test_an_empty_key_is_no_key(blank: str) -> None:
    assert chosen({"OPENAI_API_KEY": blank}).unused == ()
    assert (
        chosen({"OPENAI_API_KEY": blank}).description
        == "built in, no LLM (auto: auxiliary.compression.provider is not set)"
    )
    assert chosen({"OPENAI_API_KEY": blank}, provider="openai").missing


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("claude-opus-4-6", "anthropic"),
        ("gpt-4o", "openai"),
        ("o3-mini", "openai"),
        ("meta-llama/llama-4", "openrouter"),
    ],
)
def test_a_model_that_is_named_is_asked_where_its_name_says_it_is_served(model: str, name: str) -> None:
    found = chosen(EVERY_KEY, "claude-sonnet-4-5", model=model)
    assert provider_of(model) == name
    assert found.endpoint is not None
    assert (found.endpoint.name, found.endpoint.model, found.endpoint.key) == (name, model, f"{KEY}-{name}")
    assert found.why == f"auxiliary.compression.model is {model}"
    missing = chosen({"NOUS_API_KEY": KEY}, model=model)
    assert (missing.endpoint, missing.missing) == (None, True)


def test_a_named_model_that_nobody_is_known_to_serve_is_told() -> None:
    assert provider_of("my-own-model") is None
    assert provider_of(None) is None
    found = chosen(EVERY_KEY, "claude-opus-4-6", model="my-own-model")
    assert (found.endpoint, found.missing) == (None, True)
    assert "its provider is unknown" in found.why


def test_a_key_that_is_named_without_a_provider_is_sent_nowhere() -> None:
    for variable in ("MY_KEY", "OPENAI_API_KEY"):
        found = chosen({"MY_KEY": KEY, "OPENAI_API_KEY": OTHER}, "gpt-4o", api_key_env=variable)
        assert (found.endpoint, found.missing) == (None, True)
        assert "neither provider nor model is set" in found.why
    named = chosen({"MY_KEY": KEY, "OPENAI_API_KEY": OTHER}, "gpt-4o", api_key_env="MY_KEY", provider="openai")
    assert named.endpoint is not None
    assert named.endpoint.key == KEY


HELD = Endpoint(name="endpoint", wire="openai", base_url="http://127.0.0.1:8080/v1", model="qwen", key="held")


def test_where_a_conversation_is_held_auto_asks_there_and_nowhere_else() -> None:
    found = resolve(Config(), EVERY_KEY, "claude-opus-4-6", HELD)
    assert found.endpoint is not None
    assert found.main is not None
    assert (found.endpoint.base_url, found.endpoint.model, found.endpoint.key) == (HELD.base_url, "qwen", "held")
    assert (found.main.base_url, found.main.model) == (HELD.base_url, "qwen")
    known = msgspec.structs.replace(HELD, name="anthropic", wire="anthropic", model="claude-opus-4-6")
    small = resolve(Config(), {}, None, known).endpoint
    assert small is not None
    assert (small.base_url, small.model, small.key) == (HELD.base_url, KNOWN["anthropic"].small_model, "held")
    named = Config(auxiliary=Auxiliary(compression=AuxiliaryTask(model="tiny", timeout=7.0)))
    tiny = resolve(named, EVERY_KEY, None, known)
    assert tiny.endpoint is not None
    assert tiny.main is not None
    assert (tiny.endpoint.base_url, tiny.endpoint.model, tiny.endpoint.timeout) == (HELD.base_url, "tiny", 7.0)
    assert tiny.main.timeout == 7.0
    local = Config(auxiliary=Auxiliary(compression=AuxiliaryTask(provider="local")))
    assert resolve(local, EVERY_KEY, None, known).endpoint is None
    main = Config(auxiliary=Auxiliary(compression=AuxiliaryTask(provider="main")))
    own = resolve(main, EVERY_KEY, None, HELD).endpoint
    assert own is not None
    assert (own.base_url, own.model) == (HELD.base_url, "qwen")


def test_the_conversations_own_model_stands_in_only_at_the_address_that_is_named() -> None:
    same = chosen(EVERY_KEY, "claude-opus-4-6", provider="anthropic")
    assert same.main is not None
    assert same.main.model == "claude-opus-4-6"
    for elsewhere in ({"provider": "openrouter"}, {"base_url": "http://127.0.0.1:8080/v1", "model": "qwen"}):
        found = chosen(EVERY_KEY, "claude-opus-4-6", **elsewhere)
        assert found.endpoint is not None
        assert found.main is None


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


def test_by_itself_the_prefix_goes_only_where_the_conversation_is_held() -> None:
    held = Endpoint(name="lab", wire="openai", base_url="http://lab:1/v1", model="big", key=KEY)
    main = Config(auxiliary=Auxiliary(compression=AuxiliaryTask(provider="main")))
    own = resolve(main, {}, "big", held).endpoint
    assert own is not None and own.reuse_prefix
    small = Config(auxiliary=Auxiliary(compression=AuxiliaryTask(provider="main", model="small")))
    other = resolve(small, {}, "big", held).endpoint
    assert other is not None and not other.reuse_prefix
    unheld = resolve(main, {"OPENAI_API_KEY": KEY}, "gpt-4o").endpoint
    assert unheld is not None and not unheld.reuse_prefix
    sections = {"lab": Provider(base_url="http://lab:1/v1", api_key_env="LAB_KEY", model="big")}
    lab = Config(auxiliary=Auxiliary(compression=AuxiliaryTask(provider="lab")), providers=sections)
    for key, reuses in ((KEY, True), (OTHER, False)):
        found = resolve(lab, {"LAB_KEY": key}, "big", held).endpoint
        assert found is not None and found.reuse_prefix is reuses
    never = Config(auxiliary=Auxiliary(compression=AuxiliaryTask(provider="main", reuse_prefix=False)))
    asked = resolve(never, {}, "big", held).endpoint
    assert asked is not None and not asked.reuse_prefix


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
    found = chosen({"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://proxy:9/v1"}, provider="openai").endpoint
    assert found is not None
    assert found.base_url == "http://proxy:9/v1"


def test_windows_come_from_the_setting_then_the_users_table_then_ours() -> None:
    environment = {"OPENAI_API_KEY": KEY}
    table = Config(models={"gpt-5-mini": ModelOverride(context_window=77_000, max_output=3_000)})
    ours = chosen(environment, provider="openai").endpoint
    theirs = chosen(environment, config=table, provider="openai").endpoint
    given = chosen(environment, config=table, provider="openai", context_length=9_000).endpoint
    assert ours is not None
    assert theirs is not None
    assert given is not None
    assert ours.context_length > 77_000
    assert (theirs.context_length, theirs.max_output) == (77_000, 3_000)
    assert given.context_length == 9_000


def test_an_extra_body_must_be_an_object() -> None:
    environment = {"OPENAI_API_KEY": KEY}
    found = chosen(environment, provider="openai", extra_body='{"temperature": 0}').endpoint
    assert found is not None
    assert found.extra_body == {"temperature": 0}
    for wrong in ("[1]", "{", "7"):
        with pytest.raises(ConfigError, match="extra_body"):
            chosen(environment, provider="openai", extra_body=wrong)


def test_the_real_environment_is_read_only_where_settings_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for known in KNOWN.values():
        monkeypatch.delenv(known.key_variable, raising=False)
        monkeypatch.delenv(known.base_url_variable or "MIDFOLD_NOTHING", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert summarizer_for(None, "gpt-4o") is local_summarizer
    assert summarizer_for(Config(), "gpt-4o") is local_summarizer
    named = Config(auxiliary=Auxiliary(compression=AuxiliaryTask(provider="main")))
    own = summarizer_for(named, "gpt-4o")
    assert isinstance(own, ModelSummarizer)
    assert own.endpoint.key == KEY
