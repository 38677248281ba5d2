"""Redaction and rendering of any input: no exception, no leak, no escape from the markup, and linear time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.redact import HOSTILE, hostile
from midfold.compaction.redact import redact, redact_value, with_credentials
from midfold.compaction.render import (
    block,
    failure,
    fence,
    render_content_search,
    render_delegated_task,
    render_file_read,
    render_file_search,
    render_process,
    render_value,
)
from support.effort import effort
from support.timing import assert_in_proportion, seconds

PIECES = [
    "password", "PASSWORD", "token", "secret", "api_key", "Authorization", "Bearer ", "cookie", "=", ": ", " = ",
    "=>", '"', "'", '\\"', "\\n", "\n", " ", "://", "@", "user:", "sk-", "ghp_", "eyJ", "AKIA", "--",
    "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "hunter2", "abc123def456ghi789jkl", "A" * 40,
    "aB3" * 12, ".", "-", "_", "[REDACTED:token]", "[", "]", "(", ")", "{", "}", "$", "<", ">", ",", ";", "é", "日本",
    "\ud800", "/", "SG.", "123456789:AA", "&sig=",
]  # fmt: skip
texts = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.sampled_from(["error", "status", "content", "file", "output", "matches", "results", "token"]) | texts,
            inner,
            max_size=5,
        )
    ),
    max_leaves=30,
)

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
KINDS = [render_file_search, render_content_search, render_file_read, render_process, render_delegated_task]


def letters(seed: int, size: int, alphabet: str = ALPHABET) -> str:
    """Return characters like those of a generated key; the first is a digit."""
    blob = b"".join(hashlib.sha256(f"{seed}/{n}".encode()).digest() for n in range(size // 32 + 1))
    return "7" + "".join(alphabet[byte % len(alphabet)] for byte in blob[: size - 1])


MAKERS: dict[str, Callable[[int], tuple[str, str, str]]] = {
    "aws": lambda n: ("", "AKIA" + letters(n, 16, ALPHABET[:26] + "234567"), ""),
    "google": lambda n: ("", "AIza" + letters(n, 35), ""),
    "github": lambda n: ("", "ghp_" + letters(n, 36), ""),
    "github-fine": lambda n: ("", "github_pat_" + letters(n, 22) + "_" + letters(n, 59), ""),
    "gitlab": lambda n: ("", "glpat-" + letters(n, 20), ""),
    "slack": lambda n: ("", "xoxb-" + letters(n, 12, "0123456789") + "-" + letters(n, 24), ""),
    "stripe": lambda n: ("", "sk_live_" + letters(n, 24), ""),
    "openai": lambda n: ("", "sk-" + letters(n, 48), ""),
    "openai-project": lambda n: ("", "sk-proj-" + letters(n, 120, ALPHABET + "-_"), ""),
    "anthropic": lambda n: ("", "sk-ant-api03-" + letters(n, 93, ALPHABET + "-_"), ""),
    "hugging-face": lambda n: ("", "hf_" + letters(n, 34), ""),
    "npm": lambda n: ("", "npm_" + letters(n, 36), ""),
    "pypi": lambda n: ("", "pypi-" + letters(n, 150, ALPHABET + "-_"), ""),
    "sendgrid": lambda n: ("", "SG." + letters(n, 22) + "." + letters(n + 1, 43), ""),
    "twilio": lambda n: ("", "SK" + letters(n, 32, "0123456789abcdef"), ""),
    "telegram": lambda n: ("", letters(n, 9, "0123456789") + ":AA" + letters(n, 33), ""),
    "discord": lambda n: ("", "MT" + letters(n, 22) + "." + letters(n, 6) + "." + letters(n, 38), ""),
    "jwt": lambda n: ("", "eyJ" + letters(n, 33) + ".eyJ" + letters(n, 40) + "." + letters(n, 43), ""),
    "pem": lambda n: ("-----BEGIN PRIVATE KEY-----\n", letters(n, 64) + "\n" + letters(n + 1, 64), "\n-----END "),
    "url": lambda n: ("postgres://user:", letters(n, 12), "@host/db"),
    "bearer": lambda n: ("Authorization: Bearer ", letters(n, 32), ""),
    "basic": lambda n: ('"authorization": "Basic ', letters(n, 24), '"'),
    "password": lambda n: ("password=", letters(n, 10), ""),
    "yaml": lambda n: ("password: ", letters(n, 10), ""),
    "env": lambda n: ("export API_KEY=", letters(n, 20), ""),
    "json": lambda n: ('"api_key": "', letters(n, 20), '"'),
    "escaped-json": lambda n: ('\\"client_secret\\": \\"', letters(n, 20), '\\"'),
    "flag": lambda n: ("--password ", letters(n, 10), ""),
    "azure": lambda n: ("AccountKey=", letters(n, 86, ALPHABET + "+/") + "==", ";"),
    "aws-secret": lambda n: ("aws_secret_access_key = ", letters(n, 40, ALPHABET + "+/"), ""),
    "cookie": lambda n: ("Cookie: sid=", letters(n, 32), ""),
}  # fmt: skip


@given(texts)
@settings(max_examples=effort(100, 400))
def test_redacting_never_raises_and_twice_is_once(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@settings(max_examples=effort(75, 300))
@given(st.lists(texts, max_size=8))
def test_texts_that_are_searched_together_are_found_as_when_each_is_searched_alone(many: list[str]) -> None:
    changed = {place for place, text in enumerate(many) if redact(text) != text}
    assert changed <= with_credentials(many)


@pytest.mark.parametrize("kind", MAKERS)
@given(before=texts, after=texts, seed=st.integers(0, 10**9), gap=st.sampled_from([" ", "\n", "\t"]))
@settings(max_examples=effort(10, 25))
def test_a_planted_credential_never_survives(kind: str, before: str, after: str, seed: int, gap: str) -> None:
    lead, secret, tail = MAKERS[kind](seed)
    text = before + gap + lead + secret + tail + gap + after
    shown = redact(text)
    assert secret not in shown
    assert secret[-8:] not in shown or secret[-8:] in before + after
    quoted = json.dumps(text)
    assert json.dumps(secret)[1:-1] not in redact(quoted)


@given(json_values)
@settings(max_examples=effort(50, 200))
def test_redacting_a_value_keeps_its_shape_and_twice_is_once(value: Any) -> None:
    once = redact_value(value)
    twice = redact_value(once)
    assert repr(twice) == repr(once)
    assert type(once) is type(value) or isinstance(once, str)


@given(json_values, st.integers(40, 3_000), st.integers(0, 6), st.integers(0, 30), st.integers(0, 500))
@settings(max_examples=effort(50, 200))
def test_rendering_never_raises_and_is_bounded(value: Any, most: int, depth: int, items: int, string: int) -> None:
    assert len(render_value(value, depth=depth, items=items, string=string, max_chars=most)) <= most
    reason = failure(value)
    assert reason is None or len(reason) < 1_000
    for render in KINDS:
        assert len(render(value, max_chars=most)) <= most
        assert len(render(json.dumps(value), max_chars=most)) <= most


@given(st.text(alphabet="`~ab\n\r ", max_size=200), texts, st.integers(100, 400))
def test_a_fence_cannot_be_broken(text: str, language: str, limit: int) -> None:
    for shown in (fence(text, language), block(text, limit, language)):
        first, *inside, last = shown.replace("\r", "\n").split("\n")
        ticks = len(first) - len(first.lstrip("`"))
        assert last == "`" * ticks
        assert ticks >= 3
        assert all(line.strip()[:ticks] != "`" * ticks for line in inside)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_takes_linear_time_and_less_than_a_second_per_million(name: str) -> None:
    """Four times the text may take eight times as long, so that load does not fail a linear rule."""
    large = hostile(name, 250_000)
    assert_in_proportion(redact, hostile(name, 62_500), (large, 8))
    assert min(seconds(lambda: redact(large)) for _ in range(3)) < 0.5
