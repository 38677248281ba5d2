from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from midfold.cli.main import main
from midfold.cli.terminal import bar
from midfold.errors import TranscriptError

ROOT = Path(__file__).resolve().parents[3]
CODING = str(ROOT / "examples" / "coding-session.json")
AIRLINE = str(ROOT / "examples" / "airline-session.json")


def inspect(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["inspect", *arguments], input=stdin)


def midfold(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "midfold", *arguments], input=stdin, capture_output=True, check=False)


def test_it_shows_roles_calls_categories_the_largest_messages_and_problems() -> None:
    shown = inspect(CODING).output
    assert "106 messages in openai-chat format: 47 assistant, 47 tool, 12 user" in shown
    assert "47 tool calls, 47 results: Bash 28, Grep 7, Read 7, Edit 5" in shown
    assert "tool results" in shown
    assert "█" in shown
    assert "Largest messages" in shown
    assert "No problems found." in shown


def test_json_has_the_same_facts_and_no_content() -> None:
    facts = json.loads(inspect(CODING, "--json").output)
    assert facts["dialect"] == "openai-chat"
    assert facts["model"]["name"] == "claude-opus-4-5-20251101"
    assert facts["roles"] == {"assistant": 47, "tool": 47, "user": 12}
    assert sum(facts["tokens"]["by_kind"].values()) == facts["tokens"]["total"]
    assert facts["tokens"]["basis"] == "estimated"
    assert len(facts["largest"]) == 10
    assert facts["problems"] == []
    user_text = json.loads(Path(CODING).read_text())["messages"][0]["content"]
    assert user_text[:40] not in json.dumps(facts)


def test_the_window_is_shown_from_fixed_costs_to_free_space_with_what_was_measured() -> None:
    body = json.loads(Path(CODING).read_text()) | {"max_tokens": 20_000}
    body["messages"].insert(0, {"role": "system", "content": "Be careful. " * 200})
    body["tools"] = [{"type": "function", "function": {"name": "mcp__files__list", "description": "Lists. " * 50}}]
    given = json.dumps(body).encode()

    def parts(*options: str, stdin: bytes = given) -> dict[str, int]:
        context = json.loads(inspect("-", "--json", *options, stdin=stdin).output)["context"]
        found = {share["name"]: share["tokens"] for share in context["shares"]}
        assert sum(found.values()) == 200_000
        assert found["reserved for the answer"] == 20_000
        assert found["free space"] == 180_000 - context["prompt_tokens"]
        return found

    plain, measured = parts(), parts("--prompt-tokens", "90000")
    assert list(plain) == ["system prompt", "MCP tools", "conversation", "reserved for the answer", "free space"]
    assert measured["free space"] == 90_000
    assert measured["conversation"] > 2 * plain["conversation"]
    reported = json.dumps(body | {"usage": {"prompt_tokens": 90_000, "completion_tokens": 3}}).encode()
    assert parts(stdin=reported) == measured
    shown = inspect("-", stdin=reported).output
    assert "90,000 tokens (reported by the provider; estimated: 3" in shown
    assert re.search(r"free space +90,000 +45\.0%", shown)
    assert "reported by the provider" in shown
    by_kind = shown.partition("Where the tokens go")[2].partition("Context window")[0]
    sizes = [int(number.replace(",", "")) for number in re.findall(r" ([\d,]+) +[\d.]+%", by_kind)]
    assert sum(sizes) == 90_000
    assert "reported by the provider" not in inspect(CODING).output


def test_it_reads_standard_input_and_all_three_shapes() -> None:
    anthropic = b'{"system":"s","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}'
    assert "1 messages in anthropic format" in inspect("-", stdin=anthropic).output
    assert json.loads(inspect("-", "--json", stdin=b'{"input":"hi"}').output)["dialect"] == "openai-responses"
    assert json.loads(inspect("-", "--json", stdin=b"[]").output)["messages"] == 0


def test_problems_are_shown_with_their_place_and_the_rest_is_counted() -> None:
    shown = inspect("-", stdin=json.dumps([{"role": "user", "content": "a"}, *[None] * 15]).encode()).output
    assert "15 problem(s) found:" in shown
    assert "messages[10]: expected a message object, found null" in shown
    assert "and 5 more; see --json" in shown


