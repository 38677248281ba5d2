"""Work of the long task: the notes to write about a Python package, and the quotes they need.

It is read from the source with `ast` before the task begins. Besides its context the policy knows only this: the
files,
their imports from each other, and the syntax of a definition. It must read the definitions themselves.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PACKAGE = "midfold"


class Fact(NamedTuple):
    """Quote that a note needs: a line of a file, identified by a name."""

    path: str
    name: str
    line: str
    """True text of the line; used only for scoring."""

    @property
    def pattern(self) -> re.Pattern[str]:
        """Return the pattern that finds the fact in a text."""
        name = re.escape(self.name)
        if self.line.startswith(("def ", "class ", "async def ")):
            return re.compile(rf"(?:async def|def|class) {name}[(:\[][^\n]*")
        return re.compile(rf"(?<![\w.])(?<!: )(?<!\| )(?<!…){name}(?:: [^=\n]+)? = [^\n]*")

    @property
    def query(self) -> str:
        """Return the search query for the fact."""
        kind = re.match(r"(?:async )?def |class ", self.line)
        return f"{kind[0].removeprefix('async ')}{self.name}" if kind else f"{self.name} ="


class Module(NamedTuple):
    """File, its definitions, and its imports from other files."""

    path: str
    own: tuple[Fact, ...]
    imported: tuple[tuple[str, tuple[Fact, ...]], ...]
    lines: int

    @property
    def note(self) -> str:
        return f"notes/{self.path.removesuffix('.py')}.md"


class Repository:
    """Copy of midfold's source in a temporary folder, and the notes to write about it."""

    def __init__(self, folder: Path, packages: tuple[str, ...], most: int | None = None) -> None:
        self.folder = folder
        shutil.copytree(SOURCE / PACKAGE, folder / PACKAGE, ignore=shutil.ignore_patterns("__pycache__", "*.sql"))
        self.work = work(packages, most)
        self.sums = sums()


@cache
def work(packages: tuple[str, ...], most: int | None = None) -> list[tuple[str, list[Module]]]:
    """Return the packages in order, with their modules; the same for every copy of the source."""
    left = most if most is not None else 1 << 30
    found: list[tuple[str, list[Module]]] = []
    for package in packages:
        paths = sorted((SOURCE / PACKAGE / package).rglob("*.py"))
        modules = [_module(path) for path in [one for one in paths if one.name != "__init__.py"][:left]]
        left -= len(modules)
        if modules:
            found.append((package, modules))
    return found


@cache
def sums() -> dict[str, str]:
    """Return path -> output of `cksum`."""
    names = [_name(path) for path in _files()]
    done = subprocess.run(["cksum", *names], cwd=SOURCE, capture_output=True, text=True, check=True)
    return {line.split(" ", 2)[2]: line for line in done.stdout.splitlines()}


@cache
def definitions() -> dict[str, dict[str, str]]:
    """Return path -> name -> first line of its definition, for names defined once in the whole source."""
    texts = {_name(path): path.read_text() for path in _files()}
    counts = Counter(name for text in texts.values() for name in _all_names(text))
    return {
        path: {name: line for name, line in _definitions(text) if counts[name] == 1} for path, text in texts.items()
    }


def _files() -> list[Path]:
    return sorted((SOURCE / PACKAGE).rglob("*.py"))


def _name(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def _module(path: Path) -> Module:
    name, text = _name(path), path.read_text()
    own = tuple(Fact(name, defined, line) for defined, line in definitions()[name].items())
    imported: dict[str, list[Fact]] = {}
    for source, wanted in _imports(text):
        there = definitions().get(source, {})
        facts = [Fact(source, one, there[one]) for one in wanted if one in there]
        if facts and source != name:
            imported.setdefault(source, []).extend(facts)
    return Module(name, own, tuple((p, tuple(facts)) for p, facts in imported.items()), len(text.splitlines()))


@cache
def _tree(text: str) -> ast.Module:
    """Parse a file; cached, because every run reads the same files."""
    return ast.parse(text)


def _definitions(text: str) -> Iterator[tuple[str, str]]:
    lines = text.splitlines()
    for node in _tree(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, lines[node.lineno - 1].strip()
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            line = lines[node.lineno - 1]
            if isinstance(target, ast.Name) and " = " in line:
                yield target.id, line.strip()


_NAMED = re.compile(r"^\s*(?:(?:async )?def|class) (\w+)|^\s*(\w+(?:, \w+)*)(?:: [^=\n]+)? = ", re.MULTILINE)


def _all_names(text: str) -> Iterator[str]:
    """Yield every name defined or assigned anywhere in a file."""
    return (name for match in _NAMED.finditer(text) for name in (match[1] or match[2]).split(", "))


def _imports(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield imports from other files of the package."""
    for node in ast.walk(_tree(text)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(f"{PACKAGE}."):
            yield f"{node.module.replace('.', '/')}.py", [alias.name for alias in node.names]
