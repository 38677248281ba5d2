"""The OpenAPI description, derived from the faces and the types they answer with."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from midfold import __version__
from midfold.dashboard.asked import LARGEST, LONGEST, Param
from midfold.dashboard.faces import FACES, RAW, Face
from midfold.dashboard.facts import Problem

REFERENCE = "#/components/schemas/{name}"
ERRORS = {"400": "a parameter is not what was expected", "404": "there is no such thing, or not for this caller"}


@cache
def description() -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    types = [*dict.fromkeys(face.answers for face in FACES), Problem]
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE)
    by_type = dict(zip(types, schemas, strict=True))
    problem = by_type[Problem]
    paths = {face.api_path: _operation(face, by_type[face.answers], problem) for face in FACES}
    paths[RAW.api_path] = _operation(RAW, {"type": "array", "items": {}}, problem)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "midfold sessions",
            "version": __version__,
            "description": "What midfold's pages show, as JSON. Read-only. Times are milliseconds since 1970, sizes "
            "are tokens, money is US dollars. Texts are redacted, except for `raw`.",
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(face: Face, schema: dict[str, Any], problem: dict[str, Any]) -> dict[str, Any]:
    errors = {
        status: {"description": what, "content": {"application/json": {"schema": problem}}}
        for status, what in ERRORS.items()
        if status == "400" or any(param.where == "path" or param.name == "session" for param in face.params)
    }
    answer = {"description": face.summary, "content": {"application/json": {"schema": schema}}}
    return {
        "get": {
            "operationId": face.name,
            "summary": face.summary,
            "parameters": [_parameter(param) for param in face.params],
            "responses": {"200": answer, **errors},
        }
    }


def _parameter(param: Param) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "maxLength": LONGEST}
    if param.number:
        schema = {"type": "integer", "minimum": 0, "maximum": LARGEST}
    elif param.choices:
        schema = {"type": "string", "enum": list(param.choices)}
    described = {"name": param.name, "in": param.where, "description": param.what, "schema": schema}
    if param.where == "path":
        return {**described, "required": True}
    return {**described, "required": False, "allowEmptyValue": True}
