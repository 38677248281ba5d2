from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from midfold.config import migrate, parse, set_value, write_text
from midfold.config.schema import SECTIONS
from midfold.errors import ConfigError

CASES = {
    "into a new section, in the place of the old key": (
        "compression:\n  threshold: 0.50   # half\n  summary_model: 'x'\n\n# next\ncontext:\n  engine: lcm\n",
        "compression:\n  threshold: 0.50   # half\nauxiliary:\n  compression:\n    model: 'x'\n"
        "\n# next\ncontext:\n  engine: lcm\n",
    ),
    "an emptied section goes": (
        'model:\n  cache_ttl: "1h"\n',
        'prompt_caching:\n  cache_ttl: "1h"\n',
    ),
    "several keys, no final line break": (
        "compression:\n  summary_model: x\n  summary_provider: main\n  summary_base_url: http://h/v1",
        "auxiliary:\n  compression:\n    model: x\n    provider: main\n    base_url: http://h/v1",
    ),
    "into a section that exists": (
        "auxiliary:\n  compression:\n    provider: main # p\n# end\ncompression:\n  summary_model: x\n  enabled: on\n",
        "auxiliary:\n  compression:\n    provider: main # p\n    model: x\n# end\ncompression:\n  enabled: on\n",
    ),
    "into a section with other indentation": (
        "auxiliary:\n    compression:\n        provider: main\ncompression:\n    summary_model: x\n    enabled: on\n",
        "auxiliary:\n    compression:\n        provider: main\n        model: x\ncompression:\n    enabled: on\n",
    ),
    "into a section that is empty": (
        "auxiliary:\n  compression:   # later\ncompression:\n  summary_model: x\n",
        "auxiliary:\n  compression:   # later\n    model: x\n",
    ),
    "into a section that is null": (
        "prompt_caching: null # none\nmodel: {cache_ttl: 5m}\n",
        "prompt_caching: # none\n  cache_ttl: 5m\n",
    ),
    "comments beside and above move with the key": (
        "compression:\n  enabled: true\n  # cheap\n  # and fast\n"
        "  summary_model: x    # really\n  # stays\n  threshold: 1\n",
        "compression:\n  enabled: true\n  # stays\n  threshold: 1\n"
        "auxiliary:\n  compression:\n    # cheap\n    # and fast\n    model: x    # really\n",
    ),
    "comments of an emptied section stay": (
        "# top\nmodel: # header\n\n  # far above\n\n  cache_ttl: 1h\n  # below\ncontext: {engine: a}\n",
        "# top\n# header\n\n  # far above\n\n  # below\nprompt_caching:\n  cache_ttl: 1h\ncontext: {engine: a}\n",
    ),
    "flow mappings": (
        "{compression: {summary_model: x, threshold: 0.5}, model: {cache_ttl: 1h}}\n",
        "{compression: {threshold: 0.5}, auxiliary: {compression: {model: x}}, prompt_caching: {cache_ttl: 1h}}\n",
    ),
    "a flow section, last key": (
        "compression: {threshold: 0.5, summary_model: x}  # c\n",
        "compression: {threshold: 0.5}  # c\nauxiliary:\n  compression:\n    model: x\n",
    ),
    "into a flow section the comment cannot follow": (
        "auxiliary: {compression: {}}\ncompression:\n  summary_model: a, b # c\n  enabled: on\n",
        "auxiliary: {compression: {model: 'a, b'}}\ncompression:\n  # c\n  enabled: on\n",
    ),
    "JSON stays JSON": (
        '{\n  "compression": {\n    "summary_model": "x",\n    "threshold": 0.5\n  }\n}\n',
        '{\n  "compression": {\n    "threshold": 0.5\n  }, "auxiliary": {"compression": {"model": "x"}}\n}\n',
    ),
    "CRLF": (
        "model:\r\n  cache_ttl: 1h # c\r\ncontext:\r\n  engine: a\r\n",
        "prompt_caching:\r\n  cache_ttl: 1h # c\r\ncontext:\r\n  engine: a\r\n",
    ),
    "a byte order mark": ("\ufeffmodel:\n  cache_ttl: 1h\n", "\ufeffprompt_caching:\n  cache_ttl: 1h\n"),
    "document marks": ("---\nmodel: {cache_ttl: 1h}\n...\n", "---\nprompt_caching:\n  cache_ttl: 1h\n...\n"),
    "an anchor moves with its value": (
        "compression:\n  summary_model: &m x\nproviders:\n  lab: {model: *m}\n",
        "auxiliary:\n  compression:\n    model: &m x\nproviders:\n  lab: {model: *m}\n",
    ),
    "an alias moves as an alias": (
        "context: {engine: &e lcm}\ncompression:\n  summary_model: *e\n",
        "context: {engine: &e lcm}\nauxiliary:\n  compression:\n    model: *e\n",
    ),
    "a value on several lines": (
        "compression:\n  summary_model: >-\n    long\n    name\n  threshold: 1\n",
        "compression:\n  threshold: 1\nauxiliary:\n  compression:\n    model: long name\n",
    ),
    "a value that is not there": (
        "compression:\n  summary_model:\n  threshold: 1\n",
        "compression:\n  threshold: 1\nauxiliary:\n  compression:\n    model: null\n",
    ),
    "the new key is there already and wins": (
        "auxiliary: {compression: {model: new}}\ncompression:\n  summary_model: old  # was\n  threshold: 1\n",
        "auxiliary: {compression: {model: new}}\ncompression:\n  # was\n  threshold: 1\n",
    ),
    "a hash inside a value is no comment": (
        "compression:\n  summary_model: 'a # b' # c\n",
        "auxiliary:\n  compression:\n    model: 'a # b' # c\n",
    ),
    "the word that stands in for a value is in the text": (
        "compression:\n  summary_model: moving # moving-moving\n",
        "auxiliary:\n  compression:\n    model: moving # moving-moving\n",
    ),
}


