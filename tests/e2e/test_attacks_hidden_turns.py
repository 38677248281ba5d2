"""Attacks on hidden turns with another key, credential, conversation or prompt."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import midfold
from midfold.gateway.recall_loop import RecallLoop
from midfold.recall import FOUND, NOTHING
from midfold.store.gateway_turns import HiddenTurnKey, HiddenTurns
from support.fixtures import assistant, call, number_lines, user
from support.gateways import call as post
from support.owners import DOORS, Owners, owners
from support.provider_replies import Turn

PLANTED = "The word of the day is TOUCAN-31."
FIRST = user("Hello there.")
LATER = [FIRST, assistant("Done."), user("And now?")]
SYSTEMS: list[tuple[str, str, Any, Any]] = [
    ("chat", "system", "Be brief.", "Be kind."),
    ("chat", "developer", "Be brief.", "Be kind."),
    ("anthropic", "system", "Be brief.", "Be kind."),
    ("anthropic", "system", [{"type": "text", "text": "Be brief."}], [{"type": "text", "text": "Be kind."}]),
    ("responses", "instructions", "Be brief.", "Be kind."),
    ("responses", "developer", "Be brief.", "Be kind."),
]


def body(wire: str, messages: list[Any], where: str = "", prompt: Any = None) -> dict[str, Any]:
    leads = [{"role": where, "content": prompt}] if prompt and (wire == "chat" or where == "developer") else []
    beside = {where: prompt} if prompt and not leads else {}
    return {"input" if wire == "responses" else "messages": [*leads, *messages], **beside}


def planted(who: Owners, owner: str, wire: str, request: dict[str, Any]) -> None:
    """Store a hidden turn with its owner's text after this request."""
    who.model.looks_for("anything", PLANTED)
    who.send(owner, wire, request)
    assert PLANTED.encode() in who.model.last


def is_put_back(who: Owners, owner: str, wire: str, request: dict[str, Any], **more: str) -> bool:
    who.send(owner, wire, request, **more)
    return PLANTED.encode() in who.model.last


@pytest.mark.parametrize("wire", ["chat", "anthropic", "responses"])
@pytest.mark.parametrize("door", DOORS)
def test_nobody_reads_or_plants_hidden_turns_of_another_owner(door: str, wire: str) -> None:
    with owners(door) as who:
        planted(who, "bob", wire, body(wire, [FIRST]))
        for request in (body(wire, [FIRST]), body(wire, LATER)):
            assert not is_put_back(who, "alice", wire, request)
            assert not is_put_back(who, "alice", wire, request, x_midfold_session="bobs")
        assert is_put_back(who, "bob", wire, body(wire, LATER))


def test_a_label_is_no_owner() -> None:
    with owners("credentials") as who:
        who.model.looks_for("anything", PLANTED)
        who.send("bob", "chat", body("chat", [FIRST]), x_midfold_session="shared")
        assert not is_put_back(who, "alice", "chat", body("chat", LATER), x_midfold_session="shared")
        assert is_put_back(who, "bob", "chat", body("chat", LATER), x_midfold_session="another")


@pytest.mark.parametrize(("wire", "where", "one", "other"), SYSTEMS)
def test_the_same_messages_under_another_system_prompt_are_another_conversation(
    wire: str, where: str, one: Any, other: Any
) -> None:
    with owners("keys") as who:
        planted(who, "bob", wire, body(wire, [FIRST], where, one))
        assert not is_put_back(who, "bob", wire, body(wire, LATER, where, other))
        assert not is_put_back(who, "bob", wire, body(wire, LATER))
        assert is_put_back(who, "bob", wire, body(wire, LATER, where, one))


def test_cache_markers_in_a_system_prompt_do_not_make_it_another_one() -> None:
    plain = {"type": "text", "text": "Be brief."}
    with owners("keys") as who:
        planted(who, "bob", "anthropic", body("anthropic", [FIRST], "system", [plain]))
        marked = [{**plain, "cache_control": {"type": "ephemeral"}}]
        assert is_put_back(who, "bob", "anthropic", body("anthropic", LATER, "system", marked))


def test_one_other_word_before_them_is_another_conversation() -> None:
    talk = [FIRST, assistant("Hi."), user("What is new?")]
    later = [assistant("Done."), user("And now?")]
    with owners("keys") as who:
        planted(who, "bob", "chat", body("chat", talk))
        assert not is_put_back(who, "bob", "chat", body("chat", [FIRST, assistant("Hello."), talk[2], *later]))
        assert not is_put_back(who, "bob", "chat", body("chat", [FIRST, *later]))
        assert is_put_back(who, "bob", "chat", body("chat", [*talk, *later]))


