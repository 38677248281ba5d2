"""Upgrade with the old and the new gateway running together, on one PostgreSQL.

The new one is this midfold with one more migration, which only adds, as the migration rules require.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2

import midfold
from support.gateway_soak import MODEL, WINDOW, Process, free_port, gateway, upstream

LATER = "CREATE TABLE later (id integer);\nALTER TABLE sessions ADD COLUMN later integer;\n"


def newer(folder: Path) -> Path:
    """Return a copy of this midfold with one more migration; bytecode is copied with its timestamps and stays valid."""
    package = folder / "newer" / "midfold"
    shutil.copytree(Path(midfold.__file__).parent, package)
    for flavour in ("sqlite", "postgres"):
        files = sorted((package / "store" / "sql" / flavour).glob("0*.sql"))
        (files[-1].parent / f"{len(files) + 1:04}_later.sql").write_text(LATER)
    return package.parent


def started(source: Path, config: Path, target: str, store: str, log: Path) -> Process:
    port = free_port()
    paths = os.pathsep.join([str(source), *sys.path])
    run = ["env", f"PYTHONPATH={paths}", sys.executable, "-m", "midfold", "serve", "--port", str(port)]
    return Process([*run, "--upstream", target, "--store", store, "--config", str(config)], port, "/readyz", log)


def talk(mark: int, turns: int) -> list[dict[str, str]]:
    said = [{"role": "user", "content": f"S{mark}. T1 begin"}]
    for turn in range(2, turns):
        said.append({"role": "assistant", "content": f"S{mark}. answer to T{turn - 1} " + "word " * 60})
        said.append({"role": "user", "content": f"S{mark}. T{turn} go on"})
    return said


def ask(process: Process, messages: list[dict[str, str]]) -> Any:
    answer = httpx2.post(f"{process.url}/v1/chat/completions", json={"model": MODEL, "messages": messages}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.headers


def test_old_and_new_serve_side_by_side_until_the_old_one_is_ended(postgres_url: str, tmp_path: Path) -> None:
    provider = upstream(tmp_path / "upstream.log", "good")
    config = tmp_path / "config.yaml"
    config.write_text(f"models:\n  {MODEL}:\n    context_window: {WINDOW}\n")
    old = gateway(config, provider.url, postgres_url, tmp_path / "old.log")
    first = ask(old, talk(1, 75))
    assert first["x-midfold-action"] == "compacted"

    new = started(newer(tmp_path), config, provider.url, postgres_url, tmp_path / "new.log")
    assert ask(new, talk(1, 75))["x-midfold-receipt"] == first["x-midfold-receipt"]
    later = ask(new, talk(2, 75))
    assert later["x-midfold-action"] == "compacted"
    assert ask(old, talk(2, 75))["x-midfold-receipt"] == later["x-midfold-receipt"]
    assert ask(old, talk(3, 75))["x-midfold-action"] == "compacted"
    for process in (old, new):
        assert httpx2.get(process.url + "/readyz").status_code == 200
        assert httpx2.get(process.url + "/").status_code == 200
        assert "Traceback" not in process.log.read_text()

    arguments = [sys.executable, "-m", "midfold", "store", "check", "--store", postgres_url]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    refused = subprocess.run(arguments, capture_output=True, text=True, env=environment, check=False)
    assert refused.returncode != 0
    assert "written by a newer midfold; update midfold" in refused.stdout + refused.stderr

    assert old.stop() == 0
    assert ask(new, talk(3, 76))["x-midfold-action"] == "checkpoint"
    assert new.stop() == 0
    provider.stop()
