"""How likely it is that a later turn needs a name: a logistic model with a few dozen constants.

The constants were learned offline, by `python -m bench.fit_ledger`, from half of the conversations of the shared data:
names that the real future of those conversations used against names that it did not. docs/explanation/retention.md says
how, and what the other half showed. Nothing here is specific to a tool, a language or an agent.
"""

from __future__ import annotations

from math import exp, log1p

from midfold.core.ledger.census import CALLED, RESULT, SAID, USER, Census, Entry, subwords
from midfold.core.ledger.names import Shape

INTERCEPT = -3.06
SINCE_LAST = -0.40
NEVER_BY_ASSISTANT = -1.25
MORE_MESSAGES = 0.04
BY_COUNT = {USER: 0.09, SAID: 0.64, CALLED: 0.47, RESULT: -0.05}
BY_USER = 0.50
IN_RESULT = -0.95
TOPICAL = 0.39
LENGTH = 0.56
REPEATED = 0.70
BY_SHAPE = {
    Shape.PATH: 0.14,
    Shape.URL: -0.26,
    Shape.NUMBER: 0.74,
    Shape.HASH: -0.09,
    Shape.SNAKE: -0.48,
    Shape.CAMEL: 0.35,
    Shape.DOTTED: -0.10,
    Shape.KEBAB: -0.28,
    Shape.CONSTANT: 0.25,
    Shape.FLAG: -0.15,
    Shape.MIXED: -0.06,
    Shape.VERSION: -0.16,
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
