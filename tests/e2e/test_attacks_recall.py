"""Recall never returns another owner's messages, nor those of another conversation of the same key."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from midfold.compaction.archive import handle_of
from midfold.gateway.recall_loop import MAX_CALLS_PER_TURN
from midfold.recall import Recall
from midfold.transcript import jsonio
from midfold.transcript.document import read
from support.gateways import call as post
from support.owners import DOORS, Owners, owners
from support.provider_replies import Turn
from tests.support.build import assistant, call, user

SECRET = "heronnest5150"
TOGETHER = 3
"""Calls in one turn; their results share a limit, which must not truncate a leak."""


def work(count: int, first: int = 0) -> list[dict[str, Any]]:
    turns = []
    for number in range(first, first + count):
        source = f"def part_{number}():\n" + f"    # line of {number}\n" * 60
        turns += call(number, "read_file", {"path": f"src/part_{number}.py"}, source)
    return turns


OPENING = [user("Port it."), *work(30), user("Go on.")]
"""Common beginning of both conversations; its fold is shared by both."""
THEIRS = [
    *OPENING,
    assistant("Gladly."),
    user(f"The password is {SECRET}. Never say {SECRET} again."),
    *call(70, "deploy_vault", {"path": f"/vault/{SECRET}.key"}, f"error: {SECRET} is wrong\nTraceback"),
    assistant(f"I will not; because {SECRET} should stay."),
    *work(40, 100),
    user("And now?"),
]
OURS = [*OPENING, assistant("Ported."), user("What was the password?")]


def send(who: Owners, owner: str, talk: list[dict[str, Any]], calls: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """Return the results of the recall tools for these calls."""
    numbered = tuple((f"h{number}", name, given) for number, (name, given) in enumerate(calls))
    who.model.turns = [Turn("", numbered), Turn("Done.")]
    body = jsonio.encode({"model": "gpt-4o", "messages": talk})
    status, head, _ = post(who.gateway.url, "POST", "/v1/chat/completions", body, **who.headers[owner])
    assert status == 200 and head["x-midfold-session"], "nothing was folded"
    results = [one for one in who.model.asked[-1].body["messages"] if one.get("role") == "tool"]
    return [str(one["content"]) for one in results[-len(calls) :]]


def attempts(who: Owners) -> list[tuple[str, dict[str, Any]]]:
    """Return every way to address another owner's data: words, patterns, filters, and handles of messages and folds."""
    secret = [one for one in read(THEIRS).messages if SECRET in bytes(jsonio.encode(one.wire)).decode()]
    assert len(secret) == 4
    handles = [handle_of(one) for one in secret]
    for info in who.gateway.sessions.all():
        for record in who.gateway.sessions.session(info.name).receipts():
            handles += [record.receipt.fold, *record.receipt.handles]
    words = [SECRET, f'"{SECRET}"', SECRET[:-2], SECRET[1:], f"{SECRET}x", "password vault"]
    made: list[tuple[str, dict[str, Any]]] = [("context_search", {"query": word}) for word in words]
    made += [("context_search", {"queries": [SECRET, "password"]}), ("context_search", {"pattern": SECRET[:5] + "."})]
    filters: list[dict[str, Any]] = [
        {"tool": "deploy_vault"},
        {"path": "/vault/"},
        {"kind": "errors"},
        {"kind": "decisions"},
        {"role": "user"},
        {"after": 60},
        {"before": 10_000, "after": 59},
    ]
    made += [("context_search", {"query": query, **one}) for one in filters for query in ("", SECRET)]
    for handle in dict.fromkeys(handles):
        for given in ({}, {"start": 0}, {"around": SECRET}, {"lines": "1-9000"}):
            made.append(("context_unfold", {"handle": handle, **given}))
        made.append(("context_unfold", {"handle": handle[:9]}))
        made.append(("context_timeline", {"handle": handle, "before": 40, "after": 40}))
    return made


