"""Session names as URL path segments: reversible, and without characters that need escaping."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from hypothesis import given
from hypothesis import strategies as st

from midfold.pages.formatting import key_of, name_of

NAMES = st.text(min_size=1, max_size=60) | st.sampled_from([".", "..", "a/b", "%2e%2e", "!", "!2F", "~1", "a b", "?#"])


@given(NAMES)
def test_a_name_comes_back_from_its_segment_and_no_browser_changes_it(name: str) -> None:
    key = key_of(name)
    assert name_of(key) == name
    assert quote(key, safe="!~@:,+") == key
    assert key not in (".", "..")
    assert urlsplit(f"http://host/sessions/{key}").path == f"/sessions/{key}"


@given(st.text(max_size=40))
def test_a_segment_that_no_name_has_means_nothing(key: str) -> None:
    name = name_of(key)
    assert name is None or key_of(name) == key


@given(NAMES, NAMES)
def test_different_names_have_different_segments(one: str, other: str) -> None:
    assert (key_of(one) == key_of(other)) == (one == other)