@pytest.mark.parametrize(("before", "after"), CASES.values(), ids=CASES)
def test_migrate_moves_older_keys_and_touches_nothing_else(before: str, after: str):
    text, notices = migrate(before)
    assert text == after
    assert parse(text).config == parse(before).config
    assert notices and not parse(text).notices
    assert migrate(text) == (text, [])


def test_the_notices_say_what_happened_to_each_key():
    _, notices = migrate(
        "auxiliary: {compression: {model: n}}\ncompression: {summary_model: o}\nmodel: {cache_ttl: 1h}\n"
    )
    assert notices == [
        "compression.summary_model removed: auxiliary.compression.model is also set and takes precedence",
        "model.cache_ttl is now prompt_caching.cache_ttl",
    ]


@pytest.mark.parametrize("text", ["", "# c", "compression:\n  threshold: .5 # c", "context: {engine: x}\r\n"])
def test_a_text_without_older_keys_stays(text: str):
    assert migrate(text) == (text, [])


@pytest.mark.parametrize(
    "text",
    [
        "model: &s {cache_ttl: 1h}\nprompt_caching: *s\n",
        "? model\n: cache_ttl: 1h\n",
        "compression:\n  summary_model: # between key and value\n    x\n",
        "compression: &c\n  summary_model: x\nauxiliary:\n  compression:\n    <<: {model: y}\n    provider: main\n",
        "auxiliary:\n  compression: &t {provider: main}\nmodel:\n  <<: {cache_ttl: 1h}\n",
    ],
)
def test_what_cannot_be_rewritten_safely_is_refused(text: str):
    parse(text)
    with pytest.raises(ConfigError, match=r"mine\.yaml: not rewritten: .* Nothing was changed; edit it by hand: move "):
        migrate(text, "mine.yaml")


def test_keys_that_are_no_settings_any_more_are_removed_and_their_comments_stay():
    before = "prompt_caching:\n  schedule: cheapest\n  schedule_from: 0.5 # early\n  schedule_to: [1]\n"
    text, notices = migrate(before + "model: {cache_ttl: 1h}\n")
    assert text == "prompt_caching:\n  schedule: cheapest\n  # early\n  cache_ttl: 1h\n"
    assert notices[1:] == [
        "prompt_caching.schedule_from removed: the setting no longer exists, its value is always 0.4",
        "prompt_caching.schedule_to removed: the setting no longer exists, its value is always 0.15",
    ]
    with pytest.raises(ConfigError, match=r"by hand: remove prompt_caching\.schedule_patience"):
        migrate("prompt_caching:\n  <<: {schedule_patience: 2}\n")


def test_a_key_that_is_no_setting_any_more_cannot_be_set():
    with pytest.raises(ConfigError, match=r"prompt_caching\.schedule_from is ignored: the setting was removed"):
        set_value("", "prompt_caching.schedule_from", 0.5)


def test_a_text_with_problems_is_refused_with_the_problems():
    with pytest.raises(ConfigError, match=r"compression\.treshold"):
        migrate("compression: {treshold: 1, summary_model: x}")


