from __future__ import annotations

import json

import pytest

from midfold import Message, Text, TranscriptError, read, read_many, write
from midfold.errors import MalformedTranscript
from support.timing import assert_in_proportion

CHAT = b"""{
  "model": "gpt-5.5", "temperature": 1e-7,
  "messages": [
    {"role": "system", "content": "s\\u00e9"},
    {"role": "user", "content": "hi", "x": 1.50},
    {"role": "assistant", "content": "ok"}
  ],
  "tools": [{"type": "function", "function": {"name": "read", "parameters": {}}}, {"type": "web_search"}],
  "max_completion_tokens": 77, "stream": true
}
"""


def test_a_body_tells_model_tools_and_output_limit() -> None:
    document = read(CHAT)
    assert document.model == "gpt-5.5"
    assert document.max_output == 77
    assert [tool.name for tool in document.tools] == ["read", "web_search"]
    assert document.system is None
    assert [message.role for message in document.messages] == ["system", "user", "assistant"]


def test_a_changed_message_is_spliced_and_every_other_byte_stays() -> None:
    document = read(CHAT)
    changed = document.messages[1].with_parts((Text("hello"),))
    written = write(document, messages=(document.messages[0], changed, document.messages[2]))
    assert written == CHAT.replace(b'"hi"', b'"hello"')


def test_removed_and_added_messages_stand_between_the_old_separators() -> None:
    document = read(CHAT)
    written = write(document, messages=(document.messages[0], Message("user", (Text("new"),))))
    before, after = CHAT[: CHAT.index(b'    {"role": "user"')], CHAT[CHAT.index(b"\n  ],") :]
    assert written == before + b'    {"role":"user","content":"new"}' + after


def test_text_in_gives_text_out() -> None:
    source = CHAT.decode()
    document = read(source)
    assert write(document) is source
    assert isinstance(write(document, messages=document.messages[:1]), str)


def test_a_message_per_line_is_one_conversation() -> None:
    source = b'{"role":"user","content":"a"}\n\n{"role":"assistant","content":"b"}\n'
    document = read(source)
    assert [message.text for message in document.messages] == ["a", "b"]
    assert write(document) == source
    assert write(document, messages=document.messages[1:]) == b'{"role":"assistant","content":"b"}\n'


def test_lines_that_nobody_can_read_after_a_good_one_are_problems_of_that_message() -> None:
    source = b'{"role":"user","content":"a"}\nnull\n{"role":"assis'
    document = read(source)
    assert [str(problem) for problem in document.problems] == [
        "messages[1]: expected a message object, found null",
        "messages[2]: unterminated string starting at at byte 8",
    ]
    assert write(document) == source


def test_lines_keep_their_mark_ends_and_blank_lines_beside_a_change() -> None:
    source = b'\xef\xbb\xbf{"role":"user","content":"a"}\r\n\r\n{"role":"assistant","content":"b"}'
    document = read(source)
    changed = document.messages[1].with_parts((Text("c"),))
    assert write(document, messages=(document.messages[0], changed)) == source.replace(b'"b"', b'"c"')


@pytest.mark.parametrize("dialect", ["openai-chat", "anthropic", "openai-responses"])
def test_lines_of_messages_are_read_with_a_given_dialect(dialect: str) -> None:
    source = b'{"role":"user","content":"a"}\n{"role":"assistant","content":"b"}\n'
    assert [message.text for message in read(source, dialect=dialect).messages] == ["a", "b"]


def test_lines_of_items_with_an_input_are_one_conversation() -> None:
    line = b'{"type":"custom_tool_call","call_id":"c","name":"x","input":"ls"}'
    document = read(line + b"\n" + line)
    assert document.dialect.name == "openai-responses"
    assert len(document.messages) == 2


def test_lines_of_lists_are_a_conversation_each() -> None:
    line = b'[{"role":"user","content":"a"}]'
    assert [len(document.messages) for document in read_many(line + b"\n" + line + b"\n")] == [1, 1]


def test_a_single_message_is_a_conversation_of_one() -> None:
    assert len(read(b'{"role":"user","content":"a"}').messages) == 1


