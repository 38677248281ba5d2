"""`midfold artifacts` as a user runs it: real sessions in every format, folded or not, on a terminal or piped."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import midfold
from midfold.cli.main import main
from midfold.errors import TranscriptError
from support.terminal import Terminal

ROOT = Path(__file__).resolve().parents[3]
CODING = str(ROOT / "examples" / "coding-session.json")
AIRLINE = str(ROOT / "examples" / "airline-session.json")


def artifacts(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["artifacts", *arguments], input=stdin, catch_exceptions=False)


def facts(*arguments: str, stdin: bytes | None = None) -> dict[str, Any]:
    return json.loads(artifacts(*arguments, "--json", stdin=stdin).output)


def calls(*made: tuple[dict[str, str], str]) -> bytes:
    """Return messages in Anthropic's format with one shell command each."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for number, (arguments, answer) in enumerate(made):
        use = {"type": "tool_use", "id": f"t{number}", "name": "Bash", "input": arguments}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": answer}
        messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    return json.dumps({"messages": messages}).encode()


def test_it_shows_files_acts_checks_and_what_was_only_read() -> None:
    lines = [" ".join(line.split()) for line in artifacts(CODING).output.splitlines()]
    assert lines[0].startswith("106 messages; files in /Users/soph/Work/entire/devenv: 5 scratch, 2 changed")
    assert "[27] changed cli/cmd/entire/cli/git_operations.go +8 -14 1 HasUncommittedChanges()" in lines
    assert "[99] lint passed (0 issues) mise run lint" in lines
    assert "[80] stash git stash pop" in lines
    assert "[4] cli/cmd/entire/cli/resume.go 95-124" in lines
    headings = ["Files:", "Actions:", "Last checks:", "Read, not changed:"]
    assert [line for line in lines if line in headings] == headings
    assert "Still running:" not in lines
    first_scratch = next(at for at, line in enumerate(lines) if " scratch " in line)
    assert " changed " in lines[lines.index("Files:") + 1] and first_scratch == lines.index("Files:") + 3


def test_acts_are_told_by_what_came_of_them_last_and_what_runs_as_running() -> None:
    shown = " ".join(artifacts(AIRLINE).output.split())
    assert "actions: 1;" in shown and "[28] book book_reservation" in shown and "reservation_id=HATHAT" in shown
    started = "Command running in background with ID: bash_7"
    shown = " ".join(artifacts("-", stdin=calls(({"command": "npm run dev"}, started))).output.split())
    assert "Still running: [1] bash_7 npm run dev" in shown


def test_what_was_tried_before_is_told_by_the_history() -> None:
    error = "Error: payment amount does not add up, total price is 305, but paid 255"
    shown = " ".join(artifacts(AIRLINE).output.split())
    assert "FAILED" not in shown and error not in shown
    assert shown.endswith("Superseded actions: 1 (shown with --history)")
    whole = " ".join(artifacts(AIRLINE, "--history").output.split())
    assert "actions: 1;" in whole and "--history" not in whole
    assert whole.index("[28] book book_reservation") < whole.index("[20] book FAILED book_reservation")
    assert error in whole
    assert [act.get("is_replaced", False) for act in facts(AIRLINE)["acts"]] == [True, False]


def test_what_failed_and_was_not_done_later_is_told_as_failed() -> None:
    rejected = ({"command": "git push"}, "Exit code 1\n ! [rejected] main -> main (fetch first)")
    committed = ({"command": "git commit -m one"}, "[main 1a2b3c4] one\n 1 file changed")
    shown = " ".join(artifacts("-", stdin=calls(committed, rejected)).output.split())
    assert "[3] push FAILED git push" in shown and "--history" not in shown


def test_json_has_every_list_also_an_empty_one() -> None:
    told = facts(AIRLINE)
    assert (told["files"], told["running"], told["checks"], told["reads"]) == ([], [], [], [])
    assert [act["what"] for act in told["acts"]] == ["book", "book"]
    assert told["acts"][0]["ok"] is False and "ok" not in told["acts"][1]
    assert told["messages"] == 32
    assert facts("-", stdin=b"[]")["acts"] == []
    assert "no recognized changes" in artifacts("-", stdin=b"[]").output


def test_a_folded_transcript_tells_what_the_fold_did_and_counts_nothing_twice() -> None:
    body = json.loads(Path(CODING).read_bytes())
    folded = midfold.compact(body["messages"], context_length=24_000, force=True)
    assert folded.changed
    whole, after = facts(CODING), facts("-", stdin=json.dumps(folded.messages).encode())
    assert {(file["path"], file["state"]) for file in after["files"]} >= {
        (file["path"], file["state"]) for file in whole["files"] if file["state"] == "changed"
    }
    assert {file["path"]: file.get("edits", 0) for file in after["files"] if file["state"] == "changed"} == {
        file["path"]: file["edits"] for file in whole["files"] if file["state"] == "changed"
    }
    assert [act["text"] for act in after["acts"]] == [act["text"] for act in whole["acts"]]
    assert after["messages"] == len(folded.messages)
    assert "[fold]" in artifacts("-", stdin=json.dumps(folded.messages).encode()).output


def test_many_conversations_are_counted_and_one_can_be_chosen() -> None:
    lines = b"\n".join(Path(path).read_bytes().replace(b"\n", b" ") for path in (CODING, AIRLINE))
    shown = [line.split() for line in artifacts("-", stdin=lines).output.splitlines()]
    assert ["1", "106", "7", "2", "0", "4", "1"] in shown and ["2", "32", "0", "1", "0", "0", "0"] in shown
    assert [one["messages"] for one in facts("-", stdin=lines)["conversations"]] == [106, 32]
    assert facts("-", "--conversation", "2", stdin=lines)["messages"] == 32
    with pytest.raises(TranscriptError, match="there is no number 3"):
        artifacts("-", "--conversation", "3", stdin=lines)
    with pytest.raises(TranscriptError, match="not a transcript"):
        artifacts("-", stdin=b'[{"a": 1}]')


def test_neither_secrets_nor_control_characters_come_out() -> None:
    secret = "sk-ant-api03-" + "a1B2c3D4" * 10
    made = calls(({"command": f"curl -X POST -H 'x-api-key: {secret}' https://example.com/\x1b[31mred"}, "ok"))
    for output in (artifacts("-", stdin=made).output, artifacts("-", "--json", stdin=made).output):
        assert "https://example.com/" in output
        assert secret not in output and "\x1b" not in output


def test_a_terminal_gets_tables_with_headings() -> None:
    command = (sys.executable, "-m", "midfold", "artifacts", CODING)
    with Terminal(command, folder=ROOT, environment={**os.environ, "TERM": "xterm"}) as terminal:
        terminal.wait_for("Read, not changed")
        assert "touched" in terminal.shown and "outcome" in terminal.shown
        assert "Files:" not in terminal.shown
        assert b"\x1b[1mFiles" in terminal.raw
