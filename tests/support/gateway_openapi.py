"""OpenAPI description of the gateway's provider routes, to generate almost valid requests."""

from __future__ import annotations

from typing import Any

TEXT_OR_BLOCKS: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type"],
                "properties": {
                    "type": {"enum": ["text", "image", "tool_use", "tool_result", "thinking", "input_text"]},
                    "text": {"type": "string"},
                    "id": {"type": "string"},
                    "name": {"type": "string"},
                    "input": {"type": "object"},
                    "tool_use_id": {"type": "string"},
                    "content": {"type": "string"},
                },
            },
        },
    ]
}
MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": ["system", "user", "assistant", "tool"]},
        "content": TEXT_OR_BLOCKS,
        "tool_call_id": {"type": "string"},
        "tool_calls": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["id", "type", "function"],
                "properties": {
                    "id": {"type": "string"},
                    "type": {"const": "function"},
                    "function": {
                        "type": "object",
                        "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}},
                    },
                },
            },
        },
    },
}
HEADERS = [
    {"name": name, "in": "header", "schema": {"type": "string", "maxLength": 80}}
    for name in ("x-midfold-session", "x-midfold-bypass", "anthropic-version", "authorization", "accept-encoding")
]


def description(model: str) -> dict[str, Any]:
    def post(field: str, **more: Any) -> dict[str, Any]:
        body = {
            "type": "object",
            "required": ["model", field],
            "properties": {
                "model": {"enum": [model]},
                field: {"type": "array", "items": MESSAGE, "maxItems": 8},
                "stream": {"type": "boolean"},
                "max_tokens": {"type": "integer", "minimum": 1, "maximum": 4_000},
                **more,
            },
        }
        content = {"application/json": {"schema": body}}
        return {"post": {"parameters": HEADERS, "requestBody": {"required": True, "content": content}, **ANSWERS}}

    get = {"get": {"parameters": HEADERS, **ANSWERS}}
    named = {"name": "rest", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "midfold gateway", "version": "1"},
        "paths": {
            "/v1/chat/completions": post("messages"),
            "/v1/messages": post("messages", system={"type": "string"}),
            "/v1/messages/count_tokens": post("messages"),
            "/v1/responses": post("input", instructions={"type": "string"}, previous_response_id={"type": "string"}),
            "/v1/responses/compact": post("input"),
            "/v1/models": get,
            "/v1/{rest}": {"get": {**get["get"], "parameters": [*HEADERS, named]}},
            "/healthz": get,
            "/readyz": get,
            "/metrics": get,
        },
    }


ANSWERS: dict[str, Any] = {"responses": {"default": {"description": "whatever the provider says"}}}
