"""For every request, bytes that need no change are unchanged, and inserted content is read back the same."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import midfold
from midfold.errors import TranscriptError
from midfold.gateway.overflows import overflow_of
from midfold.gateway.peek import peek
from midfold.gateway.recall_loop import definitions
from midfold.gateway.request_size import ClientHistory
from midfold.gateway.upstream import UsageTap
from midfold.recall import TOOLS
from midfold.store.bodies import chain_of
from midfold.testing.strategies import conversations
from midfold.transcript.document import Document, read
from midfold.transcript.jsonio import NotJSON
from support.provider_rules import check

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
bodies = st.binary(max_size=200) | values.map(lambda value: json.dumps(value).encode())


@given(bodies)
def test_no_body_is_too_odd_to_look_at(body: bytes) -> None:
    peek(body)
    overflow_of(400, body)
    tap = UsageTap()
    tap.feed(body)
    tap.usage()
    for wire in ("chat", "anthropic", "responses"):
        try:
            value = json.loads(body)
        except ValueError:
            continue
        if not isinstance(value, dict):
            assert check(wire, value, 100) is not None


@given(conversations("openai-chat"), values)
def test_tools_are_added_to_any_list_and_nothing_else_changes(talk: list[Any], tools: Any) -> None:
    body = json.dumps({"model": "m", "tools": tools, "messages": talk}).encode()
    try:
        conversation = ClientHistory(read(body, dialect="openai-chat"))
    except (TranscriptError, NotJSON):
        return
    theirs = conversation.raw_tools
    assert (theirs is None) == (not isinstance(tools, list | None))
    if theirs is not None:
        offered = definitions("openai-chat", TOOLS)
        value = json.loads(conversation.body_with(conversation.talk, noted=False, offered=offered))
        assert value == {"model": "m", "tools": [*(tools or []), *json.loads(b"[" + offered + b"]")], "messages": talk}


@given(conversations("openai-chat"), st.sampled_from([(",", ":"), (", ", ": "), (" ,", " :")]))
def test_a_conversation_that_is_not_folded_is_written_as_the_bytes_it_came_in(talk: list[Any], marks: Any) -> None:
    body = json.dumps({"model": "m", "messages": talk, "x": 1.0}, separators=marks).encode()
    try:
        conversation = ClientHistory(read(body, dialect="openai-chat"))
    except (TranscriptError, NotJSON):
        return
    assert conversation.body_with(conversation.talk, noted=False) == body
    assert list(chain_of(message.digest for message in conversation.talk)) == conversation.chains


@settings(max_examples=8)
@given(st.integers(4, 24), st.integers(0, 8), st.integers(0, 3))
def test_a_checkpoint_replaces_the_same_messages_whatever_comes_after(count: int, more: int, seed: int) -> None:
    talk: list[dict[str, Any]] = [{"role": "user", "content": f"Start {seed}."}]
    for number in range(count):
        talk += [
            {"role": "assistant", "content": f"Step {number}: " + "done " * 200},
            {"role": "user", "content": f"And {number}? " + "why " * 200},
        ]
    with midfold.open("memory:") as sessions:
        session = sessions.session("s", context_length=4_000)
        session.append(talk)
        if not session.compact(force=True).changed:
            return
        view = session.view().messages
        longer = [*talk, *({"role": "assistant", "content": f"later {n}"} for n in range(more))]
        conversation = ClientHistory(_request(longer))
        found = sessions.store.checkpoints.find("s", conversation.lengths)
        assert found is not None
        written = json.loads(conversation.body_with(conversation.view(found), noted=False))["messages"]
        assert written == [*view, *longer[len(talk) :]]
        assert found.count <= len(talk)
        cut = ClientHistory(_request(talk[: found.count - 1]))
        assert sessions.store.checkpoints.find("s", cut.lengths) is None


def _request(talk: list[dict[str, Any]]) -> Document:
    return read(json.dumps({"model": "m", "messages": talk}, separators=(",", ":")).encode(), dialect="openai-chat")
