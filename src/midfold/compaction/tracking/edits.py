"""Parse edits: patches, replaced texts, and scripts that write files.

1. Lines present in both texts are not counted, wherever they are. All comparisons are linear.
2. An edit is described by names in the edited text: functions with their parameter names, classes, headings.
3. A script writes the files that it opens for writing under a literal name. Computed paths are not guessed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Literal, NamedTuple

MAX_TEXT_CHARS = 60_000
MAX_DEFINITIONS_CHARS = 12_000
"""Maximum characters of a text searched for definitions."""
MAX_NAMES = 12
MAX_FILES = 60
MAX_CANDIDATE_LINES = 40
MAX_LINE_CHARS = 400
MAX_PARAMETERS_CHARS = 50
SCRIPTS = (".sh", ".bash", ".py", ".js", ".mjs", ".rb", ".ts")
PROSE = (".md", ".mdx", ".markdown", ".rst", ".txt")

EditKind = Literal["add", "update", "delete", "move"]

_NAME = re.compile(
    r"\n[ \t]{0,40}+(?=[A-Za-z_$])"
    r"(?>(?:(?:export|default|async|pub|static|public|private|protected|abstract|final|override)[ \t]){0,4})"
    r"(?:(?:def|class|function\*?|fn|interface|struct|enum|trait|impl|type|func(?:[ \t]\([^)\n]{0,80}\))?)[ \t]"
    r"([A-Za-z_$][\w$]{0,80})"
    r"|(?:get |set )?([A-Za-z_$][\w$]{2,80})\([^;\n\"'=]{0,200}\{[ \t]*$"
    r"|(?:const|let|var)[ \t]([A-Za-z_$][\w$]{0,80})[^=\n]{0,80}= ?(?:async )?(?:\(|function))",
    re.MULTILINE,
)
_HEADING = re.compile(r"\n(#{1,6}[ \t][^\n]{1,80})()$", re.MULTILINE)
_NOT_NAMES = frozenset({"if", "for", "while", "switch", "catch", "return", "function", "else", "with", "elif", "try"})
_PARAMETERS = re.compile(r"(?:[^=(\n]{0,80}= ?(?:async )?(?:function ?)?|<[^<>()\n]{1,80}>)?\(([^()]{0,300})\)")
_NESTED = re.compile(r"<[^<>]*>|\[[^\[\]]*\]|\{[^{}]*\}|=[^,]*|\"[^\"]*\"")
_PARAMETER = re.compile(r"[&*.]{0,3}(?:mut )?([A-Za-z_$][\w$]{0,40})")
_RECEIVERS = frozenset({"self", "cls", "this"})
_NUMBERS = re.compile(r"^ {0,8}[0-9]{1,7}(?:→|\t)", re.MULTILINE)
"""Line numbers that tools print before file content."""
_PARTIAL = re.compile(r"\b(?:truncated|elided)\b|output (?:of your last command )?was too long|left out\b[^\n]{0,3}\]")
"""Notes of tools and clients that output is incomplete."""
_HUNK = re.compile(r"^@@[^@\n]{0,60}@@ ?([^\n]{0,200})$|^@@ ([^\n]{1,200})$", re.MULTILINE)


class FileEdit(NamedTuple):
    """Effect of one edit on one file."""

    path: str
    kind: EditKind
    added: int = 0
    removed: int = 0
    names: tuple[str, ...] = ()
    last: str = ""
    """A line of the new content."""
    source: str = ""
    """Path before a move."""


def names_in(text: str, path: str = "") -> tuple[str, ...]:
    """Return the functions and classes that a text defines; for prose, the headings."""
    text = f"\n{text[:MAX_DEFINITIONS_CHARS]}"
    if path.endswith(PROSE):
        return merge_names(match[1].strip("# ") for match in _HEADING.finditer(text))
    return merge_names(_signature(match, text) for match in _NAME.finditer(text))


def merge_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return each name once, in order of first occurrence, with its parameters if known."""
    found: dict[str, str] = {}
    for name in names:
        bare = name.partition("(")[0]
        if bare and bare not in _NOT_NAMES and (bare not in found or found[bare] == bare):
            found[bare] = name
    return tuple(found.values())[:MAX_NAMES]


def _signature(match: re.Match[str], text: str) -> str:
    """Return a definition as `name(first,second)`."""
    place = match.lastindex or 0
    name, listed = match[place], _PARAMETERS.match(text, match.end(place))
    if listed is None or "class " in match[0]:
        return name
    given = (_PARAMETER.match(piece.strip()) for piece in _NESTED.sub("", listed[1]).split(","))
    parameters = ",".join(one[1] for one in given if one and one[1] not in _RECEIVERS)
    return f"{name}({parameters})" if len(parameters) <= MAX_PARAMETERS_CHARS else name


