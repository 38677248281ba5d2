"""Write docs/reference/http.md from the OpenAPI description that the pages serve.

python tools/gen_http_doc.py          write the file
python tools/gen_http_doc.py --check  exit 1 when it is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from midfold.pages.web import description

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "http.md"
INTRODUCTION = """# HTTP API of the pages

<!-- Made by tools/gen_http_doc.py. Do not edit. -->

What [the pages](../howto/look-at-sessions.md) show, as JSON: `midfold pages` serves it under `/api`, and its
description for tools (OpenAPI 3.1) at `/api/openapi.json`. Everything is GET and changes nothing. Times are
milliseconds since 1970, sizes are tokens, money is US dollars. Texts are redacted, except for `raw`.

An error is an object with `error`, which says what was expected, and `status`: 400 for a parameter that makes no sense,
404 for what is not there or not for this caller, 503 while the store cannot be reached.

`{key}` is a session's name, as `key` in the lists gives it: letters, digits and `- _ . + ~ @ : ,` stand for themselves,
every other byte is `!` and two hexadecimal digits, as in `coding!2Fagent` for `coding/agent`.

| GET | what | parameters | answer |
|---|---|---|---|
"""


def rows(paths: dict[str, Any]) -> Iterator[str]:
    for path, item in paths.items():
        operation = item["get"]
        asked = ", ".join(f"`{param['name']}`" for param in operation["parameters"] if param["in"] == "query")
        answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
        yield f"| `{path}` | {operation['summary']} | {asked} | {_type(answer)} |"


def parameters(paths: dict[str, Any]) -> Iterator[str]:
    yield from ("", "## Parameters", "", "| name | where | what |", "|---|---|---|")
    seen: set[str] = set()
    for item in paths.values():
        for param in item["get"]["parameters"]:
            schema = param["schema"]
            kind = "a number from 0 on" if schema["type"] == "integer" else ", ".join(schema.get("enum", ())) or "text"
            row = f"| `{param['name']}` | {param['in']} | {param['description']} ({kind}) |"
            if row not in seen:
                seen.add(row)
                yield row


def answers(schemas: dict[str, Any]) -> Iterator[str]:
    yield from ("", "## Answers")
    for name, schema in schemas.items():
        if schema.get("type") != "object":
            continue
        yield from ("", f"### {name}", "", _told(schema), "", "| field | type |", "|---|---|")
        yield from (f"| `{field}` | {_type(what)} |" for field, what in schema.get("properties", {}).items())


def _told(schema: dict[str, Any]) -> str:
    return str(schema.get("description", "")).partition("\n\n")[0].replace("\n", " ")


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = _name(schema["$ref"])
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(one) for one in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" if value else "empty" for value in schema["enum"])
    if schema.get("type") == "array":
        inner = schema.get("items") or {}
        return f"list of {_type(inner)}" if inner else "list"
    if schema.get("type") == "object":
        return f"object of {_type(schema['additionalProperties'])}" if schema.get("additionalProperties") else "object"
    return {"null": "null", "integer": "integer", "number": "number", "string": "text", "boolean": "true or false"}.get(
        schema.get("type", ""), "anything"
    )


def page() -> str:
    made = description()
    paths, schemas = made["paths"], made["components"]["schemas"]
    lines = [*rows(paths), *parameters(paths), *answers(schemas)]
    return INTRODUCTION + "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    fresh = page()
    if "--check" in arguments:
        current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == fresh
        print("up to date" if current else "out of date: run python tools/gen_http_doc.py")
        return int(not current)
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
