"""Tools nobody here knows: the most telling arguments, and how much came back."""

from __future__ import annotations

from typing import Any

from midfold.core.digest.action import Action, Outcome
from midfold.core.digest.look import Look, judged, scalar
from midfold.core.digest.wording import clip, flat, plural

SHOWN = 4
_WRITES = ("create", "update", "delete", "remove", "add", "set", "send", "book", "cancel", "save", "post", "put", "modify", "insert", "upload")  # fmt: skip  # noqa: E501


def other(look: Look) -> Action:
    body = look.body
    if isinstance(body.value, list):
        detail = plural(len(body.value), "item")
    elif isinstance(body.value, dict) and not _inner_text(look):
        detail = plural(len(body.fields), "field")
    elif body.media:
        detail = plural(body.media, "media part")
    elif not body.text.strip():
        detail = "nothing came back"
    elif body.characters <= 80 and body.value is None:
        detail = f"answered {look.quote(body.text, 80)}"
    else:
        detail = look.size()
    wrote = bool(look.words) and look.said(*_WRITES)
    otherwise: Outcome = "ok" if body.value is not None else "unknown"
    return judged(
        look, "other", _deed(look), detail, content=False, paths=look.paths(), wrote=wrote, otherwise=otherwise
    )


def _inner_text(look: Look) -> bool:
    """Whether the JSON answer was only an envelope, and the body is the text inside."""
    return look.body.text[:64].lstrip()[:1] != "{"


def _deed(look: Look) -> str:
    telling = sorted(((_rank(key, value), key, value) for key, value in look.given.items()), key=lambda item: item[0])
    shown = [f"{look.say(key, 24)}={_shown(look, value)}" for rank, key, value in telling[:SHOWN] if rank < 9]
    if shown:
        return "called it with " + ", ".join(shown)
    if look.raw.strip() not in ("", "{}", "null") and not look.arguments:
        return f"called it with {look.code(look.raw, 80)}"
    return "called it"


def _shown(look: Look, value: Any) -> str:
    if isinstance(value, str):
        return look.say(value, 40)
    if isinstance(value, list):
        return plural(len(value), "item")
    return clip(flat(scalar(value)), 24)


def _rank(key: str, value: Any) -> int:
    """Ids and names first, then short scalars, then lists; long texts and objects say least."""
    if value is None or value in ("", [], {}) or isinstance(value, dict):
        return 9
    if isinstance(value, list):
        return 5
    if isinstance(value, str) and len(value) > 200:
        return 6
    key = key.lower()
    if key.endswith(("id", "key", "number", "code")):
        return 0
    if key.endswith(("name", "title", "path", "url", "query", "subject", "email")):
        return 1
    return 2 if not isinstance(value, bool) else 4
