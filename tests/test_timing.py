"""The linear-time check detects work that is not linear."""

from __future__ import annotations

import pytest

from support.timing import assert_in_proportion


def test_work_that_grows_with_the_square_is_noticed() -> None:
    with pytest.raises(AssertionError, match="allowed: \\[8\\]"):
        assert_in_proportion(lambda size: sum(len(range(size)) for _ in range(size * size)), 400, (1_600, 8))


def test_work_that_grows_with_its_input_passes() -> None:
    assert_in_proportion(lambda size: sum(range(size)), 400_000, (1_600_000, 8))
