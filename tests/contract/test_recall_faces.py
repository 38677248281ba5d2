"""Recall returns the same hits, order and text for the same folded conversation through every API."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner

import midfold
from midfold.adapters.hermes import create_engine
from midfold.adapters.mcp_tools import SessionTools
from midfold.agent.assembly import recall_tools
from midfold.agent.tools import Toolbox
from midfold.cli.main import main
from midfold.compaction.archive import handle_of
from midfold.config import Config
from midfold.lab.retention_score import recall_search
from midfold.pages.lookup import Lookup
from midfold.recall import CONSIDERED, FOUND, NEAREST, NOTHING
from midfold.session.session import Session
from midfold.session.sessions import Sessions
from midfold.transcript import jsonio
from midfold.transcript.document import read
from midfold.transcript.message import ToolCall
from support.gateways import call as post
from support.owners import Owners, owners
from support.provider_replies import Turn
from tests.support.build import assistant, call, user

QUERIES = {
    "as typed": "def parse_url",
    "other letters": "PARSE url",
    "words apart": "harbour lighthouse",
    "in quotes": '"keeps the harbour"',
    "some of the words": "keeps harbour whales lighthouse",
    "nothing": "zebra",
}
_HIT = re.compile(r"^(mf-[0-9a-f]{6,12}) \(message \d+, ([\w ]+); [^)\n]+\):$", re.MULTILINE)
_BESIDE = re.compile(r"^\[before: .*\]$|^\[after: .*\]$", re.MULTILINE)


def conversation() -> list[dict[str, Any]]:
    """Return work on some files, long enough to be folded; the searched text is in the middle, and nothing occurs
    twice.
    """
    turns = [user("Port it."), assistant("I will.")]
    for number in range(30):
        found = f"def parse_url(text_{number}):\n" if 8 <= number < 14 else ""
        source = f"{found}    return text_{number}\n" + f"# line of {number}\n" * 60
        turns += [*call(number, "read_file", {"path": f"src/part_{number}.py"}, source), assistant(f"Part {number}.")]
    turns[34] = assistant("The lighthouse keeps the harbour; see ParseUrl.")
    turns[37] = assistant("Another lighthouse.\nIt is far from any harbour. " + "And so on. " * 30)
    return [*turns, user("What is left?"), assistant("Little."), user("Go on."), assistant("Well."), user("And now?")]


TALK = conversation()


def hits_in(answer: str) -> list[tuple[str, str, str]]:
    """Return handle, kind and lines of each hit in an answer. Positions depend on the archive."""
    assert answer.startswith((FOUND, NEAREST)) or "nothing found" in answer
    pieces = _HIT.split(_BESIDE.sub("", answer))[1:]
    return [
        (handle, what, lines.strip("\n"))
        for handle, what, lines in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True)
    ]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with midfold.open("memory:") as sessions:
        made = sessions.session("s", model="gpt-4o", context_length=8_000)
        made.append(TALK)
        assert made.compact(force=True).changed
        yield made


@pytest.fixture(scope="module")
def agent(session: Session) -> Callable[[str, dict[str, Any]], str]:
    toolbox = Toolbox(recall_tools(lambda: session, 60_000))
    return lambda name, given: toolbox.run(ToolCall("x", name, json.dumps(given))).text


@pytest.fixture(scope="module")
def hermes() -> Callable[[str, dict[str, Any]], str]:
    engine = create_engine(config=Config())
    engine.update_model("gpt-4o", context_length=8_000)
    assert len(engine.compress(TALK, force=True)) < len(TALK)

    def ask(name: str, given: dict[str, Any]) -> str:
        (text,) = json.loads(engine.handle_tool_call(name, given)).values()
        return str(text)

    return ask


@pytest.fixture
def gateway() -> Iterator[Callable[[str, dict[str, Any]], str]]:
    with owners("keys", window=8_000) as who:
        yield lambda name, given: asked(who, name, given)


def asked(who: Owners, name: str, given: dict[str, Any]) -> str:
    who.model.turns = [Turn("", (("h1", name, given),)), Turn("Done.")]
    # A handle identifies exact bytes, so they are sent as the other clients write them.
    body = jsonio.encode({"model": "gpt-4o", "messages": TALK})
    status, head, _ = post(who.gateway.url, "POST", "/v1/chat/completions", body, **who.headers["alice"])
    assert status == 200 and head["x-midfold-session"], "nothing was folded"
    found = [one for one in who.model.asked[-1].body["messages"] if one.get("role") == "tool"]
    return str(found[-1]["content"])


Ask = Callable[[str, dict[str, Any]], str]


@pytest.mark.parametrize("query", QUERIES.values(), ids=list(QUERIES))
def test_every_face_finds_the_same_in_the_same_order(
    query: str, session: Session, agent: Ask, hermes: Ask, gateway: Ask
) -> None:
    told = agent("context_search", {"query": query})
    wanted = hits_in(told)
    assert bool(wanted) == (query != "zebra")
    for ask in (hermes, gateway):
        assert hits_in(ask("context_search", {"query": query})) == wanted
    past = read(TALK).messages
    unbounded = hits_in(f"{FOUND}\n{recall_search(past, query) or NOTHING}")
    bounded = [handle for handle, what, _ in wanted if not is_beside(what)]
    whole = [handle for handle, _, _ in unbounded]
    assert whole[:1] == bounded[:1] and set(whole) >= set(bounded), "less room leaves something out"
    found = [part.handle for hit in session.search(query, CONSIDERED) for part in hit.parts]
    assert set(found) >= set(bounded)


def is_beside(what: str) -> bool:
    """Return whether an entry is context next to a hit; how many there are depends on the budget."""
    return what.startswith(("then ", "before "))


def test_every_face_unfolds_to_the_same_words(session: Session, agent: Ask, hermes: Ask, gateway: Ask) -> None:
    (message,) = (one for one in read(TALK).messages if "keeps the harbour" in one.text)
    handle = handle_of(message)
    words = agent("context_unfold", {"handle": handle})
    assert words == f"Original of {handle}:\n\n[assistant]\nThe lighthouse keeps the harbour; see ParseUrl."
    for ask in (hermes, gateway):
        assert ask("context_unfold", {"handle": handle}) == words
        assert ask("context_unfold", {"handle": handle[len("mf-") :]}) == words
    assert session.unfold(handle) == [TALK[34]]


def test_every_face_says_the_same_of_what_is_not_there(agent: Ask, hermes: Ask, gateway: Ask) -> None:
    given = {"handle": "mf-000000000000"}
    told = [ask("context_unfold", given).removeprefix("error: ") for ask in (agent, hermes, gateway)]
    assert {text.splitlines()[0] for text in told} == {"there is no handle mf-000000000000"}
    assert all("Tools called: read_file" in text and "src/part_12.py" in text for text in told)
    for ask in (agent, hermes, gateway):
        assert ask("context_search", {"query": "zebra"}).startswith(NOTHING)


# Command-line and page output


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Session, Sessions, str]]:
    """Return the same conversation in a file, with an earlier search in it, whose query must not count as a hit."""
    url = f"sqlite:///{tmp_path_factory.mktemp('faces')}/s.db"
    with midfold.open(url) as sessions:
        made = sessions.session("s", model="gpt-4o", context_length=8_000)
        made.append(TALK)
        assert made.compact(force=True).changed
        for number, query in enumerate(QUERIES.values(), 90):
            found = made.recall().run("context_search", {"query": query}).text
            made.append([*call(number, "context_search", {"query": query}, found), assistant("I see.")])
        yield made, sessions, url


def is_in_order(few: list[str], many: list[str]) -> bool:
    rest = iter(many)
    return few[:1] == many[:1] and all(one in rest for one in few)


@pytest.mark.parametrize("query", QUERIES.values(), ids=list(QUERIES))
def test_people_find_the_same_in_the_same_order_however_many_they_want(
    query: str, kept: tuple[Session, Sessions, str]
) -> None:
    session, sessions, url = kept
    wanted = hits_in(session.recall().run("context_search", {"query": query}).text)
    lists = {limit: session.search(query, limit) for limit in (3, 10, 20, 31)}
    every = [hit.handle for hit in lists[31]]
    for limit, hits in lists.items():
        assert [hit.handle for hit in hits] == every[:limit]
    parts = [part.handle for hit in lists[31] for part in hit.parts]
    told = [handle for handle, what, _ in wanted if not is_beside(what) and handle in parts]
    assert bool(told) == (query != "zebra") and is_in_order(told, parts)
    done = CliRunner().invoke(main, ["sessions", "search", query, "--session", "s", "--json", "--store", url])
    assert [hit["handle"] for hit in json.loads(done.output)] == every[:10]
    page = Lookup(sessions).search(query, lambda name: True, session="s")
    assert [hit.handle for hit in page.hits] == every[:30]
    whole = Lookup(sessions).search(query, lambda name: True)
    assert [hit.handle[:9] for hit in whole.hits] == [handle[:9] for handle in every[:30]]


@pytest.mark.parametrize("query", QUERIES.values(), ids=list(QUERIES))
def test_over_mcp_the_same_is_found_in_the_same_order(query: str, kept: tuple[Session, Sessions, str]) -> None:
    session, sessions, _ = kept
    mine = [part.handle for hit in session.search(query, CONSIDERED) for part in hit.parts]
    for given in ({"query": query, "session": "s"}, {"query": query}):
        found = hits_in(SessionTools(sessions, "").run("search", given).text)
        handles = [handle[:9] for handle, what, _ in found if not is_beside(what)]
        assert bool(handles) == (query != "zebra") and is_in_order(handles, [handle[:9] for handle in mine])
