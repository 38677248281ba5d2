"""System prompts and tools of a session, and secrets that must not be stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import midfold
from midfold.config import load
from midfold.recall.words import parse_query
from midfold.session.sessions import Sessions
from midfold.store.intake import prompt_of, redact_json
from support.build import anthropic_work
from support.fixtures import assistant, call, long_tool_heavy_conversation, user

Open = Callable[..., Sessions]
WINDOW = 64_000
TALK = long_tool_heavy_conversation().messages
TOOLS = [{"name": "sh", "description": "runs a command", "input_schema": {"type": "object"}}]
KEY = "sk-" + "ant-api03-" + "Zx9Qw8Er7Ty6Ui5Op4As3Df2Gh1Jk0Lz" * 2


def body(*messages: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"model": "claude-opus-4-6", "max_tokens": 100, "messages": messages, **more}).encode()


def test_a_resumed_session_has_its_system_prompt_and_tools(connect: Open) -> None:
    session = connect().session("s", context_length=WINDOW, system="You are careful.", tools=TOOLS)
    session.append([user("hello")])
    whole = session.size.tokens
    resumed = connect().session("s", context_length=WINDOW)
    assert (resumed.view().system, resumed.view().tools) == ("You are careful.", TOOLS)
    assert resumed.size.tokens == whole
    bare = connect().session("t", context_length=WINDOW)
    bare.append([user("hello")])
    assert (bare.view().system, bare.view().tools) == (None, []) and bare.size.tokens < whole


def test_a_request_body_brings_its_own(connect: Open) -> None:
    session = connect().session("s", context_length=WINDOW)
    session.sync(body(user("hi"), *anthropic_work(1), system="First.", tools=TOOLS))
    assert session.view().system == "First."
    resumed = connect().session("s", context_length=WINDOW)
    assert (resumed.view().system, resumed.view().tools) == ("First.", TOOLS)
    resumed.sync(body(user("hi"), *anthropic_work(1), user("and"), system=[{"type": "text", "text": "Second."}]))
    again = connect().session("s", context_length=WINDOW)
    assert (again.view().system, again.view().tools) == ([{"type": "text", "text": "Second."}], [])


def test_what_did_not_change_writes_no_row(connect: Open) -> None:
    sessions = connect()
    for _ in range(3):
        session = sessions.session("s", system="Same.", tools=TOOLS)
        session.append([user("one")])
        session.append([user("two")])
    exported = sessions.session("s").export().splitlines()
    assert len([line for line in exported if line.startswith(b'{"prompt"')]) == 2


def test_its_exact_bytes_stay_whoever_goes_on(connect: Open) -> None:
    tools = b'[ {"name": "sh",  "x": 1e-7} ]'
    asked = (
        b'{"model": "claude-opus-4-6", "max_tokens": 9, "tools": %s, "messages": [{"role": "user", "content": "hi"}]}'
    )
    sessions = connect()
    sessions.session("s").sync(asked % tools)
    resumed = connect().session("s")
    resumed.append([user("more")])
    resumed.compact()
    branch = connect().session("s").sync([user("hi"), user("otherwise")]).session
    branch.append([user("and on")])
    for name in ("s", branch.name):
        info = sessions.store.must(name)
        assert sessions.store.prompt(info) == (None, tools)
        assert len(sessions.store.database.rows("prompts", session=info.id)) == 1


def test_who_says_nothing_about_it_changes_nothing(connect: Open) -> None:
    sessions = connect()
    sessions.session("s").append([user("hi")])
    unaware = connect().session("s")
    sessions.session("s", system="Later.", tools=TOOLS).append([user("more")])
    unaware.sync([user("hi"), user("more"), user("and")])
    unaware.append([user("on")])
    assert (connect().session("s").view().system, connect().session("s").view().tools) == ("Later.", TOOLS)


def test_it_counts_after_a_compaction_and_travels_with_the_session(connect: Open) -> None:
    session = connect().session("s", context_length=WINDOW, system="You are careful.", tools=TOOLS)
    session.append(TALK)
    child = session.compact(force=True, persistence="child").session
    resumed = connect().session(child.name, context_length=WINDOW)
    assert str(resumed.view().system).startswith("You are careful.") and resumed.view().tools == TOOLS
    elsewhere = midfold.open("memory:")
    elsewhere.load(session.export().splitlines(), name="copy")
    copy = elsewhere.session("copy", context_length=WINDOW)
    assert copy.view().tools == TOOLS and str(copy.view().system).startswith("You are careful.")
    assert copy.export().splitlines()[1:] == session.export().splitlines()[1:]
    assert elsewhere.check(deep=True) == []


def test_a_history_finds_its_session_and_is_hashed_once(connect: Open) -> None:
    sessions = connect()
    sessions.session("s").append(TALK[:20])
    asked = sessions.given([*TALK[:20], user("next")])
    found = sessions.find_prefix(asked, least=2)
    assert found == ("s", 20, 20)
    assert sessions.session("s").sync(asked)[1:] == (20, 1, False, 0)
    assert sessions.find_prefix([user("somebody else")]) is None


def rows_of(sessions: Sessions) -> bytes:
    """Return all stored bytes that could contain a secret."""
    store = sessions.store
    lines = b"".join(line for info in sessions.all() for line in store_lines(sessions, info.name))
    return lines + repr(store.find(parse_query("zzqq").terms)).encode()


def store_lines(sessions: Sessions, name: str) -> list[bytes]:
    session = sessions.session(name)
    handles = [record.receipt.fold for record in session.receipts() if record.receipt.fold]
    originals = [data for handle in handles for data in session.unfold_bytes(handle)]
    return [session.export(), session.history().json(), session.view().json(), *originals]


def test_a_store_that_redacts_keeps_no_secret(connect: Open) -> None:
    sessions = connect(redacts=True)
    session = sessions.session("s", context_length=WINDOW, system=f"Use the token {KEY}.")
    secret = [user(f"my key is {KEY} zzqq"), *call(900, "sh", {"command": f"export API_KEY={KEY}"}, f"ok {KEY}")]
    session.append([*secret, *TALK])
    assert session.compact(force=True).changed
    session.append([user(f"again {KEY}")])
    assert KEY.encode() not in rows_of(sessions) and KEY[:30].encode() not in rows_of(sessions)
    assert "[REDACTED" in str(connect(redacts=True).session("s").view().system)
    assert "[REDACTED" in session.search("zzqq")[0].text
    assert json.loads(session.history().messages[1]["tool_calls"][0]["function"]["arguments"])["command"]


def test_what_holds_no_secret_is_stored_exactly(connect: Open) -> None:
    session = connect(redacts=True).session("s")
    odd = b'[{"role" : "user",  "content":"five", "x": 1e-7}]'
    session.append(odd)
    assert session.history().json() == odd


def test_a_redacted_history_that_is_sent_again_is_the_same(connect: Open) -> None:
    sessions = connect(redacts=True)
    history = [user(f"my key is {KEY}"), assistant("noted")]
    assert sessions.session("s").sync(history).added == 2
    assert sessions.session("s").sync([*history, user("go on")])[1:] == (2, 1, False, 0)
    assert sessions.find_prefix([*history, user("other")]) == ("s", 2, 3)


def test_a_session_is_redacted_when_it_is_loaded(connect: Open) -> None:
    source = midfold.open("memory:")
    source.session("s", system=f"key {KEY}").append([user(f"my key is {KEY}")])
    sessions = connect(redacts=True)
    sessions.load(source.session("s").export().splitlines())
    assert KEY.encode() not in rows_of(sessions)


def test_the_setting_decides_unless_the_caller_does(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("store:\n  redact: on\n", encoding="utf-8")
    config = load(file, environ={}).config
    for redacts, stored in ((None, True), (False, False)):
        with midfold.open("memory:", config=config, redacts=redacts) as sessions:
            sessions.session("s").append([user(f"key {KEY}")])
            assert ("[REDACTED" in sessions.session("s").history().messages[0]["content"]) is stored


def test_signed_thinking_with_a_secret_is_left_out_and_other_thinking_stays() -> None:
    block = {"type": "thinking", "thinking": f"the key {KEY}", "signature": "c2ln"}
    plain = {"type": "thinking", "thinking": "nothing", "signature": "c2ln"}
    message = {"role": "assistant", "content": [block, plain, {"type": "text", "text": f"I have {KEY}"}]}
    after = json.loads(redact_json(json.dumps(message).encode()))
    assert after["content"][0] == plain and len(after["content"]) == 2 and KEY not in json.dumps(after)


def test_text_that_is_no_json_is_redacted_as_text() -> None:
    data = f"not json {KEY} \xff".encode("latin-1")
    assert KEY.encode() not in redact_json(data) and redact_json(data).endswith(b"\xff")
    assert redact_json(b"plain \xff") == b"plain \xff"


def test_a_redactor_of_the_callers_own_is_asked_too(connect: Open) -> None:
    sessions = connect(redacts=True, redactor=lambda text: text.replace("Bletchley", "[PLACE]"))
    sessions.session("s").append([user(f"Bletchley {KEY}")])
    (message,) = sessions.session("s").history().messages
    assert message["content"].startswith("[PLACE]") and KEY not in message["content"]


def test_nothing_beside_is_nothing() -> None:
    assert prompt_of("", []) == prompt_of(None, None) == (None, None)
