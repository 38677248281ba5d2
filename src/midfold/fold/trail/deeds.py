"""Which commands and tools act on the world or check the work, and what their output says came of it."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from midfold.fold.trail.commands import Step
from midfold.fold.trail.entries import CheckKind

LONGEST_OUTPUT = 12_000
MOST_FAILURES = 8

# Acts: (program, its first word) -> the kind of act. An empty word is any.

_GIT = {
    "commit": "commit", "push": "push", "merge": "merge", "rebase": "rebase", "pull": "pull", "tag": "tag",
    "cherry-pick": "cherry-pick", "revert": "revert", "checkout": "checkout", "switch": "checkout",
    "branch": "branch", "stash": "stash", "reset": "reset", "worktree": "worktree", "clone": "clone",
    "init": "init", "am": "apply", "fetch": "fetch", "submodule": "submodule", "clean": "clean",
}  # fmt: skip
_INSTALLERS: dict[str, frozenset[str]] = {
    name: frozenset(words.split())
    for name, words in {
        "npm": "install i ci add remove uninstall update link", "pnpm": "install i add remove update link",
        "yarn": "install add remove upgrade link", "bun": "install i add remove update link",
        "pip": "install uninstall", "pip3": "install uninstall", "uv": "add remove sync pip tool",
        "poetry": "add remove install update",
        "cargo": "add install remove", "go": "get install", "gem": "install", "bundle": "install", "brew": "install",
        "apt": "install remove", "apt-get": "install remove", "apk": "add", "composer": "require install",
        "conda": "install create", "mise": "install use", "rustup": "install component", "dnf": "install",
        "yum": "install", "pipx": "install", "pre-commit": "install",
    }.items()
}  # fmt: skip
_OTHERS: dict[str, dict[str, str]] = {
    "npm": {"publish": "publish"}, "pnpm": {"publish": "publish"}, "yarn": {"publish": "publish"},
    "bun": {"publish": "publish"}, "cargo": {"publish": "publish"}, "twine": {"upload": "publish"},
    "alembic": {"upgrade": "migrate", "downgrade": "migrate"}, "prisma": {"migrate": "migrate", "db": "migrate"},
    "knex": {"migrate:latest": "migrate"}, "rails": {"db:migrate": "migrate"}, "rake": {"db:migrate": "migrate"},
    "flyway": {"migrate": "migrate"}, "drizzle-kit": {"push": "migrate", "migrate": "migrate"},
    "kubectl": {"apply": "deploy", "delete": "delete", "rollout": "deploy", "scale": "deploy", "create": "deploy"},
    "helm": {"install": "deploy", "upgrade": "deploy", "uninstall": "delete"},
    "terraform": {"apply": "deploy", "destroy": "delete"}, "vercel": {"deploy": "deploy"}, "fly": {"deploy": "deploy"},
    "serverless": {"deploy": "deploy"}, "systemctl": {"start": "start", "stop": "stop", "restart": "restart"},
    "docker": {
        "run": "start", "start": "start", "stop": "stop", "restart": "restart", "rm": "delete", "push": "publish",
        "kill": "stop",
    },
    "pm2": {"start": "start", "stop": "stop", "restart": "restart", "delete": "stop"},
}  # fmt: skip
_GH_VERBS = frozenset(
    {"create", "merge", "close", "comment", "edit", "review", "ready", "reopen", "delete", "rerun", "cancel", "upload"}
)
_VERBS = frozenset(
    {
        "book", "cancel", "update", "modify", "send", "create", "delete", "remove", "transfer", "refund", "pay",
        "order", "submit", "post", "publish", "approve", "reject", "merge", "close", "assign", "schedule", "add",
        "exchange", "return", "reserve", "issue", "grant", "revoke", "deploy", "restart", "invite", "reply",
        "enable", "disable", "upload", "archive", "rename", "move", "set", "reset", "charge", "purchase", "place",
    }
)  # fmt: skip
_LISTING = frozenset({"-l", "--list", "list", "-a", "-r", "-v", "-vv", "--show-current", "-n", "show", "--contains"})


def act_of(step: Step) -> str:
    """The kind of act that a command is; empty for one that changes nothing beside files."""
    words = step.words
    program = step.program
    if program in ("git", "gh") or program in _INSTALLERS or program in _OTHERS:
        rest = _arguments(words)
        first = rest[0] if rest else ""
        if program == "git":
            return _git_act(rest)
        if program == "gh":
            return _gh_act(rest)
        if first in _INSTALLERS.get(program, ()):
            return "" if "--dry-run" in rest else "install"
        if program == "yarn" and not rest:
            return "install"
        if program == "docker" and first == "compose":
            return _compose_act(rest[1:])
        return _OTHERS.get(program, {}).get(first, "")
    if program == "docker-compose":
        return _compose_act(_arguments(words))
    if program in ("kill", "pkill", "killall"):
        return "" if words[1:2] == ["-0"] else "stop"
    if program == "curl":
        return _curl_act(words)
    return _run_act(words) if program.startswith(("python", "manage.py", "django-admin")) else ""


def _arguments(words: list[str]) -> list[str]:
    """The words behind a program and the options before its command."""
    at = 1
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in ("-C", "-c", "--git-dir", "--prefix", "-R", "--cwd", "-n") else 1
    return words[at:]


def _git_act(rest: list[str]) -> str:
    command, options = (rest[0], rest[1:]) if rest else ("", [])
    if command in ("branch", "tag", "worktree", "stash", "submodule"):
        if command != "stash" and (not options or options[0] in _LISTING):
            return ""
        if options and options[0] in ("list", "show"):
            return ""
    if command in ("checkout", "switch", "reset") and _is_about_files(command, options):
        return ""
    return "" if "--dry-run" in options else _GIT.get(command, "")


def _is_about_files(command: str, options: list[str]) -> bool:
    """Whether `git checkout` and `git reset` mean files, which are told as files."""
    if "--" in options:
        return True
    plain = [option for option in options if not option.startswith("-")]
    if command == "reset":
        return not any(option in ("--hard", "--soft", "--mixed") for option in options)
    return command == "checkout" and bool(plain) and all("." in word.rpartition("/")[2] for word in plain[-1:])


def _gh_act(rest: list[str]) -> str:
    if rest[:1] == ["api"]:
        return "api" if any(word in ("POST", "PUT", "PATCH", "DELETE", "-f", "-F", "--input") for word in rest) else ""
    if len(rest) < 2 or rest[1] not in _GH_VERBS:
        return "run" if rest[:2] == ["workflow", "run"] else ""
    return "pr" if rest[0] == "pr" else rest[0]


def _compose_act(rest: list[str]) -> str:
    words = {"up": "start", "down": "stop", "restart": "restart", "stop": "stop", "start": "start"}
    return next((words[word] for word in rest if word in words), "")


def _curl_act(words: list[str]) -> str:
    for option, value in zip(words, [*words[1:], ""], strict=True):
        if option in ("-X", "--request") and value.upper() in ("POST", "PUT", "PATCH", "DELETE"):
            return "send"
        if option in ("-d", "--data", "--data-raw", "--data-binary", "--json", "-F", "--form"):
            return "send"
    return ""


def _run_act(words: list[str]) -> str:
    if words[1:3] == ["-m", "pip"]:
        return "install" if words[3:4] and words[3] in ("install", "uninstall") else ""
    return "migrate" if "migrate" in words[1:4] else ""


def tool_act(words: frozenset[str], name: str) -> str:
    """The kind of act that a tool of an unknown kind is, by the verb its name begins with."""
    found = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", re.split(r"__|[./:]", name)[-1])
    verb = found[0].lower() if found else ""
    return verb if verb in _VERBS else ""


_COMMIT = re.compile(r"^\[([^\]\n]{1,200}?) (?:\(root-commit\) )?([0-9a-f]{7,40})\] ([^\n]{0,200})", re.MULTILINE)
_PUSHED = re.compile(
    r"^ ?[ *+]? ?\[?((?:[0-9a-f]{7,40}\.\.\.?[0-9a-f]{7,40})|new branch|new tag)\]? {1,9}(\S{1,200}) -> (\S{1,200})",
    re.M,
)
_ADDRESS = re.compile(r"https?://[^\s\"'<>)]{4,200}")
_NUMBERED = re.compile(r"#\d{1,7}\b")
_OWN_ERROR = re.compile(
    r"^(?:(?:fatal|error|ERROR|npm ERR!|npm error|ERR_PNPM\w{0,40}|\[ERROR\])[:! ]"
    r"| ! \[(?:remote )?rejected\]|(?:GraphQL|HTTP \d{3}): |CONFLICT |remote: error"
    r"|Aborting|curl: \(\d)[^\n]{0,300}",
    re.MULTILINE,
)
_NOTHING_DONE = re.compile(
    r"^(?:nothing to commit|no changes added|nothing added to commit|Everything up-to-date)[^\n]{0,80}", re.M
)


class Came(NamedTuple):
    ok: bool
    outcome: str


def commit_title(step: Step) -> str:
    """The first line of a commit's message, as the command gives it."""
    for option, value in zip(step.words, step.words[1:], strict=False):
        if option in ("-m", "-am", "--message", "-F") and value not in ("-",):
            text = value.removeprefix("$(cat").strip()
            return text.partition("\n")[0].strip(' "')[:200]
    return (step.document or "").strip().partition("\n")[0][:200]


