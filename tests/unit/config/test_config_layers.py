from __future__ import annotations

from pathlib import Path

import pytest

from midfold.config import Config, FlagText, Loaded, ModelOverride, load, locate
from midfold.errors import ConfigError


def load_text(tmp_path: Path, text: str, **arguments: object) -> Loaded:
    file = tmp_path / "config.yaml"
    file.write_text(text, encoding="utf-8")
    return load(file, **{"environ": {}, **arguments})  # type: ignore[arg-type]


def test_defaults_file_environment_flags_in_that_order(tmp_path: Path):
    text = "compression: {threshold: 0.1, target_ratio: 0.3, protect_last_n: 7}\n"
    environ = {"MIDFOLD_COMPRESSION__THRESHOLD": "0.2", "MIDFOLD_COMPRESSION__TARGET_RATIO": "0.4"}
    loaded = load_text(tmp_path, text, environ=environ, overrides={"compression.threshold": 0.9})
    found = loaded.config.compression
    assert (found.threshold, found.target_ratio, found.protect_last_n, found.enabled) == (0.9, 0.4, 7, True)
    assert loaded.origins["compression.threshold"] == "flag"
    assert loaded.origins["compression.target_ratio"] == "environment MIDFOLD_COMPRESSION__TARGET_RATIO"
    assert loaded.origins["compression.protect_last_n"] == f"file {tmp_path}/config.yaml:1"
    assert loaded.origins["compression.enabled"] == "default"
    assert loaded.path == tmp_path / "config.yaml"


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("MIDFOLD_COMPRESSION__TRESHOLD", "1", "did you mean MIDFOLD_COMPRESSION__THRESHOLD?"),
        ("MIDFOLD_COMPRESSION__THRESHOLD", "2", "compression.threshold: found 2"),
        ("MIDFOLD_COMPRESSION__THRESHOLD", "", "found null"),
        ("MIDFOLD_COMPRESSION__THRESHOLD", "'0.5'", "remove the quotes"),
        ("MIDFOLD_COMPRESSION__THRESHOLD", "'0.5", "a quote that is not closed"),
        ("MIDFOLD_compression__threshold", "1", "did you mean MIDFOLD_COMPRESSION__THRESHOLD?"),
        ("MIDFOLD_MODELS__GPT__CONTEXT_WINDOW", "1", "no such pattern in the file"),
        ("MIDFOLD_PROVIDERS__MAIN__MODEL", "x", "neither auto nor main"),
        ("MIDFOLD__X", "1", "unknown key"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, words: str):
    with pytest.raises(ConfigError) as caught:
        load(environ={variable: value})
    assert str(caught.value).startswith(f"environment {variable}: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "right"),
    [
        ("MIDFOLD_COMPRESSION_THRESHOLD", "MIDFOLD_COMPRESSION__THRESHOLD"),
        ("MIDFOLD_compression_threshold", "MIDFOLD_COMPRESSION__THRESHOLD"),
        ("MIDFOLD_PROMPT_CACHING_CACHE_TTL", "MIDFOLD_PROMPT_CACHING__CACHE_TTL"),
        ("MIDFOLD_AUXILIARY_COMPRESSION_MODEL", "MIDFOLD_AUXILIARY__COMPRESSION__MODEL"),
        ("MIDFOLD_AUXILIARY_COMPRESSION__BASE_URL", "MIDFOLD_AUXILIARY__COMPRESSION__BASE_URL"),
        ("MIDFOLD_COMPRESSION_SUMMARY_MODEL", "MIDFOLD_COMPRESSION__SUMMARY_MODEL"),
        ("MIDFOLD_PROVIDERS_MY_LAB_BASE_URL", "MIDFOLD_PROVIDERS__MY_LAB__BASE_URL"),
    ],
)
def test_a_variable_with_too_few_underscores_is_told_the_right_name(variable: str, right: str):
    with pytest.raises(ConfigError) as caught:
        load(environ={variable: "hunter2"})
    assert str(caught.value).startswith(f"environment {variable}: ")
    assert f"did you mean {right}?" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_variables_that_name_no_key_are_none_of_ours():
    environ = {
        "MIDFOLD_REQUIRE_ALL": "1",
        "MIDFOLD_SHARED": "x",
        "MIDFOLD_THRESHOLD": "2",
        "MIDFOLD_": "",
        "MIDFOLD": "",
    }
    environ |= {"MIDFOLD_PROVIDERS_MODEL": "x", "MIDFOLD_COMPRESSION": "x", "COMPRESSION_THRESHOLD": "2"}
    assert load(environ=environ) == load(environ={})


