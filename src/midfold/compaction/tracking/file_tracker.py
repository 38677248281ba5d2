"""Track the files of a trail: one record per real path, with its state.

1. Relative and absolute spellings of a file are one file. If the directory is unknown, the suffix of a known path
   decides.
2. A created file stays created however often it is edited, a changed file stays changed. Created and removed is
   scratch; restored is reverted.
3. Also scratch: files in a temporary directory, new files named like a backup, and new files that were run or passed to
   a program, are named like an experiment, and lie outside the project or in its root while its other files lie in
   directories. Deleting a directory deletes the files known in it; writing into it again restores it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

from msgspec.structs import replace

from midfold.compaction.tracking.edits import SCRIPTS, FileEdit, merge_names
from midfold.compaction.tracking.entries import MAX_READS, FileRead, FileState, TrackedFile, Trail

TEMPORARY = ("/tmp/", "/private/tmp/", "/var/folders/", "/var/tmp/", "/dev/shm/", "$TMPDIR", "${TMPDIR", "$(mktemp")
MAX_LOOKS = 6
MIN_ROOT_DEPTH = 3
"""Minimum depth of a shared directory: `/home/me/project` qualifies, `/home` does not."""
MAX_PATH_CHARS = 300
PATTERN = "*?["
_ONE_WORD = re.compile(r"[^\s;]{1,80}")
"""A name that fits into a handoff line."""
_WORD, _BACKUP = re.compile(r"[a-z]+"), re.compile(r"\.(?:bak|backup|orig|old)\d{0,3}$")
_ATTEMPTS = frozenset(
    {
        "test", "tests", "repro", "reproduce", "reproducer", "debug", "fix", "check", "verify", "validate", "try",
        "tmp", "temp", "scratch", "demo", "apply", "patch", "update", "trace", "simple", "minimal", "quick", "inspect",
        "explore", "final", "issue", "analyze", "analyse", "fixes", "run", "show", "manual", "edit", "modify",
    }
)  # fmt: skip
"""Words in the names of experimental scripts."""
_NO_TRIALS = frozenset(
    {
        "fix", "fixes", "apply", "patch", "update", "edit", "modify", "trace", "debug", "inspect", "explore",
        "analyze", "analyse", "show",
    }
)  # fmt: skip
"""Words that, if they come first, mark scripts that change files or only look around."""
_IMPORT = re.compile(r"(?:from[ ]([\w.]{1,200})[ ])?import[ ]([\w., ]{1,200})")
MAX_SCRIPT_CHARS = 4_000


class Places:
    """Paths as keys: absolute if the directory is known, whatever the spelling."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._known: dict[str, None] = {}
        """Known paths in order of appearance, so that a guessed root is the same in every process."""
        self._by_name: dict[str, list[str]] = {}

    def learn_root(self, folder: str) -> None:
        """Set the project directory to the first one named, unless a known file is outside it."""
        if not self.root and folder.startswith("/") and not is_temporary(folder + "/"):
            root = posixpath.normpath(folder)
            if all(path.startswith(f"{root}/") or path[0] != "/" or is_temporary(path) for path in self._known):
                self.root = root

    def learn_root_from(self, words: Iterable[str]) -> None:
        """Set the root to the directory in which these relative paths are known files."""
        for word in words:
            path = word.removeprefix("./").rstrip("/.")
            if "/" in path and path[0] not in "/~-$" and len(path) < MAX_PATH_CHARS:
                inside = f"/{path}/"
                works = (known for known in self._known if known[0] == "/" and not is_temporary(known))
                found = next((known for known in works if inside in f"{known}/"), None)
                if found is not None:
                    self.root = found[: f"{found}/".index(inside)]
                    return

    def settle_root(self) -> None:
        """Set the root to the directory shared by all known files, if there is none or some files are outside it."""
        known = [path for path in self._known if path[0] == "/" and not is_temporary(path)]
        if len(known) < 2 or (self.root and all(path.startswith(f"{self.root}/") for path in known)):
            return
        shared = posixpath.commonpath({posixpath.dirname(path) for path in known})
        if shared.count("/") >= MIN_ROOT_DEPTH:
            self.root = shared

    def key(self, path: str, folder: str = "") -> str:
        path = _normal(path.rstrip("/") or path)
        if path in self._known:
            return path
        if path.startswith("~") or path.startswith("$"):
            return path
        if not path.startswith("/"):
            base = folder if folder.startswith("/") else f"{self.root}/{folder}" if self.root and folder else self.root
            whole = _normal(f"{base}/{path}") if base else path
            if whole in self._known:
                return whole
            return self._same_end(path) or whole
        return self._same_end(path) or path

    def _same_end(self, path: str) -> str:
        """Return the known path that is the same file with more or fewer leading directories."""
        name = path.rpartition("/")[2]
        found = self._by_name.get(name)
        if not found:
            return ""
        if path.startswith("/"):
            ends = [known for known in found if not known.startswith("/") and path.endswith(f"/{known}")]
        else:
            ends = [known for known in found if known.startswith("/") and known.endswith(f"/{path}")]
            if len(ends) == 1 and not self.root and not is_temporary(ends[0]):
                self.root = ends[0][: -len(path) - 1]
        return ends[0] if len(ends) == 1 else ""

    def add(self, key: str) -> None:
        if key not in self._known:
            self._known[key] = None
            self._by_name.setdefault(key.rpartition("/")[2], []).append(key)

    def knows(self, key: str) -> bool:
        return key in self._known

    def spelling(self, key: str) -> str:
        return key[len(self.root) + 1 :] if self.root and key.startswith(f"{self.root}/") else key


