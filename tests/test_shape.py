"""The shape of the code, as docs/explanation/architecture.md promises it: small files, functions that fit a screen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LONGEST_FILE = 600
LONGEST_FUNCTION = 60
FILES = sorted(path for folder in ("src", "bench", "e2e", "tools") for path in (ROOT / folder).rglob("*.py"))


def problems(source: str) -> Iterator[str]:
    lines = source.splitlines()
    if len(lines) > LONGEST_FILE:
        yield f"{len(lines)} lines, at most {LONGEST_FILE}"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > LONGEST_FUNCTION:
                yield f"line {node.lineno}: {node.name} has {size} lines, at most {LONGEST_FUNCTION}"
        if (
            isinstance(node, ast.ExceptHandler)
            and _is_broad(node)
            and "#" not in "".join(lines[node.lineno - 2 : node.lineno + 1])
        ):
            yield f"line {node.lineno}: a broad except without its reason in a comment"
        if isinstance(node, ast.Raise) and "NotImplementedError" in ast.dump(node):
            yield f"line {node.lineno}: a stub"
    for number, line in enumerate(lines, 1):
        if re.search(r"#\s*(TODO|FIXME|XXX|HACK)\b", line):
            yield f"line {number}: unfinished work"


def _is_broad(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or (
        isinstance(handler.type, ast.Name) and handler.type.id in ("Exception", "BaseException")
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_are_small_and_exceptions_are_named(path: Path) -> None:
    assert list(problems(path.read_text(encoding="utf-8"))) == []


def test_the_check_can_fail() -> None:
    long_function = "def f():\n" + "    x = 1\n" * 70
    broad = "try:\n    pass\nexcept Exception:\n    pass\n"
    found = list(problems(long_function + broad + "# TODO\n" + "raise NotImplementedError\n" + "x = 1\n" * 600))
    assert len(found) == 5


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(path) for path in FILES if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))]
    assert silent == []


def test_tests_use_no_mocks_and_have_unique_names() -> None:
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    assert len({path.name for path in tests}) == len(tests)
    mocking = [
        path.name for path in tests if re.search(r"unittest\.mock|Magic[M]ock", path.read_text(encoding="utf-8"))
    ]
    assert [name for name in mocking if name != "test_shape.py"] == []


def test_the_lock_files_pin_hashes_and_name_no_address() -> None:
    for lock in sorted((ROOT / "requirements").glob("*.txt")):
        text = lock.read_text(encoding="utf-8")
        pins = re.findall(r"^[A-Za-z0-9_.-]+==", text, flags=re.MULTILINE)
        blocks = re.split(r"^(?=[A-Za-z0-9_.-]+==)", text, flags=re.MULTILINE)[1:]
        assert pins
        assert all("--hash=sha256:" in block for block in blocks)
        assert "://" not in text
        assert "--index-url" not in text
