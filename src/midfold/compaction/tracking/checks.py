"""Recognize commands that test, build or lint, parse their output, and select the runs that are still valid."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace

from midfold.compaction.local.outcome import NOTHING_RECORDED, Body, error_line, traceback_end
from midfold.compaction.tracking.commands import WRAPPERS, Step, steps_of
from midfold.compaction.tracking.edits import PROSE
from midfold.compaction.tracking.entries import CheckKind, CheckRun, TrackedFile, Trail, WorldAct

MAX_OUTPUT_CHARS = 12_000
MAX_FAILURES = 8

_CHECKERS: dict[str, CheckKind] = {
    **dict.fromkeys(
        [
            "pytest",
            "py.test",
            "tox",
            "nox",
            "jest",
            "vitest",
            "mocha",
            "ava",
            "rspec",
            "phpunit",
            "ctest",
            "gotestsum",
            "bats",
            "runtests.py",
            "nosetests",
        ],
        "test",
    ),
    **dict.fromkeys(
        [
            "eslint",
            "flake8",
            "pylint",
            "golangci-lint",
            "shellcheck",
            "stylelint",
            "clippy",
            "oxlint",
            "staticcheck",
            "hadolint",
            "yamllint",
        ],
        "lint",
    ),
    **dict.fromkeys(["tsc", "mypy", "pyright", "vue-tsc", "basedpyright", "pyre"], "typecheck"),
    **dict.fromkeys(["webpack", "tsup", "rollup", "esbuild"], "build"),
}
_CHECKING: dict[str, dict[str, CheckKind]] = {
    "go": {"test": "test", "build": "build", "vet": "lint"},
    "cargo": {"test": "test", "nextest": "test", "build": "build", "check": "build", "clippy": "lint"},
    "bun": {"test": "test", "build": "build"},
    "npm": {"test": "test", "t": "test", "build": "build"},
    "deno": {"test": "test", "lint": "lint", "check": "typecheck"},
    "dotnet": {"test": "test", "build": "build"},
    "mvn": {"test": "test", "package": "build", "verify": "test", "compile": "build", "install": "build"},
    "mvnw": {"test": "test", "package": "build", "verify": "test", "compile": "build", "install": "build"},
    "gradle": {"test": "test", "build": "build", "check": "test"},
    "gradlew": {"test": "test", "build": "build", "check": "test"},
    "ruff": {"check": "lint", "format": "lint"},
    "biome": {"check": "lint", "lint": "lint", "ci": "lint"},
    "playwright": {"test": "test"},
    "vite": {"build": "build"},
    "next": {"build": "build", "lint": "lint"},
    "swift": {"test": "test", "build": "build"},
    "mix": {"test": "test"},
    "docker": {"build": "build"},
    "rails": {"test": "test"},
    "pre-commit": {"run": "lint"},
    "manage.py": {"test": "test"},
}
_TASKS = frozenset(
    {"npm", "pnpm", "yarn", "bun", "mise", "make", "just", "task", "rake", "composer", "hatch", "nx", "turbo", "deno"}
)
_PACKAGERS = frozenset({"npm", "bun", "pnpm", "yarn", "composer", "mise", "deno"})
"""Package managers, whose first word is a task only if it is one of a few."""
_SHELLS = frozenset({"bash", "sh", "zsh", "node"})
_TASK = re.compile(
    r"(?P<typecheck>type-?checks?|tsc|types|mypy)|(?P<test>tests?|e2e|spec|integration|unit|verify|check-all|ci)"
    r"|(?P<lint>lint|vet|check|fmt:check|format:check)|(?P<build>build|compile|bundle)",
    re.IGNORECASE,
)


_VALUED = frozenset(
    {
        "-C",
        "-F",
        "-j",
        "-w",
        "-pl",
        "-f",
        "--cwd",
        "--dir",
        "--filter",
        "--prefix",
        "--workspace",
        "--project",
        "--directory",
    }
)
"""Options of task runners that take the next word as value."""
_PASSING = frozenset({"exec", "x", "dlx"})
"""Subcommands that run a program."""


MAX_REQUEST_CHARS = 20_000
_COMMANDS = re.compile(r"`([^`\n]{3,120})`|^```(?:\w{1,12})?\n([^`\n]{3,120})\n```$", re.MULTILINE)
"""Commands in prose: inline code, or a code block of one line."""
NEAR_CHARS = 200
"""Characters around a command in which a request to run it is searched."""
_MARKED = re.compile(r"`[^`\n]{1,200}`")
_REQUEST = re.compile(r"\b(?:run|verif(?:y|ied|ication)|check|ensure|make sure|must|should|pass(?:es)?)\b", re.I)
"""Words that request running a command, as opposed to mentioning it."""


def check_of(step: Step) -> CheckKind | None:
    """Return whether a command tests, builds or lints, and which."""
    return _check_in(step.words)


def _check_in(words: list[str]) -> CheckKind | None:
    program = words[0].rpartition("/")[2]
    known = _CHECKERS.get(program)
    if known is not None:
        return None if words[1:2] in (["--version"], ["--help"], ["-h"]) else known
    if program.startswith("python") and len(words) > 1:
        return _python_check(words)
    if program in _SHELLS or program.endswith((".sh", ".bash")):
        return _script_check(program, words)
    if program in ("prettier", "black", "gofmt", "isort"):
        return (
            "lint" if any(word in ("--check", "-c", "-l", "-d", "--diff", "--check-only") for word in words) else None
        )
    if program in ("test", "lint", "typecheck") and ("/" in words[0] or len(words) == 1):
        return "test" if program == "test" else "lint" if program == "lint" else "typecheck"
    rest = _without_options(words) if program in _CHECKING or program in _TASKS else []
    first = rest[0] if rest else ""
    named = _CHECKING.get(program, {}).get(first.rpartition(":")[2])
    if named is not None and not (program == "ruff" and first == "format" and "--check" not in words):
        return named
    if program in _TASKS and rest:
        if first in _PASSING and len(rest) > 1:
            return _check_in(rest[1:])
        return _task_check(program, rest[2:] if first == "workspace" else rest)
    return "build" if program == "make" else None


def _without_options(words: list[str]) -> list[str]:
    found = []
    for before, word in pairwise(words):
        if before not in _VALUED and word[0:1] not in ("-", "+", ""):
            found.append(word)
    return found


def _script_check(program: str, words: list[str]) -> CheckKind | None:
    """Classify a shell script by its name; `bash -n` is a lint."""
    if words[1:2] in (["-n"], ["--check"]):
        return "lint"
    path = program if program not in _SHELLS else next((word for word in words[1:] if word[:1] != "-"), "")
    found = _TASK.match(path.rpartition("/")[2].removeprefix("run").lstrip("-_")) if path.endswith("sh") else None
    return found.lastgroup if found else None  # type: ignore[return-value]


def _python_check(words: list[str]) -> CheckKind | None:
    while words[1] in ("-W", "-X") and len(words) > 3:
        words = [words[0], *words[3:]]
    if words[1] == "-m" and len(words) > 2:
        module = words[2]
        if module in ("django",):
            return "test" if "test" in words[3:5] else None
        if module in ("unittest", "nose", "doctest", "compileall", "py_compile", "build"):
            return "build" if module in ("compileall", "py_compile", "build") else "test"
        if module.rpartition(".")[2].startswith("test_") or module.endswith(".tests"):
            return "test"
        return _CHECKERS.get(module) or ("lint" if module in ("ruff", "black") and "check" in str(words) else None)
    script = words[1].rpartition("/")[2]
    if script in ("runtests.py", "manage.py", "setup.py"):
        return "test" if script == "runtests.py" or "test" in words[2:4] else None
    return "test" if script.startswith("test_") or script.endswith("_test.py") else None


def _task_check(program: str, rest: list[str]) -> CheckKind | None:
    runs = rest[:1] in (["run"], ["run-script"], ["task"]) and len(rest) > 1
    task = rest[1] if runs else rest[0] if rest else ""
    if not runs and program in _PACKAGERS and task not in ("test", "lint", "build", "typecheck"):
        return _CHECKERS.get(task) or _CHECKING.get(task, {}).get(rest[1] if len(rest) > 1 else "")
    found = _TASK.search(task)
    return found.lastgroup if found else None  # type: ignore[return-value]


_Rules = tuple[tuple[str, re.Pattern[str]], ...]
_TALLIES: _Rules = (
    (
        " in ",
        re.compile(
            r"^[=\s]{0,90}((?:\d{1,7} (?:failed|passed|skipped|errors?|warnings?|x\w{5,6}|deselected)(?:, )?){1,7})"
            r" in [\d.]{1,12}",
            re.M,
        ),
    ),
    (
        "Test",
        re.compile(r"^Tests?:? {1,12}((?:\d{1,7} (?:failed|passed|skipped|todo|pending|total)[,| ]{0,3}){1,5})", re.M),
    ),
    ("test result: ", re.compile(r"^test result: \w{1,8}\. ((?:\d{1,7} [a-z ]{1,14}; ?){1,5})", re.M)),
    (
        "Ran ",
        re.compile(r"^(Ran \d{1,7} tests? in [\d.]{1,12}s\s{1,4}(?:OK|FAILED)(?: ?\([^)\n]{1,80}\))?)", re.M),
    ),
    (" pass", re.compile(r"^ {0,4}(\d{1,7} pass\s{1,4}(?:\d{1,7} skip\s{1,4})?\d{1,7} fail)\b", re.M)),
    ("Ran ", re.compile(r"^(Ran \d{1,7} tests? across \d{1,6} files?)", re.M)),
    (" passing", re.compile(r"^ {0,4}(\d{1,7} passing[^\n]{0,20}(?:\n {0,4}\d{1,7} failing)?)", re.M)),
)
_FINDINGS: _Rules = (
    (" error", re.compile(r"((?:Found )?\d{1,6} errors?(?: in \d{1,6} files?)?[^\n]{0,40})$", re.M)),
    (" issue", re.compile(r"^(?:\[[\w:.-]{1,40}\] )?(\d{1,6} issues?)\b", re.M)),
    (" problem", re.compile(r"(\d{1,6} problems? \([^)\n]{1,60}\))")),
    ("Checked ", re.compile(r"^(Checked \d{1,6} files?[^\n]{0,60})", re.M)),
    ("", re.compile(r"^(All checks passed!|Success: no issues found[^\n]{0,40})", re.M)),
)
"""A substring that every match contains, and the pattern."""
_FAILURE = re.compile(
    r"^(?:FAILED ([^\n]{1,200})|ERROR ([\w/.:-]{3,160}\.py[^\n]{0,80})|[ \t]{0,12}--- FAIL: (\S{1,160})"
    r"|FAIL:? ([^\s(][^\n]{0,120})|\(fail\) ([^\n]{1,160})|test (\S{1,160}) \.\.\. FAILED"
    r"|[ \t]{0,8}[✗×✕] ([^\n]{1,160})|(?:ERROR|FAIL): (\w{1,80} \([^)\n]{1,120}\))"
    r"|(\S{1,160}\(\d{1,6},\d{1,6}\): error [^\n]{1,160})"
    r"|(\S{1,160}:\d{1,6}(?::\d{1,6})?: (?:error|Error|undefined|[A-Z]\d{3,4} )[^\n]{1,160})"
    r"|([\w./-]{1,160}\.go:\d{1,6}:\d{1,6}: [^\n]{1,160})"
    r"|(\w{1,60}(?:Error|Exception): [^\n]{1,160}))",
    re.MULTILINE,
)
_GOOD = re.compile(
    r"^ok {1,9}\t|^PASS$|^OK(?: \(|$)|\b0 (?:issues|errors|fail)\b|[1-9]\d{0,6} pass(?:ed|ing)?\b"
    r"|^All checks passed|no issues found|No fixes applied|BUILD SUCCESS",
    re.M,
)
_BAD = re.compile(
    r"^FAIL\b|^FAILED\b|^--- FAIL|\b[1-9]\d{0,6} (?:failed|failing|fail|errors?)\b"
    r"|^(?:\[[\w:.-]{1,40}\] )?[1-9]\d{0,5} issues?\b|^[\w./-]{1,200}\.(?:go|rs|c|cc|cpp):\d{1,6}:\d{1,6}: "
    r"|^Traceback \(most|error TS\d|^(?:error|fatal|panic|ERROR)[:\[ ]|No module named|command not found"
    r"|: No such file or directory$|^BUILD FAIL|task failed|FAILED \(",
    re.M,
)  # fmt: skip
_PASSED, _FAILED = re.compile(r"\b[1-9]\d{0,6} pass"), re.compile(r"\b[1-9]\d{0,6} (?:fail|error)|FAILED")
TALLY_REACH_CHARS = 400
"""Characters from the end of an output in which a tally is the verdict, whatever the tests print before it."""
_NONE_RAN = re.compile(
    r"\bno tests ran\b|^[=\s]{0,90}\d{1,7} deselected in |^No tests? found|^no packages to test", re.M | re.I
)
_MISSING = re.compile(r"(?:No module named|Cannot find (?:module|package)) ['\"]?([\w@./-]{1,120})")
_GO_PACKAGE = re.compile(r"^(ok|FAIL|\?) {0,3}\t", re.M)
_GO_TEST = re.compile(r"^[ \t]{0,12}--- (PASS|FAIL|SKIP): ", re.M)


class Verdict(NamedTuple):
    ok: bool | None
    counts: str
    fails: tuple[str, ...]


def next_check_ran(output: str, kind: str, then: str) -> bool:
    """Return whether the output has results of the check `then`, which runs only if this one passes."""
    rules = _FINDINGS if then in ("lint", "typecheck") else _TALLIES if then == "test" else ()
    text = _ends(output) if rules and then != kind else ""
    return bool(_first(rules, text) or (then == "test" and _go_counts(text)))


def verdict_of(output: str, kind: str = "test", *, failed: bool | None, then: str = "") -> Verdict:
    """Return whether a check passed, its counts, and its failures; `then` as in `next_check_ran`."""
    if output.startswith(NOTHING_RECORDED):
        return Verdict(None, "", ())
    text = _ends(output)
    tally = _tally(text, kind)
    counts = " ".join(tally.split()).rstrip(";, ")
    if next_check_ran(text, kind, then):
        return Verdict(True, counts, ())
    good = _GOOD.search(text)
    is_last = bool(tally) and tally in text[-TALLY_REACH_CHARS:]
    ends_well = is_last and _PASSED.search(tally) and not _FAILED.search(tally)
    ends_badly = is_last and _FAILED.search(tally)
    is_good = ends_well or (good and failed is False)
    ok = not (failed or ends_badly or (not is_good and _BAD.search(text)))
    if ok and (_NONE_RAN.search(text) if not good else _is_empty_go_run(text)):
        return Verdict(None, "no tests ran", ())
    fails: list[str] = []
    if ok is not True:
        for groups in _FAILURE.findall(text):
            fails.append(" ".join(next(filter(None, groups), "").split()))
    return Verdict(ok, counts, tuple(dict.fromkeys(filter(None, fails)))[:MAX_FAILURES])


def _ends(output: str) -> str:
    return output if len(output) <= MAX_OUTPUT_CHARS else output[:2_000] + "\n" + output[-MAX_OUTPUT_CHARS + 2_000 :]


def _tally(text: str, kind: str) -> str:
    """Return the counts of one kind of check in the output."""
    if kind in ("lint", "typecheck"):
        return _first(_FINDINGS, text)
    return _first(_TALLIES, text) or _go_counts(text) or _first(_FINDINGS[:1], text)


def _first(rules: _Rules, text: str) -> str:
    return next((found[1] for mark, rule in rules if mark in text and (found := rule.search(text))), "")


def _is_empty_go_run(text: str) -> bool:
    """Return whether no package had tests to run."""
    return "[no tests to run]" in text and text.count("[no tests to run]") == text.count("\nok ") + text.startswith(
        "ok "
    )


def _go_counts(text: str) -> str:
    tests = _GO_TEST.findall(text)
    if tests:
        labels = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}
        return ", ".join(f"{tests.count(word)} {label}" for word, label in labels.items() if word in tests)
    packages = _GO_PACKAGE.findall(text)
    if not packages:
        return ""
    failed = packages.count("FAIL")
    return f"{packages.count('ok')} packages ok" + (f", {failed} failed" if failed else "")


class CheckTracker:
    """Newest run of each check while a trail is followed."""

    def __init__(self, checks: Iterable[CheckRun]) -> None:
        self._runs = {_identity(run): run for run in checks}
        self._bodies: dict[CheckRun, tuple[Callable[[], Body], str, bool]] = {}
        self._early: set[CheckRun] = set()

    def add(self, run: CheckRun, body: Callable[[], Body], then: str, *, is_piped: bool, is_early: bool) -> None:
        """Add a run, a function that reads its output, and the kind of check that runs only if it passes.

        `is_piped`: the exit code belongs to another program. `is_early`: it ran before any file of the task was
        changed.
        """
        identity = _identity(run)
        self._runs.pop(identity, None)
        self._runs[identity] = run
        self._bodies[run] = body, then, is_piped
        self._early |= {run} if is_early else set()

    def newest(self, most: int, is_own: Callable[[str], bool], files: Sequence[TrackedFile]) -> list[CheckRun]:
        """Return the newest runs in order, preferring known checks to the agent's own scripts; read only their outputs.

        An own script that ran before any change was an experiment, not a check.
        """
        source = next((file for file in reversed(files) if _is_source(file)), TrackedFile(path="", state="changed"))
        known = sorted(self._runs.values(), key=lambda run: (not is_own(run.command), run.at))
        runs = sorted(known[-most:], key=lambda run: run.at)
        judged = ((run, self._judge(run, is_own)) for run in runs)
        return [_compare(found, source) for run, found in judged if found.kind != "script" or run not in self._early]

    def _judge(self, run: CheckRun, is_own: Callable[[str], bool]) -> CheckRun:
        """Return a run with the verdict of its output."""
        if run not in self._bodies:
            return run
        read, then, is_piped = self._bodies[run]
        body = read()
        code = None if is_piped else body.exit_code
        verdict = verdict_of(body.text, run.kind, failed=not run.ok or (None if code is None else code != 0), then=then)
        fails = verdict.fails
        if verdict.ok is False and not fails:
            reason = traceback_end(body) or error_line(body)
            fails = (reason,) if reason else run.fails
        kind: CheckKind = "script" if not verdict.counts and is_own(run.command) else run.kind
        return replace(run, kind=kind, ok=verdict.ok, counts=verdict.counts, fails=fails)


def _identity(run: CheckRun) -> tuple[str, frozenset[str]]:
    """Return the key of a check: its kind and the tests it runs, without output options."""
    return "test" if run.kind == "script" else run.kind, _chosen_words(run.command)


def _is_source(file: TrackedFile) -> bool:
    return file.state != "scratch" and not file.path.endswith(PROSE)


def _compare(run: CheckRun, source: TrackedFile) -> CheckRun:
    """Return a run with the name of the source file changed after it."""
    name = source.path.rpartition("/")[2]
    before = name if source.at > run.at else run.before if run.at < 0 else ""
    return run if before == run.before else replace(run, before=before)


# Selection of the runs that are still valid.


def latest_checks(trail: Trail) -> list[CheckRun]:
    """Return the newest run of each kind and the older runs that it does not supersede, newest first.

    A partial run does not supersede a full run. A partial run with a different outcome stays until it, or more than it,
    runs again. Failures for lack of a module that was installed since are omitted; of scripts only the newest run
    stays.
    """
    found: list[CheckRun] = []
    for check in reversed(trail.checks):
        newer = [other for other in found if other.kind == check.kind]
        if (newer and check.kind == "script") or _is_resolved(check, trail.acts):
            continue
        is_other = check.ok is not None and all(other.ok is not check.ok for other in newer)
        parts = [_is_narrower(other.command, check.command) for other in newer]
        is_open = check.ok is False or is_other
        if all(parts) or (is_open and not any(_covers(other.command, check.command) for other in newer)):
            found.append(check)
    return found


def missing_checks(trail: Trail, text: str) -> list[str]:
    """Return the checks that a text requests as commands and that did not run since the last change."""
    spans = (found[1] or found[2] for found in _COMMANDS.finditer(text[:MAX_REQUEST_CHARS]) if _is_requested(found))
    commands = {span.strip(): steps_of(span.strip(), "") for span in spans}
    checks = [command for command, steps in commands.items() if any(map(check_of, steps))]
    fresh = [check.command for check in trail.checks if not check.before]
    return [command for command in checks if not any(_covers(run, command) for run in fresh)]


def _is_requested(command: re.Match[str]) -> bool:
    """Return whether the command's line, the line before its block, or the heading above requests running it."""
    text, start = command.string, command.start()
    before = text[max(start - NEAR_CHARS, 0) : start].rstrip("\n`").rpartition("\n")[2]
    behind = text[command.end() : command.end() + NEAR_CHARS].partition("\n")[0] if command[1] else ""
    heading = text.rfind("\n#", 0, start)
    above = text[heading + 1 : heading + NEAR_CHARS].partition("\n")[0] if heading >= 0 else ""
    return _REQUEST.search(_MARKED.sub(" ", f"{above}\n{before}\n{behind}")) is not None


