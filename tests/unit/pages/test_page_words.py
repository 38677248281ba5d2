"""Page texts on sessions, tools and handoffs: titles, actions and results of tools, changes of a fold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.requests import Request

import midfold
from midfold.pages import Under
from midfold.pages.formatting import client_of, owner_of, session_path
from midfold.pages.html import SHOWN, divide, outline
from midfold.pages.lookup import ALL, LINES_PER_PAGE, MAX_SORTED, SORTS, Lookup, SessionFilter
from midfold.pages.messages import MessagePlace, compare_handoffs, with_neighbours
from midfold.pages.web import everything
from midfold.session.sessions import Sessions
from midfold.store.usage import Turns
from midfold.transcript.message import Usage
from support.build import work
from support.fixtures import assistant, call, user
from support.pages import CODING, SECRET, Served, filled, served

NAMES = {
    "alice/gw-claude-code-11112222-0123456789abcdef": ("claude-opus-4-6", "Mend the tests of alice"),
    "alice/gw-0123456789abcdef01234567": ("gpt-5", "Write the page of alice"),
    "bob/codex-33334444": ("gpt-5", "Look at the log of bob"),
    "20261116-2310-79d03d": (None, "Say hello to nobody"),
}


@pytest.fixture
def store() -> Iterator[Sessions]:
    with midfold.open("memory:") as made:
        for number, (name, (model, words)) in enumerate(NAMES.items(), 1):
            made.session(name, model=model).append([user(words), assistant("yes")] * number)
        yield made


# Sessions by name


def test_a_name_tells_the_client_and_the_key() -> None:
    assert [client_of(name) for name in NAMES] == ["claude-code", "", "codex", ""]
    assert [owner_of(name) for name in NAMES] == ["alice", "alice", "bob", ""]
    assert client_of("claude-code-is-a-key/mine") == ""


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", {1, 2, 3, 4}),
        ("?model=gpt-5", {2, 3}),
        ("?client=claude-code", {1}),
        ("?owner=alice", {1, 2}),
        ("?owner=alice&model=gpt-5", {2}),
        ("?owner=ali", set()),
        ("?q=HELLO", {4}),
        ("?q=codex", {3}),
        ("?q=alice&model=claude-opus-4-6", {1}),
    ],
)
def test_sessions_are_chosen_by_words_model_client_and_key(store: Sessions, query: str, found: set[int]) -> None:
    with served(store) as web:
        listed = web.get(f"/api/sessions{query}").json
        page = web.get(f"/sessions{query}").text
    assert {one["messages"] // 2 for one in listed["sessions"]} == found
    assert (listed["models"], listed["clients"]) == (["claude-opus-4-6", "gpt-5"], ["claude-code", "codex"])
    assert listed["owners"] == ["alice", "bob"]
    assert len(re.findall('<th scope="row">', page)) == len(found)


def test_sessions_are_put_in_any_order_and_back(store: Sessions) -> None:
    lookup = Lookup(store)
    for sort, key in SORTS.items():
        down, up = (lookup.sessions_like(ALL, 0, everything, sort=sort, order=order) for order in ("down", "up"))
        values = [key(facts) for facts in down.sessions]
        assert values == sorted(values, reverse=True), sort
        assert [key(facts) for facts in up.sessions] == values[::-1], sort
    first = {sort: lookup.sessions_like(ALL, 0, everything, sort=sort) for sort in ("messages", "title", "used")}
    assert {sort: one.order for sort, one in first.items()} == {"messages": "down", "title": "up", "used": "down"}
    assert first["messages"].sessions[0].messages == 8
    assert first["title"].sessions[0].title == "Look at the log of bob"


def test_pages_of_sorted_sessions_join_and_say_how_many_were_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midfold.pages.lookup.SESSIONS_PER_PAGE", 3)
    monkeypatch.setattr("midfold.pages.lookup.MAX_SORTED", 7)
    with midfold.open("memory:") as store:
        for number in range(9):
            store.session(f"s{number}").append([user("hello")] * (number + 1))
        lookup = Lookup(store)
        pages = [lookup.sessions_like(ALL, page, everything, sort="messages") for page in range(3)]
        assert [one.messages for page in pages for one in page.sessions] == [9, 8, 7, 6, 5, 4, 3]
        assert [(page.more, page.sorted_only) for page in pages] == [(True, 7), (True, 7), (False, 7)]
        plain = [lookup.sessions_like(ALL, page, everything) for page in range(3)]
        assert [(len(page.sessions), page.more, page.sorted_only) for page in plain] == [
            (3, True, 0), (3, True, 0), (3, False, 0),
        ]  # fmt: skip
    assert MAX_SORTED > 100


def test_what_there_is_to_choose_and_who_stands_beside_tells_nothing_of_others(store: Sessions) -> None:
    def owner(request: Request) -> str:
        return f"{request.headers['x-key']}/"

    with served(store, Under(owner)) as web:
        listed = web.get("/api/sessions", **{"x-key": "bob"}).json
        mine: Any = web.get(f"/api{session_path('bob/codex-33334444')}", **{"x-key": "bob"}).json
        pages = [web.get(path, **{"x-key": "bob"}).text for path in ("/sessions", session_path("bob/codex-33334444"))]
    assert (listed["models"], listed["clients"], listed["owners"]) == (["gpt-5"], ["codex"], ["bob"])
    assert (mine["newer"], mine["older"]) == (None, None)
    assert all("alice" not in page and "nobody" not in page for page in pages)


def test_a_session_has_the_one_used_before_and_after_it_beside_it(store: Sessions) -> None:
    names = [info.name for info in store.all()]
    pages = [Lookup(store).session(name, None, everything) for name in names]
    assert [page.newer for page in pages] == [None, *names[:-1]]
    assert [page.older for page in pages] == [*names[1:], None]


# Titles


def test_every_page_of_a_session_is_called_by_its_title() -> None:
    title = "Find out why the nightly build is slow"
    with midfold.open("memory:") as store:
        session = store.session("key/gw-1", context_length=16_000, model="claude-opus-4-6")
        session.append([user(f"<system-reminder>be calm</system-reminder>\n{title}"), *work(0, count=60)])
        assert session.compact(force=True).changed
        for _ in range(6):
            Turns(store.store).record(store.store.must("key/gw-1"), Usage(prompt_tokens=15_900), at=1)
        one = session_path("key/gw-1")
        below = [f"{one}/{rest}" for rest in ("compactions/1", "compactions/1/receipt", "messages/3")]
        with served(store) as web:
            for path in ("/", "/sessions", "/cache", "/search?q=nightly+build", one, *below):
                assert f">{title}" in web.get(path).text, path
            assert f"<h1>{title}</h1>" in web.get(one).text
            assert f"<title>{title} · midfold</title>" in web.get(one).text
            assert [item["title"] for item in web.get("/api/overview").json["findings"]] == [title]
            assert "key/gw-1" in web.get(one).text


# Rows of tools


def rows(page: str) -> list[str]:
    """Return the rows of a page as text."""
    found = re.findall(r'<li class="row[^>]*>(.*?)</li>', page, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in found]


def test_a_tool_row_begins_with_what_was_done_and_a_failure_is_marked() -> None:
    with midfold.open("memory:") as store:
        said = [
            user("Run the tests."),
            *call(1, "terminal", {"command": "pytest -q"}, '{"output": "2 failed, 3 passed", "exit_code": 1}'),
            *call(2, "read_file", {"path": "src/a.py"}, "x = 1\ny = 2"),
            *call(3, "terminal", {"command": f"export KEY={SECRET}"}, "done"),
        ]
        store.session("s").append(said)
        with served(store) as web:
            shown, told = rows(web.get("/sessions/s").text), web.get("/api/sessions/s").json["lines"]["lines"]
            page, whole = web.get("/sessions/s/messages/2").text, web.get("/sessions/s").text
    assert shown[1].startswith("1 assistant terminal ran pytest -q")
    assert shown[2].startswith("2 tool failed ran pytest -q exit 1")
    assert shown[4].startswith("4 tool read src/a.py 2 lines")
    assert [[act["outcome"] for act in line["acts"]] for line in told] == [
        [], [""], ["failed"], [""], ["ok"], [""], ["unknown"],
    ]  # fmt: skip
    assert whole.count('<span class="tag bad">failed</span>') == 1
    assert '<span class="tag bad">failed</span>' in page and 'class="block tool-result failed"' in page
    assert SECRET not in whole + str(told)


def test_results_in_messages_of_the_user_are_the_tools() -> None:
    block = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "make"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "no rule", "is_error": True}
    said = [user("Build."), {"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
    with midfold.open("memory:") as store:
        store.session("s", dialect="anthropic").append(said)
        lines = Lookup(store).session("s", None, everything).lines.lines
    assert [line.role for line in lines] == ["user", "assistant", "tool"]
    assert (lines[2].acts[0].did, lines[2].acts[0].outcome) == ("ran `make`", "failed")


def test_a_result_is_told_by_the_nearest_call_of_its_id_on_this_page_or_the_one_before() -> None:
    def pair(command: str) -> list[dict[str, Any]]:
        return call(1, "terminal", {"command": command}, "fine")

    with midfold.open("memory:") as store:
        filler = [user("go"), assistant("on")] * (LINES_PER_PAGE // 2 - 1)
        store.session("s").append([*filler, user("x"), *pair("first"), *pair("second"), user("y")])
        lookup = Lookup(store)
        border = lookup.messages("s", LINES_PER_PAGE, everything).lines
        told = [lookup.message("s", LINES_PER_PAGE + number, everything).messages[0].blocks[0].act for number in (0, 2)]
    assert [line.acts[0].did for line in border[:3]] == ["ran `first`", "ran `second`", "ran `second`"]
    assert [act.did for act in told if act] == ["ran `first`", "ran `second`"]


def test_only_neighbours_that_are_not_there_are_read() -> None:
    places = [MessagePlace(0), MessagePlace(None, 7), MessagePlace(4), MessagePlace(5), MessagePlace(40)]
    assert [place.position for place, is_shown in with_neighbours(places) if not is_shown] == [
        1, 2, 3, *range(32, 40),
    ]  # fmt: skip
    assert [place for place, is_shown in with_neighbours(places) if is_shown] == places


# Handoffs


def handoff(*lengths: int) -> str:
    return "intro\n" + "\n".join(
        f"## Part {number}\n" + "\n".join(f"- line {number}.{line}" for line in range(length))
        for number, length in enumerate(lengths)
    )


def test_a_handoff_without_headings_is_shown_whole() -> None:
    text = "\n".join(f"line {number}" for number in range(3 * SHOWN))
    assert divide(text) == (outline(text), [], [])
    assert divide("").rest == []


@pytest.mark.parametrize("lengths", [(3,), (10, 40, 10), (100,), (5, 5, 100, 5), (20, 20, 20, 20), (30, 2, 2)])
def test_a_handoff_is_divided_between_sections_and_whole(lengths: tuple[int, ...]) -> None:
    text = handoff(*lengths)
    parts = divide(text)
    assert [*parts.first, *parts.rest] == outline(text)
    assert not parts.rest or parts.rest[0][0] == "h3"
    assert parts.headings == [said[0] for kind, said in parts.rest if kind == "h3"]
    assert sum(len(said) for _, said in parts.first) <= max(SHOWN + SHOWN // 4, lengths[0] + 2)


def test_handoffs_are_compared_by_heading_whatever_the_order_and_numbers() -> None:
    old = "intro\n## Done\n1. built\n2. tested\n## Files\n- a.py\n- b.py\n## Old\n- gone"
    new = "intro\n## Done\n1. tested\n2. built\n3. shipped\n## Files\n- b.py\n- c.py"
    told = compare_handoffs(old, new, 4)
    assert (told.seq, told.new, told.gone, told.same) == (4, 2, 2, 4)
    assert [(one.heading, one.new, one.gone) for one in told.sections] == [
        ("Done", ("shipped",), ()),
        ("Files", ("c.py",), ("a.py",)),
        ("Old", (), ("gone",)),
    ]
    assert compare_handoffs(new, new, 1).sections == ()


@pytest.fixture(scope="module")
def coding() -> Iterator[Served]:
    with filled() as sessions, served(sessions) as web:
        yield web


def test_a_compaction_shows_what_its_handoff_changed(coding: Served) -> None:
    pages = [coding.get(f"/api{session_path(CODING)}/compactions/{seq}").json for seq in (1, 2, 3)]
    first, second, third = (page["compared"] for page in pages)
    assert first is None
    assert (second["seq"], third["seq"]) == (1, 2)
    came, went = ([line for section in second["sections"] for line in section[what]] for what in ("new", "gone"))
    assert came and went
    assert all(line in pages[1]["handoff"] for line in came) and all(line in pages[0]["handoff"] for line in went)
    shown = coding.get(f"{session_path(CODING)}/compactions/2").text
    assert shown.count('<li class="new">') == second["new"] and shown.count('<li class="gone">') == second["gone"]
    assert "Compared with the previous handoff" not in coding.get(f"{session_path(CODING)}/compactions/1").text


def test_previous_and_next_stand_on_compactions_receipts_and_messages(coding: Served) -> None:
    one = session_path(CODING)
    for path in ("compactions/{}", "compactions/{}/receipt", "messages/{}"):
        page = coding.get(f"{one}/{path.format(4)}").text
        assert f'rel="prev" href="{one}/{path.format(3)}"' in page
        assert f'rel="next" href="{one}/{path.format(5)}"' in page
    assert 'rel="prev"' not in coding.get(f"{one}/compactions/1/receipt").text
    assert 'rel="prev"' not in coding.get(f"{one}/messages/0").text


# Costs and artifacts


def test_money_is_told_as_paid_instead_of_what_it_would_have_been(coding: Served) -> None:
    saved = coding.get(f"/api{session_path(CODING)}").json["session"]["saved"]
    told = f"${saved['paid'] + saved['summaries']:,.2f} instead of ${saved['without_folds']:,.2f}"
    assert told in coding.get(session_path(CODING)).text
    whole = coding.get("/api/overview").json["saved"]
    assert (
        f"${whole['paid'] + whole['summaries']:,.2f} instead of ${whole['without_folds']:,.2f}" in coding.get("/").text
    )


def test_what_was_made_leads_to_the_messages_and_is_on_the_receipt(coding: Served) -> None:
    one = session_path(CODING)
    file = coding.get(f"/api{one}").json["made"]["trail"]["files"][-1]
    assert f'href="{one}/messages/{file["at"]}" aria-label="Message {file["at"]}"' in coding.get(one).text
    assert (
        file["path"].rpartition("/")[2]
        in coding.get(f"{one}/messages/{file['at'] - 1}").text + coding.get(f"{one}/messages/{file['at']}").text
    )
    last = coding.get(f"/api{one}").json["compactions"][-1]["seq"]
    assert "Work up to this point" in coding.get(f"{one}/compactions/{last}/receipt").text


def test_acts_show_what_came_of_them_last_and_what_was_tried_before_below() -> None:
    pushed = "To example.com:x.git\n   1a2b3c4..5d6e7f8  main -> main"
    tries = [call(1, "bash", {"command": "git push"}, "Exit code 1\n ! [rejected] main -> main (fetch first)")]
    tries += [call(2, "bash", {"command": "git push"}, pushed)]
    with midfold.open("memory:") as made:
        session = made.session("pushing", context_length=64_000)
        session.append([user("Push it."), *(message for one in tries for message in one), *work(3)])
        receipt = session.compact(force=True).receipt
        with served(made) as server:
            page, told = server.get("/sessions/pushing").text, server.get("/api/sessions/pushing").json
            fold = server.get("/sessions/pushing/compactions/1/receipt").text
    assert receipt.trail is not None
    assert [(act.ok, act.is_replaced) for act in receipt.trail.acts] == [(False, True), (True, False)]
    assert [act.get("is_replaced", False) for act in told["made"]["trail"]["acts"]] == [True, False]
    for shown in (page, fold):
        standing, replaced = shown.split("<summary>1 superseded action</summary>")
        assert "1a2b3c4..5d6e7f8" in standing and "rejected" not in standing
        assert "rejected" in replaced


def test_a_filter_takes_what_is_named_and_everything_without_names() -> None:
    assert ALL.takes("anything", None, "one/1.2")
    assert not SessionFilter(model="gpt-5").takes("anything", None, "")