SECRET = "-".join(("sk", "ant", "api03", "hunter2AbCdEfGhIjKl"))  # format of a key, but not a real one


@pytest.mark.parametrize(
    "variable", [f"MIDFOLD_PROVIDERS__{SECRET.upper().replace('-', '_')}__{key}" for key in ("WIRE", "WIER")]
)
def test_a_secret_in_the_name_of_a_variable_is_not_repeated(variable: str):
    with pytest.raises(ConfigError) as caught:
        load(environ={variable: "grpc"})
    assert "HUNTER2" in variable and "HUNTER2" not in str(caught.value).upper()


def test_flags_as_typed_are_yaml_scalars():
    typed = {
        "compression.threshold": "0.25",
        "compression.prune": "off",
        "compression.output_reservation": "",
        "auxiliary.compression.model": "'4'",
        "models.gpt-4.1*.factor": " 2 ",
    }
    overrides = {key: FlagText(text, "flag --set") for key, text in typed.items()}
    loaded = load(environ={"MIDFOLD_COMPRESSION__THRESHOLD": "0.3"}, overrides=overrides)
    found = loaded.config.compression
    assert (found.threshold, found.prune, found.output_reservation) == (0.25, "off", None)
    assert (loaded.config.auxiliary.compression.model, loaded.config.models["gpt-4.1*"].factor) == ("4", 2.0)
    assert {loaded.origins[key] for key in typed} == {"flag"}


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("compression.threshold", "2", "compression.threshold: found 2; allowed: a number from 0.0 to 1.0"),
        ("compression.treshold", "2", "did you mean compression.threshold?"),
        ("compression.threshold", "'1", "a quote that is not closed"),
        ("nothing", "'1", "nothing: unknown key"),
        ("", "1", "unknown key"),
        (SECRET, "1", "a key that looks like a secret"),
    ],
)
def test_a_wrong_flag_is_named(key: str, text: str, words: str):
    with pytest.raises(ConfigError) as caught:
        load(environ={}, overrides={key: FlagText(text, "flag --set")})
    assert str(caught.value).startswith("flag --set: ")
    assert words in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_variables_reach_named_sections(tmp_path: Path):
    environ = {
        "MIDFOLD_PROVIDERS__MY_LAB__BASE_URL": "http://h/v1",
        "MIDFOLD_PROVIDERS__NEW__WIRE": "anthropic",
        "MIDFOLD_MODELS__GPT_4_1___CONTEXT_WINDOW": "9",
        "MIDFOLD_AUXILIARY__COMPRESSION__MODEL": "@cf/meta/llama",
        "MIDFOLD_COMPRESSION__PRUNE": "off",
        "MIDFOLD_REQUIRE_ALL": "1",
    }
    loaded = load_text(
        tmp_path, "providers: {my-lab: {model: m}}\nmodels: {gpt-4.1*: {max_output: 3}}\n", environ=environ
    )
    assert loaded.config.providers["my-lab"].base_url == "http://h/v1"
    assert loaded.config.providers["new"].wire == "anthropic"
    assert loaded.config.models == {"gpt-4.1*": ModelOverride(context_window=9, max_output=3)}
    assert loaded.config.auxiliary.compression.model == "@cf/meta/llama"
    assert loaded.config.compression.prune == "off"


def test_flags_take_python_values_and_patterns_with_dots():
    loaded = load(environ={}, overrides={"models.gpt-4.1*.factor": 2, "compression.output_reservation": None})
    assert loaded.config.models["gpt-4.1*"].factor == 2.0
    for key, value in {"compression.threshold": "0.5", "compresion.threshold": 1, "compression": {}, "": 1}.items():
        with pytest.raises(ConfigError, match=r"^flag"):
            load(environ={}, overrides={key: value})