def _is_resolved(check: CheckRun, acts: Iterable[WorldAct]) -> bool:
    """Return whether a module that a check lacked was installed after it."""
    missed = {found[1] for line in check.fails if (found := _MISSING.search(line))}
    return bool(missed) and any(
        act.what == "install" and act.ok and act.at > check.at and not missed.isdisjoint(act.text.split())
        for act in acts
    )


def _is_narrower(newer: str, older: str) -> bool:
    return _chosen_words(newer) > _chosen_words(older)


def _covers(newer: str, older: str) -> bool:
    """Return whether the newer command repeats all of the older one; a full run of another program counts."""
    after, before = _chosen_words(newer), _chosen_words(older)
    if after <= before:
        return True
    if after.isdisjoint(before):
        return not any("/" in word or "." in word for word in after)
    return all(
        any(word == other or word.startswith((f"{other.rstrip('/')}/", f"{other}::")) for other in after)
        for word in before
    )


def _chosen_words(command: str) -> frozenset[str]:
    """Return the program and its selected tests, without options and words that select everything."""
    words = command.partition(" -m ")[2].split() if command.startswith("python") else command.split()
    return frozenset(
        word
        for word in words or command.split()
        if not word.startswith("-") and not word.isdigit() and word.strip("./") and word not in WRAPPERS
    )
