"""What is wrong between messages: calls and results that do not find each other."""

from __future__ import annotations

from midfold.core.message import Problem, ToolResult, Transcript
from midfold.core.pairing import Place, pair


def pairing_problems(messages: Transcript, key: str) -> list[Problem]:
    pairing = pair(messages)
    found: dict[Place, str] = dict.fromkeys(pairing.reused, "an earlier call of this conversation has the same id")
    for place in pairing.orphans:
        part = messages[place.message].parts[place.part]
        nameless = isinstance(part, ToolResult) and not part.call_id
        found[place] = (
            "this tool result has no id and no open call"
            if nameless
            else "this tool result answers no call of the turn before it"
        )
    found.update(dict.fromkeys(pairing.unanswered, "this tool call was never answered"))
    return [Problem(f"{key}[{place.message}]", found[place]) for place in sorted(found)]
