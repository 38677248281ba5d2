from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from midfold.cli.main import main
from midfold.errors import PluginError, TranscriptError
from tests.support.retention import LEAST_PAST, conversation

SMALL = ("--least-past", str(LEAST_PAST), "--workers", "1")


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    lines = [json.dumps(conversation(name=f"talk {number}")) for number in range(4)]
    (tmp_path / "talks.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path / "talks.jsonl"


def evaluate(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["eval", *arguments])


def test_it_shows_recall_with_intervals_and_everything_else_that_was_measured(talks: Path) -> None:
    shown = evaluate(str(talks), *SMALL, "--methods", "window,oracle-snippets", "--budgets", "10,20").output
    assert "cuts of 4 conversations" in shown
    assert "bound recall at" in shown
    assert "20 %" in shown
    assert "oracle-snippets" in shown
    assert "+ search" in shown
    assert "demands" in shown
    assert "exceed their budget" not in shown


def test_json_has_every_figure_with_its_interval_and_no_content(talks: Path) -> None:
    output = evaluate(str(talks.parent), *SMALL, "--methods", "window", "--budgets", "10", "--json").output
    facts = json.loads(output)
    assert facts["conversations"] == 4
    (figure,) = facts["figures"]
    assert (figure["method"], figure["budget"]) == ("window", 0.1)
    assert set(figure["measures"]["bound"]) == {"mean", "low", "high", "cuts"}
    assert set(figure["measures"]) >= {"bound", "hard", "far", "action", "searched", "demands"}
    assert "ledger_" not in output


def test_a_compactor_of_ones_own_is_compared_on_the_same_cuts_and_flagged_if_it_keeps_too_much(
    talks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (talks.parent / "keep_it_all.py").write_text("def keep(messages, target_tokens):\n    return messages\n")
    monkeypatch.chdir(talks.parent)
    monkeypatch.syspath_prepend(str(talks.parent))
    shown = evaluate(str(talks), *SMALL, "--methods", "window", "--method", "mine=keep_it_all:keep").output
    assert "mine" in shown
    assert "exceed their budget by more than 5 %" in shown


def test_the_chart_is_written(talks: Path) -> None:
    target = talks.parent / "out.svg"
    result = evaluate(str(talks), *SMALL, "--methods", "window", "--plot", str(target))
    assert result.exit_code == 0
    assert target.read_text(encoding="utf-8").startswith("<svg")


def test_half_of_the_conversations_can_be_held_back(talks: Path) -> None:
    common = (str(talks), *SMALL, "--methods", "window", "--json")
    parts = {
        split: json.loads(evaluate(*common, "--split", split).output)["cuts"] for split in ("all", "train", "held")
    }
    assert parts["all"] == parts["train"] + parts["held"]


@pytest.mark.parametrize("budgets", ["x", "0", "101", "5,,10"])
def test_budgets_are_percentages(talks: Path, budgets: str) -> None:
    result = evaluate(str(talks), "--budgets", budgets)
    assert result.exit_code == 2
    assert "expected percentages" in result.output


def test_errors_say_what_is_wrong(talks: Path) -> None:
    (talks.parent / "empty").mkdir()
    assert isinstance(evaluate(str(talks), "--methods", "windw").exception, PluginError)
    assert isinstance(evaluate(str(talks.parent / "gone.jsonl")).exception, TranscriptError)
    assert isinstance(evaluate(str(talks.parent / "empty")).exception, TranscriptError)


def test_a_folder_of_json_files_will_do(talks: Path) -> None:
    (talks.parent / "sub").mkdir()
    (talks.parent / "sub" / "one.json").write_text(json.dumps(conversation()))
    shown = evaluate(str(talks.parent / "sub"), *SMALL, "--methods", "window").output
    assert "of 1 conversation," in shown
    assert "[" not in shown.partition("method ")[0], "one conversation gives no interval"