@pytest.mark.parametrize("who_asks", ["another key", "another conversation"])
@pytest.mark.parametrize("door", DOORS)
def test_no_argument_of_any_tool_reaches_what_is_not_of_this_conversation(door: str, who_asks: str) -> None:
    asking = "alice" if who_asks == "another conversation" else "bob"
    with owners(door, window=16_000) as who:
        send(who, "alice", OPENING, [("context_search", {"query": "part_1"})])
        (own,) = send(who, "alice", THEIRS, [("context_search", {"query": SECRET})])
        assert f"The password is {SECRET}" in own
        (mine,) = send(who, asking, OURS, [("context_search", {"query": "part_7"})])
        near = [word.strip(";]") for word in mine.split() if word.startswith("mf-")]
        around = [("context_timeline", {"handle": handle, "before": 40, "after": 40}) for handle in dict.fromkeys(near)]
        calls = [*attempts(who), *around]
        for start in range(0, len(calls), TOGETHER):
            some = calls[start : start + TOGETHER]
            for (name, given), answer in zip(some, send(who, asking, OURS, some), strict=True):
                shown = answer
                for word in given.get("queries") or map(str, given.values()):
                    shown = shown.replace(word, "")
                assert SECRET not in shown and "deploy_vault" not in shown, (name, given, answer)


@pytest.mark.parametrize("named", [{}, {"x_midfold_session": "work"}])
@pytest.mark.parametrize("door", DOORS)
def test_the_same_words_of_another_owner_get_a_fold_and_a_session_of_their_own(
    door: str, named: dict[str, str]
) -> None:
    with owners(door, window=16_000) as who:
        first, _ = who.send("alice", "chat", {"messages": OPENING}, **named)
        again, _ = who.send("alice", "chat", {"messages": OPENING}, **named)
        other, _ = who.send("bob", "chat", {"messages": OPENING}, **named)
        assert again["x-midfold-action"] == "checkpoint" and again["x-midfold-session"] == first["x-midfold-session"]
        assert other["x-midfold-action"] == first["x-midfold-action"] != "checkpoint"
        assert other["x-midfold-session"] != first["x-midfold-session"]
        shown = "".join(who.headers["alice"].values()).removeprefix("Bearer ")
        assert shown not in first["x-midfold-session"]


HEAVY = "(.?.?.?.?.?.?.?.?.?.?){90}~"
LONG = [user("Port it."), *(turn for number in range(30) for turn in call(number, "sh", {}, "aé bc" * 12_000))]


def connect(who: Owners, owner: str, talk: list[dict[str, Any]]) -> socket.socket:
    """Send a request without waiting for the response."""
    data, place = jsonio.encode({"model": "gpt-4o", "messages": talk}), urlsplit(who.gateway.url)
    shown = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in who.headers[owner].items())
    connection = socket.create_connection((place.hostname, place.port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\n{shown}Content-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def test_patterns_of_one_key_delay_no_fold_of_another_and_end_with_their_clients() -> None:
    with owners("keys", window=16_000) as who:
        calls = tuple((f"h{number}", "context_search", {"pattern": HEAVY}) for number in range(20))
        who.model.turns = [Turn("", calls)] * 8
        connections = [connect(who, "alice", [*LONG, user("Go on.")]) for _ in range(8)]
        wait_until(lambda: len(who.model.asked) >= 8)
        begun = time.monotonic()
        head, _ = who.send("bob", "chat", {"messages": OURS})
        assert head["x-midfold-tokens-after"] and time.monotonic() - begun < 10
        for connection in connections:
            connection.close()
        wait_until(lambda: len(who.gateway.accounts) >= 9)
        time.sleep(0.5)
        begun = time.process_time()
        time.sleep(1)
        assert time.process_time() - begun < 0.5, "the searches go on without their clients"


def test_a_turn_runs_a_bounded_number_of_hidden_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    ran, run = [], Recall.run
    monkeypatch.setattr(Recall, "run", lambda *arguments: ran.append(1) or run(*arguments))
    with owners("keys", window=16_000) as who:
        answers = send(who, "alice", OPENING, [("context_timeline", {"handle": "mf-1"})] * 100)
        assert len(ran) == MAX_CALLS_PER_TURN and len(answers) == 100


def wait_until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20
    while not holds() and time.monotonic() < ends:
        time.sleep(0.02)
    assert holds()