def test_many_conversations_are_listed_and_one_can_be_chosen() -> None:
    lines = b"\n".join(Path(path).read_bytes().replace(b"\n", b" ") for path in (CODING, AIRLINE))
    assert "2 conversations, 138 messages" in inspect("-", stdin=lines).output
    assert json.loads(inspect("-", "--json", stdin=lines).output)["totals"]["messages"] == 138
    assert json.loads(inspect("-", "--json", "--conversation", "2", stdin=lines).output)["messages"] == 32
    with pytest.raises(TranscriptError, match="there is no number 3"):
        CliRunner().invoke(main, ["inspect", "-", "--conversation", "3"], input=lines, catch_exceptions=False)


def test_the_models_factor_window_and_vocabulary_are_used() -> None:
    as_gpt = json.loads(inspect(CODING, "--json", "--model", "gpt-4o").output)
    as_claude = json.loads(inspect(CODING, "--json").output)
    assert as_gpt["tokens"]["total"] < as_claude["tokens"]["total"]
    assert as_gpt["model"]["context_window"] == 128_000
    exact = json.loads(inspect(CODING, "--json", "--model", "gpt-4o", "--exact").output)
    assert exact["tokens"]["basis"] == "counted"
    assert exact["tokens"]["total"] == pytest.approx(as_gpt["tokens"]["total"], rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["inspect", "/no/such/file"], b"", "cannot read /no/such/file: no such file or directory"),
        (["inspect", "/"], b"", "cannot read /: is a directory"),
        (["inspect", "-"], b"hello", "standard input is not a transcript"),
        (["inspect", "-"], b'[{"name": "x"}]', "it contains no message with a role"),
        (["inspect", "-"], b'{"type":"user","message":{}}\n{"type":"x"}', "it contains no message with a role"),
        (["inspect", "-", "--strict"], b"[null]", "messages[0]: expected a message object, found null"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_exit_code_2(arguments: list[str], stdin: bytes, message: str) -> None:
    done = midfold(*arguments, stdin=stdin)
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.decode().count("\n") == 1
    assert message in done.stderr.decode()


def test_help_lists_the_commands_and_explains_the_file() -> None:
    assert "inspect" in midfold("--help").stdout.decode()
    assert "one conversation per line" in " ".join(midfold("inspect", "--help").stdout.decode().split())
    assert midfold("nonsense").returncode == 2


def test_piped_output_has_no_colour_codes() -> None:
    assert b"\x1b[" not in midfold("inspect", CODING).stdout


def test_a_reader_that_stops_early_is_no_error() -> None:
    command = f"{sys.executable} -m midfold inspect {CODING} | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, check=False)
    assert b"Traceback" not in done.stderr


def test_a_bar_is_as_long_as_its_share() -> None:
    assert bar(0.0) == ""
    assert bar(1.0, 8) == "█" * 8
    assert bar(0.5, 8) == "█" * 4
    assert bar(1 / 64, 8) == "▏"
    assert bar(7.0, 8) == "█" * 8


ODD_NAMES = ("x[/red]y", "esc\x1b[31mRED\x1b]0;title\x07", "\ud800", "[bold]b")
ODD = [
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}}],
    }
    for name in ODD_NAMES
]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_odd_names_break_neither_the_command_nor_the_terminal(encoding: str) -> None:
    source = json.dumps(ODD).encode()
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "midfold", "inspect", "-"]
    plain = subprocess.run(command, input=source, capture_output=True, check=True, env=env).stdout
    assert b"x[/red]y" in plain
    assert b"[bold]b" in plain
    as_json = subprocess.run([*command, "--json"], input=source, capture_output=True, check=True, env=env).stdout
    assert b"\x1b" not in plain + as_json
    assert json.loads(as_json)["tools_used"].keys() == set(ODD_NAMES)


def test_the_window_of_the_configuration_is_used(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text('models:\n  "claude-opus-4-5*":\n    context_window: 1000\n')
    facts = json.loads(inspect(CODING, "--json", "--config", str(config)).output)
    assert facts["model"]["context_window"] == 1000


def test_closed_streams_and_full_disks_are_one_line() -> None:
    command = f"{sys.executable} -m midfold inspect"
    for shell in (f"{command} - <&-", f"{command} {CODING} > /dev/full"):
        done = subprocess.run(["bash", "-c", shell], capture_output=True, check=False)
        assert done.returncode in (1, 2)
        assert b"Traceback" not in done.stderr
