"""The settings as a JSON Schema and as the tables of docs/reference/config.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from midfold.config.edit import render
from midfold.config.layers import environment_name
from midfold.config.schema import Config
from midfold.config.table import FIELDS, OLD, OPEN, Field, Path, dotted


def json_schema() -> dict[str, Any]:
    """A JSON Schema (draft 2020-12) of config.yaml."""
    _, definitions = msgspec.json.schema_components([Config], ref_template="#/$defs/{name}")
    root = definitions.pop("Config")
    del root["properties"]["folder"]
    for definition in (root, *definitions.values()):
        definition.pop("required", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **root,
        "title": "midfold config.yaml",
        "$defs": definitions,
    }


def reference() -> str:
    """The tables of all settings, in Markdown."""
    return "\n".join([*_sections(), *_old_keys()])


def _sections() -> Iterator[str]:
    sections: dict[Path, list[Field]] = {}
    for field in FIELDS.values():
        sections.setdefault(field.path[:-1], []).append(field)
    for section, fields in sections.items():
        shown = tuple(f"<{OPEN[section[0]]}>" if name == "*" else name for name in section)
        yield f"### `{dotted(shown)}`\n"
        yield "| key | default | allowed | meaning |\n|---|---|---|---|"
        for field in fields:
            yield f"| `{field.path[-1]}` | `{render(field.default)}` | {field.allowed} | {field.description} |"
        if "*" not in section:
            example = environment_name(fields[0].path)
            yield f"\nFor example as a variable: `{example}`."
        yield ""


def _old_keys() -> Iterator[str]:
    yield "### Older keys\n"
    yield "| older key | now |\n|---|---|"
    for old, new in OLD.items():
        yield f"| `{dotted(old)}` | `{dotted(new)}` |"
    yield ""
