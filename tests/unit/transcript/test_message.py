from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

from midfold import Message, Text, ToolCall, read
from midfold.transcript.message import Part
from midfold.types import Opaque


def one(source: bytes) -> Message:
    return read(b"[" + source + b"]").messages[0]


def test_equality_is_by_role_and_parts_not_by_bytes() -> None:
    compact, spaced = one(b'{"role":"user","content":"hi"}'), one(b'{ "role": "user", "content": "\\u0068i", "x": 1 }')
    assert compact == spaced
    assert hash(compact) == hash(spaced)
    assert compact != one(b'{"role":"assistant","content":"hi"}')
    assert compact != "hi"
    assert compact.digest != spaced.digest


def test_parts_are_equal_by_value_and_type() -> None:
    assert Text("a", wire={"x": 1}) == Text("a")
    assert Text("a") != Opaque("a", "a")
    assert len({Text("a"), Text("a", wire={}), Text("b")}) == 2
    assert Text("a") != 1


def test_a_message_is_read_only() -> None:
    message = one(b'{"role":"user","content":"hi"}')
    for name in ("role", "parts", "wire", "origin"):
        with pytest.raises(AttributeError):
            setattr(message, name, None)
    part: Part = message.parts[0]
    with pytest.raises(AttributeError):
        part.text = "other"  # type: ignore[attr-defined]


def test_with_the_same_parts_nothing_changes() -> None:
    message = one(b'{"role":"user","content":"hi"}')
    assert message.with_parts((Text("hi"),)) is message
    changed = message.with_parts((Text("ho"),))
    assert changed.wire is None
    assert changed.origin is message.wire
    assert changed.with_parts((Text("hu"),)).origin is message.wire


def test_messages_survive_pickling() -> None:
    fresh, used = one(b'{"role":"user","content":"hi"}'), one(b'{"role":"user","content":"hi"}')
    assert used.text == "hi"
    for message in (fresh, used, used.with_parts((Text("x"),)), Message("user", (Text("new"),))):
        copy = pickle.loads(pickle.dumps(message))
        assert copy == message
        assert copy.digest == message.digest


def test_repr_shows_no_content() -> None:
    assert "secret" not in repr(one(b'{"role":"user","content":"secret"}'))


def test_digests_are_the_same_in_every_process() -> None:
    code = (
        "from midfold import *; m = read([{'role': 'user', 'content': 'hi'}]).messages[0];"
        "print(m.digest.hex(), m.with_parts((Text('x'), ToolCall('1', 'a', '{}'))).digest.hex())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1
    message = read([{"role": "user", "content": "hi"}]).messages[0]
    changed = message.with_parts((Text("x"), ToolCall("1", "a", "{}")))
    assert seen.pop() == f"{message.digest.hex()} {changed.digest.hex()}\n"


def test_sdk_message_objects_are_read_and_come_back_as_themselves() -> None:
    from openai.types.chat import ChatCompletionMessage

    answer = ChatCompletionMessage.model_validate({"role": "assistant", "content": "hi", "x_vendor": 1})
    document = read([{"role": "user", "content": "hello"}, answer])
    assert document.messages[1].text == "hi"
    from midfold import write

    assert write(document, messages=document.messages[1:])[0] is answer