def _normal(path: str) -> str:
    """Normalize a path; most need no change."""
    is_plain = "/." not in path and "//" not in path and not path.startswith(("./", "..")) and path[-1:] != "/"
    return path if is_plain else posixpath.normpath(path)


def is_temporary(path: str) -> bool:
    return path.startswith(TEMPORARY)


def _is_attempt(name: str) -> bool:
    return not _ATTEMPTS.isdisjoint(_WORD.findall(name.lower()))


def is_aside_file(key: str) -> bool:
    """Return whether a new file of this name is not part of the task: temporary, an experiment or a backup."""
    return is_temporary(key) or _is_attempt(posixpath.basename(key)) or _BACKUP.search(key) is not None


def _tries_out(key: str) -> bool:
    """Return whether an own script is named like a trial of whether something works."""
    found = [word for word in _WORD.findall(posixpath.basename(key).lower()) if word in _ATTEMPTS]
    return found[0] not in _NO_TRIALS if found else is_temporary(key)


def _module(path: str) -> str:
    """Return the last two parts of a file's module name."""
    parts = path.partition(".py")[0].removesuffix("/__init__").rsplit("/", 2)
    return ".".join(parts[-2:])


def _imports(script: str) -> Iterator[str]:
    """Yield the last two parts of the names that a script imports."""
    for source, names in _IMPORT.findall(script[:MAX_SCRIPT_CHARS]):
        for name in names.split(","):
            whole = f"{source}.{name.strip()}" if source else name.strip()
            yield from (".".join(one.split(".")[-2:]) for one in (whole, source) if one)


def folders_above(path: str) -> Iterator[str]:
    """Yield the directories of a path, innermost first."""
    place = path.rfind("/")
    while place > 0:
        yield path[:place]
        place = path.rfind("/", 0, place)


