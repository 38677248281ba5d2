"""Answers the gateway makes itself, in the shape the client's own provider would use."""

from __future__ import annotations

from typing import Any

import msgspec

from midfold.gateway.routes import ANTHROPIC

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def error_body(wire: str | None, status: int, message: str, code: str | None = None) -> bytes:
    """An error as JSON: Anthropic's shape for its clients, OpenAI's for all others."""
    value: dict[str, Any]
    if wire == ANTHROPIC:
        kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        value = {"type": "error", "error": {"type": kind, "message": message}}
    else:
        kind = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        value = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return msgspec.json.encode(value)
