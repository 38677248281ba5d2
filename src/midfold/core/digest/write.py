"""Files written, moved and deleted: which, how much was written, and whether it worked."""

from __future__ import annotations

from midfold.core.digest.action import Action
from midfold.core.digest.body import count_lines
from midfold.core.digest.look import Look, judged
from midfold.core.digest.wording import plural

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


def write(look: Look) -> Action:
    paths = look.paths() or tuple(path for path in (look.text("source"), look.text("destination")) if path)
    verb = next((done for word, done in _VERBS.items() if look.said(word)), "wrote")
    did = f"{verb} {look.path(paths[0]) if paths else 'a file'}"
    content = look.text(*CONTENT_KEYS)
    if content:
        did += f" ({plural(count_lines(content), 'line')}, {plural(len(content), 'character')})"
    detail = "created" if "created" in look.body.head[:200] else "done"
    return judged(look, "write", did, detail, content=False, paths=paths, wrote=True)
