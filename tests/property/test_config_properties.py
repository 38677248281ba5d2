from __future__ import annotations

import json

import jsonschema
import msgspec
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from midfold.config import FIELDS, Config, Field, json_schema, load, migrate, parse, set_value
from midfold.config.schema import SECTIONS
from midfold.errors import ConfigError
from support.effort import effort

WORDS = [
    *SECTIONS,
    *{path[-1] for path in FIELDS},
    "summary_model",
    "model",
    "lab",
    "<<",
    "on",
    "5m",
    "x",
]
PIECES = [
    *WORDS,
    ":",
    ": ",
    "\n",
    "\n  ",
    "\n    ",
    "- ",
    "{",
    "}",
    "[",
    "]",
    ", ",
    "&a ",
    "*a",
    "!!float ",
    "? ",
    "#",
    " # c",
]
PIECES += [
    "'",
    '"',
    "\t",
    "\r\n",
    "|",
    ">",
    "0.5",
    "1:30",
    ".nan",
    "~",
    "---",
    "...",
    "\\",
    "\ufeff",
    "%YAML 9.9\n",
    "\x85",
]
soup = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=40).map("".join)
FILES = [
    "compression:\n  # why\n  summary_model: x  # c\n  threshold: .5\n# end\nmodel: {cache_ttl: 1h}\n",
    "auxiliary: {compression: {provider: lab}}\nproviders:\n  lab: &p\n    base_url: http://h/v1\n  two:\n    <<: *p\n",
    '{"compression": {"summary_model": "x", "enabled": true}, "context": {"engine": "lcm"}}',
    "context:\r\n  engine: &e 'lcm' # c\r\ncompression:\r\n  summary_provider: auto\r\n  summary_model: *e",
    "models:\n  gpt-4.1*: {factor: 2}\nauxiliary:\nprompt_caching: ~\nmodel:\n  cache_ttl: >-\n    5m\n",
]
spliced = st.builds(
    lambda file, start, length, piece: file[:start] + piece + file[start + length :],
    st.sampled_from(FILES),
    st.integers(0, 120),
    st.integers(0, 12),
    st.sampled_from(PIECES) | st.text(max_size=2),
)

soup = soup | spliced
VALIDATOR = jsonschema.Draft202012Validator(json_schema())


def survives(text: str | bytes) -> Config | None:
    try:
        return parse(text).config
    except ConfigError as error:
        assert str(error).startswith(("config.yaml", *(f"{n} problems" for n in range(2, 60))))
        return None


@given(soup | st.text())
@settings(max_examples=effort(100, 400), deadline=None)
@example("%YAML 99999999999999999999999.1\n---\na: 1")
@example('"\\UFFFFFFFF"')
def test_any_text_is_a_config_or_a_config_error(text: str):
    survives(text)


@given(st.binary() | soup.map(lambda text: text.encode("utf-8", "surrogatepass")))
@settings(deadline=None)
def test_any_bytes_are_a_config_or_a_config_error(data: bytes):
    survives(data)


@given(soup)
@settings(max_examples=effort(75, 300), deadline=None)
def test_rewriting_any_text_keeps_its_meaning_or_changes_nothing(text: str):
    config = survives(text)
    try:
        rewritten, _ = migrate(text)
    except ConfigError:
        return
    assert parse(rewritten).config == config
    assert not parse(rewritten).notices


@given(soup, st.sampled_from(["lcm", "off", "a,b", "x#y"]))
@settings(max_examples=effort(75, 300), deadline=None)
def test_setting_a_value_in_any_text_sets_it_and_nothing_else(text: str, name: str):
    try:
        changed = set_value(text, "context.engine", name)
    except ConfigError:
        return
    found = parse(changed).config
    assert found.context.engine == name
    if (before := survives(text)) is not None:
        assert msgspec.structs.replace(before, context=found.context) == found


@given(st.dictionaries(st.sampled_from(WORDS).map(lambda word: f"MIDFOLD_{word.upper()}__X") | st.text(), st.text()))
@settings(deadline=None)
def test_any_environment_is_a_config_or_a_config_error(environ: dict[str, str]):
    environ = {
        name: value for name, value in environ.items() if name not in ("MIDFOLD_CONFIG", "HOME", "XDG_CONFIG_HOME")
    }
    try:
        load(environ=environ)
    except ConfigError as error:
        assert "environment " in str(error)


