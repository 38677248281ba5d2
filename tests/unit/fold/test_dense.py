"""What a size that was asked for does to the frame, to what must stay, and to the ledger."""

from __future__ import annotations

from typing import Any

import pytest

import midfold
from midfold.engine.previews import LADDER, SHORT_TEXT, Ends, shorten
from midfold.fold.handoff import MARKER, TERSE_END, filler, handoff, recognise
from midfold.transcript.laws import violations
from midfold.transcript.message import Message, Text
from support.hash_seeds import outputs_under_hash_seeds
from tests.support.build import assistant, call, user

FOLD = "0123456789ab"
ASK = "Port the parser to src/parser/core.rs. You must keep port 8123. Never touch **docs/old.md**!"


def session(count: int = 60) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = [user(ASK)]
    for number in range(count):
        text = f"# the handler of module {number} validates the request\ndef handle_{number}(request): ...\n" * 12
        turns += [
            assistant(f"I read module {number} now, because handle_{number} validates its request."),
            user("go on"),
            *call(number, "read_file", {"path": f"src/module_{number}/file_{number}.py"}, text),
        ]
    return turns


def test_a_terse_handoff_is_framed_and_recognised() -> None:
    message = handoff("## Goal\nShip it", FOLD, "user", terse=True)
    found = recognise(message)
    assert found is not None
    assert found.body == "## Goal\nShip it"
    assert message.text.startswith(MARKER)
    assert "reference only" in message.text
    assert "latest user message wins" in message.text
    assert message.text.endswith(TERSE_END)
    assert recognise(Message("user", (Text(message.text.replace("Ship", "Sink")),))) is None
    ack = recognise(filler(FOLD, "assistant", terse=True))
    assert ack is not None
    assert ack.kind == "ack"


def test_asks_and_answers_that_are_short_stay_whole() -> None:
    whole = Message("user", (Text("x" * SHORT_TEXT),))
    assert shorten(whole, "mf-1", LADDER[-1]) is whole
    long = Message("assistant", (Text("begin " + "x" * 2_000 + " end"),))
    short = shorten(long, "mf-1", Ends(40, 30)).text
    assert short.startswith("begin ")
    assert short.endswith(" end")
    assert "unfold mf-1" in short


@pytest.mark.parametrize("percent", [2, 5, 10, 20, 50])
def test_results_land_and_are_legal_from_two_per_cent_to_half(percent: int) -> None:
    turns = session()
    target = midfold.compact(turns, force=True).receipt.old_tokens * percent // 100
    result = midfold.compact(turns, target_tokens=target, force=True)
    assert result.receipt.new_tokens <= max(target * 1.05, 420)
    assert violations(midfold.read(result.messages).messages) == ()
    text = "\n".join(message.text for message in midfold.read(result.messages).messages)
    assert "You must keep port 8123." in text
    if percent >= 5:
        assert "Never touch **docs/old.md**!" in text


def test_where_nothing_can_be_folded_what_is_long_is_shown_by_its_ends() -> None:
    turns = [user("Read it."), *call(1, "read_file", {"path": "a.py"}, "first line\n" + "word " * 20_000 + "last line")]
    result = midfold.compact(turns, target_tokens=1_000, force=True)
    assert result.receipt.new_tokens <= 1_000
    assert result.receipt.status == "pruned"
    assert result.receipt.digests[0].handle in str(result.messages)
    assert result.messages[0] == turns[0]


def test_lines_stand_below_the_step_they_belong_to() -> None:
    turns = [user("Go.")]
    for number in range(12):
        text = "\n".join(f"the value limit_{number}_{row} of module {number} is {4_000 + row} now" for row in range(8))
        turns += call(number, "read_file", {"path": f"src/deep/mod_{number}.py"}, text)
    turns += [assistant("Done so far."), user("And now?"), assistant("Wait.")]
    result = midfold.compact(turns, target_tokens=500, force=True)
    body = next(message.text for message in midfold.read(result.messages).messages if recognise(message))
    steps = [step for step in body.split("\n- ") if "\n  the value limit_" in step]
    assert steps
    for step in steps:
        number = step.partition("mod_")[2].partition(".py")[0]
        lines = [line for line in step.split("\n") if line.startswith("  the value limit_")]
        assert lines
        assert all(f"limit_{number}_" in line for line in lines)


def test_no_line_is_taken_for_a_heading() -> None:
    turns = [
        user("Go."),
        *call(1, "read_file", {"path": "a.py"}, "# the secret_name of module one\n## big_title here\n"),
    ]
    turns += [*session(20)[1:], user("And now?")]
    result = midfold.compact(turns, target_tokens=3_000, force=True)
    body = next(message.text for message in midfold.read(result.messages).messages if recognise(message))
    assert "secret_name" in body
    assert "\n# the secret_name" not in body
    assert "\n## big_title" not in body


def test_the_same_bytes_under_every_hash_seed() -> None:
    script = (
        "import midfold, sys\n"
        "turns = [{'role': 'user', 'content': 'Go.'}]\n"
        "for n in range(60):\n"
        "    text = f'module_{n} has limit_{n % 7} and value_{n % 11} of {4000 + n % 13} in dir_{n % 5}/file_{n}.py'\n"
        "    turns += [{'role': 'assistant', 'content': text}, {'role': 'user', 'content': 'go on'}]\n"
        "sys.stdout.write(str(midfold.compact(turns, target_tokens=500, force=True).messages))"
    )
    runs = outputs_under_hash_seeds(script, "1", "2")
    assert len(runs) == 1
