from __future__ import annotations

import pytest

from midfold import Usage
from midfold.types import read_usage


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"prompt_tokens": 100, "completion_tokens": 5}, Usage(prompt_tokens=100, completion_tokens=5)),
        (
            {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 64}},
            Usage(prompt_tokens=100, cache_read_tokens=64),
        ),
        (
            {"input_tokens": 100, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 64}},
            Usage(prompt_tokens=100, completion_tokens=7, cache_read_tokens=64),
        ),
        (
            {"input_tokens": 3, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 7, "output_tokens": 2},
            Usage(prompt_tokens=100, completion_tokens=2, cache_read_tokens=90, cache_write_tokens=7),
        ),
        ({"input_tokens": 3, "cache_read_input_tokens": None}, Usage(prompt_tokens=3)),
        ({"prompt_tokens": 50, "prompt_cache_hit_tokens": 32}, Usage(prompt_tokens=50, cache_read_tokens=32)),
    ],
)
def test_every_wire_reports_the_whole_prompt(value: dict[str, object], expected: Usage) -> None:
    assert read_usage(value) == expected


@pytest.mark.parametrize(
    "value", [None, {}, [], "x", {"prompt_tokens": 0}, {"prompt_tokens": "9"}, {"prompt_tokens": True}]
)
def test_a_reply_without_a_prompt_size_is_no_measurement(value: object) -> None:
    assert read_usage(value) is None


def test_a_whole_answer_and_an_sdk_object_are_read() -> None:
    from openai.types import CompletionUsage

    assert read_usage({"id": "x", "usage": {"prompt_tokens": 9}}) == Usage(prompt_tokens=9)
    reported = CompletionUsage(prompt_tokens=9, completion_tokens=1, total_tokens=10)
    assert read_usage(reported) == Usage(prompt_tokens=9, completion_tokens=1)
