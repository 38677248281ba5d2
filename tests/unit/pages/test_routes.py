"""Pages and API over real HTTP: complete, safe, and with the same 404 for missing and for other owners' data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import jsonschema
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

import midfold
from midfold.compaction.receipt import RecallCost
from midfold.errors import StoreUnavailable
from midfold.pages import Sees, Under
from midfold.pages.formatting import key_of, session_path
from midfold.pages.lookup import MAX_FOLLOWED, Lookup
from midfold.pages.web import ENDPOINTS, everything
from midfold.session.sessions import Sessions
from support.build import work
from support.fixtures import call, long_tool_heavy_conversation, user
from support.pages import AIRLINE, CODING, HOSTILE, MARKUP, SECRET, Answer, Served, filled, served

UNKNOWN = "nobody-has-this"


@pytest.fixture(scope="module")
def sessions() -> Iterator[Sessions]:
    with filled() as made:
        yield made


@pytest.fixture(scope="module")
def web(sessions: Sessions) -> Iterator[Served]:
    with served(sessions) as running:
        yield running


def addresses(sessions: Sessions) -> dict[str, str]:
    """Return a path of every endpoint, filled in with existing data."""
    record = next(one for one in sessions.session(CODING).receipts() if one.receipt.fold)
    fold = record.receipt.fold
    values = {"key": key_of(CODING), "seq": str(record.seq), "position": "3", "handle": fold}
    return {endpoint.name: endpoint.path.format_map(values) for endpoint in ENDPOINTS}


class Tags(HTMLParser):
    """Tags of a page, its addresses, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def links(self) -> set[str]:
        return {link for _, given in self.tags for link in (given.get("href"), given.get("action")) if link}


def test_every_endpoint_has_a_page_and_json_that_fits_its_description(sessions: Sessions, web: Served) -> None:
    description = web.get("/api/openapi.json").json
    assert description["openapi"].startswith("3.1")
    for endpoint in ENDPOINTS:
        path = addresses(sessions)[endpoint.name]
        api = web.get("/api/overview" if path == "/" else f"/api{path}")
        assert (api.status, api.headers["content-type"]) == (200, "application/json"), endpoint.name
        operation = description["paths"][endpoint.api_path]["get"]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(api.json, {**schema, "components": description["components"]})
        if endpoint.template:
            page = web.get(path)
            assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8"), endpoint.name
            assert f'href="/api{"/overview" if path == "/" else path}' in page.text


def test_postgresql_shows_the_same(sessions: Sessions, web: Served, postgres_url: str) -> None:
    with filled(postgres_url) as there, served(there) as other:
        for name, path in addresses(sessions).items():
            here, elsewhere = (one.get("/api/overview" if path == "/" else f"/api{path}") for one in (web, other))
            assert (here.status, elsewhere.status) == (200, 200), name
            assert _timeless(here.json) == _timeless(elsewhere.json), name


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        timed = ("at", "created", "updated", "newer", "older")
        return {key: _timeless(item) for key, item in value.items() if key not in timed}
    if not isinstance(value, list):
        return value
    keyed = bool(value) and isinstance(value[0], dict) and "key" in value[0]
    return [_timeless(item) for item in (sorted(value, key=lambda item: item["key"]) if keyed else value)]


def test_the_description_is_one_that_tools_can_read(web: Served) -> None:
    description = web.get("/api/openapi.json").json
    ids = [item["get"]["operationId"] for item in description["paths"].values()]
    assert len(set(ids)) == len(ids) == len(ENDPOINTS)
    for path, item in description["paths"].items():
        named = {param["name"] for param in item["get"]["parameters"] if param["in"] == "path"}
        assert named == set(re.findall(r"{(\w+)}", path))
        assert all(param["description"] for param in item["get"]["parameters"])
    references = set(re.findall(r'"#/components/schemas/(\w+)"', web.get("/api/openapi.json").text))
    assert references == set(description["components"]["schemas"])