def came_of(what: str, output: str, *, failed: bool, reason: str) -> Came:
    """What the output says came of an act."""
    text = output if len(output) <= LONGEST_OUTPUT else output[:2_000] + output[-LONGEST_OUTPUT + 2_000 :]
    if what == "commit":
        found = _COMMIT.search(text)
        if found:
            return Came(True, f"{found[2]} on {found[1]}: {found[3].strip()}")
        nothing = _NOTHING_DONE.search(text)
        if nothing:
            return Came(False, nothing[0])
    if what == "push":
        pushed = _PUSHED.search(text)
        if pushed:
            return Came(True, f"{pushed[1]} {pushed[2]} -> {pushed[3]}")
        nothing = _NOTHING_DONE.search(text)
        if nothing and not failed:
            return Came(True, nothing[0])
    error = _OWN_ERROR.search(text)
    if failed or error:
        return Came(False, reason or (error[0] if error else ""))
    return Came(True, told_ids(text) if what in ("pr", "issue", "release", "api", "publish", "deploy") else "")


def told_ids(text: str) -> str:
    """The addresses and numbers that an answer gives to what was made."""
    found = [*_ADDRESS.findall(text)[:2], *_NUMBERED.findall(text[:2_000])[:2]]
    return " ".join(dict.fromkeys(found))


