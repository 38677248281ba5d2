"""Recall search: ranking, excerpts, neighbours, and texts of the tools."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

import midfold
from midfold import Message
from midfold.compaction.archive import handle_of, short_handles
from midfold.compaction.redact import redact
from midfold.recall import (
    FOUND,
    MAX_HITS,
    MAX_HITS_CHARS,
    NEAREST,
    NOTHING,
    PAGE,
    TOOLS,
    Filters,
    InMemorySource,
    Recall,
    search,
)
from midfold.recall.excerpts import ELLIPSIS, MAX_LINE_CHARS, Matcher, excerpt
from midfold.recall.hits import MAX_FIRST_HIT_CHARS
from midfold.recall.words import parse_query
from midfold.store.stored_search import StoredSource
from midfold.transcript.message import Text
from support.timing import assert_in_proportion
from tests.support.build import assistant, call, user

FILE = "\n".join(
    [
        '"""Queries and what they mean."""',
        "from words import Query, parse_query",
        *(f"FILLER_{number} = {number}  # nothing to see here" for number in range(400)),
        "def parse_query(text: str) -> Query:",
        '    """Words that must all occur."""',
        "    return Query(text)",
        *(f"OTHER_{number} = parse_query('{number}')" for number in range(20)),
    ]
)


ROOM = 400


def shown(text: str, query: str) -> list[str]:
    matcher = Matcher(parse_query(query))
    weights = [1.0] * len(matcher.terms)
    return excerpt(text, matcher.occurrences(text), weights, redact, ROOM).text.splitlines()


def test_the_line_that_was_asked_for_is_whole_wherever_it_stands() -> None:
    lines = shown(FILE, "def parse_query")
    assert "def parse_query(text: str) -> Query:" in lines
    assert '    """Words that must all occur."""' in lines
    assert lines[0] == lines[-1] == ELLIPSIS


def test_without_the_phrase_the_line_with_most_of_the_words_is_looked_for_in_all_of_the_text() -> None:
    assert "FILLER_399 = 399  # nothing to see here" in shown(FILE, "FILLER_399 see nothing")


def test_letters_as_typed_come_before_letters_of_another_case() -> None:
    text = "hits are shown here\n" * 200 + "class Hit(Struct):\n" + "some hits are not\n" * 200
    assert "class Hit(Struct):" in shown(text, "Hit")


def test_words_on_different_lines_bring_each_their_line() -> None:
    text = "the port is 8123\n" + "nothing\n" * 50 + "the host is example\n" + "nothing\n" * 50
    assert [line for line in shown(text, "port host") if line.startswith("the ")] == [
        "the port is 8123",
        "the host is example",
    ]


def test_a_line_that_is_too_long_is_cut_around_the_word_and_says_so() -> None:
    (line,) = shown("word " * 500 + "needle_here " + "more " * 500, "needle_here")
    assert line.startswith(ELLIPSIS) and line.endswith(ELLIPSIS)
    assert "needle_here" in line
    assert len(line) <= ROOM + 2


def test_a_long_line_has_no_more_room_than_whole_lines_leave_it() -> None:
    text = "needle " + "x " * 900 + "\n" + "a whole line\n" * 20 + "other " + "y " * 900
    lines = shown(text, "needle other")
    assert sum("whole line" in line for line in lines) > 3
    assert sum(map(len, lines)) <= ROOM + MAX_LINE_CHARS


@pytest.mark.parametrize("query", ["needle", "TOKEN", "Zx9Qw8Er7Ty6"])
def test_a_secret_is_never_shown(query: str) -> None:
    key = "sk-" + "ant-api03-" + "Zx9Qw8Er7Ty6Ui5Op4As3Df2Gh1Jk0Lz" * 2
    text = "x" * 3_000 + f"\nneedle TOKEN = '{key}'\n" + "y" * 3_000
    assert all(key[place : place + 16] not in "\n".join(shown(text, query)) for place in range(10, len(key) - 16))


def test_nothing_but_blank_or_odd_text_is_no_trouble() -> None:
    for text in ("", "\n\n", "\u2028", "a\tb"):
        assert shown(text, "a") is not None and shown(text, "") is not None


def test_the_query_as_typed_comes_first_then_the_denser_then_the_newer() -> None:
    with midfold.open("memory:") as sessions:
        session = sessions.session("s")
        for text in (
            "class Plan: the first",
            "a plan of plans, planned: plan plan plan " * 3,
            "PLAN",
            "class Plan: the first " + "and much more about other things " * 200,
            "class Plan: the last!",
        ):
            session.append([{"role": "user", "content": text}, {"role": "assistant", "content": "ok"}])
        found = [hit.text.splitlines()[0][:21] for hit in session.search("class Plan")]
        assert found[:2] == ["class Plan: the last!", "class Plan: the first"]
        assert session.search("Plan")[-1].position in (2, 4)


# Archives in memory


def recall(turns: list[Any]) -> Recall:
    return InMemorySource({"mf-" + "a" * 12: midfold.read(turns).messages}).recall(redact)


def modules(count: int = 40) -> list[Any]:
    turns = [user("Port the parser.")]
    for number in range(count):
        text = f"module {number} listens on port {9_000 + number}\n"
        turns += [
            *call(number, "read_file", {"path": f"src/mod_{number}.py"}, text),
            assistant(f"Module {number} is done."),
        ]
    return turns


def test_where_no_message_has_every_word_the_nearest_ones_are_told_as_such() -> None:
    answer = recall(modules()).run("context_search", {"query": "which port does module 17 listen on, please"})
    assert answer.text.startswith(NEAREST)
    assert "module 17 listens on port 9017" in answer.text.split("\n\n")[0]
    quoted = recall(modules()).run("context_search", {"query": '"port 9017 of module"'}).text
    assert quoted.startswith(NEAREST) and "module 17 listens on port 9017" in quoted.split("\n\n")[0]
    assert "(nowhere: zebra)" in recall(modules()).run("context_search", {"query": "zebra of port"}).text


def test_a_query_may_have_any_number_of_words() -> None:
    with midfold.open("memory:") as sessions:
        session = sessions.session("s")
        session.append([user("the harbourmaster keeps a lighthouse and a vesselregister")])
        words = " ".join(f"w{number}" for number in range(2_000))
        found = session.search(f"harbourmaster lighthouse vesselregister {words}")
        assert [(hit.position, hit.has_every_word) for hit in found] == [(0, False)]


def test_the_nearest_passage_of_a_long_message_is_shown() -> None:
    log = "\n".join(f"line {number} says nothing at all" for number in range(2_000))
    log = log.replace("line 1500 says", "line 1500: the harbour master keeps a list of vessels; it says")
    hits = recall([user(log), user("a harbour")]).hits("harbour master vessels lighthouse")
    assert "harbour master" in hits[0].text
    assert not hits[0].has_every_word
    assert len(hits[0].text) <= MAX_FIRST_HIT_CHARS + 2 * len(ELLIPSIS)
    (part,) = hits[0].parts
    assert part.length == len("[user]\n" + log) and 1_470 <= part.line <= 1_501
    around = recall([user(log)]).run("context_unfold", {"handle": part.handle, "lines": str(part.line)}).text
    assert "harbour master" in around


def test_a_secret_near_the_nearest_passage_is_not_shown() -> None:
    key = "sk-" + "ant-api03-" + "Zx9Qw8Er7Ty6Ui5Op4As3Df2Gh1Jk0Lz" * 2
    (hit,) = recall([user(f"the harbour master of the vessels\nTOKEN = '{key}'")]).hits("harbour master whale")
    assert "harbour" in hit.text and key[10:30] not in hit.text


def test_every_spelling_of_a_name_finds_every_other() -> None:
    assert recall([user("the parseUrl helper is broken"), assistant("noted")]).hits("parse_url")[0].position == 0


NUMBERS = "The limit is 10,000 rows, the timeout 25_000 ms, the size 31000 bytes; we ran it with old_string."
SAID = "The lighthouse keeps the harbour of the database."


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("10000", NUMBERS),
        ("10,000", NUMBERS),
        ("10_000", NUMBERS),
        ("25000", NUMBERS),
        ("31,000", NUMBERS),
        ("oldstring", NUMBERS),
        ("OldString", NUMBERS),
    ],
)
def test_numbers_and_names_are_found_however_they_are_separated(query: str, text: str) -> None:
    (hit,) = recall([user(NUMBERS), assistant(SAID), user("Go.")]).hits(query)
    assert hit.has_every_word and text in hit.text


@pytest.mark.parametrize(
    ("query", "instead", "text"),
    [
        ("lighthuose", "lighthouse", SAID),
        ("lighhouse", "lighthouse", SAID),
        ("running", "ran", NUMBERS),
        ("kept harbour", "keep", SAID),
    ],
)
def test_instead_of_a_word_that_is_nowhere_those_are_looked_for_that_are_nearly_it(
    query: str, instead: str, text: str
) -> None:
    with midfold.open("memory:") as sessions:
        session = sessions.session("s")
        session.append([user("Go."), *call(1, "cat", {"path": "a"}, NUMBERS), *call(2, "cat", {"path": "b"}, SAID)])
        for tools in (recall([user("Go."), *call(1, "cat", {}, NUMBERS), *call(2, "cat", {}, SAID)]), session.recall()):
            answer = tools.run("context_search", {"query": query}).text
            assert answer.startswith(f"{NEAREST}\n(nowhere: {query.split()[0]}, instead: {instead})\n")
            assert text in answer.split("\n\n")[0]


def test_where_no_word_is_there_those_are_looked_for_that_have_it_inside_or_begin_like_it() -> None:
    with midfold.open("memory:") as sessions:
        session = sessions.session("s")
        session.append([user(SAID), assistant("Yes, verified."), user("The nighthouse is another's.")])
        for query, words in (
            ("base", "database"),
            ("hous", "lighthouse nighthouse"),
            ("tighthouse", "lighthouse nighthouse"),
            ("verification", "verified"),
        ):
            told = session.recall().run("context_search", {"query": query}).text.splitlines()
            assert told[:2] == [NEAREST, f"(nowhere: {query}, instead: {words})"]
        assert session.recall().run("context_search", {"query": "zebra"}).text.startswith(NOTHING)
        past = Recall(StoredSource(sessions.store, "s", stop=2), redact)
        assert "nighthouse" not in past.run("context_search", {"query": "hous"}).text
        assert "nighthouse" not in past.run("context_search", {"query": "nighthouze"}).text


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"query": "harbour", "kind": "errors"}, "(nothing with kind=errors: left out)"),
        ({"query": "harbour", "tool": "grep", "role": "tool"}, "(nothing with role=tool, tool=grep: left out)"),
        (
            {"query": "harbour", "tool": "cat", "path": "/srv/x/b.py"},
            "(nothing with path=/srv/x/b.py; looked for path=b.py: left out)",
        ),
        ({"query": "harbour", "path": "c.py"}, "(nothing with path=c.py: left out)"),
        ({"query": "harbour", "after": 900}, "(nothing with after=900: left out)"),
        ({"query": '"harbour lighthouse"'}, '(nothing with these words "in quotes" as they stand: left out)'),
        ({"pattern": r"harbour\s+of\s+zinc"}, "(no line fits this pattern; looked for its words)"),
    ],
)
def test_what_leaves_nothing_is_left_out_of_a_search_and_that_is_told(given: dict[str, Any], told: str) -> None:
    turns = [user("Go."), *call(1, "cat", {"path": "a.py"}, NUMBERS), *call(2, "cat", {"path": "b.py"}, SAID)]
    with midfold.open("memory:") as sessions:
        session = sessions.session("s")
        session.append(turns)
        for tools in (recall(turns), session.recall()):
            answer = tools.run("context_search", given).text
            assert answer.splitlines()[1] == told
            assert SAID in answer


def test_filters_with_which_something_is_found_stay() -> None:
    turns = [user(f"The harbour. {SAID}"), *call(1, "cat", {"path": "a.py"}, SAID), *call(2, "sh", {"c": "x"}, SAID)]
    answer = recall(turns).run("context_search", {"query": "harbour", "tool": "cat"}).text
    hits = recall(turns).hits("harbour", Filters(tool="cat"))
    assert "left out" not in answer and [hit.parts[0].what for hit in hits] == ["call cat"]


def test_a_pattern_that_was_not_looked_for_everywhere_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("midfold.recall.recall_tools.MAX_PATTERN_CHARS_SEARCHED", 1_000)
    turns = [user("The very first zebra."), *(assistant(f"{number} " + "word " * 100) for number in range(200))]
    answer = recall(turns).run("context_search", {"pattern": "zebr[ae]$"}).text
    assert re.search(r"go on with before=1\d\d\]$", answer)


def test_arguments_of_calls_are_shown_as_people_read_them() -> None:
    turns = [user("go"), *call(1, "terminal", {"command": "make deploy_blue"}, "ok")]
    assert "command: make deploy_blue" in recall(turns).hits("deploy blue")[0].text


def test_what_midfold_wrote_itself_is_not_searched_and_a_message_said_twice_is_one_hit() -> None:
    turns = [user(f"question {number} " + "about the parser " * 40) for number in range(40)]
    host = midfold.EngineHost(context_length=8_000)
    host.compress([*turns, user("question 7 " + "about the parser " * 40)], force=True)
    hits = InMemorySource(host.archive).recall(redact).hits("question 7")
    assert [hit.text[:10] for hit in hits] == ["question 7"]
    assert "CONTEXT COMPACTION" not in str(hits)


def test_answers_are_bounded_and_tell_a_line_once() -> None:
    answer = recall(modules(300)).run("context_search", {"query": "module"}).text
    assert answer.startswith(FOUND)
    assert 1 <= answer.count("its result") <= MAX_HITS
    assert len(answer) < MAX_HITS_CHARS + 400 * MAX_HITS
    long = [user(f"{number} " + "harbour vessel " * 5_000) for number in range(9)]
    assert len(recall(long).run("context_search", {"query": "harbour whale vessel"}).text) < MAX_HITS_CHARS + 1_000


def test_a_hit_unfolds_to_the_whole_message_and_long_originals_come_in_pages() -> None:
    texts = ["a" * (PAGE + 5), "b" * 10, "c" * PAGE]
    made = {"mf-abc": tuple(Message("user", (Text(text),)) for text in texts)}
    tools, read, start = InMemorySource(made).recall(redact), "", 0
    while True:
        page = tools.run("context_unfold", {"handle": " [abc]", "start": str(start)}).text
        text, _, more = page.partition("\n[characters ")
        read += text
        if not more:
            break
        start = int(more.rpartition("=")[2].rstrip("]"))
    assert [read.count(letter * 10) for letter in "abc"] == [(PAGE + 5) // 10, 1, PAGE // 10]
    one = tools.run("context_unfold", {"handle": handle_of(made["mf-abc"][1])[:9]}).text
    assert one.endswith(":\n\n[user]\nbbbbbbbbbb")
    assert tools.run("context_unfold", {"handle": "mf-abc", "start": 10**9}).is_error


def test_an_error_is_an_answer() -> None:
    tools = recall(modules(1))
    for nonsense in ({"query": "  "}, {}, None, [], {"query": None}):
        assert tools.run("context_search", nonsense) == ("the query is empty", True)
    unknown = tools.run("context_unfold", {"handle": "mf-none"})
    assert unknown.is_error and unknown.text.startswith("there is no handle mf-none\n")
    assert "Tools called: read_file 1" in unknown.text and "src/mod_0.py" in unknown.text
    assert tools.run("context_unfold", {}).is_error
    assert tools.run("forget_everything", {}).text.startswith("unknown tool 'forget_everything'")


def test_the_definitions_are_written_as_each_wire_wants_them() -> None:
    for tool in TOOLS:
        chat, responses = tool.definition("openai-chat"), tool.definition("openai-responses")
        assert chat == {"type": "function", "function": {key: responses[key] for key in chat["function"]}}
        assert responses["type"] == "function" and responses["strict"] is False
        assert tool.definition("anthropic")["input_schema"] == responses["parameters"] == tool.parameters


def test_the_work_is_linear() -> None:
    def work(count: int) -> None:
        search(InMemorySource({"mf-1": midfold.read(modules(count)).messages}), "module 7 of the harbour", redact, 10)

    assert_in_proportion(work, 100, (800, 16))


# Units, filters, positions


def shell(number: int, command: str, output: str) -> list[Any]:
    return call(number, "Bash", {"command": command}, output)


WORK = [
    user("Find out why the service is down."),
    *shell(1, "curl -s localhost:8080/health", '{"status": "degraded", "queue": 417}'),
    *shell(2, "git commit -m 'Retry the queue'", "[main 3f9c2e1] Retry the queue\n 1 file changed"),
    *call(3, "Edit", {"file_path": "src/folder.rs", "old_string": "let a = 1;", "new_string": "let a = 2;"}, "ok"),
    *shell(4, "cargo test folder", "Exit code 101\nerror[E0382]: borrow of moved value"),
    assistant("We decided to keep the old queue because the new one rejects large jobs."),
    user("Fine."),
]


def test_a_call_and_its_result_are_one_hit_with_both_handles() -> None:
    past = midfold.read(WORK).messages
    (hit, *_) = recall(WORK).hits("curl health degraded")
    assert hit.has_every_word
    assert [part.handle for part in hit.parts] == [handle_of(past[1])[:9], handle_of(past[2])[:9]]
    assert "417" in hit.text and hit.before == handle_of(past[0])[:9] and hit.after == handle_of(past[3])[:9]
    assert "3f9c2e1" in recall(WORK).hits("commit hash retry")[0].text
    assert "src/folder.rs" in recall(WORK).hits("folder.rs old_string")[0].text
    assert "rejects" in recall(WORK).hits("rejected")[0].text


@pytest.mark.parametrize(
    ("filters", "text"),
    [
        ({"kind": "errors"}, "E0382"),
        ({"kind": "edits"}, "let a = 2"),
        ({"kind": "tests"}, "cargo test"),
        ({"kind": "decisions"}, "decided to keep"),
        ({"tool": "edit"}, "let a = 2"),
        ({"path": "folder.rs", "query": "a"}, "let a = 2"),
        ({"role": "user"}, "Fine."),
        ({"query": "queue", "before": 3}, "417"),
        ({"query": "queue", "after": 8}, "decided"),
    ],
)
def test_filters(filters: dict[str, Any], text: str) -> None:
    answer = recall(WORK).run("context_search", filters).text
    assert answer.startswith((FOUND, NEAREST)) and text in answer.split("\n\n")[0]


def test_several_queries_and_patterns() -> None:
    tools = recall(WORK)
    answer = tools.run("context_search", {"queries": ["degraded", "borrow", "zebra"]}).text
    assert "# degraded" in answer and "417" in answer and "E0382" in answer and NOTHING in answer
    found = tools.run("context_search", {"pattern": r"\[main [0-9a-f]{7}\]"}).text
    assert "line 2: [main 3f9c2e1] Retry the queue" in found
    assert tools.run("context_search", {"pattern": r"(?=x)"}).is_error
    start = time.process_time()
    slow = recall([user("a" * 50_000)]).run("context_search", {"pattern": "(a+)+b"}).text
    assert slow.startswith(NOTHING) and time.process_time() - start < 2


@pytest.mark.parametrize(
    ("filters", "texts"),
    [
        ({}, ["417", "Retry the queue", "old queue"]),
        ({"tool": "Bash"}, ["417", "Retry the queue"]),
        ({"path": "folder.rs", "pattern": "let a"}, ["let a = 1"]),
        ({"kind": "decisions"}, ["old queue"]),
        ({"role": "assistant", "before": 6}, ["git commit -m"]),
    ],
)
def test_patterns_go_with_filters(filters: dict[str, Any], texts: list[str]) -> None:
    lines = recall(WORK).run("context_search", {"pattern": "queue", **filters}).text.splitlines()[1:]
    assert all(any(text in line for line in lines) for text in texts)
    assert not filters or all(any(text in line for text in (*texts, "let a = 2")) for line in lines)


def test_queries_beyond_the_most_are_named_not_dropped() -> None:
    asked = ["degraded", "zebra", "yak", "xerus", "wombat", "borrow"]
    answer = recall(WORK).run("context_search", {"queries": asked}).text
    assert "# degraded" in answer and answer.endswith("5 queries go in one call: borrow")


def test_unfolding_around_a_text_by_lines_and_what_a_fold_holds() -> None:
    log = "\n".join(f"line {number}" for number in range(5_000))
    past = midfold.read([user(log)]).messages
    tools = InMemorySource({"mf-" + "a" * 12: past}).recall(redact)
    handle = handle_of(past[0])
    near = tools.run("context_unfold", {"handle": handle, "around": "line 4321"}).text
    assert "line 4321" in near and len(near) < 7_000 and "go on with start=" in near
    assert tools.run("context_unfold", {"handle": handle, "lines": "12-13"}).text.count("line ") == 2
    assert tools.run("context_unfold", {"handle": handle, "around": "zebra"}).is_error
    assert "line 4321" in tools.run("context_unfold", {"handle": handle, "around": "the 4321 LINE"}).text
    contents = recall(WORK).run("context_unfold", {"handle": "mf-" + "a" * 12}).text
    assert "curl -s localhost:8080/health" in contents and contents.count("mf-") > len(WORK) - 2
    steps = recall(WORK).run("context_timeline", {"handle": handle_of(midfold.read(WORK).messages[3])[:9]}).text
    assert steps.index("curl") < steps.index("git commit") < steps.index("folder.rs")


def test_instructions_and_lists_of_things_to_do_come_only_when_asked_for() -> None:
    rules = "# AGENTS.md instructions for /repo\n\n<INSTRUCTIONS>\nThe harbour pilot must sign.\n</INSTRUCTIONS>"
    turns = [
        user(rules),
        *call(1, "TodoWrite", {"todos": [{"content": "ask the harbour pilot", "status": "pending"}]}, "ok"),
        assistant("The harbour pilot was asked."),
    ]
    assert ["was asked" in hit.text for hit in recall(turns).hits("harbour pilot")] == [True]
    assert any("must sign" in hit.text for hit in recall(turns).hits("instructions harbour pilot"))
    assert any("TodoWrite" in hit.text for hit in recall(turns).hits("todo harbour pilot"))


def test_the_same_file_read_again_is_one_hit_at_its_newest_place() -> None:
    text = "def harbour():\n    return 'pilot'\n" + "# more of the same\n" * 20
    turns = [one for number in range(5) for one in call(number, "Read", {"file_path": "harbour.py"}, text)]
    hits = recall([user("go"), *turns]).hits("harbour pilot")
    assert len(hits) == 1
    assert hits[0].copies == 4 and hits[0].parts[-1].position == 10


def test_a_long_file_read_again_is_one_hit_with_all_the_room_of_the_first() -> None:
    text = "def harbour():\n    return 'pilot'\n" + "\n".join(f"# more of it, line {number}" for number in range(300))
    turns = [one for number in range(3) for one in call(number, "Read", {"file_path": "harbour.py"}, text)]
    (hit,) = recall([user("go"), *turns]).hits("harbour pilot")
    assert (hit.copies, hit.parts[-1].position) == (2, 6)
    assert len(hit.text) > 0.8 * MAX_FIRST_HIT_CHARS


def test_what_the_agent_made_of_the_first_hit_stands_beside_it() -> None:
    turns = [
        user("Which port?"),
        *shell(1, "ss -tlnp", "LISTEN 0 128 *:8443 harbour"),
        *shell(2, "uptime", "up 3 days"),
        assistant("So it listens on 8443, behind the old proxy."),
        *shell(3, "harbour --version", "harbour 2.1"),
    ]
    answer = recall(turns).run("context_search", {"query": "ss LISTEN harbour"}).text
    first, *others = answer.split("\n\n")
    assert "then assistant" in first and "behind the old proxy" in first and "before user" in first
    assert not any(" then " in hit or " before user" in hit for hit in others)
    past = midfold.read(turns).messages
    seen = Recall(InMemorySource({"past": past}), redact, seen={past[5].digest}).run(
        "context_search", {"query": "ss LISTEN"}
    )
    assert "behind the old proxy" not in seen.text and "then call Bash" in seen.text


def test_instructions_with_all_of_the_words_come_after_everything_else() -> None:
    rules = "# AGENTS.md instructions for /repo\n\n<INSTRUCTIONS>\nThe harbour pilot must sign lists.\n</INSTRUCTIONS>"
    turns = [user(rules), assistant("Read."), user("Where is the harbour?"), assistant("The pilot knows.")]
    hits = recall(turns).hits("harbour pilot sign")
    assert ["must sign" in hit.text for hit in hits] == [False, True]


def test_what_a_client_put_behind_every_result_is_not_found_in_any() -> None:
    reminder = "\n\n<system-reminder>\nConsider whether the harbour is malware.\n</system-reminder>\n"
    turns = [
        user("go"),
        *call(1, "Read", {"file_path": "a.py"}, "quay = 7" + reminder),
        assistant("The harbour is old."),
    ]
    assert [hit.text for hit in recall(turns).hits("harbour")] == ["The harbour is old."]
    assert "malware" not in recall(turns).hits("quay")[0].text
    handle = handle_of(midfold.read(turns).messages[2])
    assert recall(turns).run("context_unfold", {"handle": handle}).text.endswith(reminder)


def test_several_queries_have_twice_the_room_together() -> None:
    log = "\n".join(f"harbour line {number} of the pilot" for number in range(2_000))
    tools = recall([user("go"), *shell(1, "cat log", log), assistant("Read.")])
    for count in (1, 2, 5):
        text = tools.run("context_search", {"queries": [f"harbour line {number}" for number in range(count)]}).text
        assert len(text) < (1 if count == 1 else 2) * MAX_HITS_CHARS + 600 * count
        assert text.count("its result") == count


def alike() -> tuple[str, str]:
    """Return two texts whose messages have handles with the same first six digits."""
    known: dict[str, str] = {}
    for number in range(100_000):
        text = f"message number {number}"
        digits = handle_of(midfold.read([user(text)]).messages[0])[:9]
        if digits in known:
            return known[digits], text
        known[digits] = text
    raise AssertionError("unreachable: handles of six digits are hardly ever so different")


def test_an_abbreviation_once_written_keeps_its_meaning() -> None:
    first, second = alike()
    with midfold.open("memory:") as sessions:
        session = sessions.session("s")
        session.append([user(first), assistant("Yes.")])
        (hit,) = session.search(f'"{first}"')
        assert len(hit.handle) == len("mf-") + 6
        session.append([user(second), assistant("Well.")])
        (other,) = session.search(f'"{second}"')
        assert other.handle.startswith(hit.handle) and len(other.handle) > len(hit.handle)
        assert session.search(f'"{first}"')[0].handle == hit.handle
        for tools in (session.recall(), recall([user(first), assistant("Yes."), user(second), assistant("Well.")])):
            assert tools.run("context_unfold", {"handle": hit.handle}).text.endswith(first)
            assert tools.run("context_unfold", {"handle": other.handle}).text.endswith(second)


def test_short_handles_keep_their_meaning() -> None:
    full = ["mf-aaaaaa111111", "mf-bbbbbb111111", "mf-aaaaaa222222", "mf-aaaaaa111111"]
    assert short_handles(full) == ["mf-aaaaaa", "mf-bbbbbb", "mf-aaaaaa2", "mf-aaaaaa"]
