"""Redaction changes nothing in real conversations except what looks like a credential."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from midfold.compaction.redact import redact
from support import data

MARK = re.compile(r"\[REDACTED:([a-z-]+)\]")


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key != "_meta":
                yield from strings(item)


def test_fewer_than_one_text_in_two_hundred_changes_and_by_little() -> None:
    seen, changed, marks, lost = 0, 0, 0, 0
    for line in data.lines():
        for text in strings(json.loads(line)["messages"]):
            seen += 1
            after = redact(text)
            if after is not text:
                changed += 1
                marks += len(MARK.findall(after)) - len(MARK.findall(text))
                lost += len(text) - len(MARK.sub("", after))
                assert redact(after) == after
    assert seen > 10_000
    assert changed < seen * 0.005
    assert marks >= changed
    assert lost < 64 * marks


def test_what_changes_was_named_a_credential_or_has_the_form_of_one() -> None:
    """The word before each mark names a credential, or the mark is of a kind detected by its format alone."""
    by_form = {
        "jwt",
        "private-key",
        "github-token",
        "aws-key",
        "google-key",
        "bearer-token",
        "url-token",
        "slack-token",
    }
    named = re.compile(
        r"(?i)(?:pass(?:word|wd|phrase)|pwd|secret|token|key|auth\w*|cookie|://[^\s]*|bearer)\W{0,12}\w{0,9}\W{0,4}$"
    )
    odd = 0
    for line in data.lines():
        for text in strings(json.loads(line)["messages"]):
            after = redact(text)
            if after is text:
                continue
            for mark in MARK.finditer(after):
                if mark[1] not in by_form and not named.search(after, max(0, mark.start() - 80), mark.start()):
                    odd += 1
    assert odd == 0