def test_problems_of_file_environment_and_flags_come_together(tmp_path: Path):
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, "a: 1", environ={"MIDFOLD_B__C": "1"}, overrides={"d": 1})
    assert [line.split()[0] for line in str(caught.value).splitlines()[1:]] == [
        f"{tmp_path}/config.yaml:1:1:",
        "environment",
        "flag:",
    ]


def test_the_file_is_the_named_one_then_the_variable_then_the_home_of_the_user(tmp_path: Path):
    home, xdg = str(tmp_path / "home"), str(tmp_path / "xdg")
    assert locate("a.yaml", {"MIDFOLD_CONFIG": "b.yaml"}) == Path("a.yaml")
    assert locate(None, {"MIDFOLD_CONFIG": "b.yaml", "HOME": home}) == Path("b.yaml")
    assert locate(None, {"XDG_CONFIG_HOME": xdg, "HOME": home}) == tmp_path / "xdg/midfold/config.yaml"
    assert locate(None, {"XDG_CONFIG_HOME": "relative", "HOME": home}) == tmp_path / "home/.config/midfold/config.yaml"
    assert locate(None, {}) is None


def test_a_missing_default_file_is_fine_and_a_missing_named_one_is_not(tmp_path: Path):
    assert load(environ={"HOME": str(tmp_path)}).path is None
    for arguments in ({"path": tmp_path / "no.yaml"}, {"path": tmp_path}, {"path": "a\0b"}):
        with pytest.raises(ConfigError, match="cannot read the configuration"):
            load(**arguments, environ={})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="No such file"):
        load(environ={"MIDFOLD_CONFIG": str(tmp_path / "no.yaml")})


def test_a_config_in_the_working_directory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "config.yaml").write_text("context: {engine: evil}\n")
    monkeypatch.chdir(tmp_path)
    assert load(environ={"HOME": str(tmp_path / "home")}).config.context.engine == "compressor"


def test_a_variable_that_could_mean_two_sections_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"means providers.a-b.model and providers.a.b.model"):
        load_text(tmp_path, "providers: {a-b: {}, a.b: {}}", environ={"MIDFOLD_PROVIDERS__A_B__MODEL": "x"})
    with pytest.raises(ConfigError, match="did you mean MIDFOLD_PROVIDERS__A_B__MODEL"):
        load_text(tmp_path, "providers: {a-b: {}}", environ={"MIDFOLD_PROVIDERS__A_B__MODLE": "x"})


def test_an_older_key_in_the_environment_is_understood_too():
    loaded = load(environ={"MIDFOLD_COMPRESSION__SUMMARY_MODEL": "x"})
    assert loaded.config.auxiliary.compression.model == "x"
    origin = "migrated from compression.summary_model in environment MIDFOLD_COMPRESSION__SUMMARY_MODEL"
    assert loaded.origins["auxiliary.compression.model"] == origin
    assert "config migrate" not in loaded.notices[0]


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("MIDFOLD_CONFIG", str(tmp_path / "mine.yaml"))
    monkeypatch.setenv("MIDFOLD_COMPRESSION__PROTECT_LAST_N", "3")
    (tmp_path / "mine.yaml").write_text("context: {engine: lcm}\n")
    loaded = load()
    assert (loaded.config.context.engine, loaded.config.compression.protect_last_n) == ("lcm", 3)


def test_keys_that_are_no_settings_any_more_are_a_notice_and_change_nothing(tmp_path: Path):
    text = "prompt_caching: {schedule_from: 0.9, schedule_patience: {}}"
    loaded = load_text(
        tmp_path,
        text,
        environ={"MIDFOLD_PROMPT_CACHING__SCHEDULE_TO": "0.3"},
        overrides={"prompt_caching.schedule_to": 0.3},
    )
    assert loaded.config.values() == Config().values()
    rest = "is ignored: the setting was removed, its value is always"
    assert [notice.partition(": ")[2] for notice in loaded.notices] == [
        f"prompt_caching.schedule_from {rest} 0.4; `midfold config migrate` removes it",
        f"prompt_caching.schedule_patience {rest} 4; `midfold config migrate` removes it",
        f"prompt_caching.schedule_to {rest} 0.15",
        f"prompt_caching.schedule_to {rest} 0.15",
    ]
