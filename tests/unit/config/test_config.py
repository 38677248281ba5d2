from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from midfold.config import FIELDS, Config, json_schema, parse
from midfold.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]


def problem(text: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return str(caught.value)


def test_the_defaults_are_those_of_the_specification():
    config = Config()
    assert (config.compression.enabled, config.compression.threshold) == (True, 0.50)
    assert (config.compression.target_ratio, config.compression.protect_last_n) == (0.20, 20)
    assert config.context.engine == "compressor"
    task = config.auxiliary.compression
    assert (task.model, task.provider, task.base_url) == (None, "auto", None)
    assert config.prompt_caching.cache_ttl == "5m"
    assert (config.compression.prune, config.compression.orphan_calls) == ("digest", "bridge")
    assert (config.compression.lossy_fallback, config.compression.output_reservation) == (True, None)
    assert config.compression.minimum_context_floor == 0
    assert (config.providers, config.models) == ({}, {})


def test_config_is_frozen_and_two_configs_share_no_mapping():
    with pytest.raises(AttributeError):
        Config().compression = None  # type: ignore[misc,assignment]
    with pytest.raises(AttributeError):
        Config().compression.threshold = 0.1  # type: ignore[misc]
    assert Config().providers is not Config().providers


@pytest.mark.parametrize(
    "text", ["", "\n", "# only a comment\n", "---\n", "---\n...\n", "null\n", "{}", "\ufeff", "compression:\n"]
)
def test_a_text_without_settings_is_the_defaults(text: str):
    assert parse(text).config == Config()


def test_every_key_of_the_table_is_read():
    text = """
compression: {enabled: false, threshold: 0.6, target_ratio: 0.3, protect_last_n: 5, prune: placeholder,
  orphan_calls: strip, lossy_fallback: false, verify: false, output_reservation: 4096, minimum_context_floor: 64000}
context: {engine: lcm}
auxiliary: {compression: {model: m, provider: lab, base_url: "http://localhost:8080/v1", api_key_env: K, timeout: 9.5,
  context_length: 8000, extra_body: "{}", reasoning_effort: low, reuse_prefix: true,
  subscriptions: true}}
providers: {lab: {base_url: "https://lab.example/v1", api_key_env: LAB_KEY, model: big, wire: anthropic}}
prompt_caching: {enabled: "off", strategy: system_and_3, cache_ttl: 1h, schedule: cheapest,
  schedule_summary: local}
store: {url: "postgresql://me@db.example/midfold", lease_seconds: 30, connections: 4, redact: true}
models: {gpt-4.1*: {context_window: 1000, max_output: 10, max_input: 900, tokenizer: o200k, factor: 1.1,
  cache_minimum: 0, input_price: 2, output_price: 8, cache_read: 0.1, cache_write: 1.25}}
gateway: {upstream: "https://llm.example", api_key_env: GW_KEY, key_header: bearer, routes: all,
  mode: manage, recall: "on", host: 0.0.0.0, port: 80,
  hygiene_hard_message_limit: 10, retries: 0, connect_timeout: 1.5, timeout: 9.5, largest_body: 1000,
  largest_total: 2000, body_seconds: 5.5, log: requests, record: folded, summary_wait: 1.5,
  defer_to_client: true, keep_turns: 9,
  hosts: "a.example, b.example", origins: "https://c.example"}
agent: {model: big, provider: lab, longest_answer: 9, timeout: 9.5, max_steps: 3, command_timeout: 1.5,
  output_characters: 300, background: false, behind_gateway: true,
  shell_environment: NPM_TOKEN}
keys: {red: {hash: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}}
upstreams: {claude-*: {base_url: "https://a.example", api_key_env: A_KEY, wire: anthropic, timeout: 5.5,
  key_header: x-api-key}}
"""
    loaded = parse(text)
    plain = loaded.config.values()
    assert plain == yaml.safe_load(text)
    assert plain["models"]["gpt-4.1*"]["input_price"] == 2.0
    assert {origin.split(":")[0] for origin in loaded.origins.values()} == {"file config.yaml"}
    assert len(loaded.origins) == len(FIELDS)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("threshold: .5", 0.5),
        ("threshold: 1", 1.0),
        ("threshold: 5e-1", 0.5),
        ("threshold: 0", 0.0),
        ("threshold: +0.25", 0.25),
    ],
)
def test_numbers_people_write(text: str, value: float):
    found = parse(f"compression: {{{text}}}").config.compression.threshold
    assert found == value and isinstance(found, float)


