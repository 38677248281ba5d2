from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner, Result

from midfold.cli.main import main
from midfold.config import FIELDS, Config, parse
from midfold.errors import ConfigError

OLD = "# mine\ncompression:\n  summary_model: x  # cheap\n  threshold: 0.6\n"
NEW = "# mine\ncompression:\n  threshold: 0.6\nauxiliary:\n  compression:\n    model: x  # cheap\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("MIDFOLD_", "XDG_CONFIG"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["config", *map(str, arguments)])


def run(home: Path, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "midfold", "config", *map(str, arguments)]
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONUTF8": "1", **variables}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


@pytest.fixture
def file(home: Path) -> Path:
    path = home / "config.yaml"
    path.write_text(OLD)
    return path


def test_show_names_every_value_and_its_origin(file: Path):
    result = invoke("show", "--config", file)
    assert result.exit_code == 0
    rows = {line.split()[0]: line.split("  # ")[0].split(None, 2)[1:] for line in result.stdout.splitlines()}
    assert rows["compression.threshold"][:1] == ["0.6"] and f"file {file}:4" in rows["compression.threshold"][1]
    assert rows["compression.enabled"] == ["true", "default" + " " * (len(rows["compression.enabled"][1]) - 7)]
    assert f"migrated from compression.summary_model in {file}:3" in rows["auxiliary.compression.model"][1]
    assert f"{file}:3:3: compression.summary_model is now auxiliary.compression.model" in result.stderr
    assert len({line.index("  # ") for line in result.stdout.splitlines()}) == 1


def test_show_as_json_can_be_read_back(file: Path):
    shown = json.loads(invoke("show", "--config", file, "--json").stdout)
    assert shown["path"] == str(file)
    assert shown["origins"]["compression.threshold"] == f"file {file}:4"
    assert len(shown["notices"]) == 1
    assert parse(json.dumps(shown["values"])).config == parse(OLD).config


def test_show_reads_the_environment(home: Path):
    done = run(home, "show", MIDFOLD_COMPRESSION__THRESHOLD="0.7")
    line = next(line for line in done.stdout.splitlines() if line.startswith("compression.threshold"))
    assert line.split("  # ")[0].split() == [
        "compression.threshold",
        "0.7",
        "environment",
        "MIDFOLD_COMPRESSION__THRESHOLD",
    ]


def test_show_lets_every_layer_win_over_the_one_before(file: Path):
    file.write_text("compression: {threshold: 0.1, target_ratio: 0.3, protect_last_n: 7}\n")
    variables = {"MIDFOLD_COMPRESSION__THRESHOLD": "0.2", "MIDFOLD_COMPRESSION__TARGET_RATIO": "0.4"}
    flags = ("--set", "compression.threshold=0.9", "--set", "compression.prune=off")
    shown = json.loads(run(file.parent, "show", "--config", file, "--json", *flags, **variables).stdout)
    found, origins = shown["values"]["compression"], shown["origins"]
    assert [found[key] for key in ("threshold", "target_ratio", "protect_last_n", "prune")] == [0.9, 0.4, 7, "off"]
    assert origins["compression.threshold"] == origins["compression.prune"] == "flag"
    assert origins["compression.target_ratio"] == "environment MIDFOLD_COMPRESSION__TARGET_RATIO"
    assert origins["compression.protect_last_n"] == f"file {file}:1"
    assert origins["compression.enabled"] == "default"


def test_the_last_of_two_flags_for_a_key_wins(home: Path):
    result = invoke("show", "--json", "--set", "context.engine=a", "--set", "context.engine=b=c")
    assert json.loads(result.stdout)["values"]["context"]["engine"] == "b=c"


@pytest.mark.parametrize("command", ["show", "check"])
@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("compression.threshold=2", "flag --set: compression.threshold: found 2"),
        ("compression.treshold=1", "flag --set: compression.treshold: unknown key"),
        ("hunter2", "flag --set: found text without =; allowed: KEY=VALUE"),
    ],
)
def test_a_wrong_flag_is_named_and_exits_2(home: Path, command: str, flag: str, words: str):
    done = run(home, command, "--set", flag)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr and "hunter2" not in done.stderr and "Traceback" not in done.stderr


def test_show_without_any_file_is_the_defaults(home: Path):
    shown = json.loads(invoke("show", "--json").stdout)
    assert shown["path"] is None and parse(json.dumps(shown["values"])).config == Config()
    assert set(shown["origins"].values()) == {"default"}


def on_a_terminal(file: Path, columns: int) -> bytes:
    pty = pytest.importorskip("pty")
    leader, follower = pty.openpty()
    environ = {"PATH": os.environ["PATH"], "HOME": str(file.parent), "TERM": "xterm", "COLUMNS": str(columns)}
    command = [sys.executable, "-m", "midfold", "config", "show", "--config", str(file)]
    with subprocess.Popen(command, env=environ, stdout=follower, stderr=subprocess.DEVNULL) as process:
        os.close(follower)
        output = b""
        try:
            while chunk := os.read(leader, 65536):
                output += chunk
        except OSError:  # Linux reports a terminal closed at the other end by an error, not by an empty read
            pass
        process.wait()
    os.close(leader)
    return output