_ID_KEYS = ("id", "number", "code", "key", "sha", "url", "hash", "status")


def fields_of(value: Any) -> str:
    """Ids in a JSON answer."""
    if not isinstance(value, dict):
        return ""
    found = [
        f"{key}={item}"
        for key, item in list(value.items())[:60]
        if isinstance(item, str | int) and not isinstance(item, bool) and str(key).lower().endswith(_ID_KEYS)
    ]
    return ", ".join(found[:4])


# Checks.

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
}
_TASKS = frozenset(
    {"npm", "pnpm", "yarn", "bun", "mise", "make", "just", "task", "rake", "composer", "hatch", "nx", "turbo"}
)
_TASK = re.compile(
    r"(?P<typecheck>type-?checks?|tsc|types|mypy)|(?P<test>tests?|e2e|spec|integration|unit|verify|check-all|ci)"
    r"|(?P<lint>lint|vet|check|fmt:check|format:check)|(?P<build>build|compile|bundle)",
    re.IGNORECASE,
)


def check_of(step: Step) -> CheckKind | None:
    """Whether a command tests, builds or lints."""
    words = step.words
    program = step.program
    known = _CHECKERS.get(program)
    if known is not None:
        return None if words[1:2] in (["--version"], ["--help"], ["-h"]) else known
    if program.startswith("python") and len(words) > 1:
        return _python_check(words)
    rest = [word for word in words[1:] if not word.startswith("-")]
    first = rest[0] if rest else ""
    named = _CHECKING.get(program, {}).get(first)
    if named is not None and not (program == "ruff" and first == "format" and "--check" not in words):
        return named
    if program in _TASKS:
        return _task_check(program, rest)
    if program in ("prettier", "black", "gofmt", "isort"):
        return (
            "lint" if any(word in ("--check", "-c", "-l", "-d", "--diff", "--check-only") for word in words) else None
        )
    return None


def _python_check(words: list[str]) -> CheckKind | None:
    if words[1] == "-m" and len(words) > 2:
        module = words[2]
        if module in ("django",):
            return "test" if "test" in words[3:5] else None
        if module in ("unittest", "nose", "doctest", "compileall", "py_compile", "build"):
            return "build" if module in ("compileall", "py_compile", "build") else "test"
        return _CHECKERS.get(module) or ("lint" if module in ("ruff", "black") and "check" in str(words) else None)
    script = words[1].rpartition("/")[2]
    if script in ("runtests.py", "manage.py", "setup.py"):
        return "test" if script == "runtests.py" or "test" in words[2:4] else None
    return None


def _task_check(program: str, rest: list[str]) -> CheckKind | None:
    task = rest[1] if rest[:1] in (["run"], ["run-script"]) and len(rest) > 1 else rest[0] if rest else ""
    if (
        program in ("npm", "bun", "pnpm", "composer", "mise")
        and rest[:1] not in (["run"], ["run-script"])
        and task not in ("test", "lint", "build", "typecheck")
    ):
        return None
    if not task:
        return "build" if program == "make" else None
    found = _TASK.search(task)
    if found is None or ("fix" in task and found.lastgroup == "lint"):
        return None
    return found.lastgroup  # type: ignore[return-value]


