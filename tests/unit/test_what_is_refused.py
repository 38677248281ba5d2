"""Numbers that JSON lacks and names with lone surrogates are refused with their position, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import midfold
from midfold.errors import ConfigError, StoreError, TranscriptError
from midfold.session.sessions import Sessions

NAN, ENDLESS = float("nan"), float("inf")
HALF = "a\ud800b"
GOOD: list[dict[str, Any]] = [{"role": "user", "content": "Hello."}]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}, "score": NAN}
WRONG: list[tuple[str, Any]] = [
    ("messages[1].content: NaN", [*GOOD, {"role": "assistant", "content": NAN}]),
    ("messages[0].tool_calls[0].score: NaN", [{"role": "assistant", "content": None, "tool_calls": [CALL]}]),
    (
        "messages[0].content[0].x: Infinity",
        [{"role": "user", "content": [{"type": "text", "text": "a", "x": ENDLESS}]}],
    ),
    ("messages[0].meta.a[1].b: -Infinity", [{"role": "user", "content": "x", "meta": {"a": [1, {"b": -ENDLESS}]}}]),
    ("messages[0].a: NaN", [{"role": "user", "content": "null and \ud800", "a": NAN}]),
    ("messages[0].content: NaN", {"model": "m", "messages": [{"role": "user", "content": NAN}]}),
]


@pytest.mark.parametrize(("place", "messages"), WRONG)
def test_numbers_that_are_no_json_are_refused_with_their_place(place: str, messages: Any) -> None:
    told = f"{place} is not JSON; expected a finite number, null or text"
    tried: list[Callable[[], Any]] = [
        lambda: midfold.compact(messages),
        lambda: midfold.compact(messages, force=True, context_length=2_000),
    ]
    for attempt in tried:
        with pytest.raises(TranscriptError) as refused:
            attempt()
        assert str(refused.value) == told
    with midfold.open("memory:") as sessions:
        session = sessions.session("s")
        session.append(GOOD)
        with pytest.raises(TranscriptError) as refused:
            session.append(messages)
        assert str(refused.value) == told
        assert json.loads(session.view().json()) == GOOD


@pytest.mark.parametrize("literal", [b"NaN", b"Infinity", b"-Infinity"])
def test_what_came_as_bytes_leaves_as_it_came_and_is_not_stored(literal: bytes) -> None:
    data = b'[{"role":"user","content":"NaN, Infinity","a":' + literal + b"}]"
    assert midfold.compact(data).messages == data
    with midfold.open("memory:") as sessions, pytest.raises(TranscriptError, match=r"messages\[0\]\.a: "):
        sessions.session("s").append(data)


def test_words_and_large_numbers_are_no_reason_to_refuse() -> None:
    data = b'[{"role":"user","content":"x = NaN or -Infinity; null","a":1e400,"b":null}]'
    said = [{"role": "user", "content": "NaN, Infinity, null \ud800", "a": None, "b": 1.5}]
    assert midfold.compact(said).messages is said
    with midfold.open("memory:") as sessions:
        session = sessions.session("s")
        session.append(data)
        session.append(said)
        assert session.view().json().startswith(data[:-1])
        json.loads(session.view().json(), parse_constant=pytest.fail)


@pytest.mark.parametrize("beside", [{"system": [{"type": "text", "text": "s", "z": NAN}]}, {"tools": [{"z": ENDLESS}]}])
def test_a_prompt_is_json_as_well(beside: dict[str, Any]) -> None:
    with midfold.open("memory:") as sessions:
        session = sessions.session("s", **beside)
        with pytest.raises(TranscriptError, match=r"(system|tools)\[0\]\.z: (NaN|Infinity) is not JSON"):
            session.append(GOOD)


@pytest.fixture(params=["memory", "sqlite"])
def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sessions]:
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/s.db"
    with midfold.open(url, connections=2) as made:
        made.session("ok").append(GOOD)
        yield made


ASKED: dict[str, Callable[[Sessions], Any]] = {
    "a session": lambda made: made.session(HALF),
    "whether it is there": lambda made: HALF in made,
    "a model": lambda made: made.session("new", model=HALF).append(GOOD),
    "a key": lambda made: made.session("ok").append(GOOD, key=HALF),
    "a handle": lambda made: made.session("ok").unfold(HALF),
    "a search in it": lambda made: made.search("hello", session=HALF),
    "a beginning": lambda made: made.find_prefix(GOOD, under=HALF),
    "an import": lambda made: made.load(list(made.export("ok")), name=HALF),
    "an export": lambda made: list(made.export(HALF)),
    "the end of it": lambda made: made.delete(HALF),
}


@pytest.mark.parametrize("what", ASKED)
def test_half_a_character_in_a_name_is_our_own_error_and_costs_no_connection(sessions: Sessions, what: str) -> None:
    for _ in range(5):
        with pytest.raises(StoreError, match="lone surrogate"):
            ASKED[what](sessions)
    assert json.loads(sessions.session("ok").view().json()) == GOOD


@pytest.mark.parametrize("length", [-1, "8000", True, 8_000.5])
def test_a_window_is_a_positive_number_of_tokens(length: Any) -> None:
    with pytest.raises(ConfigError, match=f"context_length: expected a positive number of tokens, found {length!r}"):
        midfold.compact(GOOD, context_length=length)
    with midfold.open("memory:") as sessions, pytest.raises(ConfigError, match="context_length"):
        sessions.session("a", context_length=length)


def test_a_model_and_a_session_have_names() -> None:
    model: Any = 5
    with pytest.raises(ConfigError, match="model: expected the name of a model, found 5"):
        midfold.compact(GOOD, model=model)
    with midfold.open("memory:") as sessions:
        for name in ("", " ", model):
            with pytest.raises(StoreError, match="a session needs a name"):
                sessions.session(name)
