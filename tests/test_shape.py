"""The shape of the code, as docs/explanation/architecture.md promises it.

One name for one thing, deep modules, functions that fit a screen. What breaks a rule today stands in its `ALLOWED_...`
set. A set can only shrink: an entry that breaks nothing fails.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LONGEST_FUNCTION = 60
MAX_LINES = 74_000
MAX_PATTERNS = 480
"""Budgets that may only fall, or the commit says why."""
MOST_METHODS = 20
SMALLEST_OWN_FILE = 100
parse = cache(ast.parse)
FOLDERS = ("src", "bench", "e2e", "tools")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


ALLOWED_CLASSES: frozenset[str] = frozenset()
ALLOWED_CLASS_NAMES = frozenset()
ALLOWED_MODULE_NAMES = frozenset(
    {
        "models",
        "plugins",
        "run",
        "sessions",
    }
)
ALLOWED_FILES = frozenset({"midfold/compaction/partial.py"})
ALLOWED_ARGUMENTS: frozenset[str] = frozenset()

ALLOWED_PARTICIPLES = frozenset(
    {
        # Names of the public face that pages teach.
        "midfold/api.py: changed",
        "midfold/session/conversation.py: changed",
        "midfold/compaction/request.py: changed",
        "midfold/model/client.py: heard",
        "midfold/models.py: corrected",
        "midfold/session/sessions.py: given",
        "midfold/testing/doubles.py: left",
        "midfold/testing/doubles.py: served",
        # JSON Schema's own word.
        "midfold/transcript/tools.py: required",
    }
)


def problems(source: str) -> Iterator[str]:
    lines = source.splitlines()
    for node in ast.walk(parse(source)):
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
def test_functions_are_short_and_broad_excepts_say_why(path: Path) -> None:
    assert list(problems(path.read_text(encoding="utf-8"))) == []


def test_the_check_can_fail() -> None:
    long_function = "def f():\n" + "    x = 1\n" * 70
    broad = "try:\n    pass\nexcept Exception:\n    pass\n"
    found = list(problems(long_function + broad + "# TODO\n" + "raise NotImplementedError\n"))
    assert len(found) == 4


def large_classes(sources: Mapping[str, str]) -> set[str]:
    """Classes with too many public methods; the tests of a suite for users are none."""
    found = set()
    for path, source in sources.items():
        for node in ast.walk(parse(source)):
            if isinstance(node, ast.ClassDef):
                names = {part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
                if sum(not name.startswith(("_", "test_")) for name in names) > MOST_METHODS:
                    found.add(f"{path}: {node.name}")
    return found


def class_names_used_twice(sources: Mapping[str, str]) -> set[str]:
    trees = [parse(source) for source in sources.values()]
    return _repeated(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def module_names_used_twice(sources: Mapping[str, str]) -> set[str]:
    return _repeated(Path(path).stem for path in sources) - {"__init__", "__main__"}


def _repeated(names: Iterable[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


def files_for_one_importer(sources: Mapping[str, str]) -> set[str]:
    """Small files that only one other file imports; a command of the cli has a file of its own."""
    paths = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in sources}
    importers: dict[str, set[str]] = {}
    for path, source in sources.items():
        for node in ast.walk(parse(source)):
            if isinstance(node, ast.ImportFrom):
                for name in node.names:
                    module = paths.get(f"{node.module}.{name.name}") or paths.get(node.module or "")
                    if module and module != path:
                        importers.setdefault(module, set()).add(path)
    return {
        path
        for path, by in importers.items()
        if len(by) == 1
        and len(sources[path].splitlines()) < SMALLEST_OWN_FILE
        and "/cli/" not in path
        and not path.endswith("__.py")
    }


def packed_arguments(sources: Mapping[str, str]) -> set[str]:
    """Dictionaries of Any that are unpacked into a call, where mypy cannot see what is passed."""
    found = set()
    for path, source in sources.items():
        for function in ast.walk(parse(source)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                nodes = list(ast.walk(function))
                packed = {
                    node.target.id
                    for node in nodes
                    if isinstance(node, ast.AnnAssign)
                    and isinstance(node.target, ast.Name)
                    and ast.unparse(node.annotation) == "dict[str, Any]"
                    and isinstance(node.value, ast.Dict)
                }
                unpacked = {
                    name.id
                    for node in nodes
                    if isinstance(node, ast.Call)
                    for keyword in node.keywords
                    if keyword.arg is None
                    for name in ast.walk(keyword.value)
                    if isinstance(name, ast.Name)
                }
                found |= {f"{path}: {function.name}: {name}" for name in packed & unpacked}
    return found


IRREGULAR = set(
    re.findall(
        r"\w+",
        """
    begun bought broken brought built caught chosen done drawn driven fallen forgotten found frozen given gone grown
    heard held hidden kept known laid learnt led left lost made meant met mistaken overridden paid said seen sent shown
    sought spent spoken stolen struck swept taken taught thought told torn understood unread unsaid unwritten woven
    written wrought
    """,
    )
)
NOT_DONE = {"deed", "embed", "exceed", "feed", "need", "proceed", "red", "seed", "shed", "speed"}
LITTLE = set(re.findall(r"\w+", "as at back by for from in into later now of off on out over there to up with"))
"""Words that leave a participle one; before a noun, as in `stored_session`, it is an adjective."""


def participles(sources: Mapping[str, str]) -> set[str]:
    """Functions called by what was done, `kept` or `looked_at`, and not by a verb, a noun or a question."""
    found = set()
    for path, source in sources.items():
        for node in ast.walk(parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first, *rest = node.name.strip("_").split("_")
                is_done = first in IRREGULAR or (first.endswith("ed") and first not in NOT_DONE)
                if is_done and all(word in LITTLE or word.endswith("ly") for word in rest):
                    found.add(f"{path}: {node.name}")
    return found


Rule = Callable[[Mapping[str, str]], set[str]]
RULES: dict[str, tuple[Rule, frozenset[str]]] = {
    "classes with too many public methods": (large_classes, ALLOWED_CLASSES),
    "class names used twice": (class_names_used_twice, ALLOWED_CLASS_NAMES),
    "module names used twice": (module_names_used_twice, ALLOWED_MODULE_NAMES),
    "small files with one importer": (files_for_one_importer, ALLOWED_FILES),
    "arguments packed into a dict[str, Any]": (packed_arguments, ALLOWED_ARGUMENTS),
    "participles as names of functions": (participles, ALLOWED_PARTICIPLES),
}


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    src = ROOT / "src"
    return {path.relative_to(src).as_posix(): path.read_text(encoding="utf-8") for path in sorted(src.rglob("*.py"))}


@pytest.mark.parametrize(("rule", "allowed"), RULES.values(), ids=RULES)
def test_one_name_means_one_thing_and_one_file_is_one_idea(
    rule: Rule, allowed: frozenset[str], sources: dict[str, str]
) -> None:
    found = rule(sources)
    assert sorted(found - allowed) == []
    assert sorted(allowed - found) == [], "these break the rule no longer: take them out"


def test_each_rule_can_fail() -> None:
    methods = "".join(f"    def m{number}(self): ...\n" for number in range(MOST_METHODS))
    packed = "def f():\n    more: dict[str, Any] = {'a': 1}\n    g(**more)\n    h(**{**more, 'b': 2})\n"
    made_up = {
        "midfold/a/one.py": f"from midfold.b.two import x\nclass C:\n{methods}    def last(self): ...\n",
        "midfold/b/one.py": f"class C:\n{methods}    def _last(self): ...\n    def test_it(self): ...\n",
        "midfold/b/two.py": f"x = 1\n{packed}",
        "midfold/b/three.py": "x = 1\n",
        "midfold/b/long.py": "x = 1\n" * SMALLEST_OWN_FILE,
        "midfold/cli/command.py": "from midfold.b import long, three\n",
        "midfold/cli/other.py": "from midfold.b.three import x\nfrom midfold.cli import command\n",
        "midfold/b/__init__.py": "def f():\n    more: dict[str, Any] = {}\n    return more\n",
        "midfold/a/__init__.py": "",
    }
    assert large_classes(made_up) == {"midfold/a/one.py: C"}
    assert class_names_used_twice(made_up) == {"C"}
    assert module_names_used_twice(made_up) == {"one"}
    assert files_for_one_importer(made_up) == {"midfold/b/two.py"}
    assert packed_arguments(made_up) == {"midfold/b/two.py: f: more"}
    good = ["feed", "keep", "stored_session", "looked_up_names", "is_kept", "has_changed", "embed", "deeds"]
    bad = ["kept", "_told", "looked_at", "passed_on", "peeked_leniently", "__weighed", "used"]
    named = {"midfold/a/one.py": "".join(f"class C:\n    async def {name}(self): ...\n" for name in good + bad)}
    assert participles(named) == {f"midfold/a/one.py: {name}" for name in bad}


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(path) for path in FILES if not ast.get_docstring(parse(path.read_text(encoding="utf-8")))]
    assert silent == []


def test_mypy_reads_every_folder_of_code() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    assert set(settings["packages"]) == {"midfold"} | set(FOLDERS) - {"src"}


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


# Language: see CONTRIBUTING.md.

QUESTION = re.compile(r"(?:What|Which|Whether|Who|Whose|How|Where)\b")
DIALECT = re.compile(
    r"\b(?:told|whoever|whomever|somebody|nobody|gives? way|comes? to nothing|leads? over|but for|stands? for)\b", re.I
)
MAX_DIALECT_WORDS = 0
MAX_QUESTION_DOCSTRINGS = 0


def docstrings(source: str) -> Iterator[str]:
    """Yield every docstring, those of attributes included."""
    for node in ast.walk(parse(source)):
        for part in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            if (
                isinstance(part, ast.Expr)
                and isinstance(part.value, ast.Constant)
                and isinstance(part.value.value, str)
            ):
                yield part.value.value.strip()


def test_docstrings_are_plain_english(sources: dict[str, str]) -> None:
    texts = [text for source in sources.values() for text in docstrings(source)]
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for source in sources.values() for node in ast.walk(parse(source)) if isinstance(node, kinds)]
    questions = [text for node in nodes if QUESTION.match(text := ast.get_docstring(node) or "")]
    dialect = [text for text in texts if DIALECT.search(text)]
    assert len(questions) <= MAX_QUESTION_DOCSTRINGS, questions[:10]
    assert len(dialect) <= MAX_DIALECT_WORDS, dialect[:10]


def test_budgets_are_printed(sources: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Print the sizes that may only fall."""
    functions = sum(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for source in sources.values()
        for node in ast.walk(parse(source))
    )
    lines = sum(source.count("\n") for source in sources.values())
    patterns = sum(len(re.findall(r"\bre2?\.compile\(", source)) for source in sources.values())
    with capsys.disabled():
        sys.stdout.write(f"\n{len(sources)} files, {lines:,} lines, {functions:,} functions, {patterns} patterns\n")
    assert lines <= MAX_LINES
    assert patterns <= MAX_PATTERNS
