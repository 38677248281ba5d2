"""Numbers and times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

SECONDS = (("d", 86_400), ("h", 3_600), ("min", 60))


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
