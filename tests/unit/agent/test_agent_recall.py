"""Results of the agent's search of past messages: short, whole lines, nothing already in view."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import midfold
from midfold.agent.assembly import recall_tools
from midfold.agent.tools import Toolbox
from midfold.recall import FOUND, MAX_HITS, NOTHING
from midfold.session.session import Session
from midfold.transcript.jsonio import text_of
from midfold.transcript.message import ToolCall


@pytest.fixture
def session() -> Iterator[Session]:
    with midfold.open("memory:") as sessions:
        yield sessions.session("s", context_length=8_000)


def called(session: Session, number: int, name: str, arguments: dict[str, Any], result: str) -> None:
    call = {"name": name, "arguments": text_of(arguments)}
    calls = [{"id": f"c{number}", "type": "function", "function": call}]
    session.append(
        [
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": f"c{number}", "content": result},
        ]
    )


def ask(session: Session, query: str) -> str:
    toolbox = Toolbox(recall_tools(lambda: session, 20_000))
    return toolbox.run(ToolCall("x", "context_search", f'{{"query": "{query}"}}')).text


def folded(session: Session) -> None:
    """Add work on two files, fold it, and add a little more."""
    session.append([{"role": "user", "content": "Measure the files."}])
    for number in range(40):
        path = f"src/file_{number % 20}.py"
        called(session, number, "shell", {"command": f"cksum {path}"}, f"{number % 20}77 9 {path}\n{'words ' * 60}")
    session.append([{"role": "assistant", "content": "Measured."}, {"role": "user", "content": "And now?"}])
    assert session.compact(force=True).changed


def test_a_line_is_told_once_with_a_handle_of_its_newest_message(session: Session) -> None:
    folded(session)
    answer = ask(session, "src/file_3.py")
    assert answer.startswith(FOUND)
    assert answer.count("377 9 src/file_3.py") == 1
    handle = answer[answer.index("mf-") :].split()[0]
    assert session.unfold(handle)
    assert answer.count("its result") <= MAX_HITS
    assert "src/file_13.py" not in answer


def test_what_the_model_still_sees_comes_last(session: Session) -> None:
    folded(session)
    session.append([{"role": "assistant", "content": "I look at src/file_3.py again."}])
    answer = ask(session, "src/file_3.py")
    assert "377 9 src/file_3.py" in answer.partition("I look at src/file_3.py again.")[0]
    session.append([{"role": "user", "content": "What of only_here?"}])
    assert "What of only_here?" in ask(session, "only_here")


def test_searches_do_not_find_themselves(session: Session) -> None:
    folded(session)
    for number in range(100, 130):
        called(session, number, "context_search", {"query": "src/file_3.py"}, ask(session, "src/file_3.py"))
    session.append([{"role": "user", "content": "Go on."}])
    session.compact(force=True)
    answer = ask(session, "src/file_3.py")
    assert "377 9 src/file_3.py" in answer
    assert "context_search" not in answer
    assert answer.count(FOUND) == 1


def test_nothing_found_says_what_to_try(session: Session) -> None:
    folded(session)
    answer = ask(session, "zzqq")
    assert answer.startswith(NOTHING)
    assert "Tools called: shell 40" in answer and "messages" in answer
