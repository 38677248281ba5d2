"""Derive the effects of each program in a shell command: files written, moved, removed or shown, acts and checks.

1. Tables of common programs decide; an unknown program has no effect except its redirections.
2. Paths are as spelled in the command. Words that need shell expansion are omitted.
3. `step_results` decides from the output which programs of a command succeeded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import msgspec

from midfold.compaction.local.digest import is_digest
from midfold.compaction.local.outcome import Body, ending, error_line, stated_outcome
from midfold.compaction.tracking.checks import check_of, next_check_ran
from midfold.compaction.tracking.commands import Step
from midfold.compaction.tracking.edits import SCRIPTS, accesses, is_path, names_in
from midfold.compaction.tracking.side_effects import GIT_ERROR, act_of, commit_title

Kind = Literal[
    "write", "append", "change", "delete", "move", "copy", "read", "revert", "stash", "unstash", "patch", "act",
    "check", "script", "start", "stop", "branch", "see", "make",
]  # fmt: skip
MAX_LOOK_CHARS = 60
MIN_READ_CONTEXT_LINES = 20
"""Minimum context lines around a match for a search to count as reading the file."""


_SED_IN_PLACE, _PERL_IN_PLACE = re.compile(r"-[nErs]*i\S*"), re.compile(r"-\w{0,4}i\S{0,8}")
_SUBSTITUTED = re.compile(r"[0-9,$ ]{0,20}s([/|#@!])(?:\\.|(?!\1)[^\\])*\1((?:\\.|(?!\1)[^\\])*)\1[gIip0-9]{0,4}", re.S)
_INSERTED = re.compile(r"[0-9,$ ]{0,20}[aic](?:\\\n?| )[ \t]*(.*)", re.S)
_PRINTED_LINES = re.compile(r"(\d{1,7})(?:,(\d{1,7}))?p")
_LINES_AROUND = re.compile(r"(?:^| )-[ABC] ?(\d{1,5})")
_EXTENSION = re.compile(r"\.\w{1,8}$")
_COUNT, _BETWEEN = re.compile(r"(?:^|[ n])-{0,2}(?:n|lines)?[ =]?(\+?\d{1,7})(?= |$)"), re.compile(r"[(),;`]")
_VALUED = frozenset(
    {
        "-A",
        "-B",
        "-C",
        "-m",
        "-f",
        "-t",
        "-T",
        "-g",
        "--glob",
        "--type",
        "--include",
        "--exclude",
        "--max-count",
        "--context",
    }
)
"""Search options that take the next word as value."""
_SEARCHING, _COUNTING = frozenset({"grep", "egrep", "rg"}), frozenset({"wc", "md5sum", "shasum", "sha256sum", "cksum"})


class Effect(msgspec.Struct, frozen=True, gc=False):
    kind: Kind
    path: str = ""
    """Path, or the kind of an act or check."""
    target: str = ""
    """Target path, part of the file read, or a description of the act or check."""
    text: str = ""
    """Content, patch or script; for a check, the kind of the next check, which runs only if this one passes."""


def effects_in(steps: Sequence[Step]) -> list[list[Effect]]:
    """Return the effects of each program of a command if it succeeds."""
    found = [effects_of(step) for step in steps]
    then = ""
    for at in range(len(steps) - 1, -1, -1):
        joiner = steps[at].joiner
        then = then if joiner == "&&" else ""
        if joiner == "|" and at + 1 < len(steps) and any(effect.kind == "read" for effect in found[at]):
            found[at] = _narrow(found[at], steps[at + 1])
        for number, effect in enumerate(found[at]):
            if effect.kind == "check":
                found[at][number] = Effect("check", effect.path, effect.target, then)
                then = effect.path
    return found


def effects_of(step: Step) -> list[Effect]:
    """Return the effects of a program if it succeeds."""
    found: list[Effect] = []
    program = step.program
    rule = _RULES.get(program)
    if rule is not None:
        found += rule(step)
    elif program.startswith("python") or program in _INTERPRETERS or program.endswith(SCRIPTS):
        found += _script(step)
    for path, at_end in step.writes:
        if is_path(path):
            text = step.document if step.document is not None else ""
            if program == "echo" or program == "printf":
                text = " ".join(step.words[1:])
            found.append(Effect("append" if at_end else "write", path, text=text))
    if program in _QUIET:
        return found
    check = check_of(step)
    if check is not None:
        found.append(Effect("check", check, " ".join(step.words)))
    else:
        act = act_of(step)
        if act:
            title = commit_title(step) if act == "commit" else ""
            found.append(Effect("act", act, title or " ".join(step.words)))
    if step.joiner == "&" and not step.writes[1:] and program not in ("echo", "sleep", ":"):
        found.append(Effect("start", "", " ".join(step.words)))
    return found


def handles_files(step: Step) -> bool:
    """Return whether a program shows, moves or formats files, whatever their content."""
    return step.program in _HANDLING or (step.program == "git" and step.words[1:2] != ["apply"])


def _plain(words: Sequence[str]) -> list[str]:
    return [word for word in words if not word.startswith("-")]


def _sed_effects(step: Step) -> list[Effect]:
    words = step.words
    options = [word for word in words[1:] if word.startswith("-")]
    in_place = any(option.startswith(("-i", "--in-place")) or _SED_IN_PLACE.fullmatch(option) for option in options)
    given = any(option in ("-e", "-f", "--expression") for option in options)
    rest = [word for word in words[1:] if not word.startswith("-") and word != ""]
    if given:
        values = {words[at + 1] for at, word in enumerate(words[:-1]) if word in ("-e", "-f", "--expression")}
        expression = next((word for word in rest if word in values), "")
        rest = [word for word in rest if word not in values]
    else:
        expression, rest = (rest[0], rest[1:]) if rest else ("", [])
    paths = [path for path in rest if is_path(path)]
    if in_place:
        return [Effect("change", path, _sed_line(expression)) for path in paths]
    return [Effect("read", path, _sed_lines(expression)) for path in paths]


def _sed_line(expression: str) -> str:
    """Return the first line that `sed` writes into a file, if it is literal."""
    found = _SUBSTITUTED.fullmatch(expression) or _INSERTED.fullmatch(expression)
    put = found[found.lastindex or 0] if found else ""
    if re.search(r"&|\\[0-9]", put):
        return ""
    lines = put.replace("\\n", "\n").replace("\\t", " ").split("\n")
    return next((line for line in (re.sub(r"\\(.)|\\$", r"\1", line).strip() for line in lines) if line), "")


def _sed_lines(expression: str) -> str:
    lines = _PRINTED_LINES.fullmatch(expression)
    if lines:
        return f"{lines[1]}-{lines[2] or lines[1]}"
    return _look(expression.removesuffix("p")) if expression[:1] == "/" and expression[-1:] == "p" else ""


def _look(text: str) -> str:
    """Return a search pattern without the delimiters used in handoff lines."""
    return " ".join(_BETWEEN.sub(" ", text[: 4 * MAX_LOOK_CHARS]).split())[:MAX_LOOK_CHARS].rstrip()


def _show(step: Step) -> list[Effect]:
    if step.document is not None:
        return []
    words = step.words[1:]
    looked = ""
    if step.program in ("head", "tail"):
        looked = _ends(step)
        words = [word for at, word in enumerate(words) if at == 0 or words[at - 1] not in ("-n", "-c")]
    paths = [path for path in _plain(words) if is_path(path) and not path.lstrip("+").isdigit()]
    return [Effect("read", path, looked) for path in (*paths, *filter(is_path, step.reads))]


def _ends(step: Step) -> str:
    """Return the line range that `head` or `tail` shows."""
    found = _COUNT.search(" ".join(step.words[1:4]))
    count = found[1] if found else "10"
    if "-c" in step.words[1:3]:
        return ""
    if step.program == "head":
        return "" if count[0] == "+" else f"1-{count}"
    return f"{count[1:]}-" if count[0] == "+" else f"last {count}"


def _pattern_and_files(words: Sequence[str]) -> list[str]:
    """Return the pattern and the files of a search."""
    return [
        word
        for before, word in pairwise(words)
        if before in ("-e", "--regexp") or not (word[:1] == "-" or before in _VALUED)
    ]


def _search(step: Step) -> list[Effect]:
    plain = _pattern_and_files(step.words)
    kind: Kind = "see" if _context(step.words) < MIN_READ_CONTEXT_LINES else "read"
    return [
        Effect(kind, path, f"search {_look(plain[0])}")
        for path in plain[1:]
        if is_path(path) and _EXTENSION.search(path)
    ]


def _narrow(effects: list[Effect], step: Step) -> list[Effect]:
    """Narrow the effects of showing files to what the next program of the pipe prints."""
    kind: Kind = "read"
    looked = ""
    if step.program in _COUNTING or (step.program in _SEARCHING and _context(step.words) < MIN_READ_CONTEXT_LINES):
        kind = "see"
    elif step.program in _SEARCHING:
        looked = f"search {_look(next(iter(_pattern_and_files(step.words)), ''))}"
    elif step.program in ("head", "tail"):
        looked = _ends(step)
    elif step.program == "sed" and "-n" in step.words[1:-1]:
        looked = _sed_lines(step.words[-1])
    return [
        Effect(kind, effect.path, effect.target or looked) if effect.kind == "read" else effect for effect in effects
    ]


def _context(words: Sequence[str]) -> int:
    """Return the number of context lines that a search prints."""
    command = " ".join(words)
    found = _LINES_AROUND.findall(command) if any(option in command for option in ("-A", "-B", "-C")) else ()
    return max(map(int, found), default=0)


def _remove(step: Step) -> list[Effect]:
    paths = [word for word in _plain(step.words[1:]) if word not in (".", "/", "~") and "$" not in word]
    return [Effect("delete", path) for path in paths if is_path(path) or "*" in path]


def _relocate(kind: Literal["move", "copy"]) -> Callable[[Step], list[Effect]]:
    def rule(step: Step) -> list[Effect]:
        plain = _plain(step.words[1:])
        if len(plain) < 2 or not is_path(plain[-1]):
            return []
        target = plain[-1]
        is_folder = target.endswith("/") or len(plain) > 2
        found = []
        for path in plain[:-1]:
            if is_path(path):
                into = f"{target.rstrip('/')}/{path.rstrip('/').rpartition('/')[2]}" if is_folder else target
                found.append(Effect(kind, path, into))
        return found

    return rule


def _write_all(step: Step) -> list[Effect]:
    """Return the effects of `tee` and `touch`."""
    kind: Kind = "append" if "-a" in step.words else "write"
    return [Effect(kind, path, text=step.document or "") for path in _plain(step.words[1:]) if is_path(path)]


def _make_folders(step: Step) -> list[Effect]:
    return [Effect("make", path) for path in _plain(step.words[1:]) if is_path(path)]


def _download(step: Step) -> list[Effect]:
    words = step.words
    return [
        Effect("write", path)
        for option, path in pairwise(words)
        if option in ("-o", "-O", "--output") and is_path(path)
    ]


def _perl(step: Step) -> list[Effect]:
    words = step.words
    if not any(_PERL_IN_PLACE.fullmatch(word) for word in words[1:]):
        return []
    plain = [
        word for at, word in enumerate(words) if at and not word.startswith("-") and not words[at - 1].endswith("e")
    ]
    return [Effect("change", path, "perl") for path in plain if is_path(path)]


def _patch_file(step: Step) -> list[Effect]:
    if step.document:
        return [Effect("patch", text=step.document)]
    return [Effect("patch", path) for path in (*step.reads, *_plain(step.words[1:])) if is_path(path)]


def script_of(words: Sequence[str]) -> str | None:
    """Return the file that an interpreter runs, or "" if the script is in the command."""
    program = words[0].rpartition("/")[2]
    if not (program.startswith("python") or program in _INTERPRETERS):
        return words[0] if words[0].endswith(SCRIPTS) else None
    if "-m" in words[1:3] or words[1:2] in (["-n"], ["--check"]):
        return None
    if "-c" in words[1:3] or "-e" in words[1:3]:
        return ""
    plain = (word for before, word in pairwise(words) if word[:1] != "-" and before not in ("-W", "-X"))
    return next((word for word in plain if word != "<<EOF"), "")


def _script(step: Step) -> list[Effect]:
    words = step.words
    path = script_of(words)
    if path:
        return [Effect("script", path)] if is_path(path) else []
    inline = next((text for option, text in pairwise(words[:4]) if option in ("-c", "-e")), step.document)
    return [Effect("script", text=inline)] if path == "" and inline else []


def _git(step: Step) -> list[Effect]:
    words = step.words[1:]
    while words and words[0].startswith("-"):
        words = words[2 if words[0] in ("-C", "-c") else 1 :]
    if not words:
        return []
    command, rest = words[0], words[1:]
    plain = _plain(rest)
    if command == "mv" and len(plain) >= 2:
        return _relocate("move")(Step(["mv", *rest], [], [], ""))
    if command == "rm" and "--cached" not in rest:
        return [Effect("delete", path) for path in plain if is_path(path)]
    if command == "status":
        return [Effect("branch")]
    if command in ("checkout", "restore", "switch", "reset", "clean"):
        found = _git_revert(command, rest, plain)
        return [*found, Effect("branch")] if command in ("checkout", "switch") else found
    if command == "stash":
        verb = plain[0] if plain else "push"
        kinds: Mapping[str, Kind] = {"push": "stash", "save": "stash", "pop": "unstash", "apply": "unstash"}
        return [Effect(kinds[verb])] if verb in kinds else []
    if command == "apply" and not any(option in rest for option in ("--check", "--stat", "--cached")):
        return _patch_file(Step(["git", *rest], [], step.reads, "", document=step.document))
    if command == "show" and plain and ":" in plain[0]:
        path = plain[0].partition(":")[2]
        return [Effect("read", path, plain[0].partition(":")[0])] if is_path(path) else []
    return []


def _git_revert(command: str, rest: list[str], plain: list[str]) -> list[Effect]:
    if command == "reset":
        return [Effect("revert")] if "--hard" in rest else []
    if command == "clean" or "--staged" in rest or "-b" in rest or "-B" in rest:
        return []
    if "--" in rest:
        paths = rest[rest.index("--") + 1 :]
        other = next((word for word in plain if word not in paths), "HEAD")
        if command == "checkout" and other != "HEAD":
            return [Effect("change", path, f"as in {other}") for path in paths if is_path(path)]
    elif command == "restore":
        paths = plain
    else:
        paths = [word for word in plain[-3:] if "." in word.rpartition("/")[2] or word == "."]
    if paths == ["."] or paths == ["./"]:
        return [Effect("revert")]
    return [Effect("revert", path) for path in paths if is_path(path)]


def _stop(step: Step) -> list[Effect]:
    return [Effect("stop", target) for target in _plain(step.words[1:])]


def _docker(step: Step) -> list[Effect]:
    words = step.words
    if words[1:2] == ["run"] and any(word in ("-d", "--detach", "-dit", "-itd") for word in words):
        name = next((words[at + 1] for at, word in enumerate(words[:-1]) if word == "--name"), "")
        return [Effect("start", name, " ".join(words))]
    return [Effect("stop", name) for name in _plain(words[2:])] if words[1:2] in (["stop"], ["rm"], ["kill"]) else []


_QUIET = frozenset(
    {"cat", "head", "tail", "grep", "rg", "sed", "ls", "echo", "printf", "wc", "awk", "sort", "jq", "cut"}
)
"""Programs that neither act nor check."""
_HANDLING = _QUIET | {
    "rm", "cp", "mv", "ln", "chmod", "chown", "touch", "mkdir", "tee", "test", "[", "diff", "file", "stat", "less",
    "more", "nl", "bat", "find", "black", "isort", "ruff", "prettier", "gofmt", "eslint", "biome", "rustfmt",
}  # fmt: skip
"""Programs that handle files without running them."""
_INTERPRETERS = frozenset({"node", "bash", "sh", "zsh", "ruby", "php", "tsx", "ts-node"})
_Rule = Callable[[Step], list[Effect]]
_RULES: dict[str, _Rule] = {
    "sed": _sed_effects, "gsed": _sed_effects, "perl": _perl, "rm": _remove, "unlink": _remove, "mv": _relocate("move"),
    "cp": _relocate("copy"), "tee": _write_all, "touch": _write_all, "curl": _download, "wget": _download,
    "patch": _patch_file, "ln": _relocate("copy"), "git": _git, "kill": _stop, "pkill": _stop,
    "killall": _stop, "docker": _docker, "mkdir": _make_folders,
    **dict.fromkeys(("cat", "head", "tail", "nl", "less", "more", "bat", "batcat"), _show),
    **dict.fromkeys(_SEARCHING, _search),
}  # fmt: skip


# Detection of the programs that succeeded.

BLAME_WINDOW_CHARS = 2_000


class StepResult(NamedTuple):
    done: bool
    reason: str = ""


CHANGES = frozenset(
    {"write", "append", "change", "delete", "move", "copy", "revert", "stash", "unstash", "patch", "act", "make"}
)
_OWN = re.compile(r"^(?:/[\w/]{1,40}/)?([\w.-]{1,30}): [^\n]{1,300}", re.MULTILINE)
_OWN_PROGRAMS = frozenset(
    {"sed", "mv", "cp", "rm", "tee", "touch", "cat", "perl", "patch", "mkdir", "curl", "python", "python3"}
)


def digest_failed(text: str) -> bool:
    """Return whether the digest of a result marks its call as failed."""
    outcome = text.partition(" -> ")[2]
    return outcome.startswith("failed") or (outcome.startswith("exit ") and not outcome.startswith("exit 0"))


_NO_COMMAND = re.compile(
    r"(?:(?:/bin/)?\w{0,3}sh: (?:-c: )?(?:line \d{1,6}: )?|\(eval\):\d{1,6}: )"
    r"(?:syntax error|unexpected EOF|parse error)"
)
"""Syntax errors that a shell reports for the whole command."""


def step_results(steps: list[Step], effects: list[list[Effect]], body: Body) -> list[StepResult] | None:
    """Return whether each program succeeded, with the reason if not; None if the whole command was rejected."""
    if body.text[:1] == "[" and is_digest(body.text):
        outcome = body.text.partition(" -> ")[2]
        return _break_at(steps, len(steps) - 1 if digest_failed(body.text) else len(steps), outcome)
    stated = stated_outcome(body, content=True, opening=not _shows(steps[0]))
    if (stated.failed and stated.from_harness) or _NO_COMMAND.match(body.text):
        return None
    failed = bool(stated.failed)
    if stated.failed is None:
        stated = ending(body)
        failed = bool(stated.failed) and not _shows(steps[-1])
    own = _own_errors(steps, body.text)
    if own:
        number, reason = next(iter(own.items()))
        if failed or len(steps) == 1:
            return _break_at(steps, number, reason)
        return [StepResult(at not in own, own.get(at, "")) for at in range(len(steps))]
    if not failed:
        return [StepResult(True)] * len(steps)
    reason = error_line(body) or stated.reason or f"exit {body.exit_code}"
    return _break_at(steps, _suspect(steps, effects, body.text), reason)


def _shows(step: Step) -> bool:
    if step.program == "git":
        return any(word in ("status", "log", "diff", "show", "branch") for word in step.words[1:4])
    return step.program in ("cat", "grep", "rg", "sed", "head", "tail", "ls", "find", "echo", "awk", "jq", "wc", "diff")


def _own_errors(steps: list[Step], text: str) -> dict[int, str]:
    """Return the error messages of programs that print their name before it."""
    found: dict[int, str] = {}
    window = text if len(text) <= 6_000 else text[:3_000] + "\n" + text[-3_000:]
    programs = {step.program for step in steps}
    if not any(f"{program}: " in window for program in programs & _OWN_PROGRAMS) and "git" not in programs:
        return found
    complaints = {match[1]: match[0] for match in _OWN.finditer(window)}
    git = GIT_ERROR.search(window) if "git" in programs else None
    for number, step in enumerate(steps):
        program = step.program
        if program in _OWN_PROGRAMS and program in complaints:
            found[number] = complaints[program]
        elif git is not None and program == "git":
            found.setdefault(number, git[0])
    if git is not None and len([number for number in found if steps[number].program == "git"]) > 1:
        numbers = [number for number in found if steps[number].program == "git"]
        for number in numbers[:-1]:
            del found[number]
    return found


_BLAMED = re.compile(
    r"\[([\w.-]{1,60})[\w:.-]{0,60}\] ERROR task failed|script \"([\w:.-]{1,60})\" exited"
    r"|^make: \*\*\* \[(?:[^\]\n]{1,80}: )?([\w.-]{1,60})\]",
    re.MULTILINE,
)
"""The task that a runner reports as failed."""
_BLAMING = ("ERROR task failed", '" exited', "make: *** [")
"""Substrings; every match of `_BLAMED` contains one of them."""


def _suspect(steps: list[Step], effects: list[list[Effect]], output: str) -> int:
    """Return the index of the program that probably failed, if none prints its name in an error.

    That is the task named by its runner; else the first check after which no other ran; else the first program that
    runs something and changes no files; else the last one. Programs that only show content are skipped.
    """
    window = output[-BLAME_WINDOW_CHARS:]
    blamed = _BLAMED.findall(window) if any(map(window.__contains__, _BLAMING)) else ()
    failed_tasks = {name for groups in blamed for name in groups if name}
    running: list[int] = []
    checking: list[int] = []
    for number, step in enumerate(steps):
        if not failed_tasks.isdisjoint(step.words[1:]):
            return number
        kinds = {effect.kind for effect in effects[number]}
        checks = [effect for effect in effects[number] if effect.kind == "check"]
        if any(next_check_ran(output, check.path, check.text) for check in checks):
            continue
        if checks:
            checking.append(number)
        if not kinds & CHANGES and not _shows(step) and step.program not in (":", "mkdir", "export", "source", "set"):
            running.append(number)
    last = next((number for number in range(len(steps) - 1, -1, -1) if not _shows(steps[number])), len(steps) - 1)
    return next(iter((*checking, *running)), last)


def _break_at(steps: list[Step], number: int, reason: str) -> list[StepResult]:
    """Mark a program as failed, and the later ones that depend on it; the others succeeded."""
    found = [StepResult(True)] * len(steps)
    broken = False
    for at in range(number, len(steps)):
        if at == number:
            broken = True
            found[at] = StepResult(False, reason)
        elif broken and steps[at - 1].joiner in ("&&", "|"):
            found[at] = StepResult(False, "")
        else:
            broken = steps[at - 1].joiner == "&&" and broken
    return found


def script_changes(script: str) -> list[Effect]:
    """Return the effects of a script on files; a written file that it also reads is changed, not new."""
    found: list[Effect] = []
    opened = accesses(script)
    if not opened:
        return found
    shown = {access.path for access in opened if access.how == "read"}
    is_changed = any(access.how == "write" and access.path in shown for access in opened)
    inner = names_in("\n".join(line for line in script.split("\n") if line[:1] in (" ", "\t"))) if is_changed else ()
    for access in opened:
        if access.how == "write":
            found.append(Effect("change" if access.path in shown else "write", access.path, ", ".join(inner)))
        elif access.how == "append":
            found.append(Effect("append", access.path))
        elif access.how == "delete":
            found.append(Effect("delete", access.path))
        elif access.how in ("move", "copy"):
            found.append(Effect("move" if access.how == "move" else "copy", access.path, access.target))
    return found


_TEMPORARY = re.compile(r"/tmp/tmp[a-z0-9_]{8}(?![a-z0-9_])")
_LEAVING, _CLEARING = ("mkdtemp(", "mkstemp(", "delete=False"), ("rmtree(", "os.remove(", "os.unlink(", ".unlink(")


def leftover_files(script: str, body: Body, *, is_ended: bool) -> list[str]:
    """Return temporary files that a Python script created, printed and did not remove."""
    if not any(word in script for word in _LEAVING) or (is_ended and any(word in script for word in _CLEARING)):
        return []
    return list(dict.fromkeys(_TEMPORARY.findall(body.head)))
