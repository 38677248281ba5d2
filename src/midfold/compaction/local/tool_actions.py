"""Describe tool calls that read, write, search and list files or run commands."""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

from midfold.compaction.local import outcome as failure
from midfold.compaction.local.identifiers import constants
from midfold.compaction.local.outcome import count_lines, last_line
from midfold.compaction.local.tool_call import Action, Outcome, ToolCallRecord, act, judge_action, plural, scalar

MAX_SCANNED_CHARS = 65_536
"""Maximum characters of a result to scan."""
MAX_CONSTANTS = 3
"""Maximum number of constants to show."""


def read(record: ToolCallRecord) -> Action:
    paths = record.paths()
    what = record.path(paths[0]) if paths else "a file"
    if len(paths) > 1:
        what += f" and {len(paths) - 1} more"
    did = f"read {what}{_range(record)}"
    detail = record.size()
    if record.body.media:
        detail = plural(record.body.media, "media part")
    return judge_action(record, "read", did, "; ".join([detail, *_values(record)]), paths=paths)


def _values(record: ToolCallRecord) -> list[str]:
    """Return constants of a file with their values, if these are words or numbers."""
    found = constants(record.body.text[:MAX_SCANNED_CHARS])
    return [f"`{name} = {value}`" for name, value in found.items() if " " not in value][:MAX_CONSTANTS]


def _range(record: ToolCallRecord) -> str:
    """Return the requested line range: offset and limit, start and end, or a view range."""
    both = record.get("viewrange", "linerange", "range", "lines")
    if isinstance(both, list) and len(both) == 2:
        return _span(_number(both[0]), _number(both[1]))
    first = _number(
        record.get("startline", "startlineoneindexed", "offset", "linestart", "start", "linenumber", "from")
    )
    last = _number(record.get("endline", "endlineoneindexedinclusive", "lineend", "end", "to"))
    limit = _number(record.get("limit", "maxlines", "numlines", "lines"))
    if last is None and limit is not None:
        last = (first or 1) + limit - 1
    return _span(first, last)


def _span(first: int | None, last: int | None) -> str:
    if first is None and last is None:
        return ""
    if last is None or last < 0:
        return f" from line {first}"
    return f" lines {first or 1}-{last}"


def _number(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        return int(value)
    return value if type(value) is int and abs(value) < 10**12 else None


# Files written, moved and deleted.


CONTENT_KEYS = ("content", "contents", "filetext", "text", "data", "codecontent", "filecontent")

_VERBS = {
    "delete": "deleted",
    "remove": "deleted",
    "move": "moved",
    "rename": "renamed",
    "copy": "copied",
    "mkdir": "created folder",
    "directory": "created folder",
}


def write(record: ToolCallRecord) -> Action:
    paths = record.paths() or tuple(path for path in (record.text("source"), record.text("destination")) if path)
    verb = next((done for word, done in _VERBS.items() if record.has_word(word)), "wrote")
    did = f"{verb} {record.path(paths[0]) if paths else 'a file'}"
    content = record.text(*CONTENT_KEYS)
    if content:
        did += f" ({plural(count_lines(content), 'line')}, {plural(len(content), 'character')})"
    detail = "created" if "created" in record.body.head[:200] else "done"
    return judge_action(record, "write", did, detail, content=False, paths=paths, wrote=True)


# Shell commands: exit code, line count and error line.


_INTO_FOLDER = re.compile(r"\s{0,9}cd [^\s;&|]{1,300}\s{0,9}(?:&&|;)\s{0,9}")
_SHOWS = re.compile(
    r"(?:cat|grep|egrep|rg|ag|sed -n|head|tail|less|more|awk|ls|tree|find|fd|echo|printf|jq|wc|nl|diff|strings|od|xxd"
    r"|git (?:log|show|diff|status|blame|grep|branch)|gh (?:api|pr|issue|run))\b"
)
_LOOKS_FOR = re.compile(r"(?:git )?(?:grep|egrep|rg|ag|ack|pgrep|diff)\b")
"""Commands that exit with 1 if they find nothing."""
_QUOTED = re.compile(r"'[^']*'")
MAX_PIPE_CHARS = 1_000
"""Maximum characters of a command whose quotes are parsed: unclosed quotes take quadratic time."""
_ANY_QUOTED = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"")
_REDIRECTED = re.compile(
    r">(?<![\d&<>=-]>)>?\s{0,9}([^\s;&|<>()'\"$`]{1,300})|tee (?<!\wtee )(?:-a )?([^\s;&|<>()'\"$`]{1,300})"
)
_CHANGING = (
    r"(?:sudo )?(?:rm|mv|cp|mkdir|touch|chmod|ln|patch|unlink|truncate|rmdir|sed -i|perl -p?i"
    r"|git (?:-C \S{1,200} )?(?:add|commit|apply|checkout|switch|push|merge|rebase|stash|reset|restore|rm|mv|tag"
    r"|cherry-pick|revert)"
    r"|(?:npm|pnpm|yarn|bun|pip|uv|cargo|go|apt|apt-get|brew) "
    r"(?:install|add|remove|uninstall|get|mod|update|upgrade))\b"
)
_CHANGES, _CHANGES_LATER = re.compile(_CHANGING), re.compile(rf"[;&|(\n]\s{{0,9}}{_CHANGING}")
_IN_PLACE = re.compile(r"\bsed -i\S{0,9} [^\n]{0,600}?\s([^\s;&|<>()'\"$`*]{1,300})(?:$|[\n;&|])")


