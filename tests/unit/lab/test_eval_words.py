from __future__ import annotations

from midfold.lab.message_text import APART, NEAR
from midfold.lab.retention_facts import Surroundings, is_bound, places, surroundings, words_of

PAST = "The gateway of the harbour listens on 48213 for vessels."


def near(text: str, fact: str) -> Surroundings:
    return surroundings(text, fact, list(places(text, fact)))


def test_two_content_words_that_stood_near_bind_a_fact() -> None:
    around = near(PAST, "48213")
    assert around.words == {"gateway", "harbour", "listens", "vessels"}
    assert is_bound("the harbour gateway: 48213", "48213", around)
    assert not is_bound("harbour 48213", "48213", around)
    assert not is_bound("other words stand beside 48213 here", "48213", around)


def test_a_label_on_the_same_line_binds_a_fact() -> None:
    around = near('{"listen_port": 48213}', "48213")
    assert around.labels == {"listen_port"}
    assert is_bound("listen_port: 48213", "48213", around)
    assert not is_bound("listen_port:\n48213", "48213", around)


def test_identifiers_function_words_and_keywords_are_no_content_words() -> None:
    code = "return the self.harbour_gate from src/harbour, GateKeeper and gate-keeper or gate.keeper() func"
    assert list(words_of(code)) == []


def test_a_bare_list_binds_nothing() -> None:
    around = near(PAST, "48213")
    assert not is_bound("48213\nsrc/gateway/harbour.py\nlistens_on\nvesselsFor", "48213", around)


def test_words_beyond_140_characters_or_in_another_message_are_not_near() -> None:
    far = "harbour gateway" + " " * NEAR + "48213"
    assert near(far, "48213").words == set()
    other = "harbour gateway" + APART + "48213"
    assert not is_bound(other, "48213", near(PAST, "48213"))
