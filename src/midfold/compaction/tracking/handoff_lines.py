"""Render a trail as handoff lines, and parse it back.

1. Newest first, whole lines only, within a token budget. Running tasks and failures come before everything, changed
   files before read ones, sources before tests, tests before scratch files.
2. `parse` reads what `render` writes, so that handoffs carry the trail unchanged. Other lines are ignored.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from midfold.compaction.summary import parse_summary
from midfold.compaction.tracking.checks import latest_checks
from midfold.compaction.tracking.entries import (
    CheckRun,
    FileRead,
    FileState,
    GitState,
    RunningTask,
    TrackedFile,
    Trail,
    WorldAct,
)
from midfold.compaction.tracking.file_tracker import folders_above
from midfold.compaction.tracking.side_effects import NO_HASH, latest_acts
from midfold.transcript.tokens import estimate_text

FILES, DONE, STATE, BLOCKED = "files", "done", "active_state", "blocked"
"""Sections of a handoff."""
FILES_SHARE = 0.5
OPEN_SHARE = 0.4
"""Shares of the remaining budget for changed files, and for failed or open acts."""
MAX_CHECKS_SHOWN = 4
"""Maximum number of checks; half of that within a small budget."""
SMALL_BUDGET_TOKENS = 300
"""Budgets below this are small."""
SHOWN_IN_GROUP = 40
NAMED_IN_FOLDER = 3
"""Maximum number of named files per directory; more are counted if no other file of the directory is known."""
SAME = "…/"
"""Replacement for a directory that is the same as in the path before."""
SMALL = ("fetch", "stage", "unstage", "mkdir", "rmdir", "chmod", "chown", "config")
"""Minor side effects, which come last."""
_GROUPS: tuple[tuple[FileState, bool, str], ...] = (
    ("deleted", False, "deleted"),
    ("reverted", False, "put back as they were"),
    ("scratch", False, "scratch files"),
    ("scratch", True, "scratch files, removed again"),
)
_ALSO: tuple[tuple[FileState, bool, str], ...] = (
    ("changed", False, "also changed"),
    ("created", False, "also created"),
    ("moved", False, "also moved"),
)
"""Groups of changed files that get no line of their own."""
_READ = "read, not changed"
_VERDICTS = {True: "passed", False: "FAILED", None: "ran, outcome not shown"}
_ENDED, _NOT_STARTED = "ran to its end", "did NOT start"
_OUTCOMES = {True: "done", False: "FAILED", None: "outcome not shown"}
_NO_COMMIT, _DIRTY = "no commit seen", ("; files changed", "; files changed after it")
_UNCHANGED, _UNTESTED = "- no change of a file was seen in these turns", "- no test or build was seen in these turns"
_NO_MODULE = re.compile(r"No module named '?([\w.]{1,80})")
_NO_PROGRAM = re.compile(
    r"command not found|unrecognized subcommand|: not found$|not recognized as an internal|"
    r"ERROR: (?:file or directory )?not found: |\bImproperlyConfigured: (?:The SECRET_KEY|Requested) setting"
)
_TEST = re.compile(r"(?:^|[/_.-])(?:tests?|spec|specs|__tests__)(?:[/_.-]|$)|_test\.")


def render(trail: Trail, budget: int) -> dict[str, list[str]]:
    """Return lines by section of the handoff, at most `budget` tokens in total."""
    page = _Page(budget)
    for task in reversed(trail.running):
        page.add(STATE, f"- still running [{_plain(task.id)}]: {task.what}")
    inside = f"{trail.root or chr(0)}/"
    most = MAX_CHECKS_SHOWN if budget >= SMALL_BUDGET_TOKENS else MAX_CHECKS_SHOWN // 2
    checks = [_check_line(check).replace(inside, "") for check in latest_checks(trail)]
    checks = sorted(checks, key=lambda line: f" {_NOT_STARTED}" in line)[:most]
    for line in checks[:1]:
        page.add(STATE, line)
    if trail.git != GitState():
        page.add(STATE, _git_line(trail.git))
    if trail.reads and not (trail.files or trail.git.is_dirty or any(act.what not in SMALL for act in trail.acts)):
        page.add(STATE, _UNCHANGED)
    changed = [file for file in reversed(trail.files) if file.state in ("created", "changed", "moved")]
    if changed and not trail.checks:
        page.add(STATE, _UNTESTED)
    changed.sort(key=lambda file: bool(_TEST.search(file.path)))
    running = {task.id for task in trail.running}
    acts = latest_acts(
        [
            replace(act, text=act.text.replace(" -> ", " → "), outcome=act.outcome.replace(inside, ""))
            for act in trail.acts
            if act.what != "start" or act.outcome not in running
        ]
    )
    page.fill_open(acts, page.left * OPEN_SHARE)
    if not trail.is_empty and (trail.root or trail.ahead):
        page.add(FILES, _frame(trail))
    page.fill(FILES, [_file_line(file, short=True) for file in changed], page.left * FILES_SHARE)
    longer = {_file_line(file, short=True): _file_line(file, short=False) for file in changed}
    if budget < SMALL_BUDGET_TOKENS:
        page.name_rest(changed)
        page.lengthen(longer)
    for line in checks[1:]:
        page.add(STATE, line)
    page.fill(DONE, [_act_line(act) for act in acts if act.ok and act.what not in SMALL], page.left)
    if budget >= SMALL_BUDGET_TOKENS:
        page.fill(FILES, [_file_line(file, short=True) for file in changed][page.count(FILES, changed) :], page.left)
        page.name_rest(changed)
    for state, gone, label in _GROUPS:
        items = [file for file in reversed(trail.files) if (file.state, file.gone) == (state, gone)]
        page.group(DONE if state == "deleted" else FILES, label, list(_in_folders(items, trail)))
    page.fill(DONE, [_act_line(act) for act in acts if act.ok and act.what in SMALL], page.left)
    if budget >= SMALL_BUDGET_TOKENS or not changed:
        page.group(FILES, _READ, [_read_words(read) for read in reversed(trail.reads)])
    if page.sections.get(FILES) == [_frame(trail)]:
        page.remove(FILES)
    page.lengthen(longer)
    return page.sections


def _in_folders(items: Sequence[TrackedFile], trail: Trail) -> Iterator[str]:
    """Yield paths; many in one directory become one entry if no other file of it is known."""
    theirs = {item.path for item in items}
    rest = [*(file.path for file in trail.files if file.path not in theirs), *(read.path for read in trail.reads)]
    mixed = {folder for path in rest for folder in (path, *folders_above(path))}
    above = [[*([item.path] if item.below else []), *folders_above(item.path)] for item in items]
    counts: Counter[str] = Counter()
    for item, folders in zip(items, above, strict=True):
        counts.update(dict.fromkeys(folders, item.below or 1))
    listed: set[str] = set()
    for item, folders in zip(items, above, strict=True):
        whole = [folder for folder in folders if counts[folder] > NAMED_IN_FOLDER and folder not in mixed]
        folder = next((one for one in whole if counts[one] == counts[whole[-1]]), "")
        if folder not in listed:
            yield f"{_plain(folder)}/ ({counts[folder]} files)" if folder else _plain(item.path)
        listed |= {folder} if folder else set()


class _Page:
    def __init__(self, budget: int) -> None:
        self.left = float(budget)
        self.sections: dict[str, list[str]] = {}

    def add(self, section: str, line: str) -> bool:
        cost = estimate_text(line) + 1
        if cost > self.left:
            return False
        self.left -= cost
        self.sections.setdefault(section, []).append(line)
        return True

    def remove(self, section: str) -> None:
        self.left += sum(estimate_text(line) + 1 for line in self.sections.pop(section))

    def fill(self, section: str, lines: list[str], budget: float) -> None:
        floor = self.left - budget
        for line in lines:
            if self.left - estimate_text(line) - 1 < floor or not self.add(section, line):
                return

    def fill_open(self, acts: Sequence[WorldAct], budget: float) -> None:
        """Add side effects that failed or have no known outcome, without the outcome text if that is too long."""
        floor = self.left - budget
        for act in acts:
            lines = () if act.ok else (_act_line(act), _act_line(replace(act, outcome="")))
            short = next((line for line in lines if self.left - estimate_text(line) - 1 >= floor), "")
            if short:
                self.add(STATE if act.ok is None else BLOCKED, short)

    def name_rest(self, files: list[TrackedFile]) -> None:
        """Add the files that have no line of their own, in groups."""
        rest = files[self.count(FILES, files) :]
        for state, _, label in _ALSO:
            self.group(FILES, label, [_plain(file.path) for file in rest if file.state == state])

    def count(self, section: str, files: list[TrackedFile]) -> int:
        """Return how many of the files have a line."""
        there = set(self.sections.get(section, ()))
        return sum(_file_line(file, short=True) in there for file in files)

    def group(self, section: str, label: str, items: list[str]) -> None:
        """Add one line for many items, as many as fit."""
        shown: list[str] = []
        budget = self.left - estimate_text(label) - 8
        for item in _from_the_same_folders(items[:SHOWN_IN_GROUP]):
            budget -= estimate_text(item) + 1
            if budget < 0:
                break
            shown.append(item)
        if shown:
            more = f" (and {len(items) - len(shown)} more)" if len(shown) < len(items) else ""
            self.add(section, f"- {label}: {'; '.join(shown)}{more}")

    def lengthen(self, longer: Mapping[str, str]) -> None:
        """Replace lines of the newest files by longer ones while tokens are left."""
        lines = self.sections.get(FILES, [])
        for at, line in enumerate(lines):
            better = longer.get(line)
            cost = estimate_text(better) - estimate_text(line) if better else 0
            if better and 0 < cost <= self.left:
                lines[at] = better
                self.left -= cost


def _from_the_same_folders(paths: Sequence[str]) -> Iterator[str]:
    """Yield paths without the directory if it is the same as in the path before."""
    before = ""
    for path in paths:
        folder, _, name = path.partition(" (")[0].rpartition("/")
        yield f"{SAME}{path[len(folder) + 1 :]}" if folder and name and folder == before else path
        before = folder


def _with_folders(items: Iterable[str]) -> Iterator[str]:
    """Expand the paths of such items."""
    before = ""
    for item in items:
        path = f"{before}/{item.removeprefix(SAME)}" if item.startswith(SAME) else item
        yield path
        before = path.partition(" (")[0].rpartition("/")[0]


def _frame(trail: Trail) -> str:
    below = f"{trail.ahead} messages below included" if trail.ahead else ""
    return f"- ({'; '.join(filter(None, [below, f'in {trail.root}' if trail.root else '']))})"


def _plain(text: str) -> str:
    return text.replace("`", "'").replace("; ", ", ").replace(" -> ", " → ")


def _check_line(check: CheckRun) -> str:
    verdict = _ENDED if check.ok and check.kind == "script" else _VERDICTS[check.ok]
    if check.ok is False and any(_lacks_runner(check.command, line) for line in check.fails):
        verdict = _NOT_STARTED
    counts = f" ({_plain(check.counts)})" if check.counts else ""
    before = f", before the last change of {_plain(check.before)}" if check.before else ""
    fails = f"; failing: {' | '.join(map(_plain, check.fails))}" if check.fails else ""
    return f"- last {check.kind}: {_quote(check.command)} {verdict}{counts}{before}{fails}"


def _lacks_runner(command: str, failure: str) -> bool:
    """Return whether the program that runs a check is missing, so that nothing was checked."""
    module = _NO_MODULE.search(failure)
    return module[1] in command.split() if module else _NO_PROGRAM.search(failure) is not None


def _git_line(git: GitState) -> str:
    branch = f"on {_plain(git.branch)}; " if git.branch else ""
    commit = f"last commit {git.commit}" if git.commit else _NO_COMMIT
    return f"- git: {branch}{commit}{_DIRTY[bool(git.commit)] if git.is_dirty else ''}"


def _act_line(act: WorldAct) -> str:
    shown = act.outcome.removesuffix(f": {act.text}")
    outcome = f" -> {shown}" if shown else ""
    return f"- [{_OUTCOMES[act.ok]}] {act.what}: {act.text}{outcome}"


def _file_line(file: TrackedFile, *, short: bool) -> str:
    source = f" from {_plain(file.source)}" if file.source else ""
    script = f" by {_plain(file.by)}" if file.by else ""
    line = f"- {_plain(file.path)}: {file.state}{script}{source}"
    if file.added or file.removed:
        line += f" +{file.added} -{file.removed}"
    if file.edits > 1:
        line += f" in {file.edits} edits"
    if short:
        return line
    if file.names:
        line += f"; touched {', '.join(map(_plain, file.names))}"
    return line + (f"; now {_quote(file.last)}" if file.last else "")


def _quote(code: str) -> str:
    """Quote code verbatim, in backticks that do not occur in it."""
    marks = next(marks for marks in ("`", "``", "```", "````") if marks not in code or marks == "````")
    return f"{marks} {code} {marks}" if "`" in code else f"`{code}`"


def _read_words(read: FileRead) -> str:
    looked = f" ({', '.join(read.looked)})" if read.looked else ""
    return _plain(f"{read.path}{looked}")


_FRAME_LINE = re.compile(
    r"- \((?:(?:the )?(\d{1,9}) messages below included)?(?:; )?(?:(?:paths are )?in ([^\n]{1,400}))?\)"
)
_FILE_LINE = re.compile(
    r"- ([^\n]{1,400}?): (created|changed|moved)(?: by ([^\s;]{1,80}))?(?: from ([^;\n]{1,400}?))?"
    r"(?: \+(\d{1,9}) -(\d{1,9}))?"
    r"(?: in (\d{1,9}) edits)?(?:; touched ([^;`\n]{1,2000}))?"
    r"(?:; now (?:`([^`\n]{1,400})`|``{1,3} ([^\n]{1,400}) ``{1,3}))?"
)
_GROUP_LINE = re.compile(
    rf"- ({'|'.join(label for _, _, label in (*reversed(_GROUPS), *_ALSO))}|{_READ}): ([^\n]{{1,20000}}?)"
    r"(?: \(and \d{1,9} more\))?"
)
_GIT_LINE = re.compile(
    rf"- git: (?:on ([^\n;]{{1,400}}); )?(?:last commit ([0-9a-f]{{7,40}}|{re.escape(NO_HASH)})|"
    r"no commit (?:was )?seen)(; files (?:were )?changed(?: after it)?)?"
)
_FOLDER = re.compile(r"([^\n]{1,400})/ \((\d{1,9}) files\)")
_ACT_LINE = re.compile(r"- \[(done|FAILED|outcome not shown)\] ([\w-]{1,40}): ?([^\n]{0,400}?)(?: -> ([^\n]{0,400}))?")
_RUNNING_LINE = re.compile(r"- still running \[([^\]\n]{1,200})\]: ?([^\n]{0,400})")
_CHECK_LINE = re.compile(
    r"- last (test|build|lint|typecheck|script): (?:`([^`\n]{0,400})`|``{1,3} ([^\n]{1,400}?) ``{1,3}) "
    rf"({'|'.join(_VERDICTS.values())}|{_ENDED}|{_NOT_STARTED})"
    r"(?: \(([^\n]{1,200}?)\))?(?:, before the last change of ([^\n]{1,400}?))?(?:; failing: ([^\n]{1,4000}))?"
)
_LOOKED = re.compile(r"([^\n]{1,400}?)(?: \(([^()\n]{1,400})\))?")


def parse(handoff: str) -> Trail:
    """Parse the lines that `render` wrote in a handoff."""
    found = _Parsed()
    summary = parse_summary(handoff)
    for text in (summary.files, summary.done, summary.active_state, summary.blocked):
        for line in text.split("\n"):
            if line.startswith("- "):
                found.line(line[:22_000].rstrip())
    return found.trail()


def without_trail(handoff: str) -> str:
    """Return the handoff without the lines that `render` wrote."""
    return "\n".join(
        line for line in handoff.split("\n") if not (line.startswith("- ") and _Parsed().line(line.rstrip()))
    )


class _Parsed:
    def __init__(self) -> None:
        self.root = ""
        self.ahead = 0
        self.files: list[TrackedFile] = []
        self.reads: list[FileRead] = []
        self.acts: list[WorldAct] = []
        self.running: list[RunningTask] = []
        self.checks: list[CheckRun] = []
        self.git = GitState()

    def line(self, line: str) -> bool:
        """Parse a line and return whether `render` wrote it."""
        if line in (_UNCHANGED, _UNTESTED):
            return True
        if frame := _FRAME_LINE.fullmatch(line):
            self.ahead, self.root = int(frame[1] or 0), frame[2] or ""
        elif group := _GROUP_LINE.fullmatch(line):
            self._group(group[1], list(_with_folders(group[2].split("; "))))
        elif act := _ACT_LINE.fullmatch(line):
            ok = next(ok for ok, word in _OUTCOMES.items() if word == act[1])
            self.acts.append(WorldAct(what=act[2], text=act[3], ok=ok, outcome=act[4] or ""))
        elif task := _RUNNING_LINE.fullmatch(line):
            self.running.append(RunningTask(id=task[1], what=task[2]))
        elif check := _CHECK_LINE.fullmatch(line):
            self._check(check)
        elif git := _GIT_LINE.fullmatch(line):
            self.git = GitState(branch=git[1] or "", commit=git[2] or "", is_dirty=bool(git[3]))
        elif file := _FILE_LINE.fullmatch(line):
            self._file(file)
        else:
            return False
        return True

    def _check(self, found: re.Match[str]) -> None:
        kind, command, quoted, verdict, counts, before, fails = found.groups()
        self.checks.append(
            CheckRun(
                kind=kind,  # type: ignore[arg-type]
                command=command or quoted or "",
                ok={_VERDICTS[False]: False, _NOT_STARTED: False, _VERDICTS[None]: None}.get(verdict, True),
                counts=counts or "",
                fails=tuple(fails.split(" | ")) if fails else (),
                before=before or "",
            )
        )

    def _file(self, found: re.Match[str]) -> None:
        path, state, script, source, added, removed, edits, names, last, quoted = found.groups()
        self.files.append(
            TrackedFile(
                path=path,
                state=state,  # type: ignore[arg-type]
                by=script or "",
                source=source or "",
                added=int(added or 0),
                removed=int(removed or 0),
                edits=int(edits or 1),
                names=tuple(names.split(", ")) if names else (),
                last=last or quoted or "",
            )
        )

    def _group(self, label: str, items: list[str]) -> None:
        if label == _READ:
            for item in items:
                words = _LOOKED.fullmatch(item)
                if words:
                    looked = tuple(words[2].split(", ")) if words[2] else ()
                    self.reads.append(FileRead(path=words[1], looked=looked))
            return
        state, gone = next((state, gone) for state, gone, known in (*_GROUPS, *_ALSO) if known == label)
        edits = int(any(label == known for _, _, known in _ALSO))
        for item in items:
            folder = _FOLDER.fullmatch(item)
            path, below = (folder[1], int(folder[2])) if folder else (item, 0)
            self.files.append(TrackedFile(path=path, state=state, below=below, gone=gone, edits=edits))

    def trail(self) -> Trail:
        return Trail(
            files=tuple(reversed(self.files)),
            acts=tuple(act for is_done in (True, False) for act in reversed(self.acts) if bool(act.ok) is is_done),
            running=tuple(reversed(self.running)),
            checks=tuple(reversed(self.checks)),
            git=self.git,
            reads=tuple(reversed(self.reads)),
            root=self.root,
            ahead=self.ahead,
        )
