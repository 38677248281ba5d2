from __future__ import annotations

import ast
import pickle
from pathlib import Path
from typing import Any

import pytest

import midfold.lab
from midfold.errors import PluginError, TranscriptError
from midfold.lab.retention import Row, evaluate
from support.fixtures import user
from tests.support.retention import LEAST_PAST, conversation, port, session

TALKS = [conversation(name=f"talk {number}") for number in range(3)]
METHODS = ("window", "masked", "random", "snippets", "oracle-snippets", "oracle-messages", "midfold")


def rows(**options: Any) -> tuple[Row, ...]:
    return evaluate(TALKS, **{"methods": METHODS, "budgets": (0.1, 0.3), "least_past": LEAST_PAST, **options}).rows


def keep(messages: list[Any], target_tokens: int) -> list[Any]:
    return messages


def drop(messages: list[Any], target_tokens: int) -> list[Any]:
    return []


def test_keeping_everything_scores_one_and_keeping_nothing_scores_zero() -> None:
    result = evaluate(TALKS, methods={"keep": keep, "drop": drop}, budgets=[0.1], least_past=LEAST_PAST)
    kept, dropped = result.figure("keep", 0.1), result.figure("drop", 0.1)
    assert all(kept.measures[name].mean == 1.0 for name in ("bound", "hard", "far", "searched", "demands"))
    assert dropped.measures["bound"].mean == dropped.measures["demands"].mean == 0.0
    assert dropped.measures["searched"].mean < 1
    assert (kept.over, kept.share, dropped.over) == (kept.cuts, 1.0, 0)
    assert result.conversations == 3
    assert result.cuts == kept.cuts
    assert result.need_count > result.cuts


def test_the_oracle_of_snippets_is_best_and_what_goes_far_back_is_lost_by_the_window() -> None:
    result = evaluate(TALKS, methods=METHODS, budgets=[0.1], least_past=LEAST_PAST)
    bound = {figure.method: figure.measures["bound"].mean for figure in result.figures}
    assert max(bound, key=lambda name: bound[name]) == "oracle-snippets"
    assert bound["oracle-messages"] > bound["window"]
    assert result.figure("window", 0.1).measures["far"].mean == 0


def test_two_runs_and_two_processes_give_the_same_marks() -> None:
    assert rows() == rows()
    assert rows() == rows(workers=2)


def test_callables_without_a_name_work_in_one_process_and_in_two() -> None:
    one, two = (
        evaluate(TALKS, methods={"tail": lambda m, t: m[-4:]}, budgets=[0.1], least_past=LEAST_PAST, workers=workers)
        for workers in (1, 2)
    )
    assert one.rows == two.rows


def test_progress_counts_cuts_from_none_to_all() -> None:
    for workers in (1, 2):
        seen: list[tuple[int, int]] = []
        rows(progress=lambda done, of, seen=seen: seen.append((done, of)), workers=workers, methods=["window"])
        assert [done for done, _ in seen] == list(range(seen[0][1] + 1))


def test_the_search_is_a_callable_of_ones_own_or_none() -> None:
    asked: list[str] = []

    def everything(past: Any, query: str) -> str:
        asked.append(query)
        return "\n".join(message.text for message in past)

    found = evaluate(TALKS[:1], methods={"drop": drop}, budgets=[0.1], least_past=LEAST_PAST, search=everything)
    assert asked
    assert not any("ledger_" in query for query in asked)
    marks = found.rows[0].score
    assert marks.searched is not None
    assert marks.searched > marks.bound
    without = evaluate(TALKS[:1], methods={"drop": drop}, budgets=[0.1], least_past=LEAST_PAST, search=None)
    assert without.rows[0].score.searched == without.rows[0].score.bound


def test_a_failing_compactor_ends_the_run_with_its_name_in_one_process_and_in_two() -> None:
    for workers in (1, 2):
        with pytest.raises(PluginError, match="the method bad on talk 0 before message"):
            rows(methods={"bad": lambda messages, target: 1 / 0}, workers=workers)


def test_conversations_that_are_too_short_are_an_error_that_says_so() -> None:
    with pytest.raises(TranscriptError, match=r"All 3 sessions are too short"):
        evaluate(TALKS, least_past=10**8)


def test_sessions_and_plans_can_be_sent_to_another_process() -> None:
    again = pickle.loads(pickle.dumps(session()))
    assert again == session()


def test_the_measure_shares_no_code_with_what_selects() -> None:
    folder = Path(midfold.lab.__file__).parent
    for name in (
        "compactors",
        "retention_score",
        "message_text",
        "recorded_sessions",
        "retention",
        "retention_facts",
    ):
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.module not in (
                    "midfold.compaction.local.local_summary",
                    "midfold.compaction.local.identifiers",
                    "midfold.compaction.local.line_selection",
                ), name
                assert node.module != "midfold.compaction", name


def test_at_recorded_compactions_the_agents_own_summary_is_one_of_the_methods() -> None:
    talk = conversation()
    told = "The handler of region 12 listens on port: " + str(port(12)) + ". " + "More was done. " * 60
    talk["messages"].insert(80, {**user(told), "_meta": {"compact_summary": True}})
    options: dict[str, Any] = {"methods": ["recorded", "window"], "budgets": [0.1], "least_past": LEAST_PAST}
    result = evaluate([talk], at="compactions", **options)
    assert result.cuts == 1
    assert 0 < result.figure("recorded", 0.1).measures["bound"].mean < 0.5
    with pytest.raises(PluginError, match="works only at recorded compactions"):
        evaluate([talk], **options)
    with pytest.raises(TranscriptError, match="cuts at compactions"):
        evaluate(TALKS, at="compactions", **options)
