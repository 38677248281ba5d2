"""Documentation checks: Python blocks run, links resolve, and no page has local paths."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(page.read_text(encoding="utf-8"))], ids=name)
def test_python_blocks_run(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    namespace: dict[str, object] = {"__name__": "docs"}
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        exec(compile(block, name(page), "exec"), namespace)  # noqa: S102
    assert namespace.keys() > {"__name__", "__builtins__"}, "blocks that make nothing show nothing"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_that_exist(page: Path) -> None:
    broken = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()]
    assert broken == []


def test_the_readme_shows_what_the_commands_really_print() -> None:
    shown = re.findall(r"^```\n\$ midfold ([^\n]+)\n(.*?)^```", PAGES[0].read_text(encoding="utf-8"), re.M | re.S)
    assert shown
    for command, expected in shown:
        done = subprocess.run(
            [sys.executable, "-m", "midfold", *command.split()], cwd=ROOT, capture_output=True, text=True, check=True
        )
        printed = [line.rstrip() for line in done.stdout.splitlines()]
        assert [line for line in expected.splitlines() if line and line not in printed] == []


@pytest.mark.parametrize("script", ["gen_cli_doc.py", "gen_config_doc.py", "gen_models_doc.py", "gen_python_doc.py"])
def test_generated_pages_are_current(script: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / script, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_four_kinds_of_pages_are_there() -> None:
    for kind in ("tutorial", "howto", "reference", "explanation"):
        assert list((ROOT / "docs" / kind).glob("*.md")), kind