@pytest.mark.parametrize(
    ("word", "value"), [("on", True), ("off", False), ("yes", True), ("No", False), ("true", True)]
)
def test_yaml_booleans(word: str, value: bool):
    assert parse(f"compression: {{enabled: {word}}}").config.compression.enabled is value


def test_a_bare_off_is_the_choice_off():
    assert parse("compression: {prune: off}").config.compression.prune == "off"
    assert "found false" in problem("compression: {prune: no}")


@pytest.mark.parametrize("ttl", ["5m", "'5m'", '"5m"'])
def test_a_ttl_needs_no_quotes(ttl: str):
    assert parse(f"prompt_caching: {{cache_ttl: {ttl}}}").config.prompt_caching.cache_ttl == "5m"


@pytest.mark.parametrize(
    ("text", "key", "found", "allowed"),
    [
        ("compression: {threshold: 1.5}", "compression.threshold", "1.5", "from 0.0 to 1.0"),
        ("compression: {threshold: -0.1}", "compression.threshold", "-0.1", "from 0.0 to 1.0"),
        ("compression: {threshold: .nan}", "compression.threshold", "nan", "from 0.0 to 1.0"),
        ("compression: {threshold: .inf}", "compression.threshold", "inf", "from 0.0 to 1.0"),
        ("compression: {threshold: true}", "compression.threshold", "true", "a number"),
        ("compression: {threshold: '0.5'}", "compression.threshold", "remove the quotes", "a number"),
        ("compression: {threshold: null}", "compression.threshold", "null", "a number"),
        ("compression: {threshold: [1]}", "compression.threshold", "a list", "a number"),
        ("compression: {threshold: {a: 1}}", "compression.threshold", "a mapping", "a number"),
        ("compression: {target_ratio: 0.09}", "compression.target_ratio", "0.09", "from 0.1 to 0.8"),
        ("compression: {target_ratio: 0.81}", "compression.target_ratio", "0.81", "from 0.1 to 0.8"),
        ("compression: {protect_last_n: 0}", "compression.protect_last_n", "0", "1 or more"),
        ("compression: {protect_last_n: 2.0}", "compression.protect_last_n", "2.0", "a whole number"),
        ("compression: {protect_last_n: true}", "compression.protect_last_n", "true", "a whole number"),
        ("compression: {protect_last_n: 1:30}", "compression.protect_last_n", "base 60", "a whole number"),
        ("compression: {protect_last_n: 020}", "compression.protect_last_n", "octal", "a whole number"),
        (f"compression: {{protect_last_n: {'9' * 30}}}", "compression.protect_last_n", "2^53", "a whole number"),
        (
            f"compression: {{protect_last_n: {'9' * 6000}}}",
            "compression.protect_last_n",
            "an invalid int",
            "a whole number",
        ),
        ("compression: {enabled: 1}", "compression.enabled", "1", "true or false"),
        ("compression: {enabled: 'true'}", "compression.enabled", "remove the quotes", "true or false"),
        ("compression: {output_reservation: -1}", "compression.output_reservation", "-1", "0 or more, or null"),
        ("compression: {orphan_calls: drop}", "compression.orphan_calls", "'drop'", "bridge or strip"),
        ("compression: 5", "compression", "a single value", "enabled"),
        ("compression: [a]", "compression", "a list", "enabled"),
        ("prompt_caching: {cache_ttl: 10m}", "prompt_caching.cache_ttl", "'10m'", "5m or 1h"),
        ("prompt_caching: {cache_ttl: 5}", "prompt_caching.cache_ttl", "quotes make it text", "5m or 1h"),
        ("auxiliary: {compression: {model: 4}}", "auxiliary.compression.model", "4", "text"),
        ("auxiliary: {compression: {model: ''}}", "auxiliary.compression.model", "''", "not empty"),
        ("auxiliary: {compression: {model: 2024-01-01}}", "auxiliary.compression.model", "a date", "text"),
        ("auxiliary: {compression: {base_url: ftp://x}}", "auxiliary.compression.base_url", "'ftp://x'", "http"),
        ("auxiliary: {compression: {base_url: 'http://['}}", "auxiliary.compression.base_url", "http://[", "http"),
        ("auxiliary: {compression: {base_url: 'http://h:99999'}}", "auxiliary.compression.base_url", "99999", "http"),
        ("models: {x: {factor: 0}}", "models.x.factor", "0", "above 0"),
        ("models: {x: {context_window: 0}}", "models.x.context_window", "0", "1 or more"),
        ("models: {x: {input_price: -1}}", "models.x.input_price", "-1", "0 or more"),
        ("models: {x: 5}", "models.x", "a single value", "context_window"),
        ("providers: {lab: {wire: grpc}}", "providers.lab.wire", "'grpc'", "openai or anthropic"),
        ("context: {engine: !!python/name:os.system }", "context.engine", "tag", "a name"),
        ("compression: {threshold: !!float x}", "compression.threshold", "an invalid float", "a number"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(text: str, key: str, found: str, allowed: str):
    message = problem(text)
    assert message.startswith("config.yaml:1:")
    assert f": {key}: found " in message
    assert found in message.split("; allowed: ")[0]
    assert allowed in message.split("; allowed: ")[1]


@pytest.mark.parametrize("name", ["../x", "a/b", "a\\\\b", "..", ".", "", "C:x", " a", "a\\0b", "a\\n"])
def test_an_engine_name_is_no_path(name: str):
    assert "context.engine" in problem(f'context: {{engine: "{name}"}}')


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("compression: {treshold: 1}", "compression.threshold"),
        ("threshold: 0.5", "compression.threshold"),
        ("compresion: {threshold: 0.5}", "compression"),
        ("auxiliary: {compresion: {}}", "auxiliary.compression"),
        ("auxiliary: {compression: {modle: x}}", "auxiliary.compression.model"),
        ("models: {gpt-4.1: {contextwindow: 5}}", "models.gpt-4.1.context_window"),
        ("prompt_caching: {ttl: 5m}\ncache_ttl: 5m", "prompt_caching.cache_ttl"),
    ],
)
def test_an_unknown_key_names_the_nearest_one(text: str, nearest: str):
    assert f"did you mean {nearest}?" in problem(text)


def test_all_problems_come_at_once_each_with_its_line_and_column():
    message = problem("compression:\n  treshold: 1\n  enabled: 3\ncontext:\n  engine: a/b\nfoo: 1\n")
    lines = message.splitlines()
    assert lines[0] == "4 problems in the configuration:"
    starts = [line.strip().split(": ")[0] for line in lines[1:]]
    assert starts == ["config.yaml:2:3", "config.yaml:3:3", "config.yaml:5:3", "config.yaml:6:1"]


def test_ten_thousand_problems_are_counted_not_listed():
    message = problem("".join(f"unknown{number}: 1\n" for number in range(10_000)))
    assert message.startswith("10000 problems") and message.endswith("and 9950 more")


@pytest.mark.parametrize(
    "text", ["compression:\n  threshold: 1\n  threshold: 0.5\n", "compression: {threshold: 1,\n\n  threshold: 1}"]
)
def test_a_key_given_twice_names_both_lines(text: str):
    lines = [number for number, line in enumerate(text.splitlines(), 1) if "threshold" in line]
    message = problem(text)
    assert f"compression.threshold: given twice, on line {lines[0]} and on line {lines[1]}" in message


@pytest.mark.parametrize(
    "text",
    [
        "providers: {lab: {api_key_env: hunter2}}",
        "providers: {lab: {api_key: hunter2}}",
        "providers: {lab: {base_url: 'https://me:hunter2@h/'}}",
        "providers: {lab: {base_url: 'https://h/?key=hunter2'}}",
        "providers: {lab: hunter2}",
        "password: *hunter2",
        "password: !hunter2!x y",
        "auxiliary: {compression: {provider: " + "-".join(("sk", "ant", "hunter2AbCdEfGhIjKl")) + "}}",
        "models: {x: {tokenizer: [hunter2]}}",
        "secret: 'hunter2\n",
    ],
)
def test_nothing_that_may_be_a_secret_is_repeated(text: str):
    assert "hunter2" not in problem(text)


SECRETS = [  # format of keys, but not real ones; concatenated here so that no scanner reports them
    "-".join(("sk", "ant", "api03", "hunter2AbCdEfGhIjKl")),
    "-".join(("sk", "proj", "hunter2AbCdEfGhIjKl")),
    "_".join(("ghp", "hunter2AbCdEfGhIjKlMnOpQrSt")),
    "".join(("AKIA", "hunter2AAAAAAAAAA")),
    "".join(("eyJ", "hbGciOiJIhunter2UzI1NiJ9")),
    "".join(("9f86d081884c", "hunter2d659a2feaa0c55ad015")),
    "Bearer " + "-".join(("xoxb", "1234", "hunter2", "5678")),
    "".join(("hunter2/", "aGVsbG8gd29ybGQgMTIzNDU2Nzg5")),
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    "text",
    [
        "'{}': x",
        "compression: {{'{}': x}}",
        "compression: {{'{}': x, '{}': y}}",
        "providers: {{lab: {{'{}': x}}}}",
        "providers: {{'{}': {{wire: grpc}}}}",
        "providers: {{'{}': {{wier: openai}}}}",
        "providers: {{'a b {}': {{}}}}",
        "providers: {{'{}': x}}",
        "providers: {{lab: {{}}, '{}': {{}}}}\nauxiliary: {{compression: {{provider: lob}}}}",
        "models: {{'{}': {{factor: 0}}}}",
        "prompt_caching: {{cache_ttl: '{}'}}",
    ],
)
def test_a_secret_pasted_as_a_key_is_not_repeated(text: str, secret: str):
    message = problem(text.format(secret, secret))
    assert "hunter2" in secret and "hunter2" not in message and secret[-8:] not in message
    assert "looks like a secret" in message


@pytest.mark.parametrize(
    "key",
    [
        "claude-sonnet-4-5-20250929",
        "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "accounts/fireworks/models/llama-v3p1-70b-instruct",
        "DeepSeek-R1-Distill-Qwen-32B-Instruct-AWQ",
        "skip_summary_when_it_is_short",
        "task-and-disk_usage_in_percent",
        "averyveryveryverylongkeywithoutanybreaks",
    ],
)
def test_the_name_of_a_model_or_a_setting_is_no_secret(key: str):
    assert key in problem(f"'{key}': 1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a\n", "config.yaml:1:1: found no sections"),
        ("just text", "config.yaml:1:1: found no sections"),
        ("a: 1\n---\nb: 2\n", "config.yaml:2:1: a second document"),
        ("compression:\n\tthreshold: 1\n", "config.yaml:2:1: a tab"),
        ("a: [1\n", "config.yaml:2:1: not YAML"),
        ("a: *nope\n", "config.yaml:1:4: a value that starts with *"),
        ("a: \x07\n", "config.yaml:1:4: character U+0007"),
        ("a: \ud800\n", "config.yaml:1:4: character U+D800"),
        ("? [a]\n: b\n", "config.yaml:1:3: found a list or mapping as a key"),
        ("a:\n  - b: {<<: 3}\n", "config.yaml:1:1: a: unknown key"),
        ("compression: {<<: 3}\n", "<< requires a mapping"),
        ("models: {1: {}}", "config.yaml:1:10: models.1: found a pattern that YAML does not read as text"),
        ("models: {'': {}}", "not empty"),
        ("providers: {auto: {}}", "neither auto nor main"),
        ("providers: {a/b: {}}", "without slashes"),
        ("model:\n", "model: unknown key"),
        ("model: gpt-5\n", "model: unknown key"),
        ("model: {default: gpt-5}\n", "model.default: unknown key"),
        ('a: "\\UFFFFFFFF"\n', "out of range"),
        (b"a: \xff\n", "config.yaml:1:4: not UTF-8"),
        ("compression: {}".encode("utf-16"), "looks like UTF-16"),
        ("#" * 300_000, "larger than 256 KiB"),
    ],
)
def test_what_is_not_a_configuration_is_a_config_error(text: str | bytes, words: str):
    assert words in problem(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 50_000,
        "{a: " * 50_000,
        "".join(f"{' ' * depth}a:\n" for depth in range(600)),
        "compression: &a {<<: *a}",
        "providers:\n  a0: &a0 {model: x}\n"
        + "".join(f"  a{n}: &a{n}\n    <<: [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)),
        "a: &a [x]\n"
        + "".join(f"b{n}: &b{n} [{', '.join(['*a' if n == 0 else f'*b{n - 1}'] * 9)}]\n" for n in range(12)),
        "compression: &a\n  threshold: *a\n",
    ],
)
def test_yaml_bombs_are_config_errors(text: str):
    assert problem(text)