def test_no_page_has_script_or_style_of_its_own_or_anything_from_elsewhere(sessions: Sessions, web: Served) -> None:
    hostile = session_path(HOSTILE)
    pages = [
        "/",
        "/sessions",
        "/cache",
        f"{hostile}/messages/0",
        hostile,
        "/search?q=script",
        *addresses(sessions).values(),
    ]
    for path in pages:
        page = web.get(path)
        found = Tags(page.text)
        assert {"script", "iframe", "object", "embed", "img"}.isdisjoint(tag for tag, _ in found.tags), path
        assert all(not name.startswith("on") and name != "style" for _, given in found.tags for name in given), path
        assert all(link.startswith(("/", "#")) and not link.startswith("//") for link in found.links), path
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["cache-control"] == "no-store"
        assert SECRET not in page.text


def test_what_messages_and_names_say_is_shown_as_text(web: Served) -> None:
    page = Tags(web.get(f"{session_path(HOSTILE)}/messages/0").text)
    assert MARKUP in page.text
    session = Tags(web.get(session_path(HOSTILE)).text)
    assert MARKUP in session.text
    assert HOSTILE in session.text
    searched = Tags(web.get("/search?q=%3Cscript%3Ealert%28%22%27").text)
    assert "<script>alert(\"'" in dict(searched.tags[[tag for tag, _ in searched.tags].index("input")][1])["value"]  # type: ignore[operator]


def test_the_page_of_a_session_tells_what_was_made_through_folds_and_undoing(sessions: Sessions, web: Served) -> None:
    shown = " ".join(Tags(web.get(session_path(CODING)).text).text.split())
    assert "Work done" in shown
    assert "cli/cmd/entire/cli/git_operations.go changed +8 −14 1 HasUncommittedChanges" in shown
    assert "last lint: mise run lint passed (0 issues)" in shown
    assert "in /Users/soph/Work/entire/devenv" in shown
    made = web.get(f"/api{session_path(CODING)}").json["made"]
    assert made["trail"]["messages"] == sessions.store.must(CODING).count and made["skipped"] == 0
    booked = " ".join(Tags(web.get(session_path(AIRLINE)).text).text.split())
    assert "book failed book_reservation" in booked and "reservation_id=HATHAT" in booked
    assert "Work done" not in web.get(session_path(HOSTILE)).text
    with midfold.open("memory:") as store:
        session = store.session("s", context_length=16_000)
        session.append([*work(0, count=40), *_calls("Edit", file_path="/p/q/a.py", old_string="a", new_string="b")])
        session.append(work(40, count=60))
        assert session.compact(force=True).changed
        session.append(_calls("Edit", file_path="/p/q/b.py", old_string="a", new_string="b"))
        folded = Lookup(store).session("s", None, everything).made.trail.files
        session.undo()
        unfolded = Lookup(store).session("s", None, everything).made.trail.files
    assert [(file.path, file.edits) for file in folded] == [("/p/q/a.py", 1), ("/p/q/b.py", 1)]
    assert [(file.path, file.edits) for file in unfolded] == [("/p/q/a.py", 1), ("/p/q/b.py", 1)]


def test_what_was_made_is_shown_as_text_and_redacted() -> None:
    with midfold.open("memory:") as store:
        session = store.session("s")
        session.append(_calls("Write", file_path=f"/p/{MARKUP.replace('/', '|')}.py", content=f"def f(): {SECRET}"))
        session.append(_calls("create_ticket", title=MARKUP, key=SECRET))
        session.append(_calls("Bash", command=f"pytest '{MARKUP}'"))
        with served(store) as there:
            page = there.get(session_path("s")).text
        found = Tags(page)
        assert found.text.count(MARKUP[:25]) > 2 and SECRET not in page
        assert {"script", "img"}.isdisjoint(tag for tag, _ in found.tags)


