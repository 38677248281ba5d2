"""Scripted readers: the words of each reading probe's question are the query, and hits are compared with its gold.

The query is built by rule from the question alone, so it is worse than a reader's. Rankings are tuned on the
sessions at
odd positions of the sorted names; the others are held out and only reported.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import midfold
from midfold.recall import NOTHING
from midfold.recall.words import STOP_WORDS
from midfold.transcript.message import Transcript
from midfold.types import InMemorySource, Recall
from support.data import SHARED, need
from support.effort import effort

QUESTIONS = SHARED.parent / "probes" / "questions"
FIELDS = ("role", "content", "tool_calls", "tool_call_id", "name")
_TOLD = "say says said give gives given name names named tell told state stated called call happen happened exact "
_COUNTED = "exactly kind two three one first last many much "
UNSEARCHED = STOP_WORDS | set((_TOLD + _COUNTED).split())
_WORD = re.compile(r"[\w./:#~+@\-]+")
_KEY = re.compile(r"`([^`]+)`|([\w./:@~-]*[\d_/.:@~-][\w./:@~-]*\w)|\b([A-Za-z]*[a-z][A-Z]\w+)\b")
_PATH = re.compile(r"[\w./-]*[\w-]\.(?:py|go|ts|json|md)\b|[\w-]+(?:/[\w.-]+)+")
_NAME = re.compile(r"\w*[a-z][A-Z]\w*|\w+[_.]\w[\w.]*\w")
KINDS = {"artifact": "edits", "decision": "decisions", "recall": "errors", "continuation": "tests"}
LEAST = {"tuned": (0.80, 0.64), "others": (0.82, 0.58)}
"""Minimum shares: searches with evidence among six hits; of those with key strings, searches answered by the first
hit.
"""
MOST_EMPTY = 0.02
LEAST_NARROW = 0.65
"""Minimum share of searches with filters, quotes and patterns whose answer has evidence."""


class Tally(NamedTuple):
    asked: int
    found: int
    keyed: int
    answered: int
    empty: int


def past_of(probe: dict[str, Any]) -> tuple[Transcript, dict[int, bytes]]:
    """Return the past, and the digests of its messages by position in the data."""
    lines = (SHARED / probe["source"] / "conversations.jsonl").read_bytes().splitlines()
    raw = json.loads(lines[probe["line"]])["messages"][: probe["cut"]]
    places = [place for place, message in enumerate(raw) if message["role"] != "system"]
    messages = midfold.read(
        [{key: raw[place][key] for key in FIELDS if key in raw[place]} for place in places]
    ).messages
    return messages, {place: message.digest for place, message in zip(places, messages, strict=True)}


def query_of(question: str) -> str:
    words = _WORD.findall(question.replace("`", " "))
    return " ".join(word for word in words if word.strip(".,:;?-'").lower() not in UNSEARCHED)


def keys_of(gold: str) -> list[str]:
    """Return the strings an answer must contain: code, numbers, paths, identifiers."""
    found = (next(filter(None, each)).strip(".,:;").lower() for each in _KEY.findall(gold))
    return [key for key in found if len(key) > 1]


def ask(recall: Recall, digests: dict[int, bytes], question: dict[str, Any]) -> tuple[bool, bool | None, bool]:
    hits = recall.hits(query_of(question["q"]))
    evidence = {digests[place].hex()[:6] for place in question["evidence"] if place in digests}
    found = any(part.handle[3:9] in evidence for hit in hits for part in hit.parts)
    told = " ".join(part.text for hit in hits[:1] for part in (*hit.parts, *hit.beside))
    keys, shown = keys_of(question["gold"]), " ".join(told.lower().split())
    answered = 2 * sum(" ".join(key.split()) in shown for key in keys) >= len(keys) if keys else None
    return found, answered, not hits


def outcomes(is_tuned: bool) -> Iterator[tuple[bool, bool | None, bool]]:
    for number, path in enumerate(sorted(QUESTIONS.glob("*.json"))):
        if (number % 2 == 0) is is_tuned:
            probe = json.loads(path.read_bytes())
            messages, digests = past_of(probe)
            recall = InMemorySource({"past": messages}).recall(midfold.redact)
            yield from (ask(recall, digests, question) for question in probe["questions"])


def narrow_searches(question: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the same query with right or wrong additions of a reader: filters, quotes, a pattern."""
    text, query = question["q"], query_of(question["q"])
    yield {"query": query, "kind": KINDS[question["kind"]]}
    yield {"query": query, "role": "user" if "user" in text.lower() else "tool"}
    yield from ({"query": query, "tool": tool} for tool in ("bash", "edit", "read_file"))
    for path in _PATH.findall(text)[:1]:
        yield from ({"query": query, "path": path}, {"query": query, "path": f"/home/dev/{path}"})
    for name in _NAME.findall(text)[:1]:
        yield {"query": f'"{name}" {query}'}
    first, *others = query.split()
    yield from ({"query": f'"{first} {other}" {query}'} for other in others[:1])
    yield from ({"pattern": f"{re.escape(first)}.*{re.escape(other)}"} for other in others[:1])


@pytest.mark.parametrize("is_tuned", [True, False], ids=["tuned", "others"])
def test_searches_with_filters_quotes_and_patterns_find_something(is_tuned: bool) -> None:
    need(QUESTIONS.is_dir(), "the reading probes (../shared/probes) are not here")
    asked, found, empty = 0, 0, []
    for number, path in enumerate(sorted(QUESTIONS.glob("*.json"))):
        if (number % 2 == 0) is is_tuned:
            probe = json.loads(path.read_bytes())
            messages, digests = past_of(probe)
            recall = InMemorySource({"past": messages}).recall(midfold.redact)
            for question in probe["questions"][:: effort(2, 1)]:
                evidence = {digests[place].hex()[:6] for place in question["evidence"] if place in digests}
                for given in narrow_searches(question):
                    answer = recall.run("context_search", given)
                    asked, found = asked + 1, found + any(handle in answer.text for handle in evidence)
                    empty += [given] * (answer.is_error or answer.text.startswith(NOTHING))
    told = f"{asked} narrow searches: evidence {found / asked:.2f}, nothing found {len(empty)}"
    sys.stdout.write(f"{told}\n")
    assert len(empty) <= MOST_EMPTY * asked and found >= LEAST_NARROW * asked, (told, empty[:5])


@pytest.mark.parametrize("half", LEAST)
def test_searches_by_the_words_of_a_question_bring_what_answers_it(half: str) -> None:
    need(QUESTIONS.is_dir(), "the reading probes (../shared/probes) are not here")
    made = list(outcomes(half == "tuned"))
    keyed = [answered for _, answered, _ in made if answered is not None]
    tally = Tally(len(made), sum(one[0] for one in made), len(keyed), sum(keyed), sum(one[2] for one in made))
    found, answered = tally.found / tally.asked, tally.answered / tally.keyed
    told = f"{half}: evidence among six hits {found:.2f}, first hit answers {answered:.2f}, nothing found {tally.empty}"
    sys.stdout.write(f"{told}\n")
    least_found, least_answered = LEAST[half]
    assert tally.empty <= MOST_EMPTY * tally.asked and found >= least_found and answered >= least_answered, told
