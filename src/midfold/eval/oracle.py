"""The best that could be kept by somebody who knows the future: how far there is to go."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from midfold.eval.facts import places
from midfold.eval.needs import Need
from midfold.eval.sizes import note, size
from midfold.eval.texts import joined, text_of
from midfold.eval.words import is_bound
from midfold.transcript.message import Transcript

WIDTHS = (30, 60, 100, 140)
PLACES_TRIED = 40


def oracle_snippets(past: Transcript, target: int, needs: Sequence[Need]) -> Transcript:
    """For each needed fact the shortest snippet that binds it, the cheapest first."""
    empty = size(note(""))
    room = target - empty
    kept: list[str] = []
    text = ""
    for snippet, need in best_snippets(past, tuple(needs)):
        cost = size(note(snippet)) - empty + 1
        if cost <= room and not is_bound(text, need.fact, need.near):
            kept.append(snippet)
            text = "\n".join(kept)
            room -= cost
    while kept and size(note("\n".join(kept))) > target:
        kept.pop()
    return (note("\n".join(kept)),) if kept else ()


@lru_cache(maxsize=2)
def best_snippets(past: Transcript, needs: tuple[Need, ...]) -> tuple[tuple[str, Need], ...]:
    text = joined(past)
    found = [(snippet, need) for need in needs if (snippet := _shortest(text, need))]
    return tuple(sorted(found, key=lambda item: (len(item[0]), item[1].fact)))


def _shortest(text: str, need: Need) -> str:
    places_of = list(places(text, need.fact))[-PLACES_TRIED:]
    for width in WIDTHS:
        options = []
        for at in places_of:
            snippet = text[max(at - width, 0) : at + len(need.fact) + width].strip()
            if is_bound(snippet, need.fact, need.near):
                options.append(snippet)
        if options:
            return min(options, key=lambda snippet: (size(note(snippet)), snippet))
    return ""


def oracle_messages(past: Transcript, target: int, needs: Sequence[Need]) -> Transcript:
    """Whole messages, by needed facts per token, each fact counted once."""
    gains = _gains(past, tuple(needs))
    chosen: list[int] = []
    covered: set[int] = set()
    left = {index: (facts, size(past[index])) for index, facts in gains.items()}
    while left:
        best = max(left, key=lambda index: (len(left[index][0] - covered) / left[index][1], index))
        facts, cost = left.pop(best)
        if not facts - covered:
            break
        if cost <= target:
            chosen.append(best)
            covered |= facts
            target -= cost
    return tuple(past[index] for index in sorted(chosen))


@lru_cache(maxsize=2)
def _gains(past: Transcript, needs: tuple[Need, ...]) -> dict[int, frozenset[int]]:
    found: dict[int, frozenset[int]] = {}
    for index, message in enumerate(past):
        text = text_of(message)
        bound = [
            number for number, need in enumerate(needs) if need.fact in text and is_bound(text, need.fact, need.near)
        ]
        if bound:
            found[index] = frozenset(bound)
    return found
