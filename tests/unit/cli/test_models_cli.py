"""`midfold models`: the table, one model, overrides from a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from midfold.cli.main import main
from midfold.errors import ConfigError
from midfold.models import DEFAULT, FIELDS, TABLE


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("", encoding="utf-8")
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["models", *map(str, arguments)], catch_exceptions=False)


def test_without_a_name_every_row_is_shown_under_its_source() -> None:
    result = run()
    assert result.exit_code == 0
    for row in TABLE:
        assert f"{row.pattern} " in result.output
        assert f"{row.source}, {row.as_of}" in result.output
    assert f"{DEFAULT.context_window:,} tokens of context" in result.output


def test_the_table_as_json_holds_every_field() -> None:
    printed = json.loads(run("--json").output)
    assert [row["pattern"] for row in printed["models"]] == [row.pattern for row in TABLE]
    assert printed["default"]["context_window"] == DEFAULT.context_window
    assert set(FIELDS) <= set(printed["models"][0])


def test_a_known_name_is_shown_field_by_field_with_the_reason(empty: Path) -> None:
    result = run("openrouter/anthropic/claude-sonnet-4.5", "--config", empty)
    assert result.exit_code == 0
    assert "200,000" in result.output
    assert '"claude-sonnet-4.5*"' in result.output
    assert "config.yaml" not in result.output


def test_an_unknown_name_says_that_a_default_is_used_and_how_to_override_it(empty: Path) -> None:
    result = run("my-model", "--config", empty)
    assert result.exit_code == 0
    assert "stated default" in result.output
    suggestion = yaml.safe_load(result.output[result.output.index("\nmodels:") :])
    assert suggestion == {"models": {"my-model": {"context_window": DEFAULT.context_window}}}


def test_the_suggested_override_survives_a_name_with_quotes_and_brackets(empty: Path) -> None:
    name = 'a"b: [c] {\\n}'
    output = run(name, "--config", empty).output
    assert list(yaml.safe_load(output[output.index("\nmodels:") :])["models"]) == [name]


def test_a_file_overrides_the_table_and_the_belief_says_so(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text('models:\n  "my-*":\n    context_window: 32768\n    cache_write: 1.5\n', encoding="utf-8")
    belief = json.loads(run("my-model", "--config", path, "--json").output)
    assert (belief["model"]["context_window"], belief["model"]["cache_write_5m"]) == (32_768, 1.5)
    assert belief["fields"]["context_window"] == belief["fields"]["cache_write_5m"] == "config"
    assert belief["known"] is False
    assert '"my-*"' in belief["why"]


def test_without_a_name_the_overrides_of_the_file_are_shown_too(tmp_path: Path, empty: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text('models:\n  "my-*": {context_window: 32768, cache_write: 1.5}\n  gpt-4o: {}\n', encoding="utf-8")
    shown = run("--config", path).output
    assert "Overrides from your configuration" in shown
    rows = {
        line.split()[0]: line for line in shown[shown.index("Overrides from your configuration") :].splitlines() if line
    }
    assert rows["my-*"].endswith("context_window 32,768, cache_write 1.5")
    assert rows["gpt-4o"].split()[1] == "nothing"
    assert "Overrides from your configuration" not in run("--config", empty).output
    printed = json.loads(run("--config", path, "--json").output)
    assert printed["overrides"] == {"my-*": {"context_window": 32_768, "cache_write": 1.5}, "gpt-4o": {}}


@pytest.mark.parametrize("arguments", [["my-model"], []])
def test_a_missing_file_is_an_error_of_ours(tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises(ConfigError):
        run(*arguments, "--config", tmp_path / "none.yaml")


def test_the_help_names_the_argument_and_the_options() -> None:
    output = run("--help").output
    assert all(word in output for word in ("[NAME]", "--config FILE", "--json"))
