"""Which kind of failure an HTTP answer or an error value is. No text of theirs is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from midfold.errors import FailureKind, SummaryFailed
from midfold.models import learn_limit

LONGEST_READ = 20_000
_QUOTA = re.compile(
    r"insufficient[_ ](quota|funds|credit|balance)|exceeded your current quota|billing|credit balance", re.I
)
_MODEL = re.compile(
    r"model[^.]{0,80}(not found|does not exist|not exist|not supported|unknown|no access|not available)"
    r"|model_not_found|unknown model|no such model|invalid model|no endpoints found",
    re.I,
)
_OVERFLOW = re.compile(
    r"context[_ ](length|window|size)|maximum context|too many (input )?tokens|prompt is too long|input is too long"
    r"|token limit|exceeds? the (model|context|maximum)|request too large|exceed_context_size",
    re.I,
)
_FILTER = re.compile(r"content[_ ](filter|policy)|safety|moderation|flagged|responsible ai", re.I)
_BY_STATUS: dict[int, FailureKind] = {
    401: "auth",
    402: "auth",
    403: "auth",
    404: "model_not_found",
    408: "timeout",
    413: "overflow",
    429: "rate_limit",
    504: "timeout",
    524: "timeout",
}


def failure_of(status: int, headers: Mapping[str, str], body: bytes, place: str, now: float = 0.0) -> SummaryFailed:
    """What an answer that is not 2xx means."""
    text = body[:LONGEST_READ].decode("utf-8", "replace")
    kind = _kind(status, text)
    asked = retry_after(headers, now) if kind in ("rate_limit", "unavailable") else 0.0
    limit = (learn_limit(text) or 0) if kind == "overflow" else 0
    return SummaryFailed(kind, f"{place} answered {status}", retry_after=asked, limit=limit)


def _kind(status: int, text: str) -> FailureKind:
    if status in (400, 404, 422) and _MODEL.search(text):
        return "model_not_found"
    if status in (400, 413, 422, 500) and _OVERFLOW.search(text):
        return "overflow"
    if status in (400, 403, 422) and _FILTER.search(text):
        return "filtered"
    if status == 429 and _QUOTA.search(text):
        return "auth"
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if 300 <= status < 400:
        return "malformed"
    return "unavailable" if status >= 500 else "other"


def from_error_value(error: Any) -> SummaryFailed:
    """What an error object inside an answer means; OpenRouter and event streams report upstream errors so."""
    fields = error if isinstance(error, dict) else {"message": error}
    code = fields.get("code")
    text = " ".join(str(fields.get(key, "")) for key in ("type", "code", "message"))[:LONGEST_READ]
    status = code if isinstance(code, int) else _status_of(text)
    kind = _kind(status, text)
    limit = (learn_limit(text) or 0) if kind == "overflow" else 0
    return SummaryFailed(kind, "the answer is an error", limit=limit)


def _status_of(text: str) -> int:
    for words, status in (
        ("rate_limit", 429),
        ("overloaded", 529),
        ("authentication", 401),
        ("permission", 403),
        ("not_found", 404),
        ("billing", 402),
        ("invalid_request", 400),
        ("timeout", 504),
    ):
        if words in text:
            return status
    return 400 if _OVERFLOW.search(text) or _MODEL.search(text) or _FILTER.search(text) else 502


def retry_after(headers: Mapping[str, str], now: float) -> float:
    """Seconds the provider asked for: a number, or a date."""
    lower = {key.lower(): value for key, value in headers.items()}
    try:
        if "retry-after-ms" in lower:
            return _bounded(float(lower["retry-after-ms"]) / 1000)
        value = lower.get("retry-after", "")
        if not value:
            return 0.0
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?", value.strip()):
            return _bounded(float(value))
        return _bounded(parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _bounded(seconds: float) -> float:
    """At least nothing, at most a day; a value that is no number is nothing."""
    return min(max(seconds, 0.0), 86_400.0) if seconds == seconds else 0.0
