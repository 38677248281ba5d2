"""Frequency of rewrites of the provider's cached prefix in a tool session."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

import midfold
from midfold.config import Config
from midfold.config.schema import Compression, PromptCaching
from midfold.testing import FakeClock
from support.fixtures import call, user

TURNS, WINDOW = 160, 32_000
FEW_TURNS = 3


class Rewrite(NamedTuple):
    turn: int
    status: str
    tokens: int


def rewrites(schedule: str, prune: str = "digest") -> list[Rewrite]:
    """Return the rewrites of a session whose provider reads every known prefix from its cache."""
    rng, clock, found = random.Random(1), FakeClock(1_000.0), []
    config = Config(
        compression=Compression(prune=prune),  # type: ignore[arg-type]
        prompt_caching=PromptCaching(schedule=schedule),  # type: ignore[arg-type]
    )
    with midfold.open("memory:", config=config, clock=clock) as sessions:
        session = sessions.session("s", model="claude-sonnet-4-5", context_length=WINDOW)
        session.append([user("Fix the failing tests of the parser. Do not touch legacy/.")])
        before: list[Any] = []
        for turn in range(TURNS):
            done = session.compact()
            view = session.view().messages
            if view[: len(before)] != before:
                found.append(Rewrite(turn, done.receipt.status, done.receipt.new_tokens))
            before = list(view)
            session.observe({"input_tokens": 0, "cache_read_input_tokens": session.size.tokens})
            lines = rng.randint(25, 75)
            text = "\n".join(
                f"src/mod_{turn}_{n}.py:{rng.randint(1, 999)}: def handle_{rng.randint(0, 9999)}(self, value_{n})"
                for n in range(lines)
            )
            session.append(call(turn, "grep", {"pattern": f"handle_{turn}"}, text))
            clock.advance(20)
    return found


def test_automatic_schedule_saves_a_third_of_the_rewrites_of_a_tool_session() -> None:
    assert len(rewrites("auto")) * 3 <= len(rewrites("threshold")) * 2


@pytest.mark.parametrize("schedule", ["auto", "threshold"])
def test_pruning_never_adds_rewrites(schedule: str) -> None:
    """A prune that leaves the view near the threshold soon leads to another rewrite, so a compaction is better."""
    pruned, plain = rewrites(schedule), rewrites(schedule, prune="off")
    assert len(pruned) <= len(plain) + 1
    for rewrite, following in pairwise(pruned):
        assert rewrite.status != "pruned" or following.turn - rewrite.turn >= FEW_TURNS, rewrite
