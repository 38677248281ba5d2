"""Folders listed and files found by name: where, which pattern, how many."""

from __future__ import annotations

from midfold.core.digest.action import Action
from midfold.core.digest.look import Look, judged
from midfold.core.digest.wording import plural

_NOTHING = ("No files found", "No files matching", "No matches", "No such", "(empty", "No entries", "No results")
_NOTES = ("(Results are truncated", "NOTE:", "- NOTE:", "There are more files")


def listing(look: Look) -> Action:
    pattern = look.text("pattern", "globpattern", "query", "glob", "name")
    where = look.paths()
    place = f" in {look.path(where[0])}" if where else ""
    did = (
        f"looked for files {look.quote(pattern, 70)}{place}"
        if pattern
        else f"listed{place or ' files'}".replace("listed in", "listed")
    )
    return judged(look, "list", did, _entries(look), paths=where)


def _entries(look: Look) -> str:
    body = look.body
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