def replacement(path: str, old: str, new: str) -> FileEdit:
    """Return the edit that replaces one text by another."""
    before, after = (_lines(text[:MAX_TEXT_CHARS]) for text in (old, new))
    start, most = 0, min(len(before), len(after))
    while start < most and before[start] == after[start]:
        start += 1
    end = 0
    while end < most - start and before[-1 - end] == after[-1 - end]:
        end += 1
    fresh = after[start : len(after) - end]
    gone = before[start : len(before) - end]
    both = (Counter(fresh) & Counter(gone)).total()
    names = names_in("\n".join(fresh), path) or names_in(old, path)
    return FileEdit(path, "update", len(fresh) - both, len(gone) - both, names, informative_line(fresh))


def rewrite(path: str, seen: str, now: str) -> FileEdit:
    """Return the edit that replaces a whole file; lines are not counted if the earlier content is incomplete."""
    if max(len(seen), len(now)) > MAX_TEXT_CHARS or _PARTIAL.search(seen):
        return FileEdit(path, "update", names=names_in(now, path))
    before, after = (text.strip("\n").split("\n") for text in (_NUMBERS.sub("", seen), now))
    left = Counter(before)
    left.subtract(after)
    gone = sum(count for count in left.values() if count > 0)
    fresh = [line for line in after if left[line] < 0]
    if gone * 2 > len(before):
        return FileEdit(path, "update", names=names_in(now, path), last=informative_line(fresh))
    added = len(after) - len(before) + gone
    return FileEdit(path, "update", added, gone, names_in("\n".join(fresh), path), informative_line(fresh))


def _lines(text: str) -> list[str]:
    """Return the lines of a text, none if it is empty."""
    return text.split("\n") if text else []


def informative_line(lines: list[str]) -> str:
    """Return the first informative line, preferring one that does not continue on the next."""
    found = [line for raw in lines[:MAX_CANDIDATE_LINES] if len(line := raw.strip()) > 3]
    return next((line for line in found if line[-1] not in "([{,:=<\\"), found[0] if found else "")[:MAX_LINE_CHARS]


# Patches in Codex's format and unified diffs.


def changes_in_patch(text: str) -> list[FileEdit]:
    """Return the edits of a patch, file by file."""
    text = text[: 10 * MAX_TEXT_CHARS]
    if "*** Begin Patch" in text:
        return _codex_changes(text)
    return _unified_changes(text)


_CODEX_FILE = re.compile(r"^\*\*\* (Add|Update|Delete) File: ([^\n]{1,1000})\n?", re.MULTILINE)
_MOVED = re.compile(r"^\*\*\* Move to: ([^\n]{1,1000})$", re.MULTILINE)


def _codex_changes(text: str) -> list[FileEdit]:
    heads = list(_CODEX_FILE.finditer(text))[:MAX_FILES]
    found = []
    for head, after in zip(heads, [*heads[1:], None], strict=False):
        body = text[head.end() : after.start() if after else len(text)]
        path, kind = head[2].strip(), head[1].lower()
        moved = _MOVED.match(body)
        if moved:
            found.append(_measure(body, moved[1].strip(), "move", path))
        else:
            found.append(_measure(body, path, "add" if kind == "add" else "delete" if kind == "delete" else "update"))
    return found


_UNIFIED_FILE = re.compile(
    r"^--- (?:a/)?([^\n\t]{1,1000})[^\n]{0,60}\n\+\+\+ (?:b/)?([^\n\t]{1,1000})[^\n]{0,60}\n", re.M
)


def _unified_changes(text: str) -> list[FileEdit]:
    heads = list(_UNIFIED_FILE.finditer(text))[:MAX_FILES]
    found = []
    for head, after in zip(heads, [*heads[1:], None], strict=False):
        body = text[head.end() : after.start() if after else len(text)]
        old, new = head[1].strip(), head[2].strip()
        if new == "/dev/null":
            found.append(_measure(body, old, "delete"))
        else:
            found.append(_measure(body, new, "add" if old == "/dev/null" else "update"))
    return found


def _measure(body: str, path: str, kind: EditKind, source: str = "") -> FileEdit:
    lines = body.split("\n")
    added = [line[1:] for line in lines if line[:1] == "+" and line[:3] != "+++"]
    removed = [line[1:] for line in lines if line[:1] == "-" and line[:3] != "---"]
    headings = (next(filter(None, groups), "") for groups in _HUNK.findall(body))
    touched = names_in("\n".join(heading.strip() for heading in headings), path)
    names = merge_names((*touched, *names_in("\n".join(added), path)))
    return FileEdit(
        path, kind, len(added), len(removed), names or names_in(body, path), informative_line(added), source
    )


