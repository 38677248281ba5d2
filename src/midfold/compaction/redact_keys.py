"""Find credentials by their name: `password=…`, `"api_key": "…"`, `--token …`.

- Names are searched as bytes in the lower-cased text (one byte per character, so positions agree); patterns are
  only matched at positions found that way.
- A quoted value is read to its closing quote, a bare value for at most `MAX_BARE_CHARACTERS` characters, so each
  position costs a constant, or the distance to the next quote.
- Code is not a credential: calls, look-ups, attributes, annotations, placeholders and variable names stay.
- A line break followed by NUL ends a text, so that many texts can be searched as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

# Line context: in YAML only the whole line distinguishes `password: word` from code.
#
# The context examined around a position is bounded, so each position costs a constant.


_LINE_START = re.compile(r"""(?:\A|\n)(?>(?:[ \t]|[0-9]{1,6}[→|:]|- ){0,40})["']?\Z""")
_LINE_END = re.compile(r"[ \t]{0,40}+(?:#[^\n]{0,200}+)?(?=\r?\n|\0|\Z)")
_CODE_BEFORE, _CODE_AFTER = frozenset(",{(["), frozenset("})],")
_IN_YAML = re.compile(r"[a-z][a-z-]{3,}")
_KINDS = (
    "int long short uuid date time datetime json blob varchar hash hashed encrypted binary keyword enabled"
    " disabled yes off sensitive protected private public prompt none-set unset redacted plain plaintext clear"
    " pass word words data user username name login email update change reset same vault secrets manager bcrypt"
    " argon sha digest"
)
_KINDS_IN_YAML = frozenset(_KINDS.split())


def ends_a_line(text: str, at: int) -> bool:
    return _LINE_END.match(text, at) is not None


def is_alone_in_yaml(text: str, start: int, value: str, end: int) -> bool:
    """Return whether `name: word` is a whole line outside code; `start` is that of the name, `end` that of the
    word.
    """
    if not _IN_YAML.fullmatch(value) or value in _KINDS_IN_YAML or not ends_a_line(text, end):
        return False
    if _LINE_START.search(text, max(0, start - 48), start) is None:
        return False
    before, after = text[max(0, start - 200) : start].rstrip(" \t\r\n\"'-"), text[end : end + 200]
    following = after.partition("\n")[2].lstrip()[:1]
    return before[-1:] not in _CODE_BEFORE and (not following or following not in _CODE_AFTER)


MAX_BARE_CHARACTERS = 96
MAX_NAME_CHARACTERS = 64
MARK = "[REDACTED:"
END = r"\Z|(?=\n\0)"
"""End of a text, or of one of several joined texts."""


class KeySpan(NamedTuple):
    start: int
    end: int
    kind: str


class _Word(NamedTuple):
    """Word that ends the name of a credential; only after a `strong` one is a value of mere letters a credential."""

    endings: tuple[bytes, ...]
    strong: bool


