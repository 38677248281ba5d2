"""The coding session's client without an SDK: Anthropic's wire over one connection of the standard library."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from midfold.testing.coding_session import SYSTEM, AnthropicMessages, tool_specs


class Rejected(Exception):
    """The provider answered with an error; the message is the provider's own."""


class PlainMessages(AnthropicMessages):
    """The same history as the official client's, a few milliseconds a turn."""

    def __init__(self, url: str, model: str, *, max_tokens: int = 1_024) -> None:
        super().__init__(None, model, max_tokens=max_tokens)
        place = urlsplit(url)
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
        self._tools = tool_specs("input_schema")

    def _send(self, history: list[Any]) -> tuple[list[Any], list[tuple[str, str, Mapping[str, Any]]]]:
        body = {
            "model": self.model,
            "max_tokens": self.max_tokens,
            "system": SYSTEM,
            "tools": self._tools,
            "messages": history,
        }
        headers = {"content-type": "application/json", "x-api-key": "demo", "anthropic-version": "2023-06-01"}
        self._connection.request("POST", "/v1/messages", json.dumps(body).encode(), headers)
        answer = self._connection.getresponse()
        value = json.loads(answer.read())
        if answer.status != 200:
            raise Rejected(value["error"]["message"])
        calls = [(block["id"], block["name"], block["input"]) for block in value["content"] if "input" in block]
        return [{"role": "assistant", "content": value["content"]}], calls

    def close(self) -> None:
        self._connection.close()