_COUNTS = (
    re.compile(
        r"^[=\s]{0,90}((?:\d{1,7} (?:failed|passed|skipped|errors?|warnings?|x\w{5,6}|deselected)(?:, )?){1,7})"
        r" in [\d.]{1,12}",
        re.M,
    ),
    re.compile(r"^Tests?:? {1,12}((?:\d{1,7} (?:failed|passed|skipped|todo|pending|total)[,| ]{0,3}){1,5})", re.M),
    re.compile(r"^test result: \w{1,8}\. ((?:\d{1,7} [a-z ]{1,14}; ?){1,5})", re.M),
    re.compile(r"^(Ran \d{1,7} tests? in [\d.]{1,12}s\s{1,4}(?:OK|FAILED)(?: ?\([^)\n]{1,80}\))?)", re.M),
    re.compile(r"^ {0,4}(\d{1,7} pass\s{1,4}(?:\d{1,7} skip\s{1,4})?\d{1,7} fail)\b", re.M),
    re.compile(r"^ {0,4}(\d{1,7} passing[^\n]{0,20}(?:\n {0,4}\d{1,7} failing)?)", re.M),
    re.compile(r"((?:Found )?\d{1,6} errors?(?: in \d{1,6} files?)?[^\n]{0,40})$", re.M),
    re.compile(r"^(\d{1,6} issues?)\b", re.M),
    re.compile(r"(\d{1,6} problems? \([^)\n]{1,60}\))"),
    re.compile(r"^(Checked \d{1,6} files?[^\n]{0,60})", re.M),
    re.compile(r"^(All checks passed!|Success: no issues found[^\n]{0,40})", re.M),
)
_FAILURE = re.compile(
    r"^(?:FAILED ([^\n]{1,200})|ERROR ([\w/.:-]{3,160}\.py[^\n]{0,80})|[ \t]{0,12}--- FAIL: (\S{1,160})"
    r"|FAIL:? ([^\s(][^\n]{0,120})|\(fail\) ([^\n]{1,160})|test (\S{1,160}) \.\.\. FAILED"
    r"|[ \t]{0,8}[✗×✕] ([^\n]{1,160})|(?:ERROR|FAIL): (\w{1,80} \([^)\n]{1,120}\))"
    r"|(\S{1,160}\(\d{1,6},\d{1,6}\): error [^\n]{1,160})"
    r"|(\S{1,160}:\d{1,6}(?::\d{1,6})?: (?:error|Error|undefined|[A-Z]\d{3,4} )[^\n]{1,160})"
    r"|(\w{1,60}(?:Error|Exception): [^\n]{1,160}))",
    re.MULTILINE,
)
_GOOD = re.compile(
    r"^ok {1,9}\t|^PASS$|^OK(?: \(|$)|\b0 (?:issues|errors|fail)\b|[1-9]\d{0,6} pass(?:ed|ing)?\b"
    r"|^All checks passed|no issues found|No fixes applied|BUILD SUCCESS",
    re.M,
)
_BAD = re.compile(
    r"^FAIL\b|^FAILED\b|^--- FAIL|\b[1-9]\d{0,6} (?:failed|failing|fail|errors?)\b|^[1-9]\d{0,5} issues?\b"
    r"|^Traceback \(most|error TS\d|^(?:error|fatal|panic|ERROR)[:\[ ]|No module named|command not found"
    r"|: No such file or directory$|^BUILD FAIL|task failed|FAILED \(",
    re.M,
)  # fmt: skip
_GO_PACKAGE = re.compile(r"^(ok|FAIL|\?) {0,3}\t", re.M)
_GO_TEST = re.compile(r"^[ \t]{0,12}--- (PASS|FAIL|SKIP): ", re.M)


class Verdict(NamedTuple):
    ok: bool | None
    counts: str
    fails: tuple[str, ...]


def verdict_of(output: str, *, failed: bool | None) -> Verdict:
    """What a check's output says: passed or not, how many, and what fails."""
    text = output if len(output) <= LONGEST_OUTPUT else output[:2_000] + "\n" + output[-LONGEST_OUTPUT + 2_000 :]
    counts = next((" ".join(found[1].split()).rstrip(";, ") for rule in _COUNTS if (found := rule.search(text))), "")
    counts = counts or _go_counts(text)
    bad, good = _BAD.search(text), _GOOD.search(text)
    ok = False if failed or bad else True if good or failed is False else None
    fails: list[str] = []
    if ok is not True:
        for groups in _FAILURE.findall(text):
            fails.append(" ".join(next(filter(None, groups), "").split()))
    return Verdict(ok, counts, tuple(dict.fromkeys(filter(None, fails)))[:MOST_FAILURES])


def _go_counts(text: str) -> str:
    tests = _GO_TEST.findall(text)
    if tests:
        told = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}
        return ", ".join(f"{tests.count(word)} {said}" for word, said in told.items() if word in tests)
    packages = _GO_PACKAGE.findall(text)
    if not packages:
        return ""
    failed = packages.count("FAIL")
    return f"{packages.count('ok')} packages ok" + (f", {failed} failed" if failed else "")
