"""Files edited: which, how many places, and whether the edit was applied."""

from __future__ import annotations

import re
from typing import Any

from midfold.core.digest.action import Action
from midfold.core.digest.look import Look, judged
from midfold.core.digest.read import read
from midfold.core.digest.shell import command_of
from midfold.core.digest.wording import plural
from midfold.core.digest.write import write

PATCH_KEYS = ("patch", "diff", "input", "patchtext", "unifieddiff", "changes")
OLD_KEYS = ("oldstring", "oldstr", "oldtext", "search", "target", "original")
NEW_KEYS = ("newstring", "newstr", "newtext", "replace", "replacement", "newsource", "insert", "inserttext", "codeedit")

_NAMED = re.compile(r"^(?:\*\*\* (?:Update|Add|Delete) File: |\+\+\+ (?:b/)?)([^\n\t]{1,1000})", re.MULTILINE)
_READ_BY_PATCH = 200_000


def patch(look: Look) -> Action:
    text = patch_text(look)
    if text:
        return _patched(look, text)
    paths = look.paths()
    what = look.path(paths[0]) if paths else "a file"
    edits = look.get("edits", "operations", "blocks")
    places = len(edits) if isinstance(edits, list) else 1
    did = f"edited {what}" + (f" in {plural(places, 'place')}" if places > 1 else "")
    if look.get("replaceall") is True:
        did += " (all occurrences)"
    detail = f"{plural(places, 'edit')} applied"
    return judged(look, "patch", did, detail, content=False, paths=paths, wrote=True)


def editor(look: Look) -> Action:
    """One tool for all: `command` says whether it views, creates or edits (Anthropic's editor, OpenHands)."""
    command = look.text("command", "action", "operation", "mode")
    if command in ("view", "read", "open"):
        return read(look)
    if command in ("create", "write", "overwrite"):
        return write(look)
    return patch(look)


def patch_text(look: Look) -> str:
    for value in (*(look.arguments.get(key) for key in PATCH_KEYS), command_of(look), look.raw):
        if is_patch(value):
            return str(value)
    return ""


def is_patch(value: Any) -> bool:
    return isinstance(value, str) and (
        "*** Begin Patch" in value[:300] or value.startswith(("--- ", "diff --git ", "@@ "))
    )


def _patched(look: Look, text: str) -> Action:
    text = text[:_READ_BY_PATCH]
    named = (path.strip() for path in _NAMED.findall(text) if path.strip() != "/dev/null")
    paths = tuple(dict.fromkeys((*look.paths(), *named)))
    hunks = text.count("\n@@") + text.startswith("@@")
    what = look.path(paths[0]) if paths else "files"
    if len(paths) > 1:
        what += f" and {len(paths) - 1} more"
    files = plural(len(paths) or 1, "file")
    detail = f"{plural(hunks, 'hunk')} in {files} applied" if hunks else f"{files} changed"
    return judged(look, "patch", f"patched {what}", detail, content=False, paths=paths, wrote=True)
