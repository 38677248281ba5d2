"""Scripted model for a long task in any framework: it reads files one by one, then answers from what it still sees.

    with RulesProvider(ReadingModel(files=36), window=16_000) as provider: ...

Supports both of OpenAI's wire formats. A request without tools is a summary request. Runs are identified by API
key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from support.provider_replies import Turn

ASK = "Read all of the files. The word is PLUM."
WORD = "PLUM"
SUMMARY = "\n".join(
    [
        "## Goal\nRead the files. The word is PLUM.\n\n## Progress\n### Done\n- read some: WRITTEN BY THE MODEL",
        "### In Progress\n- reading the files, one after the other\n\n## Next Steps",
        *(f"- say what the number of the file f{number}.txt is, in a line of its own" for number in range(1, 13)),
    ]
)
"""Summary, long enough for the messages it replaces."""


def file_text(number: int, words: int = 110) -> str:
    """Return a tool result: a fact and filler text."""
    return f"the number of f{number}.txt is {number * 7} " + "lorem ipsum dolor sit amet " * words


def is_summary(body: Mapping[str, Any]) -> bool:
    return not body.get("tools")


def offered(body: Mapping[str, Any]) -> list[str]:
    return [tool["function"]["name"] if "function" in tool else tool["name"] for tool in body.get("tools") or ()]


def calls_in(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the id and name of every call in a request."""
    for item in body.get("messages") or body.get("input") or ():
        if isinstance(item, Mapping):
            if item.get("type") == "function_call":
                yield item["call_id"], item["name"]
            for call in item.get("tool_calls") or ():
                yield call["id"], call["function"]["name"]


def last_result(body: Mapping[str, Any]) -> tuple[str, str]:
    """Return the call whose result ends a request, and the result."""
    last = (body.get("messages") or body["input"])[-1]
    if not isinstance(last, Mapping):
        return "", ""
    return str(last.get("tool_call_id") or last.get("call_id") or ""), json.dumps(last)


class ReadingModel:
    """Model that reads `files` files, looks up an early one if it has a tool for it, and reports the result."""

    def __init__(self, files: int, *, early: int = 2) -> None:
        self.files, self.early = files, early
        self._seen: dict[str, set[str]] = {}

    def __call__(self, request: Any) -> Turn:
        body = request.body
        if is_summary(body):
            return self.summary(body)
        call, text = last_result(body)
        if call.startswith("call_search"):
            return Turn("found it" if f"the number of f{self.early}.txt is {self.early * 7}" in text else "lost it")
        seen = self._seen.setdefault(request.headers["authorization"], set())
        seen.update(call for call, _ in calls_in(body))
        number = len(seen) + 1
        if number <= self.files:
            return Turn("", ((f"call_{number}", "read_file", {"path": f"f{number}.txt"}),))
        if "context_search" not in offered(body):
            return Turn("no tool for it")
        return Turn("", ((f"call_search_{number}", "context_search", {"query": f"number f{self.early}.txt"}),))

    def summary(self, body: Mapping[str, Any]) -> Turn:
        return Turn(SUMMARY)


def numbers_in(text: str) -> dict[int, int]:
    """Return the facts in a text: file -> number."""
    return {int(name): int(number) for name, number in re.findall(r"the number of f(\d+)\.txt is (\d+)", text)}
