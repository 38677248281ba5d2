from __future__ import annotations

import time

import midfold
from midfold.fold.archive import MOST_CHARACTERS, NEIGHBOURS, Archive, passages
from tests.support.build import assistant, call, user


def archive(count: int = 40) -> Archive:
    turns = [user("Port the parser.")]
    for number in range(count):
        text = f"module {number} listens on port {9_000 + number}\n"
        turns += [
            *call(number, "read_file", {"path": f"src/mod_{number}.py"}, text),
            assistant(f"Module {number} is done."),
        ]
    return Archive({"mf-" + "a" * 12: midfold.read(turns).messages})


def test_a_hit_comes_with_its_neighbours_and_says_where_it_stands() -> None:
    best = archive().search("which port has module 17")[0]
    assert best.handle == "mf-" + "a" * 12
    assert "9017" in best.text
    assert "mod_17" in best.text or "Module 17 is done" in best.text
    assert best.text.count("\n") >= NEIGHBOURS - 1


def test_every_spelling_of_a_name_finds_every_other() -> None:
    entries = Archive({"mf-1": midfold.read([user("the parseUrl helper is broken"), assistant("noted")]).messages})
    assert entries.search("parse_url")[0].text.startswith("the parseUrl helper")


def test_arguments_of_calls_are_found_as_people_read_them() -> None:
    turns = [user("go"), *call(1, "terminal", {"command": "make deploy_blue"}, "ok")]
    assert "command: make deploy_blue" in Archive({"mf-1": midfold.read(turns).messages}).search("deploy blue")[0].text


def test_what_comes_back_is_bounded_and_does_not_overlap() -> None:
    found = archive(300).search("module port done listens")
    assert 1 < len(found) <= 8
    assert sum(len(window.text) for window in found) <= MOST_CHARACTERS
    assert len({window.text for window in found}) == len(found)
    assert len(archive(300).search("module port", limit=2)) == 2
    assert sum(len(window.text) for window in archive(300).search("module", characters=100)) <= 100


def test_nothing_is_found_where_nothing_fits() -> None:
    assert archive().search("zebra") == []
    assert archive().search("") == []
    assert Archive().search("port") == []


def test_of_windows_alike_the_newer_comes_first() -> None:
    turns = [
        user("the limit is high"),
        *[assistant(f"filler {number}") for number in range(9)],
        user("the limit is low"),
    ]
    found = Archive({"mf-1": midfold.read(turns).messages}).search("limit")
    assert "low" in found[0].text


def test_passages_are_the_text() -> None:
    text = "a line of text\n" * 200 + "x" * 2_000
    assert "".join(passages(text)) == text


def test_the_work_is_linear() -> None:
    def spent(count: int) -> float:
        messages = archive(count)
        start = time.process_time()
        messages.search("module 7")
        return time.process_time() - start

    spent(50)
    assert min(spent(800) for _ in range(2)) <= 20 * min(spent(100) for _ in range(3)) + 0.1
