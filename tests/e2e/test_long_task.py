"""Long task with real tools and a policy that knows only its context: it completes in a small window.

`make bench` runs it at full size against a sliding window and Hermes; MIDFOLD_SOAK=1 runs four hundred calls here.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from bench.longtask import stub, with_midfold, with_sliding
from bench.task_policy import Policy, Seen
from bench.task_work import Repository, _all_names

SOAK = bool(os.environ.get("MIDFOLD_SOAK"))
WINDOW, MOST, LEAST = (64_000, None, 400) if SOAK else (16_000, 10, 60)
LAST = 20 if SOAK else 6
"""20 messages of this work fill the threshold of the small window."""


def test_the_task_ends_with_true_notes_and_half_the_re_reads_of_a_sliding_window() -> None:
    ours = with_midfold(WINDOW, stub, most=MOST)
    assert ours.tally.calls >= LEAST
    assert ours.compactions >= 2
    assert ours.tally.unknown == 0
    assert ours.wrong == 0
    assert ours.tally.unsigned == 0
    full = with_sliding(WINDOW, 1.0, most=MOST)
    assert full.wrong == 0
    assert full.tally.unsigned > 0  # the user's rule was dropped with the window
    assert full.tally.rereads > 0
    assert full.tally.recalls == 0  # no search tool is offered
    assert ours.tally.rereads < full.tally.rereads * 0.5
    alone = with_midfold(WINDOW, stub, most=MOST, may_recall=False)
    assert alone.tally.recalls == 0
    assert alone.wrong == 0
    assert alone.tally.rereads <= full.tally.rereads


def test_what_the_fold_lost_of_files_is_found_by_one_search_of_the_past() -> None:
    ours = with_midfold(WINDOW, stub, "definitions", most=MOST, last=LAST)
    assert ours.tally.recalls >= 5
    assert ours.tally.helpful >= ours.tally.recalls * 0.9
    assert ours.tally.rereads <= ours.tally.needed * 0.1
    assert ours.wrong == 0


def test_the_policy_knows_nothing_but_its_context() -> None:
    with tempfile.TemporaryDirectory() as name:
        repository = Repository(Path(name).resolve(), ("transcript",), 1)
        policy = Policy(repository, 100_000)
        ((package, modules),) = repository.work
        policy.begin(package, modules)
        path = modules[0].path
        plain = [{"role": "system", "content": "s"}, {"role": "user", "content": f"Look at {path}."}]
        assert policy.tokens(plain) > 0
        policy.context = [Seen(f"12345 67 {path}", 9)]
        assert policy._sum_of(path) == f"12345 67 {path}"
        policy.context = [Seen(f"some words about {path}", 9)]
        assert policy._sum_of(path) == ""
        fact = modules[0].own[0]
        policy.context = [Seen("nothing", 1), Seen(f"before\n    {fact.line}\nafter", 9)]
        assert policy._quote(fact) == fact.line
        policy.context = [Seen(f"before\n    {fact.line[:-1]}…\nafter {fact.query}", 9)]
        assert policy._quote(fact) == ""  # neither a truncated line nor the policy's own query counts as an answer
        for shown, before, after in ((fact.line, "`", "`"), (f"{fact.line}  # see `x`", "`` ", " ``")):
            policy.context = [Seen(f"now {before}{shown}{after}; and `more`", 9)]
            assert policy._quote(fact) == shown
        policy.context = [Seen(f"now `{fact.line[:-1]}…`", 9)]
        assert policy._quote(fact) == ""


def test_what_two_files_define_is_asked_of_none() -> None:
    assert list(_all_names("A, B = 4, 1_000\nB: int = 3\ndef f(): ...\n")) == ["A", "B", "B", "f"]