def test_the_same_words_in_another_dialect_are_another_conversation() -> None:
    with owners("keys") as who:
        planted(who, "bob", "chat", body("chat", [FIRST]))
        assert not is_put_back(who, "bob", "anthropic", body("anthropic", LATER))


def test_hidden_turns_are_in_no_list_and_go_with_age(tmp_path: Path) -> None:
    with midfold.open(f"sqlite:///{tmp_path}/s.db") as sessions, owners("keys", sessions=sessions) as who:
        planted(who, "bob", "chat", body("chat", [FIRST]))
        assert sessions.all() == [] and sessions.search("TOUCAN") == []
        assert sessions.check(deep=True) == []
        sessions.prune(3600)
        assert is_put_back(who, "bob", "chat", body("chat", LATER))
        time.sleep(0.01)
        sessions.prune(0)
        assert not is_put_back(who, "bob", "chat", body("chat", LATER))


def test_hidden_turns_of_a_folded_conversation_are_deleted_with_its_session() -> None:
    talk = history("Nothing.")
    with owners("keys") as who:
        who.model.looks_for("HERON", PLANTED)
        head, _ = who.send("bob", "chat", {"messages": talk})
        later = body("chat", [*talk, assistant("Done."), user("And now?")])
        assert is_put_back(who, "bob", "chat", later)
        who.gateway.sessions.delete(head["x-midfold-session"])
        assert not is_put_back(who, "bob", "chat", later)


SECRET = "sk-ant-api03-" + "Zx9" * 31


@pytest.mark.parametrize("redact", [True, False])
def test_what_is_stored_of_hidden_turns_is_redacted_where_originals_are(tmp_path: Path, redact: bool) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with midfold.open(url, redacts=redact) as sessions, owners("keys", sessions=sessions) as who:
        who.model.looks_for("x", f"The key is {SECRET}.")
        who.send("bob", "chat", body("chat", [FIRST]))
        who.send("bob", "chat", body("chat", LATER))
        assert (SECRET.encode() in who.model.last) is not redact
        rows = sessions.store.database.rows("page_of_hidden_turns", place="", chain="", most=9)
        records = sessions.store.hidden_turns.read(rows[0][0], [rows[0][1]])
    assert len(records) == 1 and (SECRET.encode() in next(iter(records.values()))) is not redact


class Slow(HiddenTurns):
    """Store that is slow for one owner."""

    def __init__(self, turns: HiddenTurns, place: str) -> None:
        super().__init__(turns._database)
        self.place = place
        self.waits = threading.Event()
        self.goes_on = threading.Event()

    def find(self, place: str, chains: Any) -> list[HiddenTurnKey]:
        if place == self.place:
            self.waits.set()
            self.goes_on.wait(20)
        return super().find(place, chains)


def test_a_question_to_a_slow_store_stops_nobody_else() -> None:
    with owners("keys") as who:
        planted(who, "bob", "chat", body("chat", [FIRST]))
        place = who.gateway.sessions.store.database.rows("page_of_hidden_turns", place="", chain="", most=1)[0][0]
        recall: RecallLoop = who.gateway.app.gateway.recall
        slow = Slow(recall.hidden._turns, place)
        recall.hidden._turns = slow
        waiting = threading.Thread(target=who.send, args=("bob", "chat", body("chat", LATER)))
        waiting.start()
        assert slow.waits.wait(10)
        began = time.monotonic()
        who.send("alice", "chat", body("chat", LATER))
        took = time.monotonic() - began
        assert waiting.is_alive()
        slow.goes_on.set()
        waiting.join(20)
    assert took < 5


def history(secret: str, count: int = 45) -> list[Any]:
    talk: list[Any] = [user("Port the parser. The build is called HERON-5."), assistant("I will.")]
    for number in range(count):
        talk += call(
            number, "terminal", {"command": f"make {number}"}, number_lines(f"line {{n}} of {number} is fine", 40)
        )
    return [*talk, assistant("All ported."), user(f"What now? {secret}")]


def answer_of(who: Owners) -> str:
    """Return the tool's answer to the model."""
    found = [one for one in who.model.asked[-1].body["messages"] if one.get("role") == "tool"]
    return str(found[-1]["content"])