def shell(record: ToolCallRecord) -> Action:
    command, body = without_cd(record.command), record.body
    did = f"ran {record.code(command)}" if record.command else "ran a command"
    shows = shows_content(command)
    stated = failure.stated_outcome(body, content=True, opening=not shows)
    if stated.failed is None:
        stated = failure.own_error(body, command) if shows else failure.ending(body)
    elif stated.failed is False and not shows:
        end = failure.ending(body)
        stated = end if end.failed else stated
    if body.exit_code == 1 and not body.text.strip() and _LOOKS_FOR.match(_last_of_pipe(command)):
        return act(record, "shell", did, "no matches")
    changed = file_changes(record.command)
    if stated.failed and stated.from_harness:
        error = record.say(stated.reason, 160)
        return act(record, "shell", did, error, outcome="failed", error=error, paths=changed[1])
    if stated.failed:
        reason = stated.reason if body.exit_code is not None else failure.error_line(body) or stated.reason
        error = record.say(reason, 160)
        detail = [f"exit {body.exit_code}" if body.exit_code is not None else "failed", record.size()]
        detail.append(
            f"last error: {error}" if error else f"ends with: {record.say(failure.last_line(body.text), 120)}"
        )
        if not body.text.strip():
            detail.pop()
        shown = ", ".join(detail)
        return act(record, "shell", did, shown, outcome="failed", error=error, paths=changed[1], wrote=changed[0])
    if body.running:
        detail = [f"still running as session {record.say(body.running, 40)}", record.size()]
        return act(record, "shell", did, ", ".join(detail), outcome="unknown", paths=changed[1], wrote=changed[0])
    detail = ([] if body.exit_code is None else [f"exit {body.exit_code}"]) + [record.size()]
    error = record.say(failure.traceback_end(body), 160)
    closing = error or record.say(failure.verdict(body), 120)
    if closing:
        detail.append(f"ends with: {closing}")
    outcome: Outcome = "ok" if stated.failed is False else "unknown"
    return act(
        record, "shell", did, ", ".join(detail), outcome=outcome, error=error, paths=changed[1], wrote=changed[0]
    )


def _last_of_pipe(command: str) -> str:
    is_plain = "|" not in command or len(command) > MAX_PIPE_CHARS
    bare = command if is_plain else _ANY_QUOTED.sub("", command)
    return bare.rpartition("|")[2].lstrip()


def shows_content(command: str) -> bool:
    """Return whether a command, without a leading change of directory, only shows content."""
    return _SHOWS.match(command) is not None


def without_cd(command: str) -> str:
    """Remove a leading change of directory."""
    found = _INTO_FOLDER.match(command[:400])
    return command[found.end() :] if found else command


def file_changes(command: str) -> tuple[bool, tuple[str, ...]]:
    """Return whether a command changes files, and the files it names. The text of a here-document is not parsed."""
    start = command[:4_000]
    here = start.find("<<")
    if here >= 0:
        end = start.find("\n", here)
        start = start[:end] if end >= 0 else start
    bare = _QUOTED.sub("''", start)
    paths = [first or second for first, second in _REDIRECTED.findall(bare)] if ">" in bare or "tee " in bare else []
    paths += _IN_PLACE.findall(bare) if "sed -i" in bare else []
    kept = tuple(dict.fromkeys(path for path in paths if not path.startswith(("/dev/", "&")) and not path.isdigit()))
    return bool(kept) or bool(_CHANGES.match(bare) or _CHANGES_LATER.search(bare)), kept


# Files edited.


PATCH_KEYS = ("patch", "diff", "input", "patchtext", "unifieddiff", "changes")
OLD_KEYS = ("oldstring", "oldstr", "oldtext", "search", "target", "original")
NEW_KEYS = ("newstring", "newstr", "newtext", "replace", "replacement", "newsource", "insert", "inserttext", "codeedit")
_EDITS_KEYS = ("edits", "operations", "blocks")
_EDITING = frozenset({*_EDITS_KEYS, *OLD_KEYS, *NEW_KEYS, *CONTENT_KEYS})
"""Argument keys of calls that write: at least one of them is present."""