# Scripts.

_STRING = r"[rbuf]{0,2}(?:'([^'\n]{1,300})'|\"([^\"\n]{1,300})\")"
_NAMED = re.compile(rf"\n[ \t]{{0,40}}(\w{{1,60}})[ \t]?=[ \t]?(?:pathlib\.)?(?:Path\()?{_STRING}")
_OPENED = re.compile(
    rf"open\((?<!\wopen\()[ \t]?(?:{_STRING}|(\w{{1,60}}))[ \t]?(?:,[ \t]?(?:mode=)?['\"]([rwaxb+t]{{1,3}})['\"])?"
)
_WRITTEN = re.compile(rf"(?:Path\((?:{_STRING}|(\w{{1,60}}))\)|\b(\w{{1,60}}))\.(write|read)_(?:text|bytes)\(")
_NODE = re.compile(rf"\b(write|append|read|unlink)File(?:Sync)?\([ \t]?(?:{_STRING}|(\w{{1,60}}))")
_REMOVED = re.compile(rf"\bos\.(?:remove|unlink)\((?:{_STRING}|(\w{{1,60}}))\)")
_RELOCATED = re.compile(
    rf"\b(?:shutil\.(move|copy2?|copyfile)|os\.(rename|replace))"
    rf"\((?:{_STRING}|(\w{{1,60}})),[ \t]?(?:{_STRING}|(\w{{1,60}}))\)"
)
_ACCESSES = (
    "open(", ".write_text(", ".write_bytes(", "riteFile", "appendFile", "os.remove(", "os.unlink(", "os.rename(",
    "os.replace(", "shutil.",
)  # fmt: skip
"""Substrings; every script that changes files contains one of them."""
_WRITING = (".write_text(", ".read_text(", ".write_bytes(", ".read_bytes(")
_RELOCATING = ("shutil.move(", "shutil.copy(", "shutil.copy2(", "shutil.copyfile(", "os.rename(", "os.replace(")


class FileAccess(NamedTuple):
    """Access of a script to a file."""

    path: str
    how: Literal["read", "write", "append", "delete", "move", "copy"]
    target: str = ""


def _has(script: str, marks: Iterable[str]) -> bool:
    return any(map(script.__contains__, marks))


def accesses(script: str) -> list[FileAccess]:
    """Return the files that a script reads and writes under literal names, ordered by kind of access."""
    script = script[:MAX_TEXT_CHARS]
    if not _has(script, _ACCESSES):
        return []
    found: list[FileAccess] = []

    @cache
    def constants() -> dict[str, str]:
        return {name: first or second for name, first, second in _NAMED.findall(f"\n{script}")}

    def add(how: Literal["read", "write", "append", "delete"], first: str, second: str, name: str) -> None:
        path = first or second or constants().get(name, "")
        if path and is_path(path):
            found.append(FileAccess(path, how))

    for first, second, name, mode in _OPENED.findall(script) if "open(" in script else ():
        add("append" if "a" in mode else "write" if set(mode) & set("wx+") else "read", first, second, name)
    for first, second, name, owner, verb in _WRITTEN.findall(script) if _has(script, _WRITING) else ():
        add("write" if verb == "write" else "read", first, second, name or owner)
    for verb, first, second, name in _NODE.findall(script) if "File(" in script or "FileSync(" in script else ():
        how: dict[str, Literal["read", "write", "append", "delete"]] = {
            "write": "write", "append": "append", "unlink": "delete"}  # fmt: skip
        add(how.get(verb, "read"), first, second, name)
    for first, second, name in _REMOVED.findall(script) if "os.remove(" in script or "os.unlink(" in script else ():
        add("delete", first, second, name)
    moved = _RELOCATED.findall(script) if _has(script, _RELOCATING) else ()
    for copy, _, first, second, name, third, fourth, other in moved:
        source, target = first or second or constants().get(name, ""), third or fourth or constants().get(other, "")
        if source and target and is_path(source) and is_path(target):
            found.append(FileAccess(source, "copy" if copy.startswith("copy") else "move", target))
    return found


_NO_PATH = re.compile(r"[*?{}$`\n<>|\"'%=!;]")


def is_path(text: str) -> bool:
    """Return whether a text may be the path of one file: no pattern, expression or URL."""
    return (
        0 < len(text) <= 300
        and not _NO_PATH.search(text)
        and "://" not in text
        and not text.startswith(("-", "/dev/", "&"))
        and text.strip("./ ") != ""
    )