def test_anchors_aliases_and_merge_keys_work():
    text = """
providers:
  one: &base {base_url: "http://one/v1", api_key_env: KEY, wire: anthropic}
  two:
    <<: *base
    base_url: &url http://two/v1
  three:
    <<: [{model: m}, *base]
auxiliary: {compression: {base_url: *url}}
"""
    loaded = parse(text)
    two, three = loaded.config.providers["two"], loaded.config.providers["three"]
    assert (two.base_url, two.api_key_env, two.wire) == ("http://two/v1", "KEY", "anthropic")
    assert (three.model, three.base_url) == ("m", "http://one/v1")
    assert loaded.origins["auxiliary.compression.base_url"] == "file config.yaml:9"


def test_a_provider_must_exist_and_the_nearest_is_named():
    message = problem("auxiliary: {compression: {provider: lba}}\nproviders: {lab: {}}\n")
    assert "auxiliary.compression.provider: found the text 'lba'; did you mean lab?" in message
    assert "did you mean openai?" in problem("compression: {summary_provider: opnai}")
    assert parse("auxiliary: {compression: {provider: lab}}\nproviders: {lab: }").config.providers.keys() == {"lab"}


def test_older_keys_are_understood_with_a_notice():
    loaded = parse("compression:\n  summary_model: x\n  summary_provider: main\nmodel: {cache_ttl: 1h}\n")
    assert loaded.config.auxiliary.compression.model == "x"
    assert loaded.config.auxiliary.compression.provider == "main"
    assert loaded.config.prompt_caching.cache_ttl == "1h"
    assert loaded.origins["auxiliary.compression.model"] == "migrated from compression.summary_model in config.yaml:2"
    assert len(loaded.notices) == 3
    assert "config.yaml:4:9: model.cache_ttl is now prompt_caching.cache_ttl" in loaded.notices[2]
    assert "compression.summary_model: found 4 (quotes" in problem("compression: {summary_model: 4}")


