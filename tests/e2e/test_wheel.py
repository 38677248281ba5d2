"""The wheel works when installed alone into a clean environment."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    code = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_it_holds_the_types_marker_every_module_and_no_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "midfold/py.typed" in names
    source = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    assert source <= names
    assert not [name for name in names if name.startswith(("tests", "bench", "examples"))]


def test_it_works_in_a_clean_environment_with_only_its_base_dependencies(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    python = venv / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    lock = str(ROOT / "requirements" / "run.txt")
    subprocess.run([*install, "--require-hashes", "-r", lock], check=True, capture_output=True)
    subprocess.run([*install, "--no-deps", str(wheel)], check=True, capture_output=True)

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)

    example = str(ROOT / "examples" / "coding-session.json")
    facts = json.loads(run(str(venv / "bin" / "midfold"), "inspect", example, "--json").stdout)
    assert facts["messages"] == 106
    assert "midfold" in run(str(venv / "bin" / "midfold"), "--version").stdout
    assert "threshold" in run(str(python), "-m", "midfold", "config", "show").stdout
    assert "claude" in run(str(python), "-m", "midfold", "models", "claude-opus-4-6").stdout
    loaded = run(str(python), "-c", "import sys, midfold; print('typing_extensions' in sys.modules)").stdout
    assert loaded.strip() == "False"
