"""Words of prose: what says what a name is.

A content word is three or more letters, no piece of a name, no function word of English, no keyword of the usual
programming languages. Two of them near a name, or a label before it, tell a reader what the name is about. So does the
path behind a row of figures, as `wc`, `du` and `sha256sum` print it.
"""

from __future__ import annotations

import re

_ENGLISH = (
    "the and for are but not you all any can had her was one our out has him his how its may new now old see two way "
    "who did get let put say she too use that this with have from they will would there their what about which when "
    "make like time just know take into your some could them than then other only over also after these most where "
    "been more very were being does such each here both between through during before because while against same own "
    "those should ours theirs yours mine itself themselves himself herself myself yourself again further once under "
    "until above below down off why per via within without upon among else yes"
)
_CODE = (
    "def class return import async await const var function public private static void int str bool float true false "
    "none null undefined self try except finally raise throw catch elif switch case break continue pass lambda yield "
    "assert global nonlocal del print fmt err nil func type struct interface package string byte error map range chan "
    "select defer impl mod pub mut match trait enum extends implements super export default module require console "
    "log echo done esac"
)
STOP = frozenset(f"{_ENGLISH} {_CODE}".split())
_WORD = re.compile(r"(?<![\w./\\@#$%&=~-])[A-Za-z][a-z]{2,40}(?![\w/\\(]|[.@=-]\w)")
_LABEL = re.compile(r"(?<![\w./-])[A-Za-z][\w-]{2,40}[\"'`*]{0,3}:(?=[\s\"'`\[({*])")
_FIGURE = re.compile(r"(?=[a-f]*+[0-9])[0-9a-f][\w.,%-]{0,80}+")
_PATH = re.compile(r"\*?[\w.@~-]*+/[\w./@~+-]++")
MOST_FIGURES = 8


def binds(text: str) -> bool:
    """Whether a text says what the names in it are."""
    seen = ""
    for match in _WORD.finditer(text):
        word = match.group().lower()
        if word not in STOP and word != seen:
            if seen:
                return True
            seen = word
    return _LABEL.search(text) is not None or _is_row(text)


def _is_row(text: str) -> bool:
    """Whether a text is nothing but figures and the path they are of."""
    *figures, path = text.split() or [""]
    return 0 < len(figures) <= MOST_FIGURES and bool(_PATH.fullmatch(path)) and all(map(_FIGURE.fullmatch, figures))