_KEY = _Word((b"key",), True)
WORDS = {
    b"pass": _Word((b"password", b"passwd", b"passphrase", b"passwort"), True),
    b"pwd": _Word((b"pwd",), True),
    b"secret": _Word((b"secret",), True),
    b"key": _KEY,
    b"token": _Word((b"token",), False),
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_KEY_OF = _words(
    "api access private secret account signing encryption master auth subscription session storage webhook hmac deploy"
    " service role admin shared"
)
_KEY_OF_BYTES = tuple(word.encode() for word in _KEY_OF)
_KEY_GLUED = tuple(word + "key" for word in _KEY_OF - {"role", "admin", "session", "service", "shared"})
_TOKEN_GLUED = tuple(word + "token" for word in _words("auth access refresh api bearer id session bot user security"))
_TOKEN_NOT_OF = _words(
    "page next nextpage continuation eos bos pad unk sep cls mask stop special start end first last prev previous"
    " current cancel cancellation max min num per each total count input output prompt completion image sample new"
    " old this that sync resume cursor pagination lex lexer parser syntax"
)
FOREIGN = ("密码", "密碼", "口令", "パスワード", "비밀번호", "пароль", "contraseña", "mot de passe")
"""Words for "password" in other languages."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NOT_WORD = re.compile(r"[^a-z0-9]+")


@lru_cache(maxsize=4096)
def kind_of_name(name: str) -> str | None:
    """Return the kind of a value under this name (`password`, `secret`, `token`, ...), or None if the name is
    harmless.
    """
    if name.lower().endswith(FOREIGN):
        return "password"
    words = [word for word in _NOT_WORD.split(_CAMEL.sub("_", name[-MAX_NAME_CHARACTERS:]).lower()) if word]
    if not words:
        return None
    last, before, flat = words[-1], words[-2] if len(words) > 1 else "", "".join(words[-3:])
    if flat.endswith(("password", "passwd", "passphrase", "passwords", "passwort")) or last == "pwd":
        return "password"
    if flat.endswith("secret") or last == "secrets":
        return "secret"
    if (last in ("key", "keys") and before in _KEY_OF) or flat.endswith(_KEY_GLUED):
        return "private-key" if "private" in flat else "api-key"
    if (last == "token" and before not in _TOKEN_NOT_OF) or flat.endswith(_TOKEN_GLUED):
        return "token"
    if last in ("authorization", "cookie", "cookies", "credential", "credentials"):
        return last.removesuffix("s")
    return "session" if words == ["session"] else None


_SEPARATOR = re.compile(
    r"""(?>(?:\\{0,7}+["'`]\]?|\]|\*\*)?)[ \t]{0,8}+"""
    r"""(?:=>|:=|:[ ]?&?[sS]tr(?:ing)?(?:[ ]?\|[ ]?None)?[ ]?=(?!=)|[:=](?![:=~]))(?:\*\*)?[ \t]{0,8}+"""
)
_AFTER_NAME = frozenset(b"\"'`]\\*:= \t>%")
_ENCODED_SEPARATOR = re.compile(
    r"(?:%(?:25){0,3}(?:5C)){0,7}(?:%(?:25){0,3}2[27])?(?:%(?:25){0,3}20|\+){0,4}%(?:25){0,3}3[AD]"
    r"(?:%(?:25){0,3}20|\+){0,4}((?:%(?:25){0,3}(?:5C)){0,7}%(?:25){0,3}2[27])?",
    re.IGNORECASE,
)
_ENCODED = r"(?:[A-Za-z0-9_.~!*+$-]|%(?!(?:25){0,3}(?:0[AD]|2[0267C]|3B|5[BCD]|7[BD]))[0-9A-F]{2})"
_ENCODED_VALUE = re.compile(rf"(?>{_ENCODED}{{3,{MAX_BARE_CHARACTERS}}})", re.IGNORECASE)
_ENCODED_REST = re.compile(rf"(?>{_ENCODED}*)", re.IGNORECASE)
_QUOTED = {
    '"': re.compile(rf'"([^"\\\s]*+(?>(?:\\[^\s][^"\\\s]*+)*))(?:"|{END})'),
    "'": re.compile(rf"'([^'\\\s]*+(?>(?:\\[^\s][^'\\\s]*+)*))(?:'|{END})"),
    "`": re.compile(rf"`([^`\s]*+)(?:`|{END})"),
}
_QUOTED_INSIDE = {quote: re.compile(rf"\\{{1,7}}+{quote}([^{quote}\s]*+)(?:{quote}|{END})") for quote in "\"'`"}
_OPENING = re.compile(r"""\\{0,7}+(["'`])""")
_BARE = re.compile(rf"""[^\s"'`,;&|<>(){{}}\[\]\\]{{1,{MAX_BARE_CHARACTERS}}}+""")
_BARE_REST = re.compile(r"""[^\s"'`,;&|<>(){}\[\]\\]*+""")
_ELEMENT = re.compile(r">([^<>\s]{4,256}+)</")
_PLAIN_WORD = re.compile(r"""[A-Za-z_-]{1,16}+(?=[.:]{0,2}+(?:[\s"'`,;&|<>(){}\[\]\\]|\Z))""")
_FLAG_GAP = re.compile(r"[ \t]{1,8}+")
_NEVER_FIRST = frozenset("[{(<$*%&!,;)]}-\n\r")
_MAY_QUOTE = frozenset("\"'`\\")
_BEFORE_VALUE = frozenset(b"> \t")
_OPENERS = frozenset("([{")
_NAME_BYTES = b"abcdefghijklmnopqrstuvwxyz0123456789_-."

_PLACEHOLDER = re.compile(
    r"\$|<|\{|\[|%[sdvr({]|%[A-Za-z_]{2,32}%|\*|[xX]{3}|\.{2}|…|#\{|!|&|@|"
    r"(?i:your|my[_-]|the[_-]|some[_-]|example|changeme|placeholder|redacted|dummy|insert[_-])"
)
_IDENTIFIER = re.compile(r"[A-Za-z_$][A-Za-z_$-]*")
_ENVIRONMENT_NAME = r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+"
_ATTRIBUTE = r"[A-Za-z_$][\w$]*(?:(?:[!?]?\.|->|::)[A-Za-z_$][\w$]*)+"
_NUMBERED_TYPE = (
    r"(?i:u?int|i|u|f|float|sha|md|base|utf|v|aes|rsa|hs|rs|es|ed|http|oauth|s|bcrypt|argon|x|p|pbkdf)-?\d{1,5}"
)
_PATH = r"(?:\.{0,2}|~|[A-Za-z]:)/.*|(?:[\w.@-]+/)+[\w.@-]*\.[A-Za-z]{1,5}"
_SHAPE = re.compile(
    rf"(?P<code>{_ENVIRONMENT_NAME}|{_NUMBERED_TYPE}|{_ATTRIBUTE})|(?P<word>{_IDENTIFIER.pattern})|(?P<path>{_PATH})",
    re.ASCII,
)
_DATE_OR_VERSION = re.compile(r"v?\d{1,5}(?>(?:[.:/-]\d{1,4})*)(?:[T.:+Z\d-]*)")
_AWS_SECRET = re.compile(r"[A-Za-z0-9/+]{40}")
_COUNTED = re.compile(r"\d{1,7}[:)-]")
_SPECIAL = re.compile(r"[!@#^*?~%+]")
_DIGIT = re.compile(r"[0-9]")
_LETTERS_ONLY = re.compile(r"[A-Za-z]{20,}")
_FILE_STEMS = frozenset({b"test", b"tests", b"example", b"sample", b"dummy", b"fixture"})
_NAME_OF_ENTRY = re.compile(
    r"@?[A-Za-z]{1,15}+[0-9]{0,3}+(?>(?:[._:/@-]{1,2}(?:[A-Za-z]{1,15}+[0-9]{0,3}+|[0-9]{1,3}+)){0,12})"
)
"""Words joined by punctuation: `gatomia.hooks.execution-logs`, `@app/settings:v2`."""
_FLAG_FIELD = re.compile(r"(?:id|src|source|type|env|name|file)=")
_WORDS_OF_CODE = _words(
    "none null nil undefined true false self this str string text number boolean bool object any bytes float"
    " double char integer required optional secret password passwd token value values await async new return"
    " function lambda func type class void dict list array map struct enum default unknown never not is and or to"
    " the a an flag option argument parameter field input file env environment for with from in on if when as via"
    " using instead was has must should can will are be empty missing invalid basic bearer include omit"
    " same-origin inherit hidden masked secretstr credential credentials key keys api_key apikey tiger"
)


def assignments(text: str, low: bytes, needle: bytes, at: int) -> Iterator[KeySpan]:
    """Yield the values of names that end in a credential word."""
    word = WORDS[needle]
    while at >= 0:
        span = _named_span(text, low, at, word)
        if span is not None:
            yield span
        at = low.find(needle, span.end if span is not None else at + len(needle))


def _named_span(text: str, low: bytes, at: int, word: _Word) -> KeySpan | None:
    for ending in word.endings:
        if low.startswith(ending, at):
            end = at + len(ending)
            break
    else:
        return None
    if end >= len(low) or low[end] not in _AFTER_NAME:
        return None
    if low[end] == 0x5D and low[at - 1] == 0x3A:
        return None
    if low[end] == 0x25:
        return _encoded_span(text, low, at, end, strong=word.strong)
    separator = _SEPARATOR.match(text, end)
    if separator is None:
        if low[end] not in _BEFORE_VALUE:
            return None
    elif _cannot_be_value(text, separator.end()):
        return None
    is_key = word is _KEY
    if is_key and not low[max(0, at - 14) : at].rstrip(b"_- ").endswith(_KEY_OF_BYTES):
        return None
    before = low[max(0, at - MAX_NAME_CHARACTERS) : at]
    start = at - len(before) + len(before.rstrip(_NAME_BYTES + b" " if is_key else _NAME_BYTES))
    if _is_file_name(low, start, at):
        return None
    if low[start : start + 1] in (b"n", b"r", b"t") and low[start - 1 : start] == b"\\":
        start += 1
    if separator is None:
        found = _without_separator(text, low, start, end, strong=word.strong)
    else:
        found = _value(text, separator, start, end, strong=word.strong)
    if found is None:
        return None
    kind = kind_of_name(text[start:end].rpartition(".")[2])
    if kind is None or (is_key and _names_a_place(low, at, text[found[0] : found[1]])):
        return None
    return KeySpan(*found, kind)


def _is_file_name(low: bytes, start: int, at: int) -> bool:
    """Return whether the name at `start` is a file name, as in `./db.secret: 12 bytes`."""
    stem = low[start:at]
    return stem.endswith(b".") and (stem[:-1] in _FILE_STEMS or low.endswith(b"./", 0, start))


def _names_a_place(low: bytes, at: int, value: str) -> bool:
    """Return whether the value of a `..._storage_key` names an entry, such as one of a browser's storage."""
    of = low[max(0, at - 14) : at].rstrip(b"_- ")
    return of.endswith(b"storage") and _NAME_OF_ENTRY.fullmatch(value[:MAX_BARE_CHARACTERS]) is not None


def _encoded_span(text: str, low: bytes, at: int, end: int, *, strong: bool) -> KeySpan | None:
    """Return the value in percent-encoded JSON or queries: `%22api_key%22%3A%22value%22`, `password%3Dvalue`."""
    separator = _ENCODED_SEPARATOR.match(text, end)
    if separator is None:
        return None
    before = low[max(0, at - MAX_NAME_CHARACTERS) : at]
    start = at - len(before) + len(before.rstrip(_NAME_BYTES))
    while low[start - 1 : start] == b"%" and start + 2 <= at:
        start += 2
    value = _ENCODED_VALUE.match(text, separator.end())
    kind = kind_of_name(text[start:end])
    if kind is None or value is None or not _in_quotes(value[0], strong=strong):
        return None
    if not separator[1] and len(value[0]) < 4:
        return None
    rest = _ENCODED_REST.match(text, value.end())
    return KeySpan(value.start(), value.end() if rest is None else rest.end(), kind)


def _cannot_be_value(text: str, at: int) -> bool:
    """Return whether the text after a separator cannot be a credential, whatever its name."""
    first = text[at : at + 1]
    if first in _NEVER_FIRST:
        return True
    if first in _MAY_QUOTE:
        return False
    word = _PLAIN_WORD.match(text, at)
    return word is not None and word[0].lower() in _WORDS_OF_CODE


def _without_separator(text: str, low: bytes, start: int, end: int, *, strong: bool) -> tuple[int, int] | None:
    """Return the value in `<password>value</password>` or `--password value`."""
    if low[end] == 0x3E:
        element = _ELEMENT.match(text, end)
        return element.span(1) if element is not None and _in_quotes(element[1], strong=strong) else None
    return _after_flag(text, end) if low.startswith(b"--", start) else None


def _value(text: str, separator: re.Match[str], start: int, end: int, *, strong: bool) -> tuple[int, int] | None:
    """Return the span of the value of the name at `start:end` if it is a credential."""
    opening = _OPENING.match(text, separator.end())
    if opening is not None:
        if text.startswith(MARK, opening.end()):
            return None
        patterns = _QUOTED if opening.end() == opening.start() + 1 else _QUOTED_INSIDE
        quoted = patterns[opening[1]].match(text, separator.end())
        if quoted is None:
            return None
        value = quoted[1].rstrip("\\") if patterns is _QUOTED_INSIDE else quoted[1]
        return (quoted.start(1), quoted.start(1) + len(value)) if _in_quotes(value, strong=strong) else None
    bare = _BARE.match(text, separator.end())
    if bare is None:
        return None
    value = bare[0].rstrip(".:") if bare.end() - bare.start() < MAX_BARE_CHARACTERS else bare[0]
    stop = bare.start() + len(value)
    following = text[stop : stop + 1]
    place = _Place(text[start:end], separator[0], text[max(0, start - 1) : start], following)
    if following in _OPENERS:
        return None
    if not _is_bare_credential(value, place, strong=strong) and not (
        strong
        and separator[0].startswith(":")
        and not _is_no_credential(value)
        and kind_of_name(place.name) == "password"
        and is_alone_in_yaml(text, start, value, stop)
    ):
        return None
    return bare.start(), _end_of_bare(text, stop)


def _end_of_bare(text: str, stop: int) -> int:
    """Return the end of a bare value of any length, without a full stop after it."""
    rest = _BARE_REST.match(text, stop)
    return stop if rest is None or not rest[0].strip(".:") else rest.end()


def _after_flag(text: str, end: int) -> tuple[int, int] | None:
    gap = _FLAG_GAP.match(text, end)
    if gap is None:
        return None
    quote = text[gap.end() : gap.end() + 1]
    match = _QUOTED[quote].match(text, gap.end()) if quote in _QUOTED else _BARE.match(text, gap.end())
    if match is None:
        return None
    group = 1 if quote in _QUOTED else 0
    value = match[group]
    if len(value) < 3 or value.startswith("-") or value.isupper() or _is_no_credential(value):
        return None
    if _FLAG_FIELD.match(value):  # `docker build --secret id=npmrc,src=.npmrc` names a file
        return None
    stop = match.end(group)
    if text[stop : stop + 1] in _OPENERS:
        return None
    return match.start(group), stop if group else _end_of_bare(text, stop)


class _Place(NamedTuple):
    """Context of a bare value."""

    name: str
    separator: str
    before: str
    after: str

    @property
    def is_tight(self) -> bool:
        return self.separator.endswith("=") and not self.separator.startswith((" ", "\t"))

    @property
    def is_upper_case(self) -> bool:
        return self.name.isupper()


def _is_no_credential(value: str) -> bool:
    """Return whether a value is a placeholder, variable, code word, name of a credential, path, date or address."""
    if value.lower() in _WORDS_OF_CODE or len(set(value)) == 1 or _PLACEHOLDER.match(value):
        return True
    if MARK in value or "${" in value or "{{" in value or "://" in value:
        return True
    shape = _SHAPE.fullmatch(value)
    if shape is None:
        return False
    if shape.lastgroup == "word":
        return _names_a_credential(value)
    return not (_has_random_part(value) if shape.lastgroup == "code" else _AWS_SECRET.fullmatch(value))


def _has_random_part(value: str) -> bool:
    return any(len(part) >= 16 and _DIGIT.search(part) for part in value.split("."))


def _names_a_credential(value: str) -> bool:
    """Return whether a value is the name of a credential: `access_token` is one, `supersecret` may be a password."""
    compound = "_" in value or "-" in value or _CAMEL.search(value) is not None
    return compound and kind_of_name(value) is not None


def _in_quotes(value: str, *, strong: bool) -> bool:
    if len(value) < (3 if strong else 6) or _is_no_credential(value[:MAX_BARE_CHARACTERS]):
        return False
    if strong:
        return True
    return _is_mixed(value[:MAX_BARE_CHARACTERS])


def _has_random_case(value: str) -> bool:
    """Return whether a value is at least twenty letters whose case changes more often than in a name."""
    return _LETTERS_ONLY.fullmatch(value) is not None and len(_CAMEL.findall(value)) * 5 > len(value)


def _is_mixed(value: str) -> bool:
    if _has_random_case(value):
        return True
    return _DIGIT.search(value) is not None and _DATE_OR_VERSION.fullmatch(value) is None


def _is_bare_credential(value: str, place: _Place, *, strong: bool) -> bool:
    if len(value) < 3 or _is_no_credential(value) or _COUNTED.match(value):
        return False
    query = place.before in ("?", "&")
    if value.isdigit():
        return len(value) >= 4 and (
            query or (strong and place.separator != ":") or (place.is_upper_case and place.is_tight)
        )
    if _IDENTIFIER.fullmatch(value):
        return _is_word_credential(value, place, strong=strong, query=query)
    if place.is_tight:
        return len(value) >= 4 and (strong or place.is_upper_case or query or (len(value) >= 6 and _is_mixed(value)))
    if not strong:
        return len(value) >= 10 and _is_mixed(value)
    own = place.name.lower().rpartition(".")[2]
    if value.lower().rstrip("0123456789_") in (own, "password", "secret", "token", "key"):
        return False
    return len(value) >= 5 and (_is_mixed(value) or (_SPECIAL.search(value) is not None and len(value) >= 6))


def is_value(value: str) -> bool:
    """Return whether a value may be a credential, that is no placeholder, code word, variable name or path."""
    return len(value) >= 3 and not _is_no_credential(value[:MAX_BARE_CHARACTERS])


def _is_word_credential(value: str, place: _Place, *, strong: bool, query: bool) -> bool:
    """Return whether a bare value without digits is a credential: in an environment, query or connection string,
    not in code.
    """
    if place.is_tight and _has_random_case(value):
        return True
    if place.is_upper_case and (place.is_tight or place.separator.endswith(": ")):
        return len(value) >= 4 and strong
    if not place.is_tight or len(value) < 4:
        return False
    if query:
        return True
    is_attribute_or_argument = "." in place.name or place.before == "(" or place.after in tuple(",);")
    return strong and not is_attribute_or_argument and len(value) >= 5
