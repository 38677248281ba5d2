"""tools/bootstrap.py with stubs of uv and python that record their calls."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOG = 'echo "NAME $*" >> "$LOG"\n'


class Machine:
    """Folder with an environment, and programs with scripted exit codes."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.path = folder / "path"
        self.venv = folder / "venv"
        self.lock = folder / "lock.txt"
        self.log.touch()

    def program(self, path: Path, name: str, script: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n" + LOG.replace("NAME", name) + script, encoding="utf-8")
        path.chmod(0o755)

    def bootstrap(self) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "tools" / "bootstrap.py"), str(self.venv), str(self.lock)]
        environ = {"PATH": f"{self.path}:/usr/bin:/bin", "LOG": str(self.log), "HOME": str(self.path)}
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    def asked(self) -> list[tuple[str, str]]:
        """Return the recorded install calls as program and package, in order."""
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [(line.split()[0], line.split()[-1]) for line in lines]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    if os.name != "posix":
        pytest.skip("the programs are shell scripts")
    return Machine(tmp_path)


def test_uv_installs_everything_when_it_can(machine: Machine) -> None:
    machine.program(machine.path / "uv", "uv", "exit 0")
    machine.program(machine.venv / "bin" / "python", "pip", "exit 0")
    done = machine.bootstrap()
    assert (done.returncode, done.stdout) == (0, "")
    assert machine.asked() == [("uv", str(machine.lock)), ("uv", str(ROOT))]


def test_pip_takes_over_in_the_same_environment_when_uv_fails(machine: Machine) -> None:
    machine.program(machine.path / "uv", "uv", "exit 2")
    machine.program(machine.venv / "bin" / "python", "pip", "exit 0")
    done = machine.bootstrap()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "uv could not install (exit 2); trying pip\n"
    assert machine.asked() == [("uv", str(machine.lock)), ("pip", str(machine.lock)), ("pip", str(ROOT))]
    assert "pip -m pip --quiet --disable-pip-version-check install --require-hashes" in machine.log.read_text()


def test_a_uv_that_fails_at_the_second_step_is_replaced_there(machine: Machine) -> None:
    machine.program(machine.path / "uv", "uv", 'case "$*" in *--no-deps*) exit 1;; esac')
    machine.program(machine.venv / "bin" / "python", "pip", "exit 0")
    assert machine.bootstrap().returncode == 0
    assert machine.asked() == [("uv", str(machine.lock)), ("uv", str(ROOT)), ("pip", str(ROOT))]


def test_a_uv_that_cannot_be_started_is_replaced_too(machine: Machine) -> None:
    machine.program(machine.path / "uv", "uv", "")
    (machine.path / "uv").write_text("#!/no/such/interpreter\n", encoding="utf-8")
    machine.program(machine.venv / "bin" / "python", "pip", "exit 0")
    done = machine.bootstrap()
    assert (done.returncode, done.stdout) == (0, "uv could not install (exit 127); trying pip\n")


def test_only_when_pip_fails_too_the_error_ends_it(machine: Machine) -> None:
    machine.program(machine.path / "uv", "uv", "exit 2")
    machine.program(machine.venv / "bin" / "python", "pip", "exit 3")
    done = machine.bootstrap()
    assert done.returncode == 1
    assert done.stderr.startswith("installing failed (exit 3): ")
    assert f"-m pip --quiet --disable-pip-version-check install --require-hashes -r {machine.lock}" in done.stderr
    assert machine.asked() == [("uv", str(machine.lock)), ("pip", str(machine.lock))]


def test_without_uv_pip_is_asked_for_one_and_then_does_the_work(machine: Machine) -> None:
    machine.program(machine.venv / "bin" / "python", "pip", 'case "$*" in *uv.txt) exit 1;; esac')
    done = machine.bootstrap()
    assert (done.returncode, done.stdout) == (0, "uv is not available here; installing with pip\n")
    uv = ROOT / "requirements" / "uv.txt"
    assert machine.asked() == [("pip", str(uv)), ("pip", str(machine.lock)), ("pip", str(ROOT))]


def test_an_environment_that_uv_cannot_create_is_made_by_venv(machine: Machine) -> None:
    machine.program(machine.path / "uv", "uv", 'case "$1" in venv) exit 2;; esac')
    done = machine.bootstrap()
    assert done.returncode == 0
    assert "uv could not create it (exit 2); trying venv" in done.stdout
    assert (machine.venv / "bin" / "python").exists()
