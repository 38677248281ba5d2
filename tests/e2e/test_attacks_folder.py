"""Untrusted project folders: modules that shadow midfold's and Python's, and links to other files."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import midfold
from midfold.atomic import replace_file
from midfold.cli.main import main
from midfold.lab.trajectory_run import SUFFIX
from midfold.types import project_prefix
from support.data import need
from support.trajectories import lines

NAMES = ("json", "midfold", "subprocess", "msgspec", "mcp", "click", "multiprocessing", "threading", "typing", "ray")
SESSION = "0442a060-edc3-4307-bddb-11a2951fd1a1"
COMPRESS = ["trajectories", "compress", "in.jsonl", "out.jsonl", "--target-tokens", "2000", "--summary-tokens", "200"]
COMPRESS += ["--tokenizer", "estimate", "--batch-kb", "30", "--workers", "2"]


class HostileFolder:
    """Project whose modules record that they were imported."""

    def __init__(self, home: Path) -> None:
        self.home, self.path, self._ran = home, home / "project", home / "ran"
        (self.path / "mcp").mkdir(parents=True)
        self._ran.mkdir()
        code = f"import os\nos.close(os.open({str(self._ran)!r} + '/' + __name__, os.O_CREAT))\nraise ImportError(1)\n"
        for name in NAMES:
            (self.path / f"{name}.py").write_text(code)
        (self.path / "mcp" / "__init__.py").write_text(code)

    @property
    def ran(self) -> list[str]:
        return sorted(path.name for path in self._ran.iterdir())

    def run(self, *command: str, told: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(command, cwd=self.path, input=told, capture_output=True, check=False, timeout=120)

    def run_script(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """Run `midfold` as its console script does."""
        script = self.home / "bin" / "midfold"
        script.parent.mkdir(exist_ok=True)
        script.write_text("from midfold.__main__ import run\nif __name__ == '__main__':\n    run()\n")
        return self.run(sys.executable, str(script), *arguments)

    def install(self, *arguments: str) -> str:
        command = ["install", "claude-code", "--project", str(self.path), "--yes", *arguments]
        return CliRunner().invoke(main, command, catch_exceptions=False).output

    def read(self, name: str) -> Any:
        return json.loads((self.path / name).read_bytes())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostileFolder:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in ("MIDFOLD_CONFIG", "PYTHONSAFEPATH", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    # Entries relative to the working directory would come from the test, not from midfold.
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(Path(path).absolute()) for path in paths if path))
    return HostileFolder(tmp_path)


def hooks_of(folder: HostileFolder) -> dict[str, str]:
    hooks = folder.read(".claude/settings.local.json")["hooks"]
    return {event: groups[-1]["hooks"][0]["command"] for event, groups in hooks.items()}


# Modules in the working directory


def test_installed_hooks_import_nothing_from_the_project(folder: HostileFolder) -> None:
    folder.install()
    log = folder.home / f"{SESSION}.jsonl"
    said = {"role": "user", "content": "the word is numbat55"}
    line = {"type": "user", "uuid": "u0", "parentUuid": None, "sessionId": SESSION, "message": said}
    log.write_text(json.dumps(line) + "\n")
    event = {"session_id": SESSION, "transcript_path": str(log), "cwd": str(folder.path), "source": "compact"}
    done = {
        name: folder.run("/bin/sh", "-c", line, told=json.dumps({**event, "hook_event_name": name}).encode())
        for name, line in hooks_of(folder).items()
    }
    assert b"numbat55" in done["SessionStart"].stdout
    assert {name: one.stderr for name, one in done.items()} == dict.fromkeys(done, b"")
    with midfold.open(f"sqlite:///{folder.home}/data/midfold/sessions.db") as sessions:
        end = time.monotonic() + 60
        while not (found := sessions.search("numbat55")):
            assert time.monotonic() < end, "the process that keeps the log stored nothing"
            time.sleep(0.2)
    assert found
    assert folder.ran == []


def test_installed_mcp_server_imports_nothing_from_the_project(folder: HostileFolder) -> None:
    need(find_spec("mcp"), "the extra mcp is not installed (make test-all does it)")
    import mcp

    folder.install()
    server = folder.read(".mcp.json")["mcpServers"]["midfold"]
    url = f"sqlite:///{folder.home}/s.db"
    with midfold.open(url) as sessions:
        name = f"{project_prefix(folder.path)}a"
        sessions.session(name).append([{"role": "user", "content": "the word is numbat55"}])
    started = mcp.StdioServerParameters(
        command=server["command"], args=[*server["args"], "--store", url], env=dict(os.environ), cwd=str(folder.path)
    )

    async def search() -> str:
        async with mcp.Client(started) as connected:
            found: Any = await connected.call_tool("search", {"query": "numbat55"})
            return str(found.content[0].text)

    assert "the word is numbat55" in asyncio.run(search())
    assert folder.ran == []


@pytest.mark.parametrize("executor", ["pool", "ray"])
def test_workers_import_nothing_from_the_working_directory(folder: HostileFolder, executor: str) -> None:
    if executor == "ray":
        need(find_spec("ray"), "Ray is not installed (pip install 'midfold[ray]')")
    (folder.path / "in.jsonl").write_bytes(lines(6))
    done = folder.run_script(*COMPRESS, "--executor", executor, "--json")
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["totals"]["compressed"] == 6
    assert folder.ran == []


def test_run_does_not_set_a_safe_path_for_the_client(folder: HostileFolder) -> None:
    shown = folder.run_script("run", "--", sys.executable, "-P", "-c", "import os; print(*os.environ)").stdout.split()
    assert b"OPENAI_BASE_URL" in shown and b"PYTHONSAFEPATH" not in shown


def test_installing_again_replaces_entries_of_earlier_versions(folder: HostileFolder) -> None:
    folder.install()
    files = [folder.path / ".claude/settings.local.json", folder.path / ".mcp.json"]
    new = [path.read_text() for path in files]
    old = [text.replace(" -P -m ", " -m ").replace('"-P",', "") for text in new]
    for path, text in zip(files, old, strict=True):
        path.write_text(text)
    assert old != new and "installed;" in folder.install()
    assert [json.loads(path.read_text()) for path in files] == [json.loads(text) for text in new]
    for path, text in zip(files, old, strict=True):
        path.write_text(text)
    folder.install("--remove")
    assert not any(path.exists() for path in files)


# Links to files outside the project


class Victim:
    """User file outside the project, with links to it inside."""

    def __init__(self, home: Path) -> None:
        self.path = home / "rc"
        self.path.write_text("precious")

    def link(self, *links: Path) -> None:
        for link in links:
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(self.path)

    @property
    def is_untouched(self) -> bool:
        return self.path.read_text() == "precious"


@pytest.fixture
def victim(folder: HostileFolder) -> Victim:
    return Victim(folder.home)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def error_of(*arguments: str) -> str:
    return str(invoke(*arguments).exception)


def write_log(folder: HostileFolder) -> str:
    path = folder.path / "log.json"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "hello there"}]}))
    return str(path)


@pytest.mark.parametrize("suffix", ["tmp", "partial"])
def test_links_named_like_temporary_files_are_not_followed(
    folder: HostileFolder, victim: Victim, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.chdir(folder.path)
    names = ["out.json", "out.jsonl", "session.jsonl", "out.svg", ".claude/settings.local.json", ".mcp.json"]
    for name in [*names, "out.jsonl.metrics.json"]:
        target = folder.path / name
        victim.link(target.with_name(f".{target.name}.{suffix}"))
    log, url = write_log(folder), f"sqlite:///{folder.home}/s.db"
    with midfold.open(url) as sessions:
        sessions.session("a").append([{"role": "user", "content": "hello there"}])
    Path("in.jsonl").write_bytes(lines(2))
    folder.install()
    for done in (
        invoke("compact", log, "-o", "out.json", "--picture", "out.svg"),
        invoke("sessions", "export", "a", "-o", "session.jsonl", "--store", url),
        invoke(*COMPRESS[:-2], "--workers", "1"),
    ):
        assert done.exit_code == 0, done.exception
    assert all((folder.path / name).is_file() for name in names)
    assert victim.is_untouched


def test_an_output_that_is_a_link_is_replaced_and_not_followed(
    folder: HostileFolder, victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.path)
    log = write_log(folder)
    victim.link(Path("out.json"), Path("out.svg"))
    assert "already exists" in error_of("compact", log, "-o", "out.json")
    assert invoke("compact", log, "-o", "out.json", "--overwrite", "--picture", "out.svg").exit_code == 0
    assert victim.is_untouched and not Path("out.json").is_symlink() and "<svg" in Path("out.svg").read_text()


@pytest.mark.parametrize("link", ["lock", "00000", ""])
def test_trajectories_refuse_links_in_their_working_folder(
    folder: HostileFolder, victim: Victim, monkeypatch: pytest.MonkeyPatch, link: str
) -> None:
    monkeypatch.chdir(folder.path)
    Path("in.jsonl").write_bytes(lines(1))
    if link == "lock":
        victim.link(Path(f"out.jsonl{SUFFIX}") / link)
    else:
        place = Path(f"out.jsonl{SUFFIX}", link)
        place.parent.mkdir(exist_ok=True)
        place.symlink_to(folder.home)
    before = sorted(folder.home.iterdir())
    assert "is a symbolic link" in error_of(*COMPRESS[:-2], "--workers", "1")
    assert victim.is_untouched and sorted(folder.home.iterdir()) == before


@pytest.mark.parametrize("name", [".mcp.json", ".claude/settings.local.json", ".mcp.json.before-midfold", ".claude"])
@pytest.mark.parametrize("options", [[], ["--remove"]])
def test_install_refuses_targets_outside_the_project(folder: HostileFolder, name: str, options: list[str]) -> None:
    outside = folder.home / "outside"
    if name == ".claude":
        outside.mkdir()
    else:
        outside.write_text('{"theme": 1, "mcpServers": {"midfold": {"args": ["-m", "midfold"]}}}')
    link = folder.path / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(outside)
    before = outside.read_bytes() if outside.is_file() else sorted(outside.iterdir())
    error = error_of("install", "claude-code", "--project", str(folder.path), "--yes", *options)
    assert f"resolves to {outside}" in error
    assert (outside.read_bytes() if outside.is_file() else sorted(outside.iterdir())) == before
    assert link.is_symlink()


def test_install_shows_real_paths_of_links_inside_the_project(folder: HostileFolder) -> None:
    real = folder.path / "config" / "servers.json"
    real.parent.mkdir()
    real.write_text("{}")
    (folder.path / ".mcp.json").symlink_to(real)
    assert f"+++ {real}\n" in folder.install()
    assert (folder.path / ".mcp.json").is_symlink() and "midfold" in real.read_text()


def test_replacing_a_file_keeps_its_mode_and_leaves_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "a"
    with replace_file(target) as stream:
        stream.write(b"1")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    target.chmod(0o640)
    with replace_file(target) as stream:
        stream.write(b"2")
    assert (target.read_bytes(), stat.S_IMODE(target.stat().st_mode)) == (b"2", 0o640)
    with pytest.raises(KeyboardInterrupt), replace_file(target) as stream:
        stream.write(b"3")
        raise KeyboardInterrupt
    assert target.read_bytes() == b"2" and list(tmp_path.iterdir()) == [target]