@pytest.mark.parametrize(
    ("before", "key", "value", "after"),
    [
        ("", "context.engine", "lcm", "context:\n  engine: lcm\n"),
        ("# only\n", "context.engine", "lcm", "# only\ncontext:\n  engine: lcm\n"),
        ("# only", "context.engine", "lcm", "# only\ncontext:\n  engine: lcm"),
        ("context:\n  engine: compressor  # c\n", "context.engine", "lcm", "context:\n  engine: lcm  # c\n"),
        ("context:\n  engine: 'a' # c\n", "context.engine", "lcm", "context:\n  engine: 'lcm' # c\n"),
        ('context: {"engine": "a"}\n', "context.engine", "lcm", 'context: {"engine": "lcm"}\n'),
        ("context: {}\n", "context.engine", "lcm", "context: {engine: lcm}\n"),
        ("context:\n", "context.engine", "lcm", "context:\n  engine: lcm\n"),
        ("context: ~ # c\n", "context.engine", "lcm", "context: # c\n  engine: lcm\n"),
        ("context:\n  engine: a/b\n", "context.engine", "lcm", "context:\n  engine: lcm\n"),
        ("context:\n  engine: # none\n", "context.engine", "lcm", "context:\n  engine: lcm # none\n"),
        ("context: {engine: lcm}\n", "context.engine", "off", "context: {engine: 'off'}\n"),
        ("compression: {threshold: 0.50}\n", "compression.threshold", 0.5, "compression: {threshold: 0.50}\n"),
        (
            "models: {x: {factor: 2}}\n",
            "models.x.factor",
            3,
            "models: {x: {factor: 3.0}}\n",
        ),
        (
            "context:\r\n  engine: a\r\n",
            "compression.enabled",
            False,
            "context:\r\n  engine: a\r\ncompression:\r\n  enabled: false\r\n",
        ),
        ("", "models.*-4.1.max_output", 5, "models:\n  '*-4.1':\n    max_output: 5\n"),
        (
            "auxiliary: {compression: {model: x}}",
            "auxiliary.compression.model",
            None,
            "auxiliary: {compression: {model: null}}",
        ),
    ],
)
def test_set_value_edits_one_scalar(before: str, key: str, value: str | float | None, after: str):
    assert set_value(before, key, value) == after


@pytest.mark.parametrize(
    ("text", "key", "value", "words"),
    [
        ("", "context.engin", "lcm", "did you mean context.engine?"),
        ("", "context.engine", "../lcm", "allowed: a name"),
        ("", "context", "lcm", "is a section"),
        ("a: 1\n", "context.engine", "lcm", "a: unknown key"),
        ("- a\n", "context.engine", "lcm", "nothing was changed"),
        ("context: [", "context.engine", "lcm", "not YAML"),
        ("providers: {a: &p {model: x}, b: *p}\n", "providers.b.model", "y", "nothing was changed"),
        ("providers: {a: &p {model: x}, b: *p}\n", "providers.a.model", "y", "shares its value"),
    ],
)
def test_set_value_refuses_what_it_cannot_do(text: str, key: str, value: str, words: str):
    with pytest.raises(ConfigError) as caught:
        set_value(text, key, value)
    assert words in str(caught.value)


def test_writing_keeps_the_mode_the_link_and_every_backup(tmp_path: Path):
    real = tmp_path / "real.yaml"
    real.write_bytes(b"a\r\n")
    real.chmod(0o640)
    link = tmp_path / "config.yaml"
    link.symlink_to(real)
    assert write_text(link, "b\r\n") == tmp_path / "real.yaml.bak"
    assert write_text(link, "c\r\n") == tmp_path / "real.yaml.bak.2"
    assert write_text(link, "d\r\n", backup=False) is None
    assert link.is_symlink() and real.read_bytes() == b"d\r\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert (tmp_path / "real.yaml.bak").read_bytes() == b"a\r\n"
    assert stat.S_IMODE((tmp_path / "real.yaml.bak").stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == ["config.yaml", "real.yaml", "real.yaml.bak", "real.yaml.bak.2"]  # noqa: PTH208


def test_a_file_that_cannot_be_written_is_a_config_error(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot write the configuration: No such file"):
        write_text(tmp_path / "no.yaml", "")


def test_the_placeholder_text_of_a_default_config_survives_set_value():
    text = "".join(f"{name}:\n" for name in SECTIONS)
    assert parse(set_value(text, "prompt_caching.cache_ttl", "1h")).config.prompt_caching.cache_ttl == "1h"
