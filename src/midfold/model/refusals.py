"""Which kind of failure a refusal of a provider is: an HTTP answer, or an error value. No text of theirs is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from midfold.errors import FailureKind, ModelFailed
from midfold.models import learn_limit

LONGEST_READ = 20_000
_QUOTA = re.compile(
    r"insufficient[_ ](quota|funds|credit|balance)|exceeded your current quota|billing[_ ](hard|not|details)"
    r"|credit balance",
    re.I,
)
_MODEL = re.compile(
    r"model[^.]{0,80}(not found|does not exist|not exist|not supported|unknown|no access|not available)"
    r"|model_not_found|unknown model|no such model|invalid model|not a valid model|no endpoints found",
    re.I,
)
_OVERFLOW = re.compile(
    r"context[_ ](length|window|size|limit)|maximum (context|prompt)|too many (input )?tokens"
    r"|(prompt|input) is too long|token limit|exceeds? the (model|context|maximum)|request too large"
    r"|exceed_context_size|tokens? \+ [^.]{0,40}must be",
    re.I,
)
_FILTER = re.compile(r"content[_ ](filter|policy|management)|safety|moderation|flagged|responsible ai", re.I)
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
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

_TELLING: dict[FailureKind, str] = {
    "auth": "the key is missing, wrong, or not allowed to use this model",
    "model_not_found": "there is no such model, or not under this address",
    "overflow": "the request does not fit into the model's window",
    "rate_limit": "too many requests",
    "unavailable": "the provider is overloaded or broken",
    "filtered": "the provider's filter refused it",
}


def failure_of(status: int, headers: Mapping[str, str], body: bytes, place: str, now: float = 0.0) -> ModelFailed:
    """What an answer that is not 2xx means."""
    text = body[:LONGEST_READ].decode("utf-8", "replace")
    kind = _kind(status, text)
    asked = retry_after(headers, now) if kind in ("rate_limit", "unavailable") else 0.0
    limit = (learn_limit(text) or 0) if kind == "overflow" else 0
    told = f": {_TELLING[kind]}" if kind in _TELLING else ""
    return ModelFailed(kind, f"{place} answered {status}{told}", retry_after=asked, limit=limit)


def _kind(status: int, text: str) -> FailureKind:
    if status in (400, 404, 422) and _MODEL.search(text):
        return "model_not_found"
    if status in (400, 413, 422, 500) and _OVERFLOW.search(text):
        return "overflow"
    if status in (400, 403, 422) and _FILTER.search(text):
        return "filtered"
    if status in (400, 429) and _QUOTA.search(text):
        return "auth"
    if status == 429 and "request too large" in text.lower():
        return "overflow"
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if 300 <= status < 400:
        return "malformed"
    return "unavailable" if status >= 500 else "other"


def failure_in(error: Any) -> ModelFailed:
    """What an error object inside an answer means; OpenRouter and event streams report upstream errors so."""
    fields = error if isinstance(error, dict) else {"message": error}
    code = fields.get("code")
    text = " ".join(str(fields.get(key, "")) for key in ("type", "code", "message"))[:LONGEST_READ]
    status = code if isinstance(code, int) else _status_of(text)
    kind = _kind(status, text)
    limit = (learn_limit(text) or 0) if kind == "overflow" else 0
    return ModelFailed(kind, "the answer is an error", limit=limit)


def _status_of(text: str) -> int:
    for words, status in (
        ("insufficient_quota", 429),
        ("invalid_api_key", 401),
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
    lower = {key.lower(): value.strip() for key, value in headers.items()}
    for value, unit in ((lower.get("retry-after-ms", ""), 0.001), (lower.get("retry-after", ""), 1.0)):
        if _NUMBER.fullmatch(value):
            return _clamp(float(value) * unit)
    try:
        return _clamp(parsedate_to_datetime(lower.get("retry-after", "")).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _clamp(seconds: float) -> float:
    """At least nothing, at most a day."""
    return min(max(seconds, 0.0), 86_400.0)
