from __future__ import annotations

from midfold import Media, Message, Text, ToolCall, ToolResult
from midfold.compaction.redact import redact
from midfold.compaction.summary import serialize_turns
from midfold.compaction.truncate import clip, find_error
from midfold.types import Thinking

MESSAGES = (
    Message("user", (Text("look"), Media("image", "AA"))),
    Message("assistant", (Thinking("secret thought"), Text("ok"), ToolCall("1", "read", '{"path": "a"}'))),
    Message("tool", (ToolResult("1", (Text("x" * 9_000 + "THE END"),), True),)),
)


def test_turns_are_raw_in_order_with_who_said_what_and_without_thoughts() -> None:
    text = serialize_turns(MESSAGES, lambda text: text)
    assert text.startswith("[USER]: look\n\n[USER]: (image)\n\n[ASSISTANT]: ok\n\n[ASSISTANT CALLS read]: ")
    assert "[RESULT (failed)]: xxx" in text
    assert text.endswith("THE END")
    assert "secret thought" not in text
    assert "x" * 9_000 + "THE END" in text
    assert "characters left out" in serialize_turns(MESSAGES, lambda text: text, 6_000)


def test_texts_are_redacted_before_they_are_cut() -> None:
    secret = "TOKEN" * 10
    text = "a" * 4_480 + secret + "b" * 50_000
    shown = serialize_turns((Message("user", (Text(text),)),), lambda text: text.replace(secret, "[gone]"))
    assert "TOKEN" not in shown


def test_a_short_text_is_not_clipped() -> None:
    assert clip("abc", 100, str) == "abc"


def test_the_longer_the_fold_the_less_of_each_message_and_never_too_much_in_all() -> None:
    messages = tuple(Message("user", (Text(f"start {n} " + "x" * 2_000 + " end"),)) for n in range(5_000))
    text = serialize_turns(messages, lambda text: text)
    assert len(text) < 2_000_000
    assert "start 4999" in text


def test_credentials_among_many_turns_are_taken_out_as_when_each_turn_is_searched_alone() -> None:
    turns = [f"step {n}: " + ("password=" + "hunter" + f"{n}x" if n % 97 == 0 else "nothing here") for n in range(600)]
    turns += ['open quote at the end: password="' + "hunter22x", "harmless", "x" * 7_000 + " api_key=" + "9f8b7c6d5e4f"]
    messages = tuple(Message("user", (Text(turn),)) for turn in turns)
    together = serialize_turns(messages, redact)
    assert together == serialize_turns(messages, lambda text: str(redact(text)))
    assert "hunter" not in together
    assert together.count("[REDACTED:") == 9


def test_the_first_word_of_trouble_is_found_whichever_it_is() -> None:
    text = "fine\n" * 100 + "Exception: an Error\n" + "error\n" * 50 + "fatal: denied"
    assert text[find_error(text, 0, len(text)) :].startswith("xception: an Error")
    assert find_error(text, 0, 300) == -1
