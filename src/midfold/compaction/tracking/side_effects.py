"""Recognize commands and tools with side effects, and parse their outcome."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from msgspec.structs import replace

from midfold.compaction.tracking.commands import Step
from midfold.compaction.tracking.entries import WorldAct
from midfold.compaction.tracking.file_tracker import is_temporary

MAX_OUTPUT_CHARS = 12_000
NO_HASH = "(its hash is not shown)"

# Tables from a program and its subcommand to the kind of act.

_GIT = {
    "commit": "commit", "push": "push", "merge": "merge", "rebase": "rebase", "pull": "pull", "tag": "tag",
    "cherry-pick": "cherry-pick", "revert": "revert", "checkout": "checkout", "switch": "checkout",
    "branch": "branch", "stash": "stash", "reset": "reset", "worktree": "worktree", "clone": "clone",
    "init": "init", "am": "apply", "fetch": "fetch", "submodule": "submodule", "clean": "clean", "add": "stage",
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
_CLOUDS = frozenset(
    {
        "aws",
        "gcloud",
        "az",
        "heroku",
        "flyctl",
        "doctl",
        "firebase",
        "supabase",
        "wrangler",
        "bd",
        "service",
        "launchctl",
    }
)
_CLOUD_VERBS = frozenset(
    {
        "create", "delete", "deploy", "update", "apply", "put", "set", "remove", "rm", "cp", "sync", "push", "publish",
        "start", "stop", "restart", "scale", "close", "load", "unload",
    }
)  # fmt: skip
_TASKS = frozenset({"make", "just", "task", "rake", "mise", "nx", "turbo", "composer"})
_TASK = re.compile(r"(?:deploy|release|publish|migrate|seed|install)(?![a-z])", re.IGNORECASE)
_SQL = re.compile(r"\b(?:insert into|update \w{1,80} set|delete from|create table|drop |alter table|truncate )", re.I)
_ENDING = re.compile(r"\.[a-zA-Z]\w{0,5}$")
_LISTING = frozenset({"-l", "--list", "list", "-a", "-r", "-v", "-vv", "--show-current", "-n", "show", "--contains"})


def act_of(step: Step) -> str:
    """Return the kind of act that a command is, or "" if it changes only files or nothing."""
    words = step.words
    program = step.program
    if is_temporary(f"{step.folder}/"):
        return ""
    if program in ("git", "gh", "glab") or program in _INSTALLERS or program in _OTHERS:
        rest = _arguments(words)
        first = rest[0] if rest else ""
        if program == "git":
            return _git_act(rest)
        if program in ("gh", "glab"):
            return _gh_act(rest)
        if first in _INSTALLERS.get(program, ()):
            return "" if "--dry-run" in rest else "install"
        if (program == "yarn" and not rest) or (program == "go" and rest[:2] in (["mod", "download"], ["mod", "tidy"])):
            return "install"
        if program == "docker" and first == "compose":
            return _compose_act(rest[1:])
        return _OTHERS.get(program, {}).get(first, "") or _task_act(program, rest)
    if program == "docker-compose":
        return _compose_act(_arguments(words))
    if program in _CLOUDS:
        return next((word for word in words[1:5] if word in _CLOUD_VERBS), "")
    if program in ("psql", "mysql", "sqlite3"):
        return "sql" if _SQL.search(" ".join((*words[1:], step.document or ""))[:4_000]) else ""
    if program in ("kill", "pkill", "killall"):
        targets = [word for word in words[1:] if not word.startswith(("-", "$"))]
        return "stop" if targets and words[1:2] != ["-0"] else ""
    if program == "curl":
        return _curl_act(words)
    if program == "find":
        return next((word for word in ("rmdir", "chmod") if word in words), "")
    if program in ("rmdir", "chmod", "chown", "mkdir"):
        return "" if any(map(is_temporary, words[1:])) else program
    if program in _TASKS:
        return _task_act(program, _arguments(words))
    return _run_act(words) if program.startswith(("python", "manage.py", "django-admin")) else ""


def _arguments(words: list[str]) -> list[str]:
    """Return the words after a program and its global options."""
    at = 1
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in ("-C", "-c", "--git-dir", "--prefix", "-R", "--cwd", "-n") else 1
    return words[at:]


def _task_act(program: str, rest: list[str]) -> str:
    """Classify a task by its name: `npm run deploy`, `make release`."""
    task = rest[1] if rest[:1] == ["run"] and len(rest) > 1 else rest[0] if rest and program in _TASKS else ""
    found = _TASK.match(task)
    return found[0].lower() if found else ""


def _git_act(rest: list[str]) -> str:
    command, options = (rest[0], rest[1:]) if rest else ("", [])
    if command in ("branch", "tag", "worktree", "stash", "submodule"):
        if command != "stash" and (not options or options[0] in _LISTING):
            return ""
        if options and options[0] in ("list", "show"):
            return ""
    if command in ("remote", "config"):
        plain = [option for option in options if not option.startswith("-")]
        changes = options[:1] in (["add"], ["remove"], ["rm"], ["set-url"]) if command == "remote" else len(plain) > 1
        return command if changes and not any(option.startswith(("--get", "--list")) for option in options) else ""
    if command == "restore":
        return "unstage" if "--staged" in options else ""
    if command in ("checkout", "switch") and _is_about_files(options):
        return ""
    return "" if "--dry-run" in options else _GIT.get(command, "")


def _is_about_files(options: list[str]) -> bool:
    """Return whether `git checkout` is about files, which are tracked as files."""
    if "--" in options or "--theirs" in options or "--ours" in options:
        return True
    plain = [option for option in options if not option.startswith("-")]
    return bool(plain) and not {"-b", "-B", "-c"} & set(options) and bool(_ENDING.search(plain[-1]))


def _gh_act(rest: list[str]) -> str:
    if rest[:1] == ["api"]:
        return _gh_api_act(rest[1:])
    if len(rest) < 2 or rest[1] not in _GH_VERBS:
        return "run" if rest[:2] == ["workflow", "run"] else ""
    return "pr" if rest[0] == "pr" else rest[0]


def _gh_api_act(rest: list[str]) -> str:
    """Classify `gh api`: requests with fields default to POST; a GraphQL query changes nothing."""
    method = next((value.upper() for option, value in pairwise(rest) if option in ("-X", "--method")), "")
    has_fields = any(word in ("-f", "-F", "--field", "--raw-field", "--input") for word in rest)
    if rest[:1] == ["graphql"]:
        return "send" if any("mutation" in word for word in rest) else ""
    return "send" if method not in ("", "GET") or (has_fields and not method) else ""


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
    return "migrate" if any(word in ("migrate", "loaddata", "flush", "createsuperuser") for word in words[1:4]) else ""


def tool_act(words: frozenset[str], name: str) -> str:
    """Return the kind of act of an unknown tool, from the verb at the start of its name."""
    found = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", re.split(r"__|[./:]", name)[-1])
    verb = found[0].lower() if found else ""
    return verb if verb in _VERBS else ""


_COMMIT = re.compile(r"^\[([^\]\n]{1,200}?) (?:\(root-commit\) )?([0-9a-f]{7,40})\] ([^\n]{0,200})", re.MULTILINE)
_PUSHED = re.compile(
    r"^ ?[ *+]? ?\[?((?:[0-9a-f]{7,40}\.\.\.?[0-9a-f]{7,40})|new branch|new tag)\]? {1,9}(\S{1,200}) -> (\S{1,200})",
    re.M,
)
_CHANGED = re.compile(r"^(?:ok ✓)? \d{1,6} files? changed[^\n]{0,80}|^ok ✓[^\n]{0,80}", re.M)
_BRANCH = re.compile(
    r"(?:^(?:##|📌) (?=[^\s;]{1,160}\.\.\.)|\A(?:##|📌) )([^\s;]{1,200}(?: \[[^\]\n;]{1,60}\])?)$"
    r"|^On branch ([^\s;]{1,200})(?:\nYour branch is ((?:ahead|behind|up)[^\n.;]{0,120}))?"
    r"|^Switched to (?:a new )?branch '([^'\n;]{1,200})'",
    re.M,
)
_ADDRESS = re.compile(r"https?://[^\s\"'<>)]{4,200}")
_PAGE = re.compile(r"\"html_url\": ?\"(https?://[^\s\"]{4,200})\"")
"""URLs of the pages in a record; the longest is that of the record itself."""
_NUMBERED = re.compile(r"#\d{1,7}\b")
_INSTALL_ERROR = re.compile(
    r"^(?:ERROR: (?:Could not|No matching|Failed|Cannot)|error: (?:subprocess|externally)|npm (?:ERR!|error)|ERR_PNPM"
    r"|E: |error: [^\n]{0,80}failed)[^\n]{0,300}",
    re.MULTILINE,
)
_REQUEST_ERROR = re.compile(
    r"^(?:GraphQL: |gh: |HTTP \d{3}|pull request create failed|could not |curl: \(\d|[^\n]{0,60}\"status\": ?\"4\d\d\")"
    r"[^\n]{0,300}",
    re.MULTILINE,
)
_ERRORS = {"install": _INSTALL_ERROR, **dict.fromkeys(("send", "pr", "issue", "release"), _REQUEST_ERROR)}
GIT_ERROR = re.compile(
    r"^(?:fatal: | ! \[(?:remote )?rejected\]|CONFLICT \(|Automatic merge failed|Aborting"
    r"|error: (?:failed to|pathspec|[Yy]our local|cannot|could not|the following|patch failed|src refspec|unable))"
    r"[^\n]{0,300}",
    re.MULTILINE,
)
"""Errors of git itself; errors that hooks print do not stop it."""
_NOTHING_DONE = re.compile(
    r"^(?:nothing to commit|no changes added|nothing added to commit|Everything up-to-date)[^\n]{0,80}", re.M
)


_SAME_AGAIN = frozenset(
    {"install", "fetch", "checkout", "stage", "unstage", "mkdir", "rmdir", "chmod", "chown", "config", "stop", "start"}
)
"""Acts whose repetition has no further effect."""
_ENDED_BY_COMMIT = frozenset({"merge", "cherry-pick", "revert", "stage"})
_ONE_AT_A_TIME = frozenset({"commit", "push", "pull", "fetch", "rebase"})
"""Acts that are retries of each other whatever their arguments. Others are identified by their first two arguments."""


def latest_acts(acts: Sequence[WorldAct]) -> list[WorldAct]:
    """Return each act with its latest outcome, newest first; a failure that succeeded later counts as done.

    A success followed by a failed repetition stays; both are returned.
    """
    found: list[WorldAct] = []
    known: set[tuple[str, ...]] = set()
    for act in reversed(acts):
        thing = (act.what, "" if act.what in _ONE_AT_A_TIME else ", ".join(act.text.split(", ", 2)[:2]))
        same = (act.what, act.text, "" if act.what == "start" else act.outcome)
        is_mended = thing in known or (("commit",) in known and act.what in _ENDED_BY_COMMIT)
        is_gone = act.what == "stage" and ("commit",) in known
        if is_gone or (act.ok and act.what in _SAME_AGAIN and same in known) or (not act.ok and is_mended):
            continue
        found.append(act)
        known |= {thing, same, (act.what,)} if act.ok else {thing}
    return found


def mark_replaced(acts: Iterable[WorldAct]) -> tuple[WorldAct, ...]:
    """Return all acts in order, marking those that are not among the latest."""
    log = tuple(acts)
    latest = set(map(id, latest_acts(log)))
    marks = ((act, id(act) not in latest) for act in log)
    return tuple(act if act.is_replaced == mark else replace(act, is_replaced=mark) for act, mark in marks)


class ActOutcome(NamedTuple):
    ok: bool | None
    outcome: str


def branch_of(output: str) -> str:
    """Return the last branch in git output, with its distance from upstream."""
    found = list(_BRANCH.finditer(output[:MAX_OUTPUT_CHARS]))
    if not found:
        return ""
    short, long, place, switched = found[-1].groups()
    return short or switched or (f"{long}, {place}" if place else long)


def commit_title(step: Step) -> str:
    """Return the first line of a commit message given in the command."""
    for option, value in pairwise(step.words):
        if option in ("-m", "-am", "--message", "-F") and value not in ("-",):
            text = value.removeprefix("$(cat").strip()
            return text.partition("\n")[0].strip(' "')[:200]
    return (step.document or "").strip().partition("\n")[0][:200]


def act_outcome(what: str, output: str, *, failed: bool, reason: str, is_sure: bool = True) -> ActOutcome:
    """Return the outcome of an act; `is_sure` means that its own exit code shows success.

    A commit or push is done only if git shows it: hooks and pipes may hide a failure.
    """
    text = output if len(output) <= MAX_OUTPUT_CHARS else output[:2_000] + output[-MAX_OUTPUT_CHARS + 2_000 :]
    if what == "commit":
        found = _COMMIT.search(text)
        if found:
            return ActOutcome(True, f"{found[2]} on {found[1]}: {found[3].strip()}")
        nothing = _NOTHING_DONE.search(text)
        if nothing:
            return ActOutcome(False, nothing[0])
    if what == "push":
        pushed = _PUSHED.search(text)
        if pushed:
            return ActOutcome(True, f"{pushed[1]} {pushed[2]} -> {pushed[3]}")
        nothing = _NOTHING_DONE.search(text)
        if nothing and not failed:
            return ActOutcome(True, nothing[0])
    rule = _ERRORS.get(what)
    error = rule.search(text) if rule else None
    if failed or error:
        return ActOutcome(False, reason or (error[0] if error else ""))
    if what in ("commit", "push"):
        shown = _CHANGED.search(text)
        return ActOutcome(True, shown[0].strip()) if shown else ActOutcome(True if is_sure else None, "")
    return ActOutcome(
        True, created_ids(text) if what in ("pr", "issue", "release", "send", "publish", "deploy") else ""
    )


def created_ids(text: str) -> str:
    """Return the URLs and numbers of created objects; for a record, the URL of its page."""
    pages = _PAGE.findall(text)
    found = [max(pages, key=len)] if pages else _ADDRESS.findall(text)[:2]
    return " ".join(dict.fromkeys([*found, *_NUMBERED.findall(text[:2_000])[:2]]))


_ID_KEYS = ("id", "number", "code", "key", "sha", "url", "hash", "status")


def fields_of(value: Any) -> str:
    """Return the ids in a JSON response."""
    if not isinstance(value, dict):
        return ""
    found = [
        f"{key}={item}"
        for key, item in list(value.items())[:60]
        if isinstance(item, str | int) and not isinstance(item, bool) and str(key).lower().endswith(_ID_KEYS)
    ]
    return ", ".join(found[:4])
