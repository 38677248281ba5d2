"""Exact counts with a real vocabulary: the optional extra `tokens` (splintr-rs, vocabularies inside its wheel).

A counter whose model family has no public vocabulary counts with o200k and is still an estimate: apply the model's
factor to it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol, cast

from midfold.errors import MissingExtra

VOCABULARIES = {
    "o200k": "o200k_base",
    "cl100k": "cl100k_base",
    "llama": "llama3",
    "deepseek": "deepseek_v3",
    "mistral": "mistral_v3",
}
CHUNK = 200_000
"""Longer texts are counted in pieces, so that pathological runs (a megabyte of one letter) stay linear."""


class _Vocabulary(Protocol):
    def encode_ordinary(self, text: str) -> list[int]: ...


class Tokenizer:
    """A `TokenCounter` over a vocabulary of the given tokenizer family."""

    def __init__(self, family: str = "o200k") -> None:
        self.family = family
        self.exact = family in VOCABULARIES
        self.name = VOCABULARIES.get(family, VOCABULARIES["o200k"])
        self._encode = _vocabulary(self.name).encode_ordinary

    def count(self, text: str, /) -> int:
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode("utf-8")
        if len(text) <= CHUNK:
            return len(self._encode(text))
        return sum(len(self._encode(text[start : start + CHUNK])) for start in range(0, len(text), CHUNK))


@lru_cache(maxsize=8)
def _vocabulary(name: str) -> _Vocabulary:
    try:
        import splintr
    except ImportError:
        raise MissingExtra(f"counting with the {name} vocabulary", "tokens") from None
    return cast(_Vocabulary, splintr.Tokenizer.from_pretrained(name))
