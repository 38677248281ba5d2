"""How likely it is that a later turn needs a name: a logistic model with a few dozen constants.

The constants were learned offline, by `python -m bench.fit_ledger`, from half of the conversations of the shared data:
names that the real future of those conversations used against names that it did not. docs/explanation/retention.md says
how, and what the other half showed. Nothing here is specific to a tool, a language or an agent.
"""

from __future__ import annotations

from math import exp, log1p

from midfold.core.ledger.census import CALLED, RESULT, SAID, USER, Census, Entry, subwords
from midfold.core.ledger.names import Shape

INTERCEPT = -3.19
SINCE_LAST = -0.25
"""Learned: -0.40. The newest names are the tail's, which the ledger need not tell; with less weight on what is new it
keeps as much in all, and more of what was last said long ago."""
NEVER_BY_ASSISTANT = -1.21
MORE_MESSAGES = -0.18
BY_COUNT = {USER: 0.14, SAID: 0.67, CALLED: 0.65, RESULT: 0.22}
BY_USER = 0.54
IN_RESULT = -1.07
TOPICAL = 0.38
LENGTH = 0.59
REPEATED = 0.71
BY_SHAPE = {
    Shape.PATH: 0.16,
    Shape.URL: -0.29,
    Shape.NUMBER: 0.77,
    Shape.HASH: -0.10,
    Shape.SNAKE: -0.45,
    Shape.CAMEL: 0.27,
    Shape.DOTTED: -0.16,
    Shape.KEBAB: -0.30,
    Shape.CONSTANT: 0.24,
    Shape.FLAG: -0.14,
    Shape.MIXED: -0.06,
    Shape.VERSION: -0.17,
}
_LOGS = [log1p(number) for number in range(4_096)]


def worth(census: Census) -> dict[str, float]:
    """Every name, and how likely it is to be needed."""
    return {name: _probability(name, entry, census) for name, entry in census.entries.items()}


def _probability(name: str, entry: Entry, census: Census) -> float:
    counts = entry.counts
    score = INTERCEPT + BY_SHAPE[entry.shape] + SINCE_LAST * _log(census.length - entry.last) + LENGTH * _log(len(name))
    for who, weight in BY_COUNT.items():
        if counts[who]:
            score += weight * _log(counts[who])
    if entry.assistant < 0:
        score += NEVER_BY_ASSISTANT
    if entry.messages > 1:
        score += REPEATED + MORE_MESSAGES * _log(entry.messages - 1)
    if counts[USER]:
        score += BY_USER
    if counts[RESULT]:
        score += IN_RESULT
    if census.recent.issuperset(subwords(name)):
        score += TOPICAL
    return 1.0 / (1.0 + exp(-score))


def _log(number: int) -> float:
    return _LOGS[number] if number < len(_LOGS) else log1p(number)
