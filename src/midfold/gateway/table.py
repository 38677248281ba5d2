"""The routes of a provider that are open to clients of the gateway's own provider key.

Rules of this file:
1. What is not in the table is closed, whatever a provider makes of it.
2. A path is compared as it was written. A spelling that two programs could read differently (percent signs, dots, empty
   segments, parameters) is in no table. Only a model's name may have its slashes, colons and @ encoded, as the official
   clients do: whichever way it is read, it is below `models/`.
3. Lists are closed: they show what others have made.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple
from urllib.parse import unquote

Made = Literal["", "thing", "batch", "upload", "response", "completion"]
"""What an answer names that belongs to whoever asked, if anything."""


class Grant(NamedTuple):
    """What is open: `id` must be the owner's, `made` tells which ids of the answer are from then on."""

    id: str | None = None
    made: Made = ""
    is_form: bool = False
    """Whether files are sent as forms here, which pass by without being read."""


_SAFE = re.compile(r"(?:/(?!\.+(?:/|$))[A-Za-z0-9_.:@+=,~-]+)+")
_MODEL = re.compile(r"(?:/v1)?/models/")
_ENCODED = re.compile(r"%(?:2F|3A|40)", re.IGNORECASE)
_OPEN: dict[str, dict[str, Grant]] = {
    "POST": {
        **dict.fromkeys(("completions", "messages", "messages/count_tokens", "complete"), Grant()),
        **dict.fromkeys(("responses/compact", "responses/input_tokens", "embeddings", "moderations"), Grant()),
        **dict.fromkeys(("rerank", "images/generations", "audio/speech"), Grant()),
        **dict.fromkeys(("images/edits", "images/variations"), Grant(is_form=True)),
        **dict.fromkeys(("audio/transcriptions", "audio/translations"), Grant(is_form=True)),
        "chat/completions": Grant(made="completion"),
        "responses": Grant(made="response"),
        "files": Grant(made="thing", is_form=True),
        "batches": Grant(made="batch"),
        "messages/batches": Grant(made="thing"),
        "uploads": Grant(made="upload"),
        "conversations": Grant(made="thing"),
    },
    "GET": {"models": Grant()},
    "HEAD": {"models": Grant()},
}
_OWNED: dict[str, dict[str, Grant]] = {
    "POST": {
        **dict.fromkeys(("responses/ID/cancel", "messages/batches/ID/cancel", "uploads/ID/cancel"), Grant()),
        **dict.fromkeys(("conversations/ID", "conversations/ID/items", "chat/completions/ID"), Grant()),
        "batches/ID/cancel": Grant(made="batch"),
        "uploads/ID/parts": Grant(is_form=True),
        "uploads/ID/complete": Grant(made="upload"),
    },
    "GET": {
        **dict.fromkeys(("files/ID", "files/ID/content", "responses/ID", "responses/ID/input_items"), Grant()),
        **dict.fromkeys(("messages/batches/ID", "messages/batches/ID/results"), Grant()),
        **dict.fromkeys(("conversations/ID", "conversations/ID/items", "conversations/ID/items/ITEM"), Grant()),
        **dict.fromkeys(("chat/completions/ID", "chat/completions/ID/messages"), Grant()),
        "batches/ID": Grant(made="batch"),
    },
    "DELETE": {
        **dict.fromkeys(("files/ID", "responses/ID", "messages/batches/ID", "chat/completions/ID"), Grant()),
        **dict.fromkeys(("conversations/ID", "conversations/ID/items/ITEM"), Grant()),
    },
}
_DEEPEST_MODEL = 4
"""Segments of `models/maker/name:variant`, and one more."""


def granted(method: str, raw_path: str) -> Grant | None:
    """What is open of a path; None if it is closed."""
    if method in ("GET", "HEAD") and "%" in raw_path and _MODEL.match(raw_path):
        raw_path = _ENCODED.sub(lambda found: unquote(found[0]), raw_path)
    if not _SAFE.fullmatch(raw_path):
        return None
    path = raw_path[4:] if raw_path.startswith("/v1/") else raw_path[1:]
    found = _OPEN.get(method, {}).get(path)
    return found or _deeper(method, path.split("/"))


def _deeper(method: str, parts: list[str]) -> Grant | None:
    if parts[0] == "models":
        return Grant() if method in ("GET", "HEAD") and len(parts) <= _DEEPEST_MODEL else None
    owned = _OWNED.get(method, {})
    if len(parts) == 4 and parts[0] == "conversations":
        parts = [*parts[:3], "ITEM"]
    for place in range(1, min(len(parts), 3)):
        found = owned.get("/".join([*parts[:place], "ID", *parts[place + 1 :]]))
        if found is not None:
            return found._replace(id=parts[place])
    return None
