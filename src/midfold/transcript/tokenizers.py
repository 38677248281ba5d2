"""Exact token counts with a real vocabulary; needs the extra `tokens` (splintr-rs, whose wheel includes vocabularies).

A model family without a public vocabulary is counted with o200k, which is still an estimate: apply the model's factor.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import takewhile
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
"""Maximum characters counted at once, so that pathological texts (a megabyte of one letter) stay linear."""


ID_BYTES = 4


class _Vocabulary(Protocol):
    def encode_ordinary(self, text: str) -> list[int]: ...

    def encode_flat(self, text: str) -> bytes: ...

    def special_tokens(self) -> dict[str, int]: ...


class Tokenizer:
    """`TokenCounter` with the vocabulary of a tokenizer family."""

    def __init__(self, family: str = "o200k") -> None:
        self.family = family
        self.exact = family in VOCABULARIES
        self.name = VOCABULARIES.get(family, VOCABULARIES["o200k"])
        vocabulary = _vocabulary(self.name)
        self._ids, self._flat = vocabulary.encode_ordinary, vocabulary.encode_flat
        self._special = _common_prefix(vocabulary.special_tokens())

    def count(self, text: str, /) -> int:
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode("utf-8")
        if len(text) <= CHUNK:
            return self._count(text)
        return sum(self._count(text[start : start + CHUNK]) for start in range(0, len(text), CHUNK))

    def _count(self, text: str) -> int:
        """Count the tokens of a text, treating spelled-out control tokens as text (which `encode_flat` would not)."""
        if self._special and self._special not in text:
            return len(self._flat(text)) // ID_BYTES
        return len(self._ids(text))


def _common_prefix(texts: Iterable[str]) -> str:
    """Return the common prefix."""
    ordered = sorted(texts)
    first, last = ordered[0], ordered[-1]
    return first[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))]


@lru_cache(maxsize=8)
def _vocabulary(name: str) -> _Vocabulary:
    try:
        import splintr
    except ImportError:
        raise MissingExtra(f"counting with the {name} vocabulary", "tokens") from None
    return cast(_Vocabulary, splintr.Tokenizer.from_pretrained(name))