_NAMED = re.compile(r"^(?:\*\*\* (?:Update|Add|Delete) File: |\+\+\+ (?:b/)?)([^\n\t]{1,1000})", re.MULTILINE)
_MAX_PATCH_CHARS = 200_000


def patch(record: ToolCallRecord) -> Action:
    text = patch_text(record)
    if text:
        return _patch_action(record, text)
    paths = record.paths()
    what = record.path(paths[0]) if paths else "a file"
    edits = record.get("edits", "operations", "blocks")
    places = len(edits) if isinstance(edits, list) else 1
    did = f"edited {what}" + (f" in {plural(places, 'place')}" if places > 1 else "")
    if record.get("replaceall") is True:
        did += " (all occurrences)"
    detail = f"{plural(places, 'edit')} applied"
    return judge_action(record, "patch", did, detail, content=False, paths=paths, wrote=True)


def editor(record: ToolCallRecord) -> Action:
    """Describe an editor whose `command` selects view, create or edit (Anthropic's editor, OpenHands)."""
    command = record.text("command", "action", "operation", "mode")
    if command in ("view", "read", "open"):
        return read(record)
    if command in ("create", "write", "overwrite"):
        return write(record)
    return patch(record)


def patch_text(record: ToolCallRecord) -> str:
    named = [record.arguments[key] for key in PATCH_KEYS if key in record.arguments] if record.has(*PATCH_KEYS) else []
    return next(filter(is_patch, (*named, record.command, record.raw)), "")


def changes(record: ToolCallRecord) -> tuple[list[str], list[str]]:
    """Return the lines that a call added to files, and the lines that it removed."""
    patch = patch_text(record)
    if patch:
        lines = patch.split("\n")
        added = [line[1:] for line in lines if line[:1] == "+" and not line.startswith("+++")]
        return added, [line[1:] for line in lines if line[:1] == "-" and not line.startswith("---")]
    command = record.text("command", "cmd")
    if "<<" in command.partition("\n")[0]:
        return command.split("\n")[1:-1], []
    if record.arguments.keys().isdisjoint(_EDITING):
        return [], []
    edits = record.get(*_EDITS_KEYS)
    pairs = [_pair(edit) for edit in edits if isinstance(edit, dict)] if isinstance(edits, list) else []
    pairs = pairs or [
        (record.text(*OLD_KEYS), record.text(*NEW_KEYS) or (record.text(*CONTENT_KEYS) if record.paths() else ""))
    ]
    added, removed = [], []
    for old, new in pairs:
        before, after = old.split("\n"), new.split("\n")
        was, stays = set(before), set(after)
        added += [line for line in after if line not in was]
        removed += [line for line in before if line not in stays]
    return added, removed


def _pair(edit: dict[str, Any]) -> tuple[str, str]:
    squashed = {key.lower().replace("_", ""): value for key, value in edit.items() if isinstance(value, str)}
    old = next((squashed[key] for key in OLD_KEYS if key in squashed), "")
    return old, next((squashed[key] for key in NEW_KEYS if key in squashed), "")


def is_patch(value: Any) -> bool:
    return isinstance(value, str) and (
        value.find("*** Begin Patch", 0, 300) >= 0 or value.startswith(("--- ", "diff --git ", "@@ "))
    )


def _patch_action(record: ToolCallRecord, text: str) -> Action:
    text = text[:_MAX_PATCH_CHARS]
    named = (path.strip() for path in _NAMED.findall(text) if path.strip() != "/dev/null")
    paths = tuple(dict.fromkeys((*record.paths(), *named)))
    hunks = text.count("\n@@") + text.startswith("@@")
    what = record.path(paths[0]) if paths else "files"
    if len(paths) > 1:
        what += f" and {len(paths) - 1} more"
    files = plural(len(paths) or 1, "file")
    detail = f"{plural(hunks, 'hunk')} in {files} applied" if hunks else f"{files} changed"
    return judge_action(record, "patch", f"patched {what}", detail, content=False, paths=paths, wrote=True)


# Directories listed and files found by name.


_NOTHING = ("No files found", "No files matching", "No matches", "No such", "(empty", "No entries", "No results")
_NOTES = ("(Results are truncated", "NOTE:", "- NOTE:", "There are more files")


def listing(record: ToolCallRecord) -> Action:
    pattern = record.text("pattern", "globpattern", "query", "glob", "name")
    where = record.paths()
    place = f" in {record.path(where[0])}" if where else ""
    did = (
        f"looked for files {record.quote(pattern, 70)}{place}"
        if pattern
        else f"listed{place or ' files'}".replace("listed in", "listed")
    )
    return judge_action(record, "list", did, _entries(record), paths=where)


