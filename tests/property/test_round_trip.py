"""Messages round-trip unchanged, and changed messages keep unknown fields."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midfold import Message, Text, ToolResult, TranscriptError, read, write
from midfold.testing import strategies
from midfold.transcript import jsonio
from midfold.transcript.document import DIALECTS
from midfold.transcript.message import Part
from midfold.transcript.splice import message_bytes, message_value

every_dialect = pytest.mark.parametrize("dialect", strategies.DIALECTS)
indents = st.sampled_from([None, 1, "\t"])


def remade(message: Message) -> Message:
    """Return a message with the same role and parts but no wire, so that the dialect's writer is used."""
    return Message(message.role, message.parts, None, message.wire)


@every_dialect
@given(data=st.data())
def test_bytes_leave_as_they_came(dialect: str, data: st.DataObject) -> None:
    messages = data.draw(strategies.conversations(dialect))
    source = json.dumps(messages, indent=data.draw(indents), ensure_ascii=data.draw(st.booleans())).encode()
    document = read(source, dialect=dialect)
    assert write(document) == source
    assert [json.loads(message_bytes(message, document.dialect)) for message in document.messages] == messages
    assert all(bytes(message.wire) in source for message in document.messages)


@every_dialect
@given(data=st.data())
def test_a_list_of_dicts_comes_back_as_the_callers_own_objects_unmutated(dialect: str, data: st.DataObject) -> None:
    messages = data.draw(strategies.conversations(dialect))
    before = copy.deepcopy(messages)
    document = read(messages, dialect=dialect)
    for message in document.messages:
        assert message.parts is not None
    assert write(document) is messages
    rest = write(document, messages=document.messages[1:])
    assert all(new is old for new, old in zip(rest, messages[1:], strict=True))
    assert messages == before


@every_dialect
@given(data=st.data())
def test_a_message_written_again_by_its_dialect_says_the_same(dialect: str, data: st.DataObject) -> None:
    value = data.draw(strategies.messages(dialect))
    kind = DIALECTS[dialect]
    raw = json.dumps(value).encode()
    (message,) = read(b"[" + raw + b"]", dialect=dialect).messages
    assert message_bytes(remade(message), kind) == raw
    (from_dict,) = read([value], dialect=dialect).messages
    assert message_value(remade(from_dict), kind) == value
    assert message == from_dict
    assert hash(message) == hash(from_dict)


@every_dialect
@given(data=st.data())
def test_a_changed_message_keeps_every_field_it_does_not_understand(dialect: str, data: st.DataObject) -> None:
    value = data.draw(strategies.messages(dialect))
    kind = DIALECTS[dialect]
    source = json.dumps([value]).encode()
    document = read(source, dialect=dialect)
    changed = shorten(document.messages[0])
    written = json.loads(write(document, messages=(changed,)))[0]
    as_dict = message_value(shorten(read([value], dialect=dialect).messages[0]), kind)
    for new in (written, as_dict):
        assert set(new) == set(value)
        for field in ("x_vendor", "_meta", "annotations"):
            assert new.get(field, "none") == value.get(field, "none")
        assert read([new], dialect=dialect).messages[0].parts == changed.parts
    extras = [block.get("x_vendor") for block in blocks(value)]
    assert [block.get("x_vendor") for block in blocks(written)] == extras


def shorten(message: Message) -> Message:
    """Replace every text, tool results included."""

    def short(part: Part) -> Part:
        if isinstance(part, Text):
            return Text("shorter é", wire=part.wire)
        if isinstance(part, ToolResult):
            inner = tuple(short(item) for item in part.parts)
            return ToolResult(part.call_id, inner, part.is_error, part.name, wire=part.wire)
        return part

    return message.with_parts(tuple(short(part) for part in message.parts))


def blocks(value: dict[str, Any]) -> list[dict[str, Any]]:
    content = value.get("content")
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


@every_dialect
@given(data=st.data())
def test_malformed_messages_never_raise_and_never_lose_a_byte(dialect: str, data: st.DataObject) -> None:
    messages = data.draw(st.lists(strategies.malformed_messages(dialect), max_size=4))
    source = jsonio.encode(messages)
    for given_dialect in (dialect, None):
        document = read(source, dialect=given_dialect)
        assert len(document.messages) == len(messages)
        assert all(isinstance(str(problem), str) for problem in document.problems)
        assert write(document) == source
        assert write(document, messages=tuple(document.messages)) == source
        for message in document.messages:
            assert message_bytes(message, document.dialect) in source
            jsonio.decode(message_bytes(remade(message), document.dialect))
    from_values = read(messages, dialect=dialect)
    assert [problem.path for problem in from_values.problems] == [
        problem.path for problem in read(source, dialect=dialect).problems
    ]
    assert write(from_values) is messages


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_bytes_that_are_no_transcript_raise_only_our_error(source: bytes) -> None:
    try:
        document = read(source)
    except TranscriptError:
        return
    assert write(document) == source
    assert all(problem.what for problem in document.problems)


@given(strategies.json_values(odd=True))
def test_any_json_value_survives_encoding_and_decoding(value: Any) -> None:
    text = jsonio.encode(value)
    assert jsonio.encode(jsonio.decode(text)) == text


@every_dialect
@given(data=st.data())
def test_taking_messages_out_of_a_body_leaves_all_other_bytes(dialect: str, data: st.DataObject) -> None:
    messages = data.draw(strategies.conversations(dialect))
    extra = data.draw(st.dictionaries(st.sampled_from(["model", "temperature", "x"]), strategies.json_values(odd=True)))
    key = DIALECTS[dialect].list_key
    body = {**extra, key: messages, "stream": True}
    source = jsonio.encode(body)
    document = read(source, dialect=dialect)
    assert write(document) == source
    kept = document.messages[::2]
    written = write(document, messages=kept)
    start, end = source.index(b'"%s":' % key.encode()), len(source) - len(b',"stream":true}')
    assert written.startswith(source[:start])
    assert written.endswith(source[end:])
    assert jsonio.encode(jsonio.decode(written)[key]) == jsonio.encode(messages[::2])
