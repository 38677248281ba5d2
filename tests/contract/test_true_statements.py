"""Built-in summaries and recall answers state only what calls and messages show."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

import midfold
from midfold.compaction.redact import redact
from midfold.recall import FOUND, InMemorySource

Turns = list[dict[str, Any]]
ASK = {"role": "user", "content": "Audit the parser and the lexer, then fix what is found."}


def call(number: int, tool: str, arguments: dict[str, Any], output: str) -> Turns:
    asked = {"id": f"c{number}", "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": output},
    ]


def shell(number: int, command: str, output: str = "") -> Turns:
    return call(number, "Bash", {"command": command}, output)


def later(count: int = 30) -> Turns:
    """Return turns that push earlier ones into the fold."""
    turns: Turns = []
    for number in range(count):
        turns += shell(900 + number, f"cat notes/{number}.txt", f"note {number}\n" * 40)
        turns += [{"role": "assistant", "content": f"Note {number} says nothing new."}]
    return [*turns, {"role": "user", "content": "Go on."}]


def summary_of(turns: Turns, **options: Any) -> str:
    result = midfold.compact(turns, context_length=16_000, force=True, **options)
    assert result.changed and result.receipt.omitted == ()
    handoffs = (str(message["content"]) for message in result.messages if "midfold fold" in str(message["content"]))
    return next(handoffs)


def launch(number: int, task: str, goal: str) -> Turns:
    given = {"description": goal, "prompt": f"{goal} in src/", "run_in_background": True}
    return call(number, "Task", given, f"Async agent launched successfully.\nagentId: {task}\nIt is working.")


def notification(task: str, report: str, status: str = "<status>completed</status>") -> Turns:
    inside = f"<task-id>{task}</task-id>\n<result>{report}</result>\n{status}"
    return [{"role": "user", "content": f"<task-notification>\n{inside}\n</task-notification>"}]


REPORT = "The parser drops the last token at parser.py:88. " + "Every other case was checked. " * 1_000


# Sub-agents and processes.


@pytest.mark.parametrize("status", ["<status>completed</status>", ""], ids=["status behind a long report", "cut off"])
def test_ended_sub_agent_is_not_running_and_launched_one_is_not_done(status: str) -> None:
    turns = [ASK, *launch(1, "a1b2c3", "Audit the parser"), *launch(2, "d4e5f6", "Audit the lexer")]
    summary = summary_of([*turns, *notification("a1b2c3", REPORT, status), *later()])
    running = re.findall(r"still running \[(\w+)\]", summary)
    assert running == ["d4e5f6"]
    assert not re.search(r"\[done\][^\n]*Audit the lexer", summary)
    assert bool(re.search(r"\[done\][^\n]*Audit the parser", summary)) is bool(status)


def test_report_of_a_sub_agent_stays_in_the_summary() -> None:
    turns = [ASK, *launch(1, "a1b2c3", "Audit the parser"), *notification("a1b2c3", REPORT), *later()]
    assert "The parser drops the last token at parser.py:88." in summary_of(turns)


def test_word_in_a_report_is_no_state() -> None:
    turns = [ASK, *launch(1, "a1b2c3", "Audit the parser")]
    turns += notification("a1b2c3", "The page shows <status>failed</status> in red.")
    assert re.search(r"\[done\][^\n]*Audit the parser", summary_of([*turns, *later()]))


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ('{"status": {"019a-7f": {"completed": "All is well."}}, "timed_out": false}', "wait"),
        ('{"status": {"019a-7f": {"errored": "no more tokens"}}, "timed_out": false}', "wait"),
    ],
)
def test_codex_sub_agent_ends_when_the_answer_to_a_wait_says_so(told: str, name: str) -> None:
    turns = [ASK, *call(1, "spawn_agent", {"message": "Audit the parser"}, '{"agent_id": "019a-7f"}')]
    assert "still running [019a-7f]" in summary_of([*turns, *later()])
    ended = summary_of([*turns, *call(2, f"{name}_agent", {"ids": ["019a-7f"]}, told), *later()])
    assert "still running" not in ended
    assert ("[FAILED] agent" in ended) is ("errored" in told)


def test_state_from_calls_wins_over_the_words_of_a_model() -> None:
    text = "\n".join(
        [
            "## Goal", "Audit the parser and the lexer.",
            "## Active State", "- Sub-agent 'Audit the parser' is still running.",
            "## Progress", "### Done", "- Sub-agent 'Audit the lexer' finished without findings.",
            "- The parser was read from beginning to end.",
            *(f"- Note {number} was read and says nothing new about the parser." for number in range(20)),
        ]
    )  # fmt: skip
    turns = [ASK, *launch(1, "a1b2c3", "Audit the parser"), *launch(2, "d4e5f6", "Audit the lexer")]
    summary = summary_of([*turns, *notification("a1b2c3", REPORT), *later()], summarizer=lambda ask: text)
    assert "is still running" not in summary and "finished without findings" not in summary
    assert "The parser was read from beginning to end." in summary
    assert "[done] agent: sub-agent: Audit the parser" in summary
    assert "still running [d4e5f6]" in summary


def test_process_that_was_stopped_by_an_unknown_id_is_not_called_running() -> None:
    turns = [ASK, *shell(1, "npm run dev & PID=$!\nsleep 2\ncurl localhost:3000\nkill $PID", "[1] 4711\nok")]
    assert "still running" not in summary_of([*turns, *later()])


def test_stop_without_a_known_target_is_not_listed() -> None:
    turns = [ASK, *shell(1, "PID=$(lsof -ti:3000 | head -1); kill $PID")]
    turns += [*shell(2, "kill $(cat server.pid)"), *shell(3, "pkill -f vite")]
    stopped = re.findall(r"\[done\] stop: (.*)", summary_of([*turns, *later()]))
    assert stopped == ["pkill -f vite"]


def test_variable_that_a_command_sets_is_not_cut_to_a_dollar_sign() -> None:
    command = 'ID=$(bd create --title="New (bug)" | head -1) && bd update $ID --claim'
    summary = summary_of([ASK, *shell(1, command, "ok"), *later()])
    assert "[done] create: bd create" in summary
    assert not re.search(r"\[done\][^\n]*\$(?:$|\n| )", summary)


def test_same_start_is_listed_once() -> None:
    turns = [ASK]
    for number in range(4):
        turns += call(number, "Bash", {"command": "npm run dev", "run_in_background": True},
                      f"Command running in background with ID: b{number}xyz")  # fmt: skip
        turns += call(10 + number, "KillShell", {"shell_id": f"b{number}xyz"}, "Successfully killed shell")
    summary = summary_of([*turns, *later()])
    assert len(re.findall(r"\[done\] start: npm run dev", summary)) == 1
    assert "still running" not in summary


def test_process_that_runs_is_listed_once() -> None:
    turns = [ASK, *call(1, "Bash", {"command": "npm run dev"}, "Command running in background with ID: b1xyz")]
    summary = summary_of([*turns, *later()])
    assert "still running [b1xyz]: npm run dev" in summary
    assert "[done] start" not in summary


# Attribution.


def test_answer_of_a_service_is_not_what_the_user_said() -> None:
    given = {"repoName": "vercel/agent-eval", "question": "How are changed files found?"}
    turns = [ASK, *call(1, "ask_question", given, "The runner compares git hashes of agent-eval.")]
    assert "User said: The runner compares" not in summary_of([*turns, *later()])
    asked = [ASK, *call(1, "AskUserQuestion", {"question": "Which port?"}, "Use port 8123, please.")]
    assert re.search(r"## The User's Words.*\n\[1\] Use port 8123, please\.", summary_of([*asked, *later()]))


# Recall.


def test_report_of_a_sub_agent_is_found_first() -> None:
    turns = [ASK, *launch(1, "a1b2c3", "Audit the parser"), *notification("a1b2c3", REPORT)]
    turns += [{"role": "assistant", "content": "The parser has a token."}, *later(3)]
    recall = InMemorySource({"mf-" + "a" * 12: midfold.read(turns).messages}).recall(redact)
    answer = recall.run("context_search", {"query": "parser drops last token"}).text
    assert answer.startswith(FOUND)
    assert "drops the last token at parser.py:88" in answer.split("\n\n")[0]


def test_search_does_not_claim_that_no_message_has_the_words() -> None:
    turns = [ASK, {"role": "assistant", "content": "The lighthouse is far."}, *later(3)]
    recall = InMemorySource({"mf-" + "a" * 12: midfold.read(turns).messages}).recall(redact)
    answer = recall.run("context_search", {"query": "lighthouse parser harbour"}).text
    assert not re.search(r"(?i)no earlier message|no message has", answer)


# Required content of the built-in summary.


def blocked(said: str, *, then: str = "") -> Turns:
    turns = [ASK, *shell(1, "./deploy.sh", "ok"), {"role": "assistant", "content": f"The build is green. {said}"}]
    turns += [{"role": "user", "content": "Use the time: read the notes."}, *later(8)]
    return [*turns, {"role": "assistant", "content": f"{then} The notes are read."}, *later(30)]


@pytest.mark.parametrize(
    "said",
    [
        "I am blocked by the missing approval.",
        "We cannot proceed without the credentials of the registry.",
        "I'm waiting for the approval of the release manager.",
    ],
)
def test_stated_blocker_stays_through_two_compactions(said: str) -> None:
    first = midfold.compact(blocked(said), context_length=16_000, force=True)
    second = midfold.compact([*first.messages, *later(30)], context_length=16_000, force=True, state=first.state)
    for view in (first.messages, second.messages):
        section = re.search(
            r"## Blocked\n(.*?)\n\n", next(str(m["content"]) for m in view if "midfold fold" in str(m)), re.S
        )
        assert section is not None and said in section[1]


def test_blocker_that_is_gone_is_not_listed() -> None:
    turns = blocked("I am blocked by the missing approval.", then="The approval was given.")
    assert "## Blocked" not in summary_of(turns)


def test_call_ids_are_named_for_each_tool_as_far_as_they_fit() -> None:
    turns = [ASK]
    for number in range(6):
        turns += call(number, "Read", {"file_path": f"src/{number}.py"}, "x = 1")
    summary = summary_of([*turns, *later(24)])
    assert "Read x6 (c5, c4, c3, c2, c1, c0)" in summary
    assert re.search(r"Bash x\d+ \(c9\d\d, (?:c9\d\d, ){4,}c9\d\d and older ones\)", summary)


# Filler that is omitted even if the budget allows it.


def remark(number: int, text: str) -> Turns:
    turns = shell(number, f"pytest tests/test_{number}.py", "1 passed")
    turns[0]["content"] = text
    return turns


@pytest.mark.parametrize("target", [None, 4_000], ids=["usual", "target"])
def test_remarks_without_a_referent_are_omitted(target: int | None) -> None:
    remarks = ["So strings get through.", "The problem is in the second step.", "Found the issue.", "But that fails."]
    turns = [ASK]
    for number, text in enumerate([*remarks, "The `UrlParser` keeps the fragment because `split_url` runs first."]):
        turns += remark(number, text)
    summary = summary_of([*turns, *later()], target_tokens=target)
    assert "The `UrlParser` keeps the fragment because `split_url` runs first." in summary
    assert [text for text in remarks if text in summary] == []


def test_sentence_that_refers_back_comes_with_the_one_before_it() -> None:
    turns = [ASK]
    for number in range(20):
        turns += remark(number, f"The loader_{number} reads table_{number} twice. That makes import_{number} slow.")
    summary = summary_of([*turns, *later()])
    found = re.findall(r"(?:The loader_(\d+) reads table_\d+ twice\. )?That makes import_(\d+) slow", summary)
    assert found and all(first == second for first, second in found)


def test_answer_that_opens_with_it_stays() -> None:
    asked = [{"role": "user", "content": "Which port does the gateway use?"}]
    turns = [ASK, *asked, {"role": "assistant", "content": "It uses port 8443."}]
    assert "It uses port 8443." in summary_of([*turns, *later()])


CODE = "\n".join(f'    args.push("--option-{name}");' for name in "abcdefghijklmnopqrstuvwx")
IMPORTS = "\n".join(f"import {{ thing_{number} }} from './module_{number}';" for number in range(20))
LISTING = "total 80\n" + "\n".join(f"drwxr-xr-x 2 me me 4096 Nov 18 11:4{n} folder_{n}" for n in range(10))


def test_repeated_code_imports_and_listings_do_not_fill_a_summary() -> None:
    turns = [ASK, *call(1, "Read", {"file_path": "src/run.ts"}, f"{IMPORTS}\n{CODE}\n    return total;")]
    turns += shell(2, "ls -la", LISTING)
    summary = summary_of([*turns, *later(24)])
    assert summary.count("args.push") <= 3
    assert not re.search(r"import \{|drwxr|return total", summary)


def test_long_code_in_an_answer_is_omitted_and_a_command_stays() -> None:
    code = "```py\nfor row in table:\n    total += row.size\nreturn total_size_of_rows\n```"
    said = f"The loader sums the rows like this:\n{code}\nRun it with:\n```sh\nmake load-rows PORT=8123\n```"
    turns = [ASK, *later(4), {"role": "assistant", "content": said}, {"role": "user", "content": "Read the notes."}]
    summary = summary_of([*turns, *later(8), {"role": "assistant", "content": "All notes are read."}, *later(24)])
    assert "make load-rows PORT=8123" in summary
    assert "total_size_of_rows" not in summary


def test_calls_that_were_not_read_are_not_listed_by_name_alone() -> None:
    turns = [ASK]
    envelope = "Wall time: 0.1 seconds\nProcess exited with code 0\nOriginal token count: 9\nOutput:\nnothing in it"
    for number in range(340):
        turns += call(number, "exec_command", {"cmd": f"cat f{number}"}, f"Chunk ID: {number}\n{envelope}\n")
    summary = summary_of([*turns, *later()])
    assert not re.search(r"^- exec_command|Chunk ID|Wall time", summary, re.MULTILINE)


def test_outcome_of_a_script_is_not_that_of_writing_it() -> None:
    command = "cat > repro.py <<'EOF'\nimport app\napp.run()\nEOF\npython3 repro.py"
    output = (
        "Traceback (most recent call last):\n  File \"repro.py\", line 1\nModuleNotFoundError: No module named 'app'"
    )
    summary = summary_of([ASK, *shell(1, command, f"Exit code 1\n{output}"), *later()])
    assert "wrote repro.py; $ python3 repro.py → FAILED: ModuleNotFoundError" in summary
    assert "Traceback" not in summary
