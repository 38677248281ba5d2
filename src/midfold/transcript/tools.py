"""A tool as a model is offered it: one definition, written as each wire wants it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool: its name, what the model is told about it, and a JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    @property
    def properties(self) -> Mapping[str, Any]:
        """The schema of each argument."""
        found: Mapping[str, Any] = self.parameters.get("properties", {})
        return found

    @property
    def required(self) -> tuple[str, ...]:
        """The arguments a call must have."""
        return tuple(self.parameters.get("required", ()))

    def definition(self, dialect: str) -> dict[str, Any]:
        """The definition as it stands in a request."""
        told: dict[str, Any] = {"name": self.name, "description": self.description}
        if dialect == "anthropic":
            return {**told, "input_schema": self.parameters}
        told["parameters"] = self.parameters
        return (
            {"type": "function", "function": told}
            if dialect == "openai-chat"
            else {"type": "function", "strict": False, **told}
        )


def arguments(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    """The JSON schema of a tool's arguments."""
    return {"type": "object", "properties": dict(properties), "required": list(required)}
