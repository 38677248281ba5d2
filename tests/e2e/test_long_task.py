"""A long task with real tools and a policy that knows only its context: it comes to its end in a small window.

`make bench` runs it at full size against a sliding window and Hermes; MIDFOLD_SOAK=1 runs four hundred calls here.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from bench.longtask import stub, with_midfold, with_sliding
from bench.task_policy import Policy
from bench.task_work import Repository

SOAK = bool(os.environ.get("MIDFOLD_SOAK"))
WINDOW, MOST, LEAST = (64_000, None, 400) if SOAK else (16_000, 8, 60)


def test_the_task_ends_with_true_notes_and_no_more_re_reads_than_a_sliding_window() -> None:
    ours = with_midfold(WINDOW, stub, most=MOST)
    assert ours.tally.calls >= LEAST
    assert ours.compactions >= 2
    assert ours.tally.unknown == 0
    assert ours.wrong == 0
    assert ours.tally.unsigned == 0
    half = with_sliding(WINDOW, 0.5, most=MOST)
    assert half.wrong == 0
    assert half.tally.unsigned > 0  # the user's rule went with the window
    assert ours.tally.rereads <= half.tally.rereads * (0.5 if SOAK else 1)


def test_the_policy_knows_nothing_but_its_context() -> None:
    with tempfile.TemporaryDirectory() as name:
        repository = Repository(Path(name).resolve(), ("core",), 1)
        policy = Policy(repository, 100_000)
        ((package, modules),) = repository.work
        policy.begin(package, modules)
        path = modules[0].path
        plain = [{"role": "system", "content": "s"}, {"role": "user", "content": f"Look at {path}."}]
        assert policy.tokens(plain) > 0
        policy.context = f"12345 67 {path}"
        assert policy._sum_of(path) == f"12345 67 {path}"
        policy.context = f"some words about {path}"
        assert policy._sum_of(path) == ""
        fact = modules[0].own[0]
        policy._quoted = {}
        policy.context = f"before\n    {fact.line}\nafter"
        assert policy._quote(fact) == fact.line