def test_show_at_80_columns_cuts_nothing(file: Path):
    url = "https://a-long-host-name.example.org/and/a/long/path/to/v1"
    file.write_text(f"auxiliary: {{compression: {{base_url: '{url}'}}}}\nmodels: {{'{'m' * 60}*': {{factor: 2}}}}\n")
    output = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal(file, 80).decode())
    lines = [line.ljust(80) for line in output.splitlines()]
    assert {len(line) for line in lines} == {80}
    starts = [0, lines[0].index("value"), lines[0].index("from"), 80]
    keys, values, origins = ("".join(line[start:end].strip() for line in lines) for start, end in pairwise(starts))
    assert {".".join(path) for path in FIELDS if "*" not in path} <= {line.split()[0] for line in lines}
    assert f"models.{'m' * 60}*.factor" in keys
    assert url in values
    assert f"{file}:1" in origins


def test_show_on_a_terminal_is_a_table(file: Path):
    output = on_a_terminal(file, 200)
    assert b"\x1b[1m" in output and b"meaning" in output and b"compression.threshold" in output


def test_schema_prints_a_json_schema():
    schema = json.loads(invoke("schema").stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$defs"]["Compression"]["properties"]["threshold"]["maximum"] == 1.0


def test_check_says_there_are_no_problems(file: Path):
    result = invoke("check", "--config", file)
    assert (result.exit_code, result.stdout) == (0, f"{file}: no problems\n")


def test_check_prints_every_problem_and_exits_2(home: Path):
    bad = home / "bad.yaml"
    bad.write_text("compression:\n  treshold: 0.5\n  enabled: 1\n")
    done = run(home, "check", "--config", bad, MIDFOLD_CONTEXT__ENGIN="x")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    for words in (
        f"{bad}:2:3: compression.treshold",
        f"{bad}:3:3: compression.enabled",
        "environment MIDFOLD_CONTEXT__ENGIN",
    ):
        assert words in done.stderr
    assert isinstance(invoke("check", "--config", bad).exception, ConfigError)


@pytest.mark.parametrize("command", ["show", "check", "migrate"])
def test_a_named_file_that_is_missing_is_one_line_and_exit_2(home: Path, command: str):
    done = run(home, command, "--config", home / "no.yaml")
    assert done.returncode == 2
    assert done.stderr == f"midfold: {home}/no.yaml: cannot read the configuration: No such file or directory\n"


def test_path_prints_where_the_file_would_be(home: Path, file: Path):
    result = invoke("path")
    assert result.stdout == f"{home}/.config/midfold/config.yaml\n"
    assert "does not exist" in result.stderr
    assert (invoke("path", "--config", file).output) == f"{file}\n"


def test_migrate_rewrites_the_file_and_keeps_its_mode_and_old_text(file: Path):
    file.chmod(0o600)
    result = invoke("migrate", "--config", file)
    assert result.exit_code == 0
    assert file.read_text() == NEW
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.with_name("config.yaml.bak").read_text() == OLD
    assert "-  summary_model: x  # cheap\n" in result.stdout and "+    model: x  # cheap\n" in result.stdout
    assert "compression.summary_model is now auxiliary.compression.model" in result.stderr
    assert invoke("migrate", "--config", file).stdout == f"{file}: nothing to migrate\n"


def test_a_dry_run_shows_the_change_and_writes_nothing(file: Path):
    result = invoke("migrate", "--config", file, "--dry-run")
    assert "+auxiliary:\n" in result.stdout and "nothing written" in result.stderr
    assert file.read_text() == OLD
    assert [path.name for path in file.parent.iterdir()] == ["config.yaml"]


def test_migrate_without_a_backup(file: Path):
    assert invoke("migrate", "--config", file, "--no-backup").exit_code == 0
    assert file.read_text() == NEW
    assert [path.name for path in file.parent.iterdir()] == ["config.yaml"]


def test_migrate_without_a_default_file_has_nothing_to_do(home: Path):
    result = invoke("migrate")
    assert (result.exit_code, result.stdout) == (0, "no configuration file: nothing to migrate\n")


def test_migrate_reads_the_file_of_the_variable(file: Path):
    done = run(file.parent, "migrate", MIDFOLD_CONFIG=str(file))
    assert (done.returncode, file.read_text()) == (0, NEW)


@pytest.mark.parametrize("command", ["show", "schema", "check", "migrate", "path"])
def test_every_command_has_help(command: str):
    result = invoke(command, "--help")
    assert result.exit_code == 0 and "Usage:" in result.stdout
