"""The retention measure on real sessions reproduces the first measurements of bound recall."""

from __future__ import annotations

import pytest

from midfold.lab.compactors import bare_list
from midfold.lab.recorded_sessions import RecordedSession, all_cuts, load_sessions
from midfold.lab.retention import evaluate, facts_by_project
from midfold.lab.retention_facts import shared_facts
from midfold.lab.retention_score import case_at, score
from support.effort import effort
from tests.support.data import SHARED, need

SOURCES = ("claude_code_entire", "claude_code_packmind", "codex_agentv", "miniswe_deepseek")


@pytest.fixture(scope="module")
def sessions() -> list[RecordedSession]:
    """Return all sessions, or every third in `make test`."""
    need(SHARED.is_dir(), "the shared transcripts (../shared/data) are not here")
    return load_sessions(SHARED / source / "conversations.jsonl" for source in SOURCES)[:: effort(3, 1)]


def test_so_many_cuts_are_found(sessions: list[RecordedSession]) -> None:
    assert effort(40, 120) <= len(all_cuts(sessions)) <= effort(80, 200)


def test_the_order_of_the_first_measurements_is_found_again_and_recall_grows_with_the_budget(
    sessions: list[RecordedSession],
) -> None:
    methods, budgets = ("window", "masked", "snippets", "oracle-snippets"), (0.1, 0.2)
    some = sessions[:: effort(2, 1)]
    result = evaluate(some, methods=methods, budgets=budgets, split="train", workers=2)
    bound = {name: [result.figure(name, budget).measures["bound"].mean for budget in budgets] for name in methods}
    assert all(means == sorted(means) for means in bound.values())
    at_ten = {name: means[0] for name, means in bound.items()}
    assert 0.33 < at_ten["window"] < at_ten["masked"] < at_ten["snippets"] < 0.8
    assert at_ten["oracle-snippets"] > 0.93
    assert result.figure("window", 0.1).measures["searched"].mean > at_ten["window"] + 0.1
    assert all(figure.over == 0 for figure in result.figures)


def test_keeping_everything_scores_nearly_one_and_a_bare_list_nearly_nothing(sessions: list[RecordedSession]) -> None:
    generic = shared_facts(facts_by_project(sessions))
    exams = [(cut, case_at(cut, generic)) for cut in all_cuts(sessions)[::8]]
    whole = [score(cut.past, exam).bound for cut, exam in exams if exam.needs]
    bare = [score(bare_list(cut.past, exam.past_tokens), exam).bound for cut, exam in exams if exam.needs]
    assert sum(whole) / len(whole) > 0.95
    assert sum(bare) / len(bare) < 0.05


def test_midfold_keeps_at_least_so_much_within_the_budget(sessions: list[RecordedSession]) -> None:
    result = evaluate(sessions, methods=("midfold",), budgets=(0.1,), split="train", search=None, workers=2)
    figure = result.figure("midfold", 0.1)
    assert figure.measures["bound"].mean > 0.52
    assert figure.measures["far"].mean > 0.28
    assert figure.measures["demands"].mean > 0.85
    assert figure.over <= 2