def _entries(record: ToolCallRecord) -> str:
    body = record.body
    if isinstance(body.value, list):
        return plural(len(body.value), "entry").replace("entrys", "entries")
    for key in ("files", "entries", "items", "matches"):
        if isinstance(body.fields.get(key), list):
            return plural(len(body.fields[key]), "entry").replace("entrys", "entries")
    text = body.text.strip()
    if not text or text.startswith(_NOTHING):
        return "nothing found"
    last = text.rpartition("\n")[2]
    noted = last.startswith(_NOTES)
    return plural(body.lines - noted, "entry").replace("entrys", "entries") + (" (more left out)" if noted else "")


# Searches: pattern, place, and number of matches.


PATTERN_KEYS = ("pattern", "regex", "query", "searchterm", "searchpattern", "keyword", "q", "term", "text", "search")

_FOUND = re.compile(
    r"Found (\d{1,9}) (?:total )?(matches|match|files|file|occurrences|occurrence|results|result)\b"
    r"(?:.{0,40}? (?:across|in) (\d{1,9}) files?)?"
)
MAX_SHOWN_HITS = 2
MAX_HIT_CHARS = 120
_NO_HITS = re.compile(r"(?:No (?:matches|files|results|occurrences|match|entries)\b|Found 0 |0 (?:matches|results))")
MAX_HIT_PATH_CHARS = 500
_LINE_NUMBER = re.compile(r":\d{1,9}:")
_NUMBER_FIRST = re.compile(r"\d{1,9}:")
_PLAIN_HIT = re.compile(r"((?:[A-Za-z]:)?[^:\s][^:]{0,500}):")


def search(record: ToolCallRecord) -> Action:
    pattern = record.text(*PATTERN_KEYS)
    where = record.paths()
    did = f"searched for {record.quote(pattern, 70)}" if pattern else "searched"
    glob = record.text("glob", "include", "includepattern", "fileglob", "type")
    if where:
        did += f" in {record.path(where[0])}"
    if glob:
        did += f" ({record.say(glob, 30)})"
    return judge_action(record, "search", did, _matches(record), paths=where)


def _matches(record: ToolCallRecord) -> str:
    body = record.body
    if body.value is not None:
        return _match_count(record)
    head = body.head.lstrip()
    if not head or _NO_HITS.match(head):
        return "no matches"
    if found := _FOUND.match(head) or _FOUND.match(last_line(body.text)):
        noun = found[2] if int(found[1]) != 1 else found[2].removesuffix("s").replace("matche", "match")
        files = f" in {plural(int(found[3]), 'file')}" if found[3] else ""
        return f"{int(found[1]):,} {noun}{files}"
    if len(body.text) > MAX_SCANNED_CHARS:
        return record.size()
    return _count_hits(record)


def _count_hits(record: ToolCallRecord) -> str:
    """Count the hits of `path:line:text` output; among context lines, only those with a colon."""
    lines = [line for line in record.body.text.splitlines() if line.strip() and line != "--"]
    context = record.get("a", "b", "c", "context", "beforecontext", "aftercontext") is not None
    found = [path for line in lines if (path := _hit_path(line)) is not None]
    if found:
        files = set(filter(None, found))
        count = len(found)
    elif context:
        return record.size()
    else:
        count = len(lines)
        files = {hit[1] for line in lines if (hit := _PLAIN_HIT.match(line))}
    return plural(count, "match") + (f" in {plural(len(files), 'file')}" if files else "")


def _hit_path(line: str) -> str | None:
    """Return the path before a hit's line number, "" if there is only a number, or None if the line is no hit."""
    number = _LINE_NUMBER.search(line, 1)
    if number is not None and number.start() <= MAX_HIT_PATH_CHARS:
        return line[: number.start()]
    return "" if _NUMBER_FIRST.match(line) else None


def few_hits(record: ToolCallRecord) -> str:
    """Return the hits of a search if there are only a few."""
    lines = record.body.text.splitlines() if len(record.body.text) <= MAX_SCANNED_CHARS else []
    hits = list(islice((line for line in lines if _hit_path(line) is not None), MAX_SHOWN_HITS + 1))
    return " / ".join(record.say(line, MAX_HIT_CHARS) for line in hits) if len(hits) <= MAX_SHOWN_HITS else ""


def _match_count(record: ToolCallRecord) -> str:
    """Return the count in a JSON response, or the length of its list."""
    value = record.body.value
    if isinstance(value, list):
        return plural(len(value), "result") if value else "no matches"
    for key in ("total_count", "totalCount", "total", "count", "num_matches", "match_count"):
        if type(value.get(key)) is int:
            return f"{scalar(value[key])} matches"
    for key in ("matches", "results", "files", "items", "hits"):
        if isinstance(value.get(key), list):
            return plural(len(value[key]), "match")
    return record.size()