class FileTracker:
    """All files that were changed or read. Paths passed to it are keys of `places`."""

    def __init__(self, trail: Trail) -> None:
        self.places = Places(trail.root)
        self.files: dict[str, TrackedFile] = {}
        """Records by key; the path in a record may be outdated."""
        self.reads: dict[str, tuple[int, tuple[str, ...]]] = {}
        self.untried: set[str] = set()
        """Names of new files that look like experiments and were not passed to a program yet."""
        self._copies: dict[str, tuple[str, TrackedFile | None]] = {}
        self._stash: dict[str, TrackedFile] = {}
        for file in trail.files:
            self.files[self._add(file.path)] = file
        self.has_work = any(file.state != "scratch" for file in trail.files)
        """Whether anything besides experiments and backups was written."""
        self._modules = {_module(file.path) for file in trail.files if file.state != "scratch"}
        """Module names of the changed files."""
        for read in trail.reads:
            self.reads[self._add(read.path)] = (read.at, read.looked)
        last = max((act.at for act in trail.acts if act.ok and act.what == "commit"), default=-1)
        self._committed = {key: record for key, record in self.files.items() if record.at < last}

    def _add(self, path: str) -> str:
        """Add a path of an earlier trail: relative to the root, and never matched by suffix."""
        key = f"{self.places.root}/{path}" if self.places.root and path[:1] not in ("/", "~", "$") else path
        self.places.add(key)
        return key

    def read(self, key: str, looked: str, at: int) -> None:
        self.places.add(key)
        _, before = self.reads.get(key, (0, ()))
        looks = before if not looked or looked in before else (*before, looked)[-MAX_LOOKS:]
        self.reads.pop(key, None)
        self.reads[key] = (at, looks)

    def write(self, key: str, at: int, change: FileEdit, *, is_new: bool | None = None) -> None:
        """Record a write; the file is new if the tool says so, otherwise if it is unknown."""
        record = self.files.pop(key, None)
        if record is None:
            known = self.places.knows(key)
            state: FileState = "created" if (is_new if is_new is not None else not known) else "changed"
            record = TrackedFile(path=key, state="scratch" if is_temporary(key) else state)
        elif record.state == "scratch" and record.gone:
            record = TrackedFile(path=key, state="scratch" if is_temporary(key) else "created")
        self.places.add(key)
        if record.state not in ("created", "scratch") or not is_aside_file(key):
            self.has_work = True
            self._modules.add(_module(key))
        elif not record.is_run:
            self.untried.add(posixpath.basename(key))
        for folder in folders_above(key):
            above = self.files.get(folder)
            if above is not None and above.state == "scratch" and not above.gone:
                self.files[folder] = replace(above, at=at)
            elif above is not None and not above.below:
                del self.files[folder]
        self.files[key] = replace(
            record,
            state="changed" if record.state in ("deleted", "reverted") else record.state,
            at=at,
            gone=False,
            edits=record.edits + 1,
            added=record.added + change.added,
            removed=record.removed + change.removed,
            names=merge_names((*change.names, *record.names)),
            last=change.last,
            by="",
        )

    def make_folder(self, key: str, at: int) -> None:
        """Record a temporary directory; files in it are not listed."""
        if is_temporary(key) and not self._is_inside(key):
            self.files[key] = TrackedFile(path=key, state="scratch", at=at)
            self.places.add(key)

    def _is_inside(self, key: str) -> bool:
        """Return whether a path is in a temporary directory that the agent made."""
        above = (self.files.get(folder) for folder in folders_above(key)) if is_temporary(key) else ()
        return any(record is not None and record.state == "scratch" and not record.gone for record in above)

    def delete(self, pattern: str, at: int) -> None:
        """Record the removal of a file or of all known files in a directory; a temporary directory is one entry."""
        inside = self._matching(pattern)
        is_one = is_temporary(pattern) and not any(character in pattern for character in PATTERN)
        for key in inside if is_one else ():
            self.files.pop(key, None)
        for key in [pattern] if is_one else inside:
            record = self.files.pop(key, None)
            is_scratch = is_temporary(key) if record is None else record.state in ("created", "scratch")
            source = "" if record is None or is_scratch else record.source
            state: FileState = "scratch" if is_scratch else "deleted"
            self.files[key] = TrackedFile(path=key, state=state, at=at, source=source, gone=is_scratch)

    def _matching(self, pattern: str) -> list[str]:
        if any(character in pattern for character in PATTERN):
            return [key for key in self.files if fnmatchcase(key, pattern) and key.count("/") == pattern.count("/")]
        inside = [key for key in self.files if key.startswith(f"{pattern}/")]
        return inside or [pattern]

    def is_there(self, key: str) -> bool:
        """Return whether a file is known and not removed."""
        record = self.files.get(key)
        return self.places.knows(key) if record is None else not record.gone and record.state != "deleted"

    def is_work(self, key: str) -> bool:
        """Return whether a file belongs to the project and is no experiment."""
        record = self.files.get(key)
        if record is None:
            return self.places.knows(key)
        return record.state != "scratch" and not (record.state == "created" and _is_attempt(posixpath.basename(key)))

    def is_trial(self, key: str, script: str) -> bool:
        """Return whether a script tries out the work: a file made for that, or code that imports changed files."""
        if key:
            record = self.files.get(key)
            return record is not None and record.state in ("created", "scratch") and _tries_out(key)
        return self.has_work and not self._modules.isdisjoint(_imports(script))

    def run(self, key: str, changed: Iterable[str]) -> None:
        """Record that a file ran as a script and changed these files."""
        record = self.files.get(key)
        if record is not None:
            self.files[key] = replace(record, is_run=True)
            self.untried.discard(posixpath.basename(key))
        name = posixpath.basename(key)
        for other in changed:
            if other in self.files and _ONE_WORD.fullmatch(name):
                self.files[other] = replace(self.files[other], by=name)

    def move(self, source: str, target: str, at: int) -> None:
        inside = [key for key in self.files if key.startswith(f"{source}/")]
        if inside:
            for key in inside:
                self.move(key, f"{target}{key.removeprefix(source)}", at)
            return
        copied = self._copies.pop(source, None)
        if copied is not None and copied[0] == target:
            self._put_back(target, copied[1], at)
            self.delete(source, at)
            return
        record = self.files.pop(source, None)
        self.places.add(target)
        if record is None:
            state: FileState = "scratch" if is_temporary(target) else "moved"
            self.files[target] = TrackedFile(path=target, state=state, at=at, source=source)
            return
        if record.state in ("changed", "reverted", "moved"):
            record = replace(record, source=record.source or source, state="moved")
        elif record.state == "scratch" and not is_temporary(target):
            record = replace(record, state="changed" if self.places.knows(target) else "created")
        self.files.pop(target, None)
        self.files[target] = replace(record, at=at)

    def copy(self, source: str, target: str, at: int) -> None:
        copied = self._copies.get(source)
        if copied is not None and copied[0] == target:
            self._put_back(target, copied[1], at)
            return
        self._copies[target] = (source, self.files.get(source))
        self.write(target, at, FileEdit(target, "add"), is_new=None)

    def _put_back(self, key: str, before: TrackedFile | None, at: int) -> None:
        """Restore the record of a file from when it was copied."""
        record = self.files.get(key)
        if before is not None:
            self.files[key] = before
        elif record is not None:
            self.files[key] = TrackedFile(path=key, state="reverted", at=at, edits=record.edits)

    def revert(self, keys: Iterable[str] | None, at: int) -> None:
        """Revert uncommitted changes of these files, or of all files that are not new."""
        chosen = list(self.files) if keys is None else [key for item in keys for key in self._matching(item)]
        for key in chosen:
            record = self.files.get(key)
            if record is None or (keys is None and record.state in ("created", "scratch")):
                continue
            before = self._committed.get(key)
            if before is not None:
                self.files[key] = before
            elif record.state in ("changed", "deleted", "created"):
                self.files[key] = TrackedFile(path=key, state="reverted", at=at, edits=record.edits)

    def commit(self) -> None:
        self._committed = dict(self.files)

    def stash(self, at: int) -> None:
        before = dict(self.files)
        self.revert(None, at)
        self._stash = {key: record for key, record in before.items() if self.files.get(key) != record}

    def unstash(self) -> None:
        self.files.update(self._stash)
        self._stash = {}

    def list_files(self) -> Iterator[TrackedFile]:
        """Yield the files, newest change last."""
        top = self._top()
        tried: set[str] = set()
        """Directories in which experiments ran; further scripts there count as experiments."""
        for key, item in sorted(self.files.items(), key=lambda entry: entry[1].at):
            if self._is_inside(key):
                continue
            source = self.places.spelling(item.source)[:MAX_PATH_CHARS] if item.source else ""
            path = self.places.spelling(key)
            folder = posixpath.dirname(path)
            is_beside = folder == top or (top is not None and path[0] == "/")
            is_like_others = folder in tried and path.endswith(SCRIPTS) and _tries_out(path)
            is_attempt = is_beside and (is_like_others or (item.is_run and _is_attempt(posixpath.basename(path))))
            is_aside = item.state == "created" and (is_attempt or _BACKUP.search(path))
            tried |= {folder} if is_attempt else set()
            yield replace(item, path=path[:MAX_PATH_CHARS], source=source, state="scratch" if is_aside else item.state)

    def _top(self) -> str | None:
        """Return the project directory if existing files lie in its subdirectories."""
        known = [key for key in {**self.reads, **self.files} if key[0] not in "~$" and not is_temporary(key)]
        new = {key for key, record in self.files.items() if record.state == "created"}
        folders = {key: posixpath.dirname(self.places.spelling(key)) for key in known}
        old = {folder for key, folder in folders.items() if key not in new and folder}
        if any(folder[0] != "/" for folder in old):
            return ""
        top = posixpath.commonpath({folder for folder in folders.values() if folder[:1] == "/"}) if old else ""
        return top if old - {top} else None

    def list_reads(self) -> Iterator[FileRead]:
        """Yield the files read and not changed, newest last."""
        unchanged = [(key, read) for key, read in self.reads.items() if key not in self.files]
        for key, (at, looked) in unchanged[-MAX_READS:]:
            yield FileRead(path=self.places.spelling(key)[:MAX_PATH_CHARS], looked=looked, at=at)
