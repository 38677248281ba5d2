"""Classify failures: HTTP responses, error values, and exceptions of a caller's own client.

The provider's text is never kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from midfold.errors import FailureKind, ModelFailed
from midfold.models import learn_limit

LONGEST_READ = 20_000
MAX_CAUSES = 5
"""Maximum number of causes of an exception to follow."""
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

_EXPLANATIONS: dict[FailureKind, str] = {
    "auth": "the key is missing, wrong, or not allowed to use this model",
    "model_not_found": "there is no such model at this address",
    "overflow": "the request is larger than the model's window",
    "rate_limit": "too many requests",
    "unavailable": "the provider is overloaded or failing",
    "filtered": "the provider's content filter refused the request",
}


def failure_of(status: int, headers: Mapping[str, str], body: bytes, place: str, now: float = 0.0) -> ModelFailed:
    """Return the failure for a response that is not 2xx."""
    text = body[:LONGEST_READ].decode("utf-8", "replace")
    kind = _kind(status, text)
    pause = retry_after(headers, now) if kind in ("rate_limit", "unavailable") else 0.0
    limit = (learn_limit(text) or 0) if kind == "overflow" else 0
    explanation = f": {_EXPLANATIONS[kind]}" if kind in _EXPLANATIONS else ""
    return ModelFailed(kind, f"{place} answered {status}{explanation}", retry_after=pause, limit=limit)


def overflow_phrases(text: str) -> Iterator[str]:
    """Yield the phrases of a text that report an overflow."""
    return (found[0] for found in _OVERFLOW.finditer(text[:LONGEST_READ]))


def failure_of_error(error: BaseException, now: float) -> ModelFailed:
    """Return the failure for an exception of any client: by its status, its type, or its cause."""
    seen: BaseException | None = error
    for _ in range(MAX_CAUSES):
        if seen is None:
            break
        status = _status_in(seen)
        if status:
            text = f"{getattr(seen, 'body', '')} {seen}"
            return failure_of(status, _headers_of(seen), text.encode("utf-8", "replace"), type(seen).__name__, now)
        kind = _kind_by_type(seen)
        if kind:
            return ModelFailed(kind, type(seen).__name__)
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return ModelFailed("other", type(error).__name__)


def _status_in(error: BaseException) -> int:
    """Return the HTTP status of an exception of an SDK or the standard library; 0 if there is none."""
    places = ((error, "status_code"), (getattr(error, "response", None), "status_code"), (error, "code"))
    found = (getattr(place, name, None) for place, name in places)
    return next((status for status in found if isinstance(status, int) and 300 <= status < 600), 0)


def _headers_of(error: BaseException) -> Mapping[str, str]:
    for place in (getattr(error, "response", None), error):
        headers = getattr(place, "headers", None)
        if headers is not None and hasattr(headers, "items"):
            return {str(name): str(value) for name, value in headers.items()}
    return {}


def _kind_by_type(error: BaseException) -> FailureKind:
    """Return the kind for a standard exception type, or one with a telling name; empty if unknown."""
    names = " ".join(kind.__name__ for kind in type(error).__mro__)
    if isinstance(error, PermissionError):
        return "auth"
    if isinstance(error, TimeoutError) or "Timeout" in names:
        return "timeout"
    return "network" if isinstance(error, OSError) or "ConnectionError" in names or "ConnectError" in names else ""


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
    """Return the failure for an error object in a response, as sent by OpenRouter and in event streams."""
    fields = error if isinstance(error, dict) else {"message": error}
    code = fields.get("code")
    text = " ".join(str(fields.get(key, "")) for key in ("type", "code", "message"))[:LONGEST_READ]
    status = code if isinstance(code, int) else _status_of(text)
    kind = _kind(status, text)
    limit = (learn_limit(text) or 0) if kind == "overflow" else 0
    return ModelFailed(kind, "the response contains an error", limit=limit)


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
    """Return the seconds from a Retry-After header, which is a number or a date."""
    lower = {key.lower(): value.strip() for key, value in headers.items()}
    for value, unit in ((lower.get("retry-after-ms", ""), 0.001), (lower.get("retry-after", ""), 1.0)):
        if _NUMBER.fullmatch(value):
            return _clamp(float(value) * unit)
    try:
        return _clamp(parsedate_to_datetime(lower.get("retry-after", "")).timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _clamp(seconds: float) -> float:
    """Limit to between zero and one day."""
    return min(max(seconds, 0.0), 86_400.0)