def test_a_conversation_per_line_is_many() -> None:
    line = b'{"id": 1, "messages": [{"role":"user","content":"a"}]}'
    assert len(read_many(line + b"\r\n" + line + b"\n")) == 2
    assert len(read_many(line)) == 1
    with pytest.raises(TranscriptError, match="contains 2 conversations"):
        read(line + b"\n" + line)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"", "expected JSON"),
        (b"hello", "expected JSON"),
        (b"42", "expected JSON"),
        (b"[1, 2", "not a transcript"),
        (b"{}", "or messages with a role"),
        (b'{\n  "a": 1\n}', "expected an object with 'messages' or 'input'"),
        (b'[{"role": "user"}] garbage', "unexpected data after the array"),
        (b'{"messages": 5}', "expected 'messages' to be a list, found a number"),
        (b'{"messages": null}', "expected 'messages' to be a list, found null"),
        (b'{"messages": []}\n{"role": "user"}', "some lines are messages"),
        (b'\n{"role": \n{"role": "user"}', "line 2: expected one JSON object per line"),
        ({"a": 1}, "expected an object with 'messages' or 'input'"),
        (5, "expected bytes, a list or an object, found a number"),
        (None, "found null"),
    ],
)
def test_what_is_no_transcript_is_refused_in_one_line(source: object, message: str) -> None:
    with pytest.raises(TranscriptError, match=message) as caught:
        read(source, name="x.json")  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert "x.json" in str(caught.value)


def test_an_unknown_dialect_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TranscriptError, match="openai-chat, openai-responses, anthropic"):
        read([], dialect="gemini")


def test_a_byte_order_mark_survives() -> None:
    source = b"\xef\xbb\xbf" + CHAT
    document = read(source)
    assert write(document) == source
    assert write(document, messages=document.messages[1:]).startswith(b"\xef\xbb\xbf{")


def test_values_only_lenient_parsers_accept_survive_beside_a_change() -> None:
    source = b'{"messages":[{"role":"user","content":"\\ud800","t":NaN},{"role":"user","content":"b"}],"p":1e400}'
    document = read(source)
    assert document.messages[0].text == "\ud800"
    changed = document.messages[0].with_parts((Text("a"),))
    written = write(document, messages=(changed, document.messages[1]))
    assert written == source.replace(b'"\\ud800"', b'"a"')


def test_what_stands_between_neighbours_stays() -> None:
    source = b'[ {"role":"user","content":"a"} ,\n {"role":"user","content":"b"},{"role":"user","content":"c"}\t]'
    document = read(source)
    changed = document.messages[2].with_parts((Text("d"),))
    assert write(document, messages=(*document.messages[:2], changed)) == source.replace(b'"c"', b'"d"')
    assert write(document, messages=document.messages[1:]) == source.replace(b'{"role":"user","content":"a"} ,\n ', b"")
    assert write(read(b" [ ] "), messages=document.messages[2:]) == b' [ {"role":"user","content":"c"}] '


def test_the_list_is_written_where_it_was_found() -> None:
    block = {"type": "input_text", "text": "x"}
    body = {"messages": [{"type": "message", "role": "user", "content": [block]}]}
    for source in (body, json.dumps(body).encode()):
        document = read(source)
        changed = document.messages[0].with_parts((Text("y", wire=block),))
        written = write(document, messages=(changed,))
        value = written if isinstance(written, dict) else json.loads(written)
        assert value == {"messages": [{"type": "message", "role": "user", "content": [{**block, "text": "y"}]}]}


def test_a_system_prompt_where_there_is_no_place_for_one_is_refused() -> None:
    prompt = Message("system", (Text("s"),))
    for source in ({"messages": []}, [], b"[]"):
        with pytest.raises(TranscriptError, match="no system prompt outside"):
            write(read(source), system=prompt)


def test_a_list_that_grew_after_it_was_read_is_not_given_back() -> None:
    messages = [{"role": "user", "content": "a"}]
    document = read(messages)
    messages.append({"role": "user", "content": "b"})
    assert write(document) == messages[:1]


def test_a_view_of_bytes_is_read_like_bytes() -> None:
    assert len(read(memoryview(b'[{"role":"user","content":"a"}]')).messages) == 1


def test_elements_that_are_bytes_and_no_json_are_problems_not_errors() -> None:
    assert read([b"xx"]).problems[0].path == "messages[0]"


def test_strict_reading_raises_with_every_problem_and_its_path() -> None:
    messages = [{"role": "user", "content": "a"}, None, {"role": "tool", "content": "r"}]
    with pytest.raises(MalformedTranscript) as caught:
        read(messages, strict=True)
    assert [problem.path for problem in caught.value.problems] == [
        "messages[1]",
        "messages[2].tool_call_id",
        "messages[2]",
    ]
    assert read([{"role": "user", "content": "a"}], strict=True).problems == ()


def test_reading_a_large_body_costs_no_more_than_its_list() -> None:
    messages = [{"role": "user", "content": "x" * 1000}] * 5000
    plain, body = json.dumps(messages).encode(), json.dumps({"model": "m", "messages": messages}).encode()

    def work(source: bytes) -> None:
        document = read(source)
        write(document, messages=document.messages[1:])

    assert_in_proportion(work, plain, (body, 4))