def values_for(field: Field) -> st.SearchStrategy[object]:
    kinds: dict[str, st.SearchStrategy[object]] = {
        "boolean": st.booleans(),
        "choice": st.sampled_from(field.choices or ("",)),
        "integer": st.integers(int(field.low or 0), int(field.high or 2**53 - 1)),
        "number": st.floats(field.low if field.low is not None else 0.001, field.high or 1e6),
        "text": st.from_regex(r"\A[a-zA-Z_*@][a-zA-Z0-9._#*-]{0,8}\Z"),
    }
    strategy = kinds[field.kind]
    if field.url:
        strategy = st.sampled_from(["http://localhost:8080/v1", "https://[::1]/", "HTTPS://h"])
    if field.json:
        strategy = st.sampled_from(["{}", '{"temperature": 0}'])
    if field.path == ("store", "url"):
        strategy = st.sampled_from(["memory:", "sqlite:///a.db", "postgresql://host/name"])
    if field.path[-1] == "hash":
        strategy = st.just("sha256:" + "0a" * 32)
    if field.path[-1] in ("api_key_env", "shell_environment"):
        strategy = st.sampled_from(["LAB_KEY", "_K9"])
    if field.path[-1] == "provider":
        strategy = st.sampled_from(["auto", "local", "openai"])
    return strategy | st.none() if field.nullable else strategy


@st.composite
def good(draw: st.DrawFn) -> dict[str, object]:
    plain: dict[str, object] = {}
    for path, field in FIELDS.items():
        if draw(st.booleans()):
            name = {"models": "gpt-4.1*", "providers": "my.lab", "upstreams": "claude-*", "keys": "red"}.get(
                path[0], ""
            )
            level: dict[str, object] = plain
            for part in path[:-1]:
                level = level.setdefault(name if part == "*" else part, {})  # type: ignore[assignment]
            level[path[-1]] = draw(values_for(field))
    return plain


@given(good(), st.sampled_from([True, False, None]))
@settings(deadline=None)
def test_what_is_dumped_is_read_back_and_the_schema_agrees(plain: dict[str, object], flow: bool | None):
    VALIDATOR.validate(plain)
    loaded = parse(yaml.safe_dump(plain, default_flow_style=flow, allow_unicode=True))
    assert loaded.config == msgspec.convert(plain, Config)
    assert parse(json.dumps(loaded.config.values())).config == loaded.config
    assert load(environ={}, overrides=dict(flat(plain))).config == loaded.config


def flat(plain: dict[str, object], prefix: str = "") -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = []
    for name, value in plain.items():
        pairs += flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)]
    return pairs


@given(
    st.sampled_from(sorted(FIELDS)),
    st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.none()),
)
@settings(max_examples=effort(100, 400), deadline=None)
def test_the_reader_and_the_schema_refuse_the_same_values(path: tuple[str, ...], value: object):
    plain: object = value
    for name in reversed(path):
        plain = {"lab" if name == "*" else name: plain}
    try:
        parse(json.dumps(plain))
        read = True
    except ConfigError:
        read = False
    odd_number = isinstance(value, float) and (
        value != value or value in (float("inf"), float("-inf")) or value.is_integer()
    )
    if path[-1] not in ("provider", "base_url") and not odd_number and not isinstance(value, str):
        assert read == VALIDATOR.is_valid(plain)


entries = st.sampled_from(
    [
        "summary_model: x",
        "summary_provider: 'main'",
        'summary_base_url: "http://h/v1"',
        "threshold: .5",
        "enabled: on",
        "",
    ]
)
comment = st.sampled_from(["", " # c", "   #d # e", " #'"])


@st.composite
def old_files(draw: st.DrawFn) -> str:
    lines = ["compression:" + draw(comment)]
    for entry in draw(st.lists(entries, unique=True, max_size=6)):
        lines += [f"  # {note}" for note in draw(st.lists(st.sampled_from(["above", "why: x", "'"]), max_size=2))]
        lines.append(f"  {entry}{draw(comment)}" if entry else draw(comment))
    lines += draw(
        st.sampled_from([[], ["model:", "  cache_ttl: 1h"], ["model: {cache_ttl: 5m}  # t"], ["prompt_caching:"]])
    )
    other = draw(st.sampled_from([[], ["auxiliary:", "  compression:", "    base_url: null # b"], ["auxiliary: {}"]]))
    lines = lines + other if draw(st.booleans()) else other + lines
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    return newline.join(lines) + draw(st.sampled_from(["", newline, newline * 2]))


@given(old_files())
@settings(max_examples=effort(100, 400), deadline=None)
def test_migrating_keeps_comments_line_ends_and_meaning(text: str):
    before = parse(text)
    rewritten, notices = migrate(text)
    assert parse(rewritten).config == before.config
    assert len(notices) == len(before.notices)
    assert sorted(comments(rewritten)) == sorted(comments(text))
    newline = "\r\n" if "\r\n" in text else "\n"
    assert rewritten == newline.join(rewritten.split(newline)) and rewritten.count("\n") == rewritten.count(newline)
    blank = any(not line.strip() for line in text.splitlines())
    assert rewritten.endswith("\n") == text.endswith("\n") or blank
    untouched = [
        line for line in text.splitlines() if "summary_" not in line and "model:" not in line and "#" not in line
    ]
    assert all(
        line in rewritten
        for line in untouched
        if "cache_ttl" not in line and line.strip() not in ("compression:", "", "auxiliary: {}")
    )


def comments(text: str) -> list[str]:
    return [line[line.index("#") :].rstrip() for line in text.splitlines() if "#" in line]
