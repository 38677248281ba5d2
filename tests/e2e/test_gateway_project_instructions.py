"""Project instructions are recognised by tag and position, with any client's introduction, through six folds."""

from __future__ import annotations

from typing import Any

import pytest

from midfold.testing.doubles import Request
from support.fixtures import number_lines
from support.gateways import running
from support.provider_replies import Turn
from support.rules_provider import RulesProvider

WINDOW = 32_768
RULE = "- Never push to main before the release team has looked at it. RULE-7731"
OWNERS = "\n".join(f"- Module {number} is owned by team {number * 7}; ask it first." for number in range(25))
FILE = f"Contents of /home/ann/shop/CLAUDE.md (project instructions):\n\n# Project rules\n{RULE}\n{OWNERS}"
ASK = "Rename the function foo to bar in every module."


def reminder(text: str) -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>"


INTRODUCTIONS = {
    "known": reminder(f"As you answer the user's questions, you can use the following context:\n# claudeMd\n{FILE}"),
    "reworded": reminder(f"Here is background for this repository:\n# claudeMd\n{FILE}"),
    "no introduction": reminder(f"{RULE}\n{OWNERS}"),
    "another tag": f'<project-instructions source="AGENTS.md">\n{FILE}\n</project-instructions>',
    "a heading of another wording": f"# Guidance for /home/ann/shop\n\n<INSTRUCTIONS>\n{FILE}\n</INSTRUCTIONS>",
    "an unknown tag of rules": f"<workspace_rules>\n{FILE}\n</workspace_rules>",
}
OTHER = reminder("The terminal has 80 columns.")
FOLDS = 6


def sent_after_folds(opening: list[Any]) -> list[Request]:
    """Send a growing conversation on Anthropic's wire until it was folded often enough; return all requests."""
    talk: list[Any] = [{"role": "user", "content": opening}]
    with (
        RulesProvider(lambda request: Turn("Fine."), window=WINDOW) as provider,
        running(provider.url, window=WINDOW, recall="off") as gateway,
    ):
        for number in range(400):
            call = {"type": "tool_use", "id": f"c{number}", "name": "sh", "input": {"command": f"make {number}"}}
            output = number_lines(f"line {{n}} of module {number} is fine and nothing is wrong with it", 120)
            result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": output}
            talk += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
            if number == 5:
                said = {"type": "text", "text": "All are renamed."}
                asked = {"type": "text", "text": "Now look into the tests of every module."}
                talk += [{"role": "assistant", "content": [said]}, {"role": "user", "content": [asked]}]
            body = {"model": "claude-opus-4-6", "max_tokens": 500, "messages": talk}
            assert gateway.post("/v1/messages", body)[0] == 200
            if len({account.receipt for account in gateway.accounts} - {None}) >= FOLDS:
                break
        folds = len({account.receipt for account in gateway.accounts} - {None})
    assert (folds, provider.rejected) == (FOLDS, [])
    return provider.requests


def text_of(request: Request) -> str:
    parts = [part for message in request.body["messages"] for part in message["content"] if isinstance(part, dict)]
    return "\n".join(str(part.get("text", "")) for part in parts)


@pytest.mark.parametrize("kind", INTRODUCTIONS)
@pytest.mark.parametrize("is_apart", [True, False], ids=["in a part of its own", "before the ask"])
def test_instructions_are_there_verbatim_after_six_folds(kind: str, is_apart: bool) -> None:
    block = INTRODUCTIONS[kind]
    is_apart = is_apart or block.startswith("#")
    texts = [OTHER, block, ASK] if is_apart else [f"{OTHER}\n{block}\n\n{ASK}"]
    last = sent_after_folds([{"type": "text", "text": text} for text in texts])[-1]
    assert text_of(last).count(block) == 1


def test_what_exceeds_the_bound_is_folded() -> None:
    large = reminder("Background:\n" + number_lines("rule {n} of this project is long", 1500))
    last = sent_after_folds([{"type": "text", "text": large}, {"type": "text", "text": ASK}])[-1]
    assert "rule 700 of this project" not in text_of(last)


def test_a_reminder_after_the_users_words_or_in_a_later_turn_does_not_stay() -> None:
    later = reminder("The file was opened. LATER-1")
    last = sent_after_folds([{"type": "text", "text": f"{ASK}\n\n{later}"}])[-1]
    assert later not in text_of(last)
