"""Lock files match pyproject.toml, with a hash for each package; the container installs from them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tools.lock import SERVED, SETS

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PINNED = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^\s;]+)((?:[^\n\\]|\\\n)*)", re.MULTILINE)
REQUIRED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?(?:>=([0-9.]+))?")
CONTAINER = (ROOT / "deploy" / "Containerfile").read_text(encoding="utf-8")


def pinned(name: str) -> dict[str, tuple[str, str]]:
    """Return versions and remaining lines by package."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    return {package: (version, rest) for package, version, rest in PINNED.findall(text)}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


@pytest.mark.parametrize("name", SETS)
def test_every_package_has_a_hash_and_no_address(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    assert pinned(name)
    assert [package for package, (_, rest) in pinned(name).items() if "--hash=sha256:" not in rest] == []
    assert "://" not in text
    assert "--index-url" not in text


def test_the_gateway_has_what_its_extras_ask_for() -> None:
    extras = [extra.removeprefix("--extra=") for extra in SERVED]
    wanted = PROJECT["project"]["dependencies"] + [
        requirement for extra in extras for requirement in PROJECT["project"]["optional-dependencies"][extra]
    ]
    assert {"gateway", "postgres"} <= set(extras)
    locked = pinned("gateway")
    for requirement in wanted:
        match = REQUIRED.match(requirement)
        assert match is not None, requirement
        package = match[1].lower()
        assert package in locked, f"{requirement}: run make lock"
        assert numbers(locked[package][0]) >= numbers(match[2] or "0"), f"{requirement}: run make lock"


def test_the_files_agree_on_versions() -> None:
    everything = pinned("dev")
    assert {name: version for name, (version, _) in pinned("gateway").items() if everything[name][0] != version} == {}


def test_the_container_installs_nothing_without_a_hash() -> None:
    installs = re.findall(r"pip (?:install|wheel) ([^&\n]*)", CONTAINER.replace("\\\n", " "))
    assert len(installs) == 4
    assert any("--require-hashes -r requirements/gateway.txt" in line for line in installs)
    assert [line for line in installs if "--require-hashes" not in line and "--no-deps" not in line] == []
    built = next(line for line in installs if "--wheel-dir" in line)
    assert "--no-build-isolation" in built
