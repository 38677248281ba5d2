"""Run the mutations of tests/mutants.toml against the tests that must fail under them, and print the survivors.

python tools/mutants.py             every mutation, two at a time
python tools/mutants.py ID ...      these only
python tools/mutants.py --list      list the mutations

Each mutation replaces one piece of text of one file in a copy of the tree. It is killed if every test it names
fails,
and survives if one passes or is skipped. All of these tests must first pass on the unchanged tree.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "tests" / "mutants.toml"
WORKERS = 2
MOST_SECONDS = 300.0
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".bench", ".e2e", "*_cache", ".hypothesis", "build", "dist")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?::\w+)", re.MULTILINE)


class Mutant(NamedTuple):
    """Change of the code that the named tests must detect."""

    id: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


class Result(NamedTuple):
    mutant: Mutant
    passed: tuple[str, ...]
    """Named tests that did not fail; empty if the mutation was killed."""
    trouble: str
    seconds: float


def load_mutants(path: Path = SOURCE) -> list[Mutant]:
    found = tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", [])
    return [Mutant(one["id"], one["file"], one["old"], one["new"], tuple(one["tests"])) for one in found]


def mutate(text: str, mutant: Mutant) -> str:
    """Return the file's text with the mutation; its old text must occur exactly once."""
    count = text.count(mutant.old)
    if count != 1:
        raise ValueError(f"{mutant.id}: its old text occurs {count} times in {mutant.file}, not once")
    return text.replace(mutant.old, mutant.new)


def run_tests(tree: Path, tests: Iterable[str], *, processes: int = 0) -> tuple[set[str], str]:
    """Run tests in a copy of the tree; return those that fail, and the end of pytest's output."""
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", f"-n{processes}"]
    shared = os.environ.get("MIDFOLD_SHARED", str(ROOT.parent / "shared"))
    surroundings = os.environ | {"PYTHONPATH": str(tree / "src"), "MIDFOLD_SHARED": shared}
    made = subprocess.run(
        [*command, *sorted(set(tests))],
        cwd=tree,
        env=surroundings,
        capture_output=True,
        text=True,
        timeout=MOST_SECONDS * (4 if processes else 1),
        check=False,
    )
    if made.returncode not in (0, 1):
        raise RuntimeError((made.stdout + made.stderr)[-600:])
    return set(_FAILED.findall(made.stdout)), made.stdout[-2_000:]


def run_mutant(tree: Path, mutant: Mutant) -> Result:
    """Apply the mutation to the copy, run its tests, and revert it."""
    started = time.monotonic()
    path = tree / mutant.file
    original = path.read_text(encoding="utf-8")
    trouble, failed = "", set[str]()
    try:
        _write(path, mutate(original, mutant))
        failed, _ = run_tests(tree, mutant.tests)
    except (ValueError, RuntimeError, subprocess.TimeoutExpired) as problem:
        trouble = str(problem)
    finally:
        _write(path, original)
    passed = () if trouble else tuple(test for test in mutant.tests if test not in failed)
    return Result(mutant, passed, trouble, time.monotonic() - started)


def _write(path: Path, text: str) -> None:
    """Write a file and remove its bytecode: a change within one second that keeps the length would go unnoticed."""
    path.write_text(text, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink(missing_ok=True)


def run_all(mutants: list[Mutant], *, checked: bool = True) -> list[Result]:
    """Run every mutation in one of two copies of the tree, in any order; print a line for each."""
    with tempfile.TemporaryDirectory(prefix="midfold-mutants-") as folder:
        free: SimpleQueue[Path] = SimpleQueue()
        for number in range(WORKERS):
            tree = Path(folder) / f"tree{number}"
            shutil.copytree(ROOT, tree, ignore=NOT_COPIED)
            free.put(tree)
        if checked:
            failed, said = run_tests(tree, {test for mutant in mutants for test in mutant.tests}, processes=WORKERS)
            if failed:
                raise SystemExit(f"these tests fail without any mutation:\n{said}")

        def one(mutant: Mutant) -> Result:
            mine = free.get()
            try:
                result = run_mutant(mine, mutant)
            finally:
                free.put(mine)
            print(_line(result), flush=True)
            return result

        with ThreadPoolExecutor(WORKERS) as pool:
            return list(pool.map(one, mutants))


def _line(result: Result) -> str:
    verdict = "BROKEN" if result.trouble else "SURVIVED" if result.passed else "killed"
    return f"{verdict:9}{result.seconds:6.1f} s  {result.mutant.id:44} {result.mutant.file}"


def main(arguments: list[str]) -> int:
    mutants = load_mutants()
    names = [argument for argument in arguments if argument != "--list"]
    if unasked := [name for name in names if name.startswith("-")]:
        print(__doc__)
        return int(unasked != ["--help"])
    if unknown := set(names) - {mutant.id for mutant in mutants}:
        raise SystemExit(f"no such mutation: {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in mutants if not names or mutant.id in names]
    if "--list" in arguments:
        print("\n".join(f"{mutant.id:44} {mutant.file}" for mutant in chosen))
        return 0
    results = run_all(chosen)
    broken = [result for result in results if result.trouble]
    survivors = [result for result in results if result.passed]
    for result in broken:
        print(f"\n{result.mutant.id} could not be run: {result.trouble}")
    for result in survivors:
        print(f"\n{result.mutant.id} survived: these did not fail")
        print("\n".join(f"  {test}" for test in result.passed))
    print(f"\n{len(results)} mutations, {len(survivors)} survivors, {len(broken)} that could not be run")
    return int(bool(broken or survivors))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
