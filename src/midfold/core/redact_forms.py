"""Credentials in other scripts: full-width letters, and the word for a password in other languages.

Rules of this file:
1. Folding a text changes no position: each full-width character has a plain one of its own.
2. Only texts that are not plain ASCII are looked at, but for the one phrase that is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from midfold.core.redact_keys import LONGEST_BARE, Span, is_value
from midfold.core.redact_lines import ends_a_line

_WIDE = re.compile("[\uff01-\uff5e\u3000]+")
_PLAIN_OF = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}
_TELLING = "ｅｓｗＥＳＷ"
"""No name of a credential is without one of these, and hardly a token; a colon is in every other Chinese text."""
_LATIN = ("contraseña", "mot de passe")
_NEEDLES = {
    "密": ("密码", "密碼"),
    "令": ("口令",),
    "ワ": ("パスワード",),
    "밀": ("비밀번호",),
    "ь": ("пароль", "Пароль"),
    "Ь": ("ПАРОЛЬ",),
    "ñ": ("contraseña", "Contraseña"),
    "Ñ": ("CONTRASEÑA",),
}
"""By one of their letters: to look for a letter costs a fraction of looking for a word."""
_BARE = r"""[!#-%*+./0-9:=?@A-Z^_a-z~-]"""
_VALUE = re.compile(
    r"""(?:\\{0,7}+["'`])?[ \t]{0,4}+(?:=>|:=|[:=](?![:=]))[ \t]{0,4}+(?:\\{0,7}+["'`])?"""
    rf"({_BARE}{{3,{LONGEST_BARE}}}+)"
)
_DIGIT = re.compile(r"[0-9]")
_REST = re.compile(f"{_BARE}*+")


def folded(text: str) -> str:
    """The text with full-width characters as plain ones, position by position."""
    if any(letter in text for letter in _TELLING):
        return _WIDE.sub(lambda found: found[0].translate(_PLAIN_OF), text)
    return text.replace("\uff1a", ":").replace("\uff1d", "=")


def foreign(text: str) -> Iterator[Span]:
    """The values behind words for a password; a plain word in a Latin language only where it ends its line."""
    for letter, needles in _NEEDLES.items():
        if letter in text:
            for needle in needles:
                yield from _behind(text, needle, text.find(needle))


def phrases(text: str, low: bytes, needle: bytes, at: int) -> Iterator[Span]:
    """The same behind `mot de passe`."""
    while at >= 0:
        span = _value(text, at + len(needle), needle.decode())
        if span is not None:
            yield span
        at = low.find(needle, at + len(needle) if span is None else span.end)


def _behind(text: str, needle: str, at: int) -> Iterator[Span]:
    while at >= 0:
        span = _value(text, at + len(needle), needle)
        if span is not None:
            yield span
        at = text.find(needle, at + len(needle) if span is None else span.end)


def _value(text: str, at: int, word: str) -> Span | None:
    found = _VALUE.match(text, at)
    if found is None or not is_value(found[1]):
        return None
    value, start = found[1], found.start(1)
    is_sure = text[start - 1] in "\"'`" or _DIGIT.search(value) is not None
    if is_sure or word.lower() not in _LATIN or ends_a_line(text, found.end()):
        rest = _REST.match(text, found.end())
        return Span(start, found.end() if rest is None else rest.end(), "password")
    return None
