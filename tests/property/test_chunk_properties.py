"""Chunks of a fold are bounded in number and size, in order, and omit no turn while the budget allows."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from midfold import read
from midfold.compaction.summary import MAX_CHUNKS, chunks

sizes = st.integers(0, 9_000) | st.integers(0, 120)


def talk(lengths: list[int]) -> list[dict[str, Any]]:
    return [
        {"role": ("user", "assistant")[number % 2], "content": f"turn{number}! " + "x" * length}
        for number, length in enumerate(lengths)
    ]


def batch(number: int, results: list[int]) -> list[dict[str, Any]]:
    calls = [
        {"id": f"c{number}_{place}", "type": "function", "function": {"name": "sh", "arguments": "{}"}}
        for place in range(len(results))
    ]
    return [
        {"role": "user", "content": f"turn{number}!"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *(
            {"role": "tool", "tool_call_id": call["id"], "content": f"result{call['id']}! " + "y" * length}
            for call, length in zip(calls, results, strict=True)
        ),
        {"role": "assistant", "content": "done"},
    ]


def check(messages: list[dict[str, Any]], characters: int) -> list[str]:
    pieces = chunks(read(messages).messages, lambda text: text, characters)
    assert len(pieces) <= MAX_CHUNKS
    assert all(0 < len(piece) <= characters for piece in pieces)
    return pieces


@given(st.lists(sizes, min_size=1, max_size=60), st.integers(2_000, 30_000))
def test_pieces_are_bounded_and_every_turn_is_in_one_of_them_in_order(lengths: list[int], characters: int) -> None:
    whole = "".join(check(talk(lengths), characters))
    places = [whole.find(f"turn{number}!") for number in range(len(lengths))]
    assert places == sorted(places)
    assert min(places) >= 0


@given(st.lists(st.lists(sizes, min_size=1, max_size=12), min_size=1, max_size=10), st.integers(2_000, 20_000))
def test_batches_of_calls_are_bounded_too(batches: list[list[int]], characters: int) -> None:
    whole = "".join(check([m for n, results in enumerate(batches) for m in batch(n, results)], characters))
    assert f"turn{len(batches) - 1}!" in whole


def test_a_batch_too_large_for_a_piece_is_split_and_nothing_of_it_is_dropped() -> None:
    whole = "".join(check(batch(0, [500] * 60), 4_000))
    assert all(f"resultc0_{place}!" in whole for place in range(60))


def test_pieces_of_just_more_than_half_a_piece_do_not_make_twice_as_many() -> None:
    """Worst case for packing in order."""
    check(talk([1_100] * 12), 2_000)
    check(talk([1_900, 200] * 8), 2_000)


def test_a_fold_too_long_for_all_pieces_together_keeps_its_newest_turns_and_what_was_asked() -> None:
    pieces = check(talk([40] * 5_000), 2_000)
    assert "turn4999!" in pieces[-1]


def test_short_folds_stay_in_one_piece() -> None:
    assert len(check(talk([100] * 5), 30_000)) == 1
