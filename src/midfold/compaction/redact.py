"""Replace credentials in text and JSON values: a safety net in front of models, summaries and search.

    redact("export API_KEY=9f8b7c6d5e4f")  ->  "export API_KEY=[REDACTED:api-key]"

- Linear time for any text: candidates are found by a literal, and matching there is bounded or consumes what it
  reads.
- Only credentials change; a text without any is returned as the same object.
- Redaction is idempotent.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from midfold.compaction.redact_keys import (
    MARK,
    MAX_BARE_CHARACTERS,
    WORDS,
    KeySpan,
    assignments,
    ends_a_line,
    is_value,
    kind_of_name,
)
from midfold.transcript import jsonio

# Credentials in other scripts: full-width letters, and words for "password" in other languages.
#
# Narrowing keeps positions: each full-width character maps to one ASCII character. Only non-ASCII texts are searched,
# except for the one phrase that is ASCII.


_WIDE = re.compile("[\uff01-\uff5e\u3000]+")
_PLAIN_OF = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x3000: 0x20}
_WIDE_LETTERS = "ｅｓｗＥＳＷ"
"""Letters of which every name of a credential, and nearly every token, has at least one. A full-width colon would
not do: it is in every other Chinese text.
"""
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
"""Words for "password" by one of their letters: searching for a letter is much cheaper than searching for a word."""
_BARE = r"""[!#-%*+./0-9:=?@A-Z^_a-z~-]"""
_VALUE = re.compile(
    r"""(?:\\{0,7}+["'`])?[ \t]{0,4}+(?:=>|:=|[:=](?![:=]))[ \t]{0,4}+(?:\\{0,7}+["'`])?"""
    rf"({_BARE}{{3,{MAX_BARE_CHARACTERS}}}+)"
)
_DIGIT = re.compile(r"[0-9]")
_REST = re.compile(f"{_BARE}*+")


def narrow_text(text: str) -> str:
    """Replace full-width characters with ASCII ones, keeping positions."""
    if any(letter in text for letter in _WIDE_LETTERS):
        return _WIDE.sub(lambda found: found[0].translate(_PLAIN_OF), text)
    return text.replace("\uff1a", ":").replace("\uff1d", "=")


def foreign(text: str) -> Iterator[KeySpan]:
    """Yield values after words for "password"; a plain word in a Latin language only if it ends its line."""
    for letter, needles in _NEEDLES.items():
        if letter in text:
            for needle in needles:
                yield from _behind(text, needle, text.find(needle))


def phrases(text: str, low: bytes, needle: bytes, at: int) -> Iterator[KeySpan]:
    """Yield values after `mot de passe`."""
    while at >= 0:
        span = _value(text, at + len(needle), needle.decode())
        if span is not None:
            yield span
        at = low.find(needle, at + len(needle) if span is None else span.end)


def _behind(text: str, needle: str, at: int) -> Iterator[KeySpan]:
    while at >= 0:
        span = _value(text, at + len(needle), needle)
        if span is not None:
            yield span
        at = text.find(needle, at + len(needle) if span is None else span.end)


def _value(text: str, at: int, word: str) -> KeySpan | None:
    found = _VALUE.match(text, at)
    if found is None or not is_value(found[1]):
        return None
    value, start = found[1], found.start(1)
    is_sure = text[start - 1] in "\"'`" or _DIGIT.search(value) is not None
    if is_sure or word.lower() not in _LATIN or ends_a_line(text, found.end()):
        rest = _REST.match(text, found.end())
        return KeySpan(start, found.end() if rest is None else rest.end(), "password")
    return None


# Credentials recognised by their own form: tokens with a known prefix, private keys, addresses and headers.
#
# 1. A provider's token is a run of at least `MIN_RUN` letters, digits, `_` and `-`. It begins the run, follows an
#    escaped line break or, in a run longer than a UUID, a `-` or `_`. Runs are found without regular expressions.
# 2. Every pattern is matched at a position found by a literal, fails within a constant number of characters or consumes
#    what it read, and has no nested quantifier that can backtrack.
# 3. A token is replaced to the end of its run, so nothing of it is left and a second pass finds nothing new.


MIN_RUN = 20
MAX_PLAIN_RUN = 36

_IN_RUN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_RUN_TABLE = bytes(97 if code in _IN_RUN else 32 for code in range(256))
_RUN = b"a" * MIN_RUN

_TOKENS = (
    ("api-key", r"sk-(?:proj|svcacct|admin|ant|or|lf|None)-[\w-]{16}|sk-(?=[A-Za-z]{0,40}[0-9])[A-Za-z0-9]{20}"),
    ("api-key", r"(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16}|whsec_[A-Za-z0-9]{20}"),
    ("github-token", r"gh[pousr]_[A-Za-z0-9]{20}|github_pat_[A-Za-z0-9_]{20}"),
    ("gitlab-token", r"gl(?:pat|dt|ptt|soat|rt|cbt)-[\w-]{16}"),
    ("slack-token", r"xox[abeoprs]-[\w-]{12}|xapp-[\w-]{15}"),
    ("api-key", r"hf_[A-Za-z0-9]{30}|gsk_[A-Za-z0-9]{40}|xai-[A-Za-z0-9]{40}|nvapi-[\w-]{40}|pplx-[A-Za-z0-9]{40}"),
    ("api-key", r"r8_[\w-]{36}|lin_api_[A-Za-z0-9]{30}|dop_v1_[a-f0-9]{60}|shp(?:at|ca|pa|ss)_[a-f0-9]{30}"),
    ("npm-token", r"npm_[A-Za-z0-9]{30}"),
    ("pypi-token", r"pypi-[\w-]{40}"),
    ("api-key", r"glsa_[\w]{30}|dckr_pat_[\w-]{20}"),
    ("google-secret", r"GOCSPX-[\w-]{20}"),
    ("midfold-key", r"mfk_[\w-]{40}"),
    ("api-key", r"ntn_[A-Za-z0-9]{36}|PMAK-[0-9a-f]{24}-[0-9a-f]{30}"),
    ("age-key", r"AGE-SECRET-KEY-1[0-9A-Z]{50}"),
    ("fireworks-key", r"fw_(?=[A-Za-z]{0,40}[0-9])[A-Za-z0-9]{20}"),
    ("cerebras-key", r"csk-[a-z0-9]{32}"),
    ("langsmith-key", r"lsv2_(?:pt|sk)_[a-f0-9]{32}|ls__[a-f0-9]{32}"),
    ("tavily-key", r"tvly-(?:dev-|prod-)?(?=[A-Za-z-]{0,40}[0-9])[\w-]{20}"),
    ("rubygems-key", r"rubygems_[a-f0-9]{48}"),
    ("heroku-key", r"HRKU-[\w-]{36}"),
    ("figma-token", r"fig[dou][hr]?_[\w-]{30}"),
    ("new-relic-key", r"NRAK-[A-Z0-9]{27}|NRII-[\w-]{32}|NRJS-[a-f0-9]{19}"),
    ("supabase-key", r"sbp_(?:v0_|oauth_)?[a-f0-9]{40}|sb_secret_[\w-]{20}"),
    ("tailscale-key", r"tskey-[a-z]{2,10}-[\w-]{12}"),
)  # fmt: skip
"""Kind and pattern. The prefixes are documented by the vendors or have gitleaks rules."""
_TOKENS_AT_START = (
    ("aws-key", r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    ("google-key", r"AIza[\w-]{35}(?![\w-])"),
    ("atlassian-token", r"AT[AC]TT3x[\w-]{24,}+(?:=[0-9A-F]{8}(?![\w-]))?"),
    ("databricks-token", r"dapi[0-9a-f]{32}(?:-[0-9])?(?![\w-])"),
    ("api-key", r"secret_[A-Za-z0-9]{43}(?![\w-])|key-[0-9a-f]{32}(?![\w-])"),
    ("twilio-key", r"SK[0-9a-f]{32}(?![\w-])"),
    ("jwt", r"eyJ[\w-]{16,}+\.[\w-]{4,}+(?>(?:\.[\w-]*+){0,4})"),
    ("discord-token", r"[MNO][\w-]{23,27}+\.[\w-]{6}\.[\w-]{27,}+"),
    ("crates-io-token", r"cio[A-Za-z0-9]{32}(?![\w-])"),
    ("sentry-token", r"sntry[suai]_[\w+/=-]{30,}+"),
    ("1password-token", r"ops_eyJ[\w+/-]{40,}+={0,3}+"),
    ("1password-key", r"A3-[A-Z0-9]{6}-[A-Z0-9]{6}-?[A-Z0-9]{5}(?:-[A-Z0-9]{5}){3}(?![\w-])"),
)


def _any_of(*groups: tuple[tuple[str, str], ...]) -> str:
    return "(?:" + "|".join(pattern for group in groups for _, pattern in group) + ")"


_FIRST = frozenset(b"srwghxnpldGAeMNOSmkPfctHo")
_AT_START = re.compile(_any_of(_TOKENS, _TOKENS_AT_START), re.ASCII)
_INSIDE = re.compile("[_-](?=[srwghxnpldGmPAfctHN])" + _any_of(_TOKENS), re.ASCII)
_KINDS = tuple((re.compile(pattern, re.ASCII), kind) for kind, pattern in (*_TOKENS, *_TOKENS_AT_START))


class _Marked(NamedTuple):
    """Token that begins `before` characters ahead of its run of word characters."""

    before: int
    kind: str
    pattern: re.Pattern[str]


def _mark_of(before: int, kind: str, pattern: str) -> _Marked:
    return _Marked(before, kind, re.compile(pattern, re.ASCII))


_TWO_PARTS = r"[\w-]{20,}+(?:\.[\w-]{8,}+)?"
_MARKS = {
    b"SG.": _mark_of(3, "sendgrid-key", rf"SG\.{_TWO_PARTS}"),
    b"ya29.": _mark_of(5, "google-token", rf"ya29\.{_TWO_PARTS}"),
    b"hvs.": _mark_of(4, "vault-token", rf"hvs\.{_TWO_PARTS}"),
    b"dp.pt.": _mark_of(6, "api-key", rf"dp\.pt\.{_TWO_PARTS}"),
    b".atlasv1.": _mark_of(23, "terraform-token", r"[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{60,}+"),
    b"1//": _mark_of(3, "google-refresh-token", r"(?:(?<![\w/])|(?<=\\[nrt]))1//0[\w-]{40,}+"),
}
"""Text before the run, and the pattern of the whole token."""
_MARK_ENDS = tuple(_MARKS)
_MAX_MARK_CHARACTERS = max(map(len, _MARKS))
_TELEGRAM = re.compile(r"(?<![0-9])[0-9]{8,10}:AA[\w-]{32,34}(?![\w-])", re.ASCII)
_SLACK_HOOK = b"hooks.slack.com/services/"


def tokens(text: str, raw: bytes) -> list[KeySpan]:
    """Return tokens with a recognisable prefix chosen by their provider."""
    spans: list[KeySpan] = []
    if len(raw) < MIN_RUN:
        return spans
    runs = raw.translate(_RUN_TABLE)
    start = runs.find(_RUN)
    while start >= 0:
        end = runs.find(b" ", start + MIN_RUN)
        if end < 0:
            end = len(runs)
        span = _token_in_run(text, raw, start, end)
        if span is not None:
            spans.append(span)
            end = max(end, span.end)
        start = runs.find(_RUN, end)
    return spans


def _token_in_run(text: str, raw: bytes, start: int, end: int) -> KeySpan | None:
    before = raw[start - 1] if start else 0
    begin = start + 1 if before == 0x5C and raw[start] in b"nrt" else start
    if raw[begin] in _FIRST:
        found = _AT_START.match(text, begin)
        if found is not None:
            return KeySpan(begin, max(end, found.end()), _kind_at(text, begin))
    if end - begin > MAX_PLAIN_RUN:
        found = _INSIDE.search(text, begin, end)
        if found is not None:
            return KeySpan(found.start() + 1, end, _kind_at(text, found.start() + 1))
    if before in b".:/":
        return _token_after_mark(text, raw, start, end)
    return None


def _kind_at(text: str, position: int) -> str:
    return next(kind for pattern, kind in _KINDS if pattern.match(text, position))


def _token_after_mark(text: str, raw: bytes, start: int, end: int) -> KeySpan | None:
    if raw.endswith(_MARK_ENDS, max(0, start - _MAX_MARK_CHARACTERS), start):
        mark = next(mark for mark in _MARK_ENDS if raw.endswith(mark, 0, start))
        before, kind, pattern = _MARKS[mark]
        found = pattern.match(text, start - before) if start >= before else None
        return KeySpan(found.start(), max(end, found.end()), kind) if found is not None else None
    if raw[start - 1] == 0x3A:
        bot = _TELEGRAM.search(text, max(0, start - 11), end)
        return KeySpan(bot.start(), end, "telegram-token") if bot is not None else None
    if raw.find(_SLACK_HOOK, max(0, start - 64), start) >= 0:
        return KeySpan(start, end, "slack-webhook")
    return None


_BEGIN = re.compile(r"-----BEGIN (?>(?:(?!PRIVATE)[A-Z0-9]{1,12} ){0,3})PRIVATE KEY(?: BLOCK)?-----")
_END = re.compile(r"-----END (?>(?:(?!PRIVATE)[A-Z0-9]{1,12} ){0,3})PRIVATE KEY(?: BLOCK)?-----")
_GAP = r"""(?>(?:[\s"'+,>|]|\\{1,4}+[nrt"']|[0-9]{1,6}[→|:])*)"""
_KEY_BODY = re.compile(
    rf"(?>(?:{_GAP}[A-Za-z-]{{4,20}}: [^\n\\]{{1,120}}+){{0,4}})(?>(?:{_GAP}[A-Za-z0-9+/=]{{20,}}+)*)"
    rf"(?:{_GAP}[A-Za-z0-9+/=]{{1,76}}+(?={_GAP}(?:-----END|\.\.\.|…|\0|\Z)))?"
)
_MAX_KEY_CHARACTERS = 65_536


def private_keys(text: str, low: bytes, needle: bytes, start: int) -> Iterator[KeySpan]:
    """Yield whole PEM blocks; of a truncated block, everything that still looks like a key."""
    end = 0
    while start >= 0:
        begin = _BEGIN.match(text, start)
        following = low.find(needle, start + len(needle))
        if begin is not None:
            body = _KEY_BODY.match(text, begin.end())
            stop = body.end() if body is not None else begin.end()
            if 0 <= end < stop:
                end = text.find("-----END ", stop)
            limit = min(following if following >= 0 else len(text), stop + _MAX_KEY_CHARACTERS)
            close = _END.match(text, end) if 0 <= end <= limit else None
            if stop > begin.end() + MIN_RUN:
                stop = close.end() if close is not None and end - stop < 200 else stop
                yield KeySpan(start, stop, "private-key")
        start = following


_PUTTY = re.compile(
    rf"private-lines:[ \t]{{0,4}}+[0-9]{{1,4}}+((?>(?:{_GAP}[A-Za-z0-9+/=]{{20,}}+)*)"
    rf"(?:{_GAP}[A-Za-z0-9+/=]{{1,76}}+(?={_GAP}(?:Private-|\.\.\.|…|\0|\Z)))?"
    rf"(?:{_GAP}Private-(?:MAC|Hash):[ \t]{{0,4}}+[0-9a-f]{{32,64}}+)?)",
    re.IGNORECASE,
)


def putty_keys(text: str, low: bytes, needle: bytes, at: int) -> Iterator[KeySpan]:
    """Yield the private lines of a PuTTY key file and their MAC."""
    while at >= 0:
        found = _PUTTY.match(text, at)
        if found is not None and found.end() - found.start(1) > MIN_RUN:
            yield KeySpan(found.start(1) + len(found[1]) - len(found[1].lstrip()), found.end(1), "private-key")
        at = low.find(needle, at + len(needle))


_USER_INFO = re.compile(
    r"""([^\s:/@"'`<>\\?#\[\]{}|^]{0,128}+)(?::([^\s/@"'`<>\\?#]{1,256}+))?@((?>(?:[^\s/"'`<>\\@?#]{1,256}+@)?))"""
)
_OPEN_PASSWORD = re.compile(r"[$<{*%]|[xX.]{3,256}$|…|.$|(?i:pass(?:word|wd|phrase)?|pwd)$")
"""Placeholder passwords in examples: a variable, a mask, one character, or the word itself."""
_SAMPLE_ACCOUNTS = frozenset({("scott", "tiger")})
"""Oracle's sample account, which the documentation of many databases uses."""


def _is_example(user: str, password: str) -> bool:
    return _OPEN_PASSWORD.match(password) is not None or (user, password) in _SAMPLE_ACCOUNTS


def addresses(text: str, low: bytes, mark: bytes, at: int) -> Iterator[KeySpan]:
    """Yield the password of `scheme://user:password@host`, or a token in place of the user."""
    while at >= 0:
        info = _USER_INFO.match(text, at + len(mark))
        if info is not None:
            password = None if info[2] is None else text[info.start(2) : info.end() - 1]
            if password is not None and not _is_example(info[1], password) and MARK not in password:
                yield KeySpan(info.start(2), info.end() - 1, "password")
            elif password is None and len(info[1]) >= MIN_RUN and any(map(str.isdigit, info[1])):
                yield KeySpan(info.start(1), info.end(1), "url-token")
        at = low.find(mark, at + len(mark))


PLANETSCALE = b"pscale_"
"""Prefix of tokens that contain dots and so are not a single run."""
_OPEN_QUOTE = r"""(?>(?:\\{0,7}+["'`])?)"""
_AUTHORIZATION = re.compile(
    rf"(?i:authorization){_OPEN_QUOTE}\]?[ \t]{{0,8}}+[:=](?![:=])[ \t]{{0,8}}+{_OPEN_QUOTE}"
    r"""(?:(?i:digest|aws4-hmac-sha256)[ \t]{1,8}+([^"'`\r\n\\]{8,}+)|"""
    r"""(?>(?:([A-Za-z][A-Za-z0-9-]{2,24}+)[ \t]{1,8}+)?)([^\s"'`\\<>,;(){}\[\]$]{6,}+))"""
)
_BEARER = re.compile(r"(?i:bearer)[ \t]{1,8}+([A-Za-z0-9._~+/-]{16,}+=*+)")
_COOKIE = re.compile(
    rf"(?i:cookie){_OPEN_QUOTE}[ \t]{{0,8}}+:[ \t]{{0,8}}+{_OPEN_QUOTE}"
    r"""([\w.-]{1,64}+=[^\s;,"'`\\(){}$<]{8,}+[^\r\n"'`\\]*+)"""
)
_SIGNATURE = re.compile(r"(?i:(?<=[?&;])|(?<=X-Amz-)|(?<=X-Goog-))(?i:sig|signature)=([A-Za-z0-9%+/_-]{20,}+)")
_PLANETSCALE = re.compile(r"(pscale_(?:tkn|pw|oauth)_(?>(?:[\w=-]|\.(?=[\w=-])){31,}))", re.ASCII)
_DIGIT_OR_PADDING = re.compile(r"[0-9=]|[a-z][A-Z]")
_AUTH_ENTRY = re.compile(
    r"""(?i:(?<=[_"'])auth)(?>(?:\\{0,7}+["'])?)[ \t]{0,4}+[:=][ \t]{0,4}+(?>(?:\\{0,7}+["'])?)"""
    r"""([A-Za-z0-9+/_-]{16,}+={0,2}+)(?![\w.(\[])"""
)


class _Header(NamedTuple):
    """Pattern to match at each position of its needle, and the kind of its last group."""

    pattern: re.Pattern[str]
    kind: str


_HEADERS = {
    b"authorization": _Header(_AUTHORIZATION, "authorization"),
    b"bearer ": _Header(_BEARER, "bearer-token"),
    b"cookie": _Header(_COOKIE, "cookie"),
    b"auth": _Header(_AUTH_ENTRY, "auth"),
    b"sig=": _Header(_SIGNATURE, "signature"),
    b"signature=": _Header(_SIGNATURE, "signature"),
    PLANETSCALE: _Header(_PLANETSCALE, "planetscale-token"),
}


def headers(text: str, low: bytes, needle: bytes, at: int) -> Iterator[KeySpan]:
    """Yield the values of Authorization and Cookie headers, `Bearer …`, and signatures of URLs."""
    pattern, kind = _HEADERS[needle]
    while at >= 0:
        match = pattern.match(text, at)
        after = at + len(needle)
        if match is not None:
            group = match.lastindex or 0
            if _is_credential(match[group][:256]):
                yield KeySpan(match.start(group), match.end(group), kind)
                after = match.end(group)
        at = low.find(needle, after)


def _is_credential(value: str) -> bool:
    if MARK in value or value.startswith(("$", "<", "{", "[", "*", "...", "YOUR", "your")) or len(set(value)) < 3:
        return False
    return _DIGIT_OR_PADDING.search(value) is not None


Finder = Callable[[str, bytes, bytes, int], Iterable[KeySpan]]
_FINDERS: tuple[tuple[bytes, tuple[tuple[bytes, Finder], ...]], ...] = (
    (b"pass", ((b"pass", assignments), (b"mot de passe", phrases))),
    *((word, ((word, assignments),)) for word in WORDS if word not in (b"key", b"pass")),
    (b"key", ((b"key", assignments), (b"-----begin ", private_keys), (b"private-lines:", putty_keys))),
    (b"auth", ((b"auth", headers), (b"authorization", headers))),
    (b"bearer ", ((b"bearer ", headers),)),
    (b"cookie", ((b"cookie", headers),)),
    (b"://", ((b"sig=", headers), (b"signature=", headers))),
    (b"@", ((b"://", addresses), (b":\\/\\/", addresses))),
    (PLANETSCALE, ((PLANETSCALE, headers),)),
)
"""Gates with their finders: a finder's needle can only occur if its gate does."""


_NEEDED = (b" ", b":", b"=", b">", b"%", PLANETSCALE)
"""Marks of which every text with a finding has at least one, tokens aside."""


def credentials(text: str) -> list[KeySpan]:
    """Return every credential in the text, unordered; spans may overlap. An absent needle costs one search."""
    own: Iterable[KeySpan] = ()
    if not text.isascii():
        text = narrow_text(text)
        own = foreign(text)
    raw = text.encode("ascii", "replace")
    spans = [*tokens(text, raw), *own]
    if not any(mark in raw for mark in _NEEDED):
        return spans
    low = raw.lower()
    for gate, finders in _FINDERS:
        first = low.find(gate)
        if first >= 0:
            for needle, find in finders:
                at = first if needle == gate else low.find(needle)
                if at >= 0:
                    spans += find(text, low, needle, at)
    return spans


Redactor = Callable[[str], str]

MAX_PASSES = 4
MIN_TEXT_CHARACTERS = 8
MAX_DEPTH = 200
SEAM = "\n\0\n"
"""Separator between texts that are searched as one; no credential spans it."""
_WEAK_KINDS = frozenset({"token", "session", "cookie", "authorization", "credential"})
_SCHEMA_KEYS = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf", "description", "title", "enum", "schema"})
_FILE_NAME = re.compile(
    r"(?>(?:[\w-]{1,64}/){0,8})[A-Za-z_-]{1,32}\.(?:secrets?|key|pem|token|password|pwd|txt|json|ya?ml|env|crt|p12|pfx)",
    re.ASCII,
)
_PLACEHOLDER = re.compile(
    r"\$\{[^}]{0,64}\}|\$[A-Z_][A-Z0-9_]*|\$?\{\{.{0,64}\}\}|\{\w{0,64}\}|<[\w -]{0,64}>"
    r"|%\(?\w{0,64}\)?s?%?|([*xX.•-])\1*"
)


def redact(text: str) -> str:
    """Replace each credential with `[REDACTED:kind]`; return the same object if there is none."""
    for _ in range(MAX_PASSES):
        spans = credentials(text) if len(text) >= MIN_TEXT_CHARACTERS else ()
        if not spans:
            break
        text = _replace_spans(text, spans)
    return text


def with_credentials(texts: Sequence[str]) -> set[int]:
    """Return the indices of the texts that `redact` would change; many short texts are searched at once."""
    spans = credentials(SEAM.join(texts))
    if not spans:
        return set()
    starts = list(accumulate((len(text) + len(SEAM) for text in texts), initial=0))
    return {
        place
        for span in spans
        for place in range(bisect_right(starts, span.start) - 1, bisect_right(starts, span.end - 1))
        if place < len(texts)
    }


def _replace_spans(text: str, spans: Iterable[KeySpan]) -> str:
    """Replace the spans; overlapping spans are merged, and the longest names the kind."""
    pieces: list[str] = []
    position = 0
    for start, end, kind in _unite(spans):
        pieces += (text[position:start], MARK, kind, "]")
        position = end
    pieces.append(text[position:])
    return "".join(pieces)


def _unite(spans: Iterable[KeySpan]) -> list[KeySpan]:
    united: list[KeySpan] = []
    for span in sorted(spans):
        if united and span.start < united[-1].end:
            last = united[-1]
            longest = last if last.end - last.start >= span.end - span.start else span
            united[-1] = KeySpan(last.start, max(last.end, span.end), longest.kind)
        else:
            united.append(span)
    return united


def is_sensitive_key(key: object) -> bool:
    """Return whether a value under this key is a credential, by the last words of the key in any spelling.

    `password`, `DB_PASSWORD`, `clientSecret`, `x-api-key`, `refresh_token` and `Set-Cookie` are; `max_tokens`,
    `token_count`, `next_page_token`, `eos_token`, `password_field`, `secret_name`, `session_id`, `public_key` are
    not.
    """
    return isinstance(key, str) and kind_of_name(key) is not None


def redact_value(value: Any) -> Any:
    """Return a JSON value with its strings redacted and values under sensitive keys replaced.

    Unchanged parts are the same objects; nothing is changed in place. Values nested more than 200 levels deep and
    values that contain themselves are replaced.
    """
    return _RedactingWalk().visit(value, 0, None)


def redact_arguments(text: str, redactor: Callable[[str], str]) -> str:
    """Redact the JSON arguments of a call so that they stay JSON: as a whole if possible, else value by value."""
    redacted = redactor(text)
    if redacted == text or jsonio.is_json(redacted):
        return redacted
    try:
        return jsonio.text_of(_redact_below("", jsonio.decode(text), redactor))
    except jsonio.NotJSON:
        return redacted


def _redact_below(key: str, value: Any, redactor: Callable[[str], str]) -> Any:
    """Redact the value under a key; replace it if the result would not be JSON."""
    if isinstance(value, Mapping):
        return {name: _redact_below(name, item, redactor) for name, item in value.items()}
    if isinstance(value, list):
        return [_redact_below(key, item, redactor) for item in value]
    text = jsonio.text_of({key: value})
    redacted = redactor(text)
    if redacted == text:
        return value
    changed = jsonio.decode(redacted) if jsonio.is_json(redacted) else None
    return changed[key] if isinstance(changed, dict) and key in changed else f"{MARK}value]"


class _RedactingWalk:
    """Recursive redaction of one value. `kind` replaces everything below a sensitive key."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._done: dict[tuple[int, str | None], Any] = {}

    def visit(self, value: Any, depth: int, kind: str | None) -> Any:
        if isinstance(value, str):
            return redact(value) if kind is None else _mark_value(value, kind)
        if isinstance(value, Mapping | list | tuple):
            return self._container(value, depth, kind)
        if kind is not None and isinstance(value, int | float) and not isinstance(value, bool):
            return value if kind in _WEAK_KINDS else f"{MARK}{kind}]"
        return value

    def _container(self, value: Any, depth: int, kind: str | None) -> Any:
        known = self._done.get((id(value), kind))
        if known is not None:
            return known
        if depth >= MAX_DEPTH or id(value) in self._open:
            return f"{MARK}{'too-deep' if depth >= MAX_DEPTH else 'cycle'}]"
        self._open.add(id(value))
        done = self._mapping(value, depth, kind) if isinstance(value, Mapping) else self._items(value, depth, kind)
        self._open.discard(id(value))
        self._done[id(value), kind] = done
        return done

    def _mapping(self, value: Mapping[Any, Any], depth: int, kind: str | None) -> Any:
        after = {
            key: self.visit(item, depth + 1, self._kind_below(key, item, value, kind)) for key, item in value.items()
        }
        return value if all(after[key] is item for key, item in value.items()) else after

    def _items(self, value: list[Any] | tuple[Any, ...], depth: int, kind: str | None) -> Any:
        after = [self.visit(item, depth + 1, kind) for item in value]
        if all(new is old for new, old in zip(after, value, strict=True)):
            return value
        return after if isinstance(value, list) else tuple(after)

    def _kind_below(self, key: Any, item: Any, parent: Mapping[Any, Any], kind: str | None) -> str | None:
        if kind is not None:
            return kind
        own = kind_of_name(key) if isinstance(key, str) else None
        if own is None or (own == "token" and "logprob" in parent):
            return None
        if isinstance(item, str) and item.startswith(("/", "~/")) and key.lower().endswith("pwd"):
            return None
        if isinstance(item, Mapping) and (own in _WEAK_KINDS or not _SCHEMA_KEYS.isdisjoint(item)):
            return None
        return own


def _mark_value(value: str, kind: str) -> str:
    """Return the mark for a string under a sensitive key; empty strings, placeholders, file names and marks stay."""
    stripped = value.strip()
    if not stripped or stripped.startswith(MARK) or _PLACEHOLDER.fullmatch(stripped) or _FILE_NAME.fullmatch(stripped):
        return redact(value)
    return f"{MARK}{kind}]"
