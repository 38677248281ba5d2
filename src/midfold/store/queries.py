"""SQL stays in .sql files: named sections, one set of parameters for both databases."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Literal

Flavour = Literal["sqlite", "postgres"]

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_PLACES: dict[Flavour, dict[str, str]] = {
    "sqlite": {"{now}": ":now", "{lock}": ""},
    "postgres": {
        "{now}": "(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
        "{lock}": "FOR UPDATE",
    },
}


@cache
def queries(flavour: Flavour) -> dict[str, str]:
    """The text of every query by its name, as the database's driver wants it."""
    folder = files("midfold.store") / "sql"
    found: dict[str, str] = {}
    for source in (folder / "queries.sql", folder / flavour / "queries.sql"):
        pieces = _NAME.split(source.read_text(encoding="utf-8"))
        for name, text in zip(pieces[1::2], pieces[2::2], strict=True):
            found[name] = adapted(text.strip(), flavour)
    return found


def adapted(text: str, flavour: Flavour) -> str:
    for place, value in _PLACES[flavour].items():
        text = text.replace(place, value)
    return text if flavour == "sqlite" else _PARAMETER.sub(r"%(\1)s", text)