def test_of_a_long_session_that_was_not_folded_the_newest_messages_are_followed() -> None:
    with midfold.open("memory:") as store:
        session = store.session("s")
        session.append(_calls("Edit", file_path="/p/q/old.py", old_string="a", new_string="b"))
        session.append([user("hello"), {"role": "assistant", "content": "yes"}] * (MAX_FOLLOWED // 2))
        session.append(_calls("Edit", file_path="/p/q/new.py", old_string="a", new_string="b"))
        made = Lookup(store).session("s", None, everything).made
        assert ([file.path for file in made.trail.files], made.skipped) == (["/p/q/new.py"], 6)
        with served(store) as there:
            assert "6 messages before the newest were skipped" in there.get(session_path("s")).text


def _calls(name: str, **arguments: str) -> list[dict[str, Any]]:
    call = {"id": f"c{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return [
        user("go on"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{name}", "content": "done"},
    ]


def test_a_json_result_is_shown_as_an_outline_and_the_api_has_both() -> None:
    rows = [{"path": f"src/{number}.py"} for number in range(9_000)]
    text = json.dumps({"rows": rows, "api_key": "9f8b7c6d5e4f", "status": "failed", "error": "disk full"})
    with midfold.open("memory:") as store:
        store.session("a").append([user("List."), *call(1, "list", {}, text), user('{"x": 1}')])
        with served(store) as web:
            page, listed = Tags(web.get("/sessions/a/messages/2").text).text, Tags(web.get("/sessions/a").text).text
            (block,) = web.get("/api/sessions/a/messages/2").json["messages"][0]["blocks"]
            (said,) = web.get("/api/sessions/a/messages/3").json["messages"][0]["blocks"]
    assert "- error: disk full\n- status: failed\n" in page
    assert "[…and 8,800 more]" in page
    assert "error: disk full; status: failed" in listed
    assert block["text"].startswith('{"rows"')
    assert block["outline"].startswith("- error: disk full")
    assert (said["text"], said["outline"]) == ('{"x": 1}', "")
    assert "9f8b7c6d5e4f" not in page + listed + block["outline"]


def test_a_session_shows_its_window_with_what_the_provider_counted() -> None:
    with midfold.open("memory:") as store:
        session = store.session("a", model="claude-opus-4-5", system="Be careful. " * 500)
        session.append([user("Look at everything. " * 500)])
        folded = store.session("b", context_length=64_000, output_reservation=8_000)
        folded.append(long_tool_heavy_conversation().messages)
        assert folded.compact(force=True).changed
        with served(store) as web:
            reserved = web.get("/api/sessions/b").json["context"][-2]
            before = web.get("/api/sessions/a").json["context"]
            session.observe({"input_tokens": 60_000, "output_tokens": 4})
            after, page = web.get("/api/sessions/a").json["context"], Tags(web.get("/sessions/a").text).text
    assert [part["name"] for part in after] == ["system prompt", "conversation", "free space"]
    assert [sum(part["tokens"] for part in parts) for parts in (before, after)] == [200_000, 200_000]
    assert after[-1] == {"name": "free space", "tokens": 140_000, "share": 0.7}
    assert before[-1]["tokens"] > 190_000
    assert reserved == {"name": "reserved for the answer", "tokens": 8_000, "share": 0.125}
    assert re.search(r"free space\s*140k\s*70 %", page)
    assert "Scaled to the size reported by the provider." in page


def test_a_session_shows_pressure_usage_and_what_each_compaction_saved() -> None:
    rules = f"# AGENTS.md instructions for /src\n<INSTRUCTIONS>\n{'Never push. ' * 200}\n</INSTRUCTIONS>"
    with midfold.open("memory:") as store:
        session = store.session("a", model="claude-opus-4-6", context_length=100_000)
        session.append([user(rules), *long_tool_heavy_conversation().messages])
        receipt = session.compact(force=True).receipt
        session.observe({"input_tokens": 2_500, "cache_read_input_tokens": 40_000, "output_tokens": 1_000})
        with served(store) as web:
            page, answer = Tags(web.get("/sessions/a").text).text, web.get("/api/sessions/a").json
    assert re.search(r"85 %\s*of the compaction threshold \(42,500/50,000\)", page)
    used = answer["session"]["usage"]
    assert (used["input_tokens"], used["output_tokens"], used["cache_read_tokens"]) == (42_500, 1_000, 40_000)
    assert used["cost"] == pytest.approx((2_500 * 5 + 40_000 * 0.5 + 1_000 * 25) / 1_000_000)
    assert "$0.06" in page
    assert f"{(receipt.old_tokens - receipt.new_tokens) / 1000:.1f}".removesuffix(".0") + "k saved" in page
    assert sum(kind["tokens"] for kind in answer["kinds"]) == 42_500
    parts = {part["name"]: part["tokens"] for part in answer["context"]}
    assert parts["rules"] > 500
    assert sum(parts.values()) == 100_000


def test_hits_are_shown_with_their_count_and_output_of_commands_as_it_was_said() -> None:
    hits = "\n".join(f"src/a.py:{number}: the fox" for number in range(1, 301))
    with midfold.open("memory:") as store:
        grep, bash = (
            call(1, "Grep", {"pattern": "fox"}, hits),
            call(2, "Bash", {"command": "make"}, "Exit code 2\nboom"),
        )
        store.session("a").append([user("Look."), *grep, *bash])
        with served(store) as web:
            page = Tags(web.get("/sessions/a/messages/2").text).text
            (shell,) = web.get("/api/sessions/a/messages/4").json["messages"][0]["blocks"]
    assert "300 matches found\n" in page
    assert "and 100 more; narrow the pattern" in page
    assert (shell["outline"], shell["act"]["outcome"]) == ("", "failed")


def test_every_link_of_every_page_leads_somewhere(sessions: Sessions, web: Served) -> None:
    seen: set[str] = set()
    todo = ["/", "/sessions", "/search?q=git", session_path(HOSTILE), *addresses(sessions).values()]
    for path in todo:
        page = web.get(path)
        if page.headers["content-type"].startswith("text/html"):
            seen |= {link.partition("#")[0] for link in Tags(page.text).links if not link.startswith("#")}
    statuses = {link: web.get(link).status for link in sorted(seen)}
    assert {link: status for link, status in statuses.items() if status != 200} == {}
    assert len(statuses) > 60


def test_branches_continuations_and_undone_compactions_are_shown() -> None:
    with midfold.open("memory:") as store:
        session = store.session("s", context_length=16_000)
        for start in (0, 40, 80):
            session.append(work(start, count=40))
            assert session.compact(force=True).changed
        session.undo()
        history = list(session.history())
        branch = session.sync([*history[:-3], user("something else")]).session
        assert branch.name != "s"
        child = session.compact(force=True, persistence="child").session
        assert [record.undone is not None for record in session.receipts()] == [False, False, True, False]
        with served(store) as there:
            statuses: dict[str, int] = {}
            todo = [session_path(name) for name in ("s", branch.name, child.name)]
            for path in todo:
                answer = there.get(path)
                statuses[path] = answer.status
                if path in todo[:3] or re.search(r"/compactions/\d+$", path):
                    links = {link.partition("#")[0] for link in Tags(answer.text).links}
                    todo += sorted(link for link in links if "/sessions/" in link and link not in todo)
            assert {path: status for path, status in statuses.items() if status != 200} == {}
            assert len(statuses) > 100
            shown = there.get(session_path("s")).text
            assert "undone" in shown
            assert "continues as" in shown


@pytest.mark.parametrize(
    "path",
    [
        f"/sessions/{UNKNOWN}",
        f"/sessions/{key_of(CODING)}/compactions/999",
        f"/sessions/{key_of(CODING)}/compactions/x",
        f"/sessions/{key_of(CODING)}/compactions/-1",
        f"/sessions/{key_of(CODING)}/messages/100000",
        f"/sessions/{key_of(CODING)}/unfold/mf-000000000000",
        f"/sessions/{key_of(CODING)}/unfold/%00",
        f"/sessions/{key_of(CODING)}/nothing",
        "/sessions/..%2f..%2fetc%2fpasswd",
        "/sessions/!2E!2e",
        "/sessions/%ff",
        "/sessions/!ED!A0!80",
    ],
)
def test_what_is_not_there_is_a_page_and_an_object_that_say_so(web: Served, path: str) -> None:
    page, api = web.get(path), web.get(f"/api{path}")
    assert (page.status, api.status) == (404, 404)
    assert page.headers["content-type"].startswith("text/html")
    assert "Not found" in page.text
    assert set(api.json) == {"error", "status"}
    assert api.json["error"]


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/sessions?page=x", "page"),
        ("/sessions?page=-1", "page"),
        ("/sessions?page=99999999999999999999", "page"),
        (f"/sessions/{key_of(CODING)}?start=%D9%A3", "start"),
        (f"/sessions/{key_of(CODING)}/compactions/1?show=lost", "show"),
        ("/sessions?sort=price", "sort"),
        ("/sessions?sort=used&order=left", "order"),
        ("/search?q=a&role=root", "role"),
        ("/search?q=a&q=b", "q"),
        (f"/search?q={'a' * 1_001}", "q"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_named(web: Served, path: str, named: str) -> None:
    api = web.get(f"/api{path}")
    assert (api.status, web.get(path).status) == (400, 400)
    assert api.json["error"].startswith(f"{named} is ")


@pytest.mark.parametrize(
    "query",
    ['"', "'", '" OR 1=1 --', "a' OR '1'='1", "NEAR(a b)", "tokens:git", "git*", "-git", "a AND NOT b", "%", "\\", "(",
     "*", "'; DROP TABLE sessions; --", "\u0000", "{{7*7}}", "${jndi:ldap://x}", "日本", "\ud7ff\U0001f600"],
)  # fmt: skip
def test_no_query_of_a_search_is_more_than_words(sessions: Sessions, web: Served, query: str) -> None:
    from urllib.parse import quote

    before = len(sessions.all())
    api = web.get(f"/api/search?q={quote(query)}")
    assert api.status == 200
    assert api.json["query"] == query
    assert web.get(f"/search?q={quote(query)}").status == 200
    assert "49" not in Tags(web.get("/search?q=%7B%7B7*7%7D%7D").text).text
    assert len(sessions.all()) == before


def test_search_finds_what_was_folded_and_keeps_to_a_session(web: Served) -> None:
    everywhere = web.get("/api/search?q=uncommitted+changes").json
    assert everywhere["hits"][0]["session"] == CODING
    assert web.get(f"/api/search?q=uncommitted&session={AIRLINE}").json["hits"] == []
    assert {hit["role"] for hit in web.get("/api/search?q=git&role=tool").json["hits"]} == {"tool"}
    assert "<mark>uncommitted</mark>" in web.get("/search?q=uncommitted").text
    assert web.get(f"/api/search?q=a&session={UNKNOWN}").status == 404


def test_pages_of_a_list_join_without_gap_or_overlap(web: Served, sessions: Sessions) -> None:
    path = f"/api{session_path(CODING)}/messages"
    count = sessions.store.must(CODING).count
    positions: list[int] = []
    while len(positions) < count:
        lines = web.get(f"{path}?start={len(positions)}").json["lines"]
        positions += [line["position"] for line in lines]
        assert lines
    assert positions == list(range(count))
    assert web.get(f"{path}?start={count + 5}").json["lines"] == []
    assert web.get(path).json["lines"][-1]["position"] == count - 1


def test_only_reading_is_possible_and_only_for_this_host(web: Served) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        refused = web.get("/api/sessions", method=method)
        assert (refused.status, refused.json["status"], refused.headers["allow"]) == (405, 405, "GET, HEAD")
        assert web.get("/sessions", method=method).status == 405
    assert web.get("/", method="HEAD").status == 200
    assert [web.get(path).status for path in ("/api", "/api/x/y", "/favicon.ico", "/x")] == [404, 404, 404, 404]
    assert web.get("/api").json["status"] == 404
    assert web.get("/", host="evil.example").status == 421
    assert web.get("/", host="127.0.0.1.evil.example:80").status == 421
    assert web.get("/", host="localhost:1").status == 200
    assert web.get("/", host="[::1]:8788").status == 200


# Keys

OWNERS = {"alice": "a/", "bob": "b/"}


def owner(request: Request) -> str:
    known = OWNERS.get(request.headers.get("x-key", ""))
    if known is None:
        raise HTTPException(401, "a key is needed", {"www-authenticate": "Bearer"})
    return known


def test_the_receipt_shows_what_looking_back_cost() -> None:
    with midfold.open("memory:") as store:
        session = store.session("s", context_length=1_000)
        session.setup.late_tools = [{"name": "context_unfold", "input_schema": {"type": "object"}}]
        session.setup.recall = RecallCost(rounds=3, prompt_tokens=4_321)
        session.append([user("the plan"), {"role": "assistant", "content": "yes " * 400}] * 8)
        cost = session.compact(force=True).receipt.recall
        with served(store) as running:
            shown = running.get(f"{session_path('s')}/compactions/1/receipt").text
            told: Any = running.get(f"/api{session_path('s')}/compactions/1/receipt").json["receipt"]["recall"]
    assert cost is not None and cost.introduced_tokens > 0
    assert ">Recall<" in shown and "3 rounds: 4,321 tokens of prompts" in shown
    assert (told["introduced_tokens"], told["rounds"]) == (cost.introduced_tokens, 3)


@pytest.fixture(scope="module")
def kept_apart() -> Iterator[Served]:
    with midfold.open("memory:") as store:
        for name in ("a/one", "b/one"):
            session = store.session(name, context_length=1_000)
            session.append([user(f"the secret plan of {name}"), {"role": "assistant", "content": "yes " * 400}] * 8)
            session.compact(force=True)
        with served(store, Under(owner)) as running:
            yield running


def paths(name: str, handle: str) -> list[str]:
    one = session_path(name)
    tails = ("", "/messages", "/turns", "/compactions", "/compactions/1", "/compactions/1/receipt", "/messages/0")
    return [*(one + tail for tail in tails), f"{one}/unfold/{handle}"]


def test_another_keys_session_is_as_if_it_were_not_there(kept_apart: Served) -> None:
    def get(key: str, path: str) -> Answer:
        return kept_apart.get(path, **{"x-key": key})

    handle: Any = get("bob", f"/api{session_path('b/one')}/compactions/1").json["fold"]
    for mine, other, missing in zip(*(paths(name, handle) for name in ("b/one", "a/one", "a/none")), strict=True):
        assert get("bob", f"/api{mine}").status == 200
        refused, absent = get("bob", f"/api{other}"), get("bob", f"/api{missing}")
        assert (refused.status, refused.text) == (404, absent.text)
        assert absent.status == 404
    assert get("bob", f"/api{session_path('a/one')}/unfold/{handle}/raw").status == 404
    assert get("alice", f"/api{session_path('a/one')}/unfold/{handle}").status == 404


def test_lists_and_searches_show_nothing_of_other_keys(kept_apart: Served) -> None:
    for path in ("/api/overview", "/api/sessions", "/api/search?q=secret+plan", "/", "/sessions", "/cache"):
        answer = kept_apart.get(path, **{"x-key": "alice"})
        assert answer.status == 200
        assert "b/one" not in answer.text
    assert kept_apart.get("/api/search?q=secret&session=b%2Fone", **{"x-key": "alice"}).status == 404
    (hit,) = kept_apart.get("/api/search?q=secret+plan", **{"x-key": "alice"}).json["hits"]
    assert hit["session"] == "a/one"


class Unreachable:
    def sees(self, request: Request, /) -> Sees:
        raise StoreUnavailable("the database cannot be reached")


def test_a_store_that_cannot_be_reached_is_told_as_such(sessions: Sessions) -> None:
    with served(sessions, Unreachable()) as there:
        assert there.get("/api/sessions").json == {"error": "the database cannot be reached", "status": 503}
        page = there.get("/")
        assert (page.status, "Server error" in page.text) == (503, True)


def test_who_is_not_known_is_told_so(kept_apart: Served) -> None:
    answer = kept_apart.get("/api/sessions")
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.json == {"error": "a key is needed", "status": 401}
    assert "a key is needed" in kept_apart.get("/").text
