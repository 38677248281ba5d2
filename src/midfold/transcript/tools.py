"""Tool definitions offered to a model, written for each dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class ToolSpec(msgspec.Struct, frozen=True):
    """Tool with its name, the description for the model, and a JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    @property
    def properties(self) -> Mapping[str, Any]:
        """Return the schema of each argument."""
        found: Mapping[str, Any] = self.parameters.get("properties", {})
        return found

    @property
    def required(self) -> tuple[str, ...]:
        """Return the names of required arguments."""
        return tuple(self.parameters.get("required", ()))

    def definition(self, dialect: str) -> dict[str, Any]:
        """Return the definition for a request in this dialect."""
        fields: dict[str, Any] = {"name": self.name, "description": self.description}
        if dialect == "anthropic":
            return {**fields, "input_schema": self.parameters}
        fields["parameters"] = self.parameters
        return (
            {"type": "function", "function": fields}
            if dialect == "openai-chat"
            else {"type": "function", "strict": False, **fields}
        )


def arguments(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    """Return the JSON schema of a tool's arguments."""
    return {"type": "object", "properties": dict(properties), "required": list(required)}
