from __future__ import annotations

import json
from typing import Any

import pytest

from midfold import Media, Message, Meter, Text, ToolCall, ToolResult, read
from midfold.transcript.tokens import (
    ESTIMATE,
    IMAGE_UNITS,
    Calibration,
    FixedSize,
    RunningTally,
    Tally,
    estimate_each,
    estimate_text,
    part_units,
)
from midfold.types import Opaque, Thinking, Tool


class Counting:
    """Counter that records its number of calls."""

    name = "counting"

    def __init__(self) -> None:
        self.asked = 0

    def count(self, text: str, /) -> int:
        self.asked += 1
        return len(text.split())


def conversation(size: int) -> list[dict[str, Any]]:
    return [{"role": "user" if n % 2 == 0 else "assistant", "content": f"message number {n}"} for n in range(size)]


def test_appending_one_message_counts_one_message_even_when_all_bytes_are_sent_again() -> None:
    counter = Counting()
    meter = Meter(counter)
    meter.count(read(json.dumps(conversation(1000)).encode()).messages)
    before = counter.asked
    meter.count(read(json.dumps(conversation(1001)).encode()).messages)
    assert (before, counter.asked) == (1000, 1001)


def test_the_default_estimate_is_kept_on_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = read(conversation(100)).messages
    first = Meter().count(messages)
    monkeypatch.setattr(type(ESTIMATE), "count", None)
    assert Meter().count(messages) == first


def test_the_default_estimate_is_remembered_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    source = json.dumps(conversation(100)).encode()
    meter = Meter()
    first = meter.count(read(source).messages)
    monkeypatch.setattr(type(ESTIMATE), "count", None)
    assert meter.count(read(source).messages) == first


def test_the_memory_of_counts_is_bounded() -> None:
    counter = Counting()
    meter = Meter(counter, remember=10)
    meter.count(read(json.dumps(conversation(95)).encode()).messages)
    assert len(meter._memo) <= 10


def test_a_count_says_that_it_is_an_estimate() -> None:
    count = Meter().count(read(conversation(3)).messages)
    assert count.basis == "estimated"
    assert count.tokens > 0


def test_factor_and_overhead_of_the_model_apply_to_the_total() -> None:
    messages = read(conversation(10)).messages
    plain = Meter().count(messages).tokens
    assert Meter(factor=1.5, message_overhead=7).count(messages).tokens == round(plain * 1.5) + 70


def test_an_image_costs_a_flat_price_whatever_the_length_of_its_base64() -> None:
    assert part_units((Media("image", "A" * 1_000_000),)) == IMAGE_UNITS
    assert part_units((Media("image", "https://x/y.png"),)) == IMAGE_UNITS
    assert part_units(tuple(Media("image", "A") for _ in range(5))) == 5 * IMAGE_UNITS


def test_envelopes_thoughts_documents_and_unknown_blocks_are_counted() -> None:
    assert part_units((ToolCall("1", "read_file", "{}"),)) > part_units((Text("{}"),))
    assert part_units((ToolResult("1", (Text("x"),)),)) > part_units((Text("x"),))
    assert part_units((Thinking("some long thought"),)) == part_units((Text("some long thought"),))
    assert part_units((Thinking("", "s" * 4000, True),)) == 1000
    assert part_units((Opaque("compaction", "text " * 100),)) > 90
    assert part_units((Media("document", "A" * 4_000_000),)) > part_units((Media("document", "A"),)) >= 2000
    assert part_units((Media("audio", "A"),)) > 0


def test_tool_schemas_cost_tokens() -> None:
    schema = json.dumps({"name": "read_file", "parameters": {"type": "object", "properties": {"path": {}}}})
    assert Meter().tool_units((Tool("read_file", schema),)) > 15


def test_a_running_tally_costs_only_what_is_new() -> None:
    counter = Counting()
    running = RunningTally(Meter(counter), read(conversation(500)).messages)
    asked = counter.asked
    before = running.now
    running.extend(read(conversation(501)).messages[500:])
    assert counter.asked == asked + 1
    assert running.now.count == 501
    assert running.starts_with(before)
    assert running.at(500) == before


def test_a_tally_is_bound_to_the_bytes_it_was_made_from() -> None:
    one, two = conversation(5), conversation(5)
    two[2]["content"] = "message number 9"
    first, second = RunningTally(Meter(), read(one).messages), RunningTally(Meter(), read(two).messages)
    assert first.now.units == second.now.units
    assert not first.starts_with(second.now)
    assert first.starts_with(second.at(2))


