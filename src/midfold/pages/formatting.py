"""Numbers and times as people read them, and addresses of pages.

A session's name may hold anything printable, a segment of a path may not.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from urllib.parse import urlencode

from midfold.gateway.request_size import OURS, space_of
from midfold.gateway.routes import SESSION_HEADERS
from midfold.transcript.wrappers import WRAPPERS

SECONDS = (("d", 86_400), ("h", 3_600), ("min", 60))
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.+~@:,")
_ESCAPED = re.compile(rb"!([0-9A-F]{2})")
_KEY = re.compile(r"[A-Za-z0-9_.+~@:,!-]+")
CLIENTS = frozenset({*SESSION_HEADERS.values(), *(wrapper.client for wrapper in WRAPPERS)})


def short(number: float) -> str:
    """1,234 -> 1.2k, 1,234,567 -> 1.2M: three digits at most before and one after the point."""
    size, sign = abs(number), "-" if number < 0 else ""
    for unit, worth in (("M", 1_000_000), ("k", 1_000)):
        if size >= worth * 0.9995:
            value = size / worth
            return f"{sign}{value:.1f}".removesuffix(".0") + unit if value < 99.95 else f"{sign}{value:,.0f}{unit}"
    return f"{sign}{size:,.0f}"


def money(dollars: float | None) -> str:
    """Two digits; more for amounts below a cent; a dash for what is not known."""
    if dollars is None:
        return "–"
    sign, size = "-" if dollars < 0 else "", abs(dollars)
    if size and size < 0.005:
        return f"{sign}${size:.4f}".rstrip("0") if size >= 0.00005 else "$0.00"
    return f"{sign}${size:,.2f}"


def percent(share: float | None) -> str:
    if share is None:
        return "–"
    return "< 1 %" if 0 < share < 0.01 else f"{share * 100:.0f} %"


def moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def iso(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ago(milliseconds: int, now: float) -> str:
    """How long ago, in the largest unit that fits; the date if it is longer than a month."""
    seconds = now - milliseconds / 1000
    if seconds > 31 * 86_400:
        return moment(milliseconds)[:10]
    for unit, worth in SECONDS:
        if seconds >= worth:
            return f"{seconds // worth:.0f} {unit} ago"
    return "just now"


def plural(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def key_of(name: str) -> str:
    """A name as one segment of a path: every other byte of its UTF-8 as `!` and two digits.

    Slashes, percent signs and segments of dots are changed by browsers, proxies and servers; these never are.
    """
    data = name.encode("utf-8", "surrogatepass")
    dots = not name.strip(".")
    return "".join(chr(byte) if byte in _PLAIN and not dots else f"!{byte:02X}" for byte in data)


def name_of(key: str) -> str | None:
    """The name behind a segment; None if no name has this one."""
    if not _KEY.fullmatch(key):
        return None
    try:
        name = _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), key.encode()).decode()
    except UnicodeDecodeError:
        return None
    return name if key_of(name) == key else None


BASES = {
    "estimated": "estimated",
    "calibrated": "estimated from what the provider counted",
    "reported": "counted by the provider",
    "sampled": "estimated from a sample",
}
"""What a number of tokens rests on."""
WRITERS = {"model": "by a model", "local": "without a model", "none": "none was needed"}
"""How a summary was written."""
FORMS = {
    "digest": "told in one line",
    "duplicate": "stands elsewhere",
    "placeholder": "left out",
    "arguments": "arguments shortened",
    "spill": "shown by its ends",
    "media": "picture left out",
}
"""How a message is shown that is not shown whole."""


def owner_of(name: str) -> str:
    """Whose a session is: the key of a gateway, or a project; nothing for names without a slash."""
    return space_of(name)


def client_of(name: str, sent_by: str = "") -> str:
    """The program whose session this is: its own part of the name begins with it, or its requests said so."""
    own = name.rpartition("/")[2].removeprefix(OURS)
    return next((client for client in CLIENTS if own.startswith(f"{client}-")), program_of(sent_by))


def program_of(client: str) -> str:
    """The name in `name/1.2`; a second word that is no version stays."""
    name, _, version = client.partition("/")
    return name if version[:1].isdigit() else client


def session_path(name: str, *rest: object) -> str:
    """The path of a session's page, or of one below it."""
    return "/".join(("/sessions", key_of(name), *map(str, rest)))


def with_query(path: str, **values: object) -> str:
    """The path with those values that say something."""
    given = {key: value for key, value in values.items() if value not in (None, "", 0)}
    return f"{path}?{urlencode(given)}" if given else path
