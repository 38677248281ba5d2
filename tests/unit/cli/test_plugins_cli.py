"""`midfold plugins`: the list, one engine, and choosing another one without losing comments."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from midfold.cli.plugins import command
from midfold.config import parse
from midfold.errors import ConfigError, PluginError

COMMENTED = "# mine\ncontext:\n  engine: noop  # for now\ncompression:\n  threshold: 0.6 # high\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("MIDFOLD_", "XDG_CONFIG"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".config" / "midfold"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)


def plugin(folder: Path, name: str, code: str) -> Path:
    place = folder / "plugins" / "context_engine" / name
    place.mkdir(parents=True)
    (place / "__init__.py").write_text(code, encoding="utf-8")
    return place


def good(name: str) -> str:
    return f"from midfold.engines import Noop\nclass engine(Noop):\n    name = {name!r}\n"


def test_the_plain_list_marks_the_active_engine_and_says_where_each_comes_from(home: Path) -> None:
    place = plugin(home, "mine", "raise SystemExit('never imported')")
    lines = run().stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["*", "compressor", "built-in"],
        ["mine", "directory", str(place)],
        ["noop", "built-in"],
    ]


def test_the_list_as_json(home: Path) -> None:
    place = plugin(home, "mine", "raise SystemExit('never imported')")
    (home / "config.yaml").write_text("context: {engine: mine}\n", encoding="utf-8")
    printed = json.loads(run("--json").stdout)
    assert (printed["configured"], printed["active"]) == ("mine", "mine")
    assert printed["directory"] == str(place.parent)
    assert printed["origin"].startswith("file ")
    assert {"name": "mine", "source": f"directory {place}", "active": True, "problem": ""} in printed["engines"]


def test_an_engine_that_is_configured_and_not_there_is_told_loudly(home: Path) -> None:
    home.mkdir(parents=True)
    (home / "config.yaml").write_text("context: {engine: gone}\n", encoding="utf-8")
    result = run()
    assert result.exit_code == 0
    assert result.stdout.startswith("*  compressor")
    assert "gone" in result.stderr
    assert "using the built-in compressor" in result.stderr


def test_use_keeps_comments_and_keeps_the_old_text(home: Path) -> None:
    plugin(home, "mine", good("mine"))
    path = home / "config.yaml"
    path.write_text(COMMENTED, encoding="utf-8")
    result = run("use", "mine")
    assert result.exit_code == 0
    assert path.read_text(encoding="utf-8") == COMMENTED.replace("noop", "mine")
    assert (home / "config.yaml.bak").read_text(encoding="utf-8") == COMMENTED
    assert "now mine" in result.stdout


def test_use_twice_changes_nothing(home: Path) -> None:
    run("use", "noop")
    before = (home / "config.yaml").stat().st_mtime_ns
    assert "already" in run("use", "noop").stdout
    assert (home / "config.yaml").stat().st_mtime_ns == before
    assert [path.name for path in home.iterdir()] == ["config.yaml"]


def test_use_creates_a_missing_file_for_its_owner_alone(home: Path, tmp_path: Path) -> None:
    assert run("use", "noop").exit_code == 0
    path = home / "config.yaml"
    assert parse(path.read_bytes()).config.context.engine == "noop"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    named = tmp_path / "new" / "named.yaml"
    assert run("use", "noop", "--config", named).exit_code == 0
    assert parse(named.read_bytes()).config.context.engine == "noop"


def test_use_finds_plugins_beside_the_file_that_was_named(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    plugin(folder, "local", good("local"))
    with pytest.raises(PluginError):
        run("use", "local")
    assert run("use", "local", "--config", folder / "config.yaml").exit_code == 0
    assert "*  local" in run("--config", folder / "config.yaml").stdout


def test_use_refuses_an_unknown_name_and_names_the_nearest(home: Path) -> None:
    with pytest.raises(PluginError, match='did you mean "noop"'):
        run("use", "nop")
    assert not home.exists()


def test_use_takes_an_unknown_name_by_force_and_says_what_happens_until_then(home: Path) -> None:
    result = run("use", "later", "--force")
    assert result.exit_code == 0
    assert "built-in compressor" in result.stderr
    assert parse((home / "config.yaml").read_bytes()).config.context.engine == "later"


@pytest.mark.parametrize("name", ["../evil", "a/b", ".hidden", "x" * 65])
def test_use_refuses_paths_even_by_force(home: Path, name: str) -> None:
    with pytest.raises(PluginError):
        run("use", name, "--force")
    assert not home.exists()


def test_use_refuses_a_directory_without_code(home: Path) -> None:
    (home / "plugins" / "context_engine" / "hollow").mkdir(parents=True)
    with pytest.raises(PluginError, match=r"no __init__\.py"):
        run("use", "hollow")


def test_use_says_when_the_environment_wins(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIDFOLD_CONTEXT__ENGINE", "compressor")
    result = run("use", "noop")
    assert "still compressor" in result.stderr
    assert "MIDFOLD_CONTEXT__ENGINE" in result.stderr


def test_use_changes_nothing_in_a_file_that_is_not_valid(home: Path) -> None:
    home.mkdir(parents=True)
    (home / "config.yaml").write_text("compression: {threshold: 7}\n", encoding="utf-8")
    with pytest.raises(ConfigError):
        run("use", "noop")
    assert (home / "config.yaml").read_text(encoding="utf-8") == "compression: {threshold: 7}\n"
    assert len(list(home.iterdir())) == 1


def test_use_needs_somewhere_to_write(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    with pytest.raises(ConfigError, match="no home directory"):
        run("use", "noop")


def test_show_tells_the_source_and_runs_no_code(home: Path) -> None:
    place = plugin(home, "mine", "raise SystemExit('never imported')")
    result = run("show", "mine")
    assert result.stdout == f"mine: not active\n  from directory {place}\n"
    with pytest.raises(PluginError, match="no engine"):
        run("show", "unknown")


def test_show_with_load_says_whether_it_works(home: Path) -> None:
    plugin(home, "works", good("works"))
    plugin(home, "fails", "raise ValueError('no ink')")
    result = run("show", "works", "--load", "--json")
    assert json.loads(result.stdout)["loaded"] is True
    assert "loads; tools for the agent: none" in run("show", "works", "--load").stdout
    result = run("show", "fails", "--load")
    assert result.exit_code == 1
    assert "ValueError: no ink" in result.stderr


def test_names_of_folders_cannot_write_to_the_terminal(home: Path) -> None:
    plugin(home, "\x1b[31mred", "x = 1")
    assert "\x1b" not in run().output


def test_the_help_says_that_nothing_is_activated_by_itself() -> None:
    assert "only when context.engine" in run("--help").output