def test_usage_calibrates_the_estimate_and_is_exact_for_what_it_measured() -> None:
    meter = Meter()
    running = RunningTally(meter, read(conversation(400)).messages)
    fixed = 1000
    raw = Calibration().predict(running, FixedSize(fixed))
    assert raw.basis == "estimated"
    reported = raw.tokens * 2
    calibration = Calibration().observe(running.now, reported, fixed=FixedSize(fixed), meter=meter)
    assert calibration.predict(running, FixedSize(fixed)) == (reported, "reported")
    running.extend(read(conversation(410)).messages[400:])
    grown = calibration.predict(running, FixedSize(fixed))
    new_units = running.now.units - running.at(400).units
    assert grown == (reported + 2 * new_units, "calibrated")


def test_after_a_rewrite_only_the_ratio_is_trusted() -> None:
    meter = Meter()
    running = RunningTally(meter, read(conversation(400)).messages)
    estimate = Calibration().predict(running, FixedSize()).tokens
    calibration = Calibration().observe(running.now, estimate * 3, fixed=FixedSize(), meter=meter)
    shorter = RunningTally(meter, read(conversation(400)).messages[200:])
    predicted = calibration.predict(shorter, FixedSize())
    assert predicted.basis == "calibrated"
    assert predicted.tokens == pytest.approx(3 * Calibration().predict(shorter, FixedSize()).tokens, rel=0.01)
    assert calibration.without_anchor().predict(running, FixedSize()).basis == "calibrated"


def test_a_reply_without_usage_and_a_tiny_one_teach_no_ratio() -> None:
    meter = Meter()
    tally = RunningTally(meter, read(conversation(2)).messages).now
    assert Calibration().observe(tally, 0, fixed=FixedSize(), meter=meter) == Calibration()
    tiny = Calibration().observe(tally, 90, fixed=FixedSize(), meter=meter)
    assert (tiny.ratio, tiny.samples, tiny.anchor) == (1.0, 0, tally)


@pytest.mark.parametrize("reported", [1, -5, 10_000_000])
def test_an_absurd_report_is_not_believed(reported: int) -> None:
    known = Calibration().observe(Tally(10, 10_000, b"x"), 12_000, fixed=FixedSize(), meter=Meter())
    assert known.observe(Tally(20, 20_000, b"y"), reported, fixed=FixedSize(), meter=Meter()) == known


def test_the_ratio_is_learned_from_growth_not_from_what_was_there_before() -> None:
    """Images estimated at 1,600 units but billed at 85 say nothing about the text after them."""
    meter = Meter()
    first = Calibration().observe(Tally(10, 16_000, b"x"), 4_000, fixed=FixedSize(), meter=meter)
    second = first.observe(Tally(20, 26_000, b"y"), 14_000, fixed=FixedSize(), meter=meter)
    third = second.observe(Tally(30, 36_000, b"z"), 24_000, fixed=FixedSize(), meter=meter)
    assert first.ratio < second.ratio < third.ratio <= 1.0


def test_two_meters_on_the_same_messages_do_not_share_their_counts() -> None:
    messages = read(json.dumps(conversation(10)).encode()).messages
    estimated = Meter().count(messages)
    assert Meter(Counting()).count(messages) != estimated
    assert Meter().count(messages) == estimated


def test_the_same_bytes_read_in_two_dialects_are_counted_twice() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 9000}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [image]}
    source = json.dumps([{"role": "user", "content": [result]}]).encode()
    meter = Meter()
    as_chat = meter.count(read(source, dialect="openai-chat").messages)
    as_anthropic = meter.count(read(source, dialect="anthropic").messages)
    assert as_chat != as_anthropic


def test_a_document_of_text_costs_its_text_and_base64_in_unknown_blocks_is_no_text() -> None:
    prose = "All the words of a long report. " * 500
    source = {"type": "text", "media_type": "text/plain", "data": prose}
    (message,) = read(
        [{"role": "user", "content": [{"type": "document", "source": source}]}], dialect="anthropic"
    ).messages
    assert part_units(message.parts) == part_units((Text(prose),))
    blob = {"type": "image_generation_call", "id": "i", "result": "iVBORw0KGgo" * 50_000}
    (item,) = read([blob], dialect="openai-responses").messages
    assert part_units(item.parts) < 2_000


def test_a_message_made_by_hand_can_be_counted_with_any_counter() -> None:
    message = Message("user", (Text("a b c"),))
    assert Meter(Counting()).units(message) == 4 + 3


def test_many_texts_are_estimated_together_as_each_alone() -> None:
    texts = ["", "a", "def name(self) -> None:", "two\nlines\r\n", "Größe → 忽略", "-" * 600, "x y " * 2_000, " tail"]
    assert estimate_each(texts) == [estimate_text(text) for text in texts]
    assert estimate_each([]) == []