def looked_up(who: Owners, owner: str, talk: list[Any], tool: str, given: dict[str, Any], **more: str) -> str:
    who.model.turns = [Turn("", (("h1", tool, given),)), Turn("Done.")]
    head, _ = who.send(owner, "chat", {"messages": talk}, **more)
    assert head["x-midfold-session"], "nothing was folded"
    return answer_of(who)


@pytest.mark.parametrize("door", DOORS)
def test_recall_does_not_follow_a_label_into_another_conversation(door: str) -> None:
    with owners(door) as who:
        mine = history("My word is PELICAN-88.")
        label = {"x_midfold_session": "shared"}
        mine_found = looked_up(who, "bob", mine, "context_search", {"query": "HERON"}, **label)
        assert mine_found.startswith(FOUND)
        other = [user("Write a poem."), *history("Nothing.")[1:]]
        for query in ("PELICAN", "HERON"):
            found = looked_up(who, "alice", other, "context_search", {"query": query}, **label)
            assert found.startswith(NOTHING) and "HERON" not in found
        handle = mine_found[mine_found.index("mf-") :].split()[0]
        found = looked_up(who, "alice", other, "context_unfold", {"handle": handle}, **label)
        assert found.startswith("error: there is no handle"), found


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("owner", ["alice", "bob"])
def test_recall_sees_only_what_was_folded_of_this_conversation(door: str, owner: str) -> None:
    """Conversations with the same beginning share the fold of that beginning, and nothing after it."""
    with owners(door) as who:
        mine = [*history("My word is PELICAN-88."), assistant("Noted."), user("Is it known?")]
        assert looked_up(who, "bob", mine, "context_search", {"query": "HERON"}).startswith(FOUND)
        store = who.gateway.sessions.store
        name = store.sessions()[0].name
        spoken = next(row.message for row in store.history(name) if "PELICAN" in row.message.text)
        other = history("Nothing.")
        assert looked_up(who, owner, other, "context_search", {"query": "HERON"}).startswith(FOUND)
        assert looked_up(who, owner, other, "context_search", {"query": "PELICAN"}).startswith(NOTHING)
        handle = f"mf-{spoken.digest.hex()[:12]}"
        found = looked_up(who, owner, other, "context_unfold", {"handle": handle})
        assert "PELICAN" not in found and found.startswith("error: ")


def ids_of(stream: bytes) -> list[str]:
    lines = [line[6:] for line in stream.decode().splitlines() if line.startswith("data: {")]
    return [value["response"]["id"] for line in lines if "response" in (value := json.loads(line))]


@pytest.mark.parametrize("door", DOORS)
def test_the_id_of_an_answer_is_renamed_for_its_owner_alone(door: str) -> None:
    with owners(door) as who:
        who.model.looks_for("x", "Let me look.")
        _, stream = who.send("bob", "responses", {"input": [FIRST], "stream": True})
        (told,) = set(ids_of(stream))
        asked = {"model": "gpt-4o", "input": [FIRST], "previous_response_id": told}
        status, _, answer = post(who.gateway.url, "POST", "/v1/responses", asked, **who.headers["alice"])
        # The first id is of a turn with an open call, from which no request can continue at the provider.
        assert status == 400 and b"No tool output found" in answer
        who.send("bob", "responses", asked)
        assert who.model.asked[-1].body["previous_response_id"] != told


def test_a_long_conversation_is_put_back_with_two_questions_to_the_store() -> None:
    asked: list[str] = []
    talk = [message for number in range(1_000) for message in (user(f"ask {number}"), assistant(f"answer {number}"))]
    options: dict[str, Any] = {"window": 2_000_000, "hygiene_hard_message_limit": 100_000}
    with owners("keys", **options) as who:
        planted(who, "bob", "chat", body("chat", [FIRST]))
        database = who.gateway.sessions.store.database
        rows = database.rows

        def counted(query: str, **values: Any) -> Any:
            asked.append(query)
            return rows(query, **values)

        database.rows = counted  # type: ignore[method-assign]
        assert not is_put_back(who, "bob", "chat", body("chat", [*talk, user("And now?")]))
        assert is_put_back(who, "bob", "chat", body("chat", [FIRST, *talk[1:], user("And now?")]))
    hidden = [query for query in asked if "hidden" in query]
    assert hidden == ["has_hidden_turns", "hidden_turns"] * 2 + ["hidden_turns_data"]