def test_the_new_key_wins_over_the_older_one():
    loaded = parse("auxiliary: {compression: {model: new}}\ncompression: {summary_model: old}\n")
    assert loaded.config.auxiliary.compression.model == "new"
    assert loaded.origins["auxiliary.compression.model"] == "file config.yaml:1"
    assert "compression.summary_model is ignored: auxiliary.compression.model is also set" in loaded.notices[0]


def test_the_schema_is_valid_and_agrees_with_the_reader():
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["additionalProperties"] is False
    for definition in schema["$defs"].values():
        assert definition["additionalProperties"] is False
        for field in definition["properties"].values():
            assert "default" in field and ("description" in field or "$ref" in field)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(Config().values())
    for text in ["compression: {threshold: 2}", "a: 1", "context: {engine: a/b}", "models: {x: {factor: 0}}"]:
        assert not validator.is_valid(yaml.safe_load(text))


def test_the_reference_page_is_up_to_date():
    script = ROOT / "tools" / "gen_config_doc.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (ROOT / "docs/reference/config.md").read_text(encoding="utf-8")
    assert parse(page.split("```yaml")[1].split("```")[0]).config.compression.threshold == 0.60


def test_importing_midfold_does_not_import_yaml():
    code = "import sys, midfold; sys.exit('yaml' in sys.modules or 'midfold.config' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, env={**os.environ}).returncode == 0


@pytest.mark.parametrize(
    "text",
    [
        "gateway:\n  hosts: [a.example, b.example]\n",
        "gateway:\n  hosts:\n    - a.example\n    - b.example\n",
        "gateway:\n  hosts: a.example, b.example\n",
        "gateway:\n  hosts: a.example,b.example\n",
    ],
)
def test_a_list_may_be_written_as_one_or_with_commas(text: str):
    assert (parse(text).config.gateway.hosts or "").replace(" ", "") == "a.example,b.example"
    assert parse("gateway:\n  hosts: []\n").config.gateway.hosts is None


@pytest.mark.parametrize(
    "value", ["[1]", "[a, [b]]", '["a,b"]', "[null]", "'a  b'", "','", "{a: b}", '["a b"]', "[x: y]"]
)
def test_a_list_with_something_else_in_it_is_refused_with_its_place(value: str):
    assert "gateway.hosts" in problem(f"gateway:\n  hosts: {value}\n")
