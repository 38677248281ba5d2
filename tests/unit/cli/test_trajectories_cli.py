from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from midfold.cli.main import main
from midfold.drawing import page_style
from midfold.testing.answers import error, openai_json
from midfold.testing.doubles import ScriptedProvider
from support.trajectories import lines

OPTIONS = ("--target-tokens", "2000", "--summary-tokens", "200", "--tokenizer", "estimate", "--workers", "1")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["trajectories", "compress", *map(str, arguments), *OPTIONS])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(lines(5))
    return path


def test_it_tells_what_became_of_the_records_and_where_the_account_is(source: Path, tmp_path: Path) -> None:
    shown = run(source, tmp_path / "out.jsonl", "--retention").output
    assert "5 records" in shown
    assert "still over limit" in shown
    assert "retention" in shown
    assert str(tmp_path / "out.jsonl.report.html") in shown.replace("\n", "")


def test_metrics_records_and_page_are_written_and_agree(source: Path, tmp_path: Path) -> None:
    source.write_bytes(source.read_bytes() + b"nonsense\n")
    result = run(source, tmp_path / "out.jsonl", "--json")
    assert result.exit_code == 1
    assert "in.jsonl, line 6: not JSON" in result.stderr
    (tmp_path / "numbers.json").write_text("[1]")
    told = run(tmp_path / "numbers.json", tmp_path / "none.jsonl").stderr
    assert "line 1: not a record: expected an object or a list" in told
    shown = json.loads(result.stdout)
    saved = json.loads((tmp_path / "out.jsonl.metrics.json").read_text())
    assert saved == shown
    totals = shown["totals"]
    assert (totals["records"], totals["compressed"], totals["failed"]) == (6, 5, 1)
    assert sum(totals["histograms"]["tokens_after"].values()) == 5
    records = [json.loads(line) for line in (tmp_path / "out.jsonl.records.jsonl").read_text().splitlines()]
    assert [record["line"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert sum(record["tokens_before"] for record in records[:5]) == totals["tokens_before"]
    assert records[5]["status"] == "failed"
    page = (tmp_path / "out.jsonl.report.html").read_text()
    assert "in.jsonl, line 6" in page
    assert "prefers-color-scheme: dark" in page
    assert page_style() in page
    assert "style=" not in page
    assert "<script" not in page
    assert "http" not in page


def test_equal_runs_give_equal_metrics_but_for_the_clock(source: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        run(source, tmp_path / name / "out.jsonl")
    first, second = (json.loads((tmp_path / name / "out.jsonl.metrics.json").read_text()) for name in ("a", "b"))
    first.pop("run")
    second.pop("run")
    assert first == second
    a, b = (tmp_path / name / "out.jsonl.records.jsonl" for name in ("a", "b"))
    assert a.read_bytes() == b.read_bytes()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--protect-first", "martian"), "expected some of system, human, gpt, tool"),
        (("--ray-address", "auto"), "--ray-address needs --executor ray"),
        (("--summarizer", "anthropic"), "ANTHROPIC_API_KEY is not set"),
    ],
)
def test_what_cannot_work_is_said_at_once(source: Path, tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    result = run(source, tmp_path / "out.jsonl", *options)
    assert result.exit_code != 0
    assert told in result.output + str(result.exception)
    assert not (tmp_path / "out.jsonl").exists()


def test_names_of_files_cannot_write_to_a_page(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "<img src=x>.jsonl").write_bytes(lines(1) + b"{\n")
    run(folder, tmp_path / "out")
    page = (tmp_path / "out.report.html").read_text()
    assert "<img" not in page
    assert "&lt;img" in page


CONFIG = """
auxiliary:
  compression: {{provider: here, model: tiny}}
providers:
  here: {{wire: openai, base_url: "{url}"}}
"""


def test_a_model_that_the_configuration_names_writes_the_summaries(source: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    answer = openai_json("## Goal\nFind the value that was wrong in src/module_1.py and mend it.")
    with ScriptedProvider(then=answer) as provider:
        config.write_text(CONFIG.format(url=provider.url))
        result = run(source, tmp_path / "out.jsonl", "--summarizer", "model", "--config", config, "--json")
    assert result.exit_code == 0, result.output
    totals = json.loads(result.stdout)["totals"]
    assert (totals["summary_calls"], totals["summary_errors"]) == (5, 0)
    assert len(provider.requests) == 5
    out = [json.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    assert all("mend it." in record["conversations"][4]["value"] for record in out)


def test_a_key_that_is_refused_leaves_records_as_they_are(source: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    with ScriptedProvider(then=error(401)) as provider:
        config.write_text(CONFIG.format(url=provider.url))
        result = run(source, tmp_path / "out.jsonl", "--summarizer", "model", "--config", config)
    assert result.exit_code == 1
    assert (tmp_path / "out.jsonl").read_bytes() == source.read_bytes()
    assert "no summary: auth" in result.output
