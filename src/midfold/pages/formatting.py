"""Formatting of numbers and times, and page URLs.

A session name may contain any printable character, a URL path segment may not.
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
    """Format a number with at most three digits before the point and one after it: 1,234 -> 1.2k, 1,234,567 -> 1.2M."""
    size, sign = abs(number), "-" if number < 0 else ""
    for unit, worth in (("M", 1_000_000), ("k", 1_000)):
        if size >= worth * 0.9995:
            value = size / worth
            return f"{sign}{value:.1f}".removesuffix(".0") + unit if value < 99.95 else f"{sign}{value:,.0f}{unit}"
    return f"{sign}{size:,.0f}"


def money(dollars: float | None) -> str:
    """Format dollars with two decimals, more below a cent; a dash if unknown."""
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
    """Format an age in the largest unit that fits, or as a date if older than a month."""
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
    """Encode a name as one path segment: bytes outside a safe set become `!` and two hex digits.

    Browsers, proxies and servers normalize slashes, percent signs and dot segments, so none of these is used.
    """
    data = name.encode("utf-8", "surrogatepass")
    dots = not name.strip(".")
    return "".join(chr(byte) if byte in _PLAIN and not dots else f"!{byte:02X}" for byte in data)


def name_of(key: str) -> str | None:
    """Decode a path segment; return None if it is not a valid encoding."""
    if not _KEY.fullmatch(key):
        return None
    try:
        name = _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), key.encode()).decode()
    except UnicodeDecodeError:
        return None
    return name if key_of(name) == key else None


BASES = {
    "estimated": "estimated",
    "calibrated": "estimated, calibrated by reported usage",
    "reported": "reported by the provider",
    "sampled": "estimated from a sample",
}
"""Labels for the source of a token count."""
WRITERS = {"model": "by a model", "local": "built in, no LLM", "none": "none needed"}
"""Labels for the source of a summary."""
FORMS = {
    "digest": "digest",
    "duplicate": "duplicate dropped",
    "placeholder": "dropped",
    "arguments": "arguments shortened",
    "spill": "truncated",
    "media": "image dropped",
}
"""Labels for the shortened forms of a message."""


def owner_of(name: str) -> str:
    """Return the gateway key or project that owns a session; empty for a name without a slash."""
    return space_of(name)


def client_of(name: str, sent_by: str = "") -> str:
    """Return the client program of a session, from its name or its user agent."""
    own = name.rpartition("/")[2].removeprefix(OURS)
    return next((client for client in CLIENTS if own.startswith(f"{client}-")), program_of(sent_by))


def program_of(client: str) -> str:
    """Return the name in `name/1.2`; a second word that is not a version stays."""
    name, _, version = client.partition("/")
    return name if version[:1].isdigit() else client


def session_path(name: str, *rest: object) -> str:
    """Return the path of a session's page, or of a page below it."""
    return "/".join(("/sessions", key_of(name), *map(str, rest)))


def with_query(path: str, **values: object) -> str:
    """Return the path with the query parameters that are not empty."""
    given = {key: value for key, value in values.items() if value not in (None, "", 0)}
    return f"{path}?{urlencode(given)}" if given else path
