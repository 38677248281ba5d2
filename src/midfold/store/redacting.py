"""`store.redact`: originals without their secrets, for those who may not keep them.

Rules of this file:
1. What holds no secret keeps its exact bytes. What does is written anew: its handle unfolds to the redacted message.
2. A provider refuses a signed block of thinking whose text was changed. One that holds a secret is left out.
3. The result depends on the bytes alone: a history that is sent again is the same history.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midfold.fold.redact import redact, redact_value
from midfold.fold.request import Redactor
from midfold.transcript import jsonio

HIDDEN = "[REDACTED]"
"""A key that held a secret. It does not say which kind: that would make its value one when it is read again."""


def redacted(data: bytes, redactor: Redactor = redact) -> bytes:
    """The JSON of a message, a system prompt or a list of tools; other text is redacted as text."""
    try:
        value = jsonio.decode(data)
    except jsonio.NotJSON:
        text = data.decode("utf-8", "surrogateescape")
        clean = redactor(redact(text))
        return data if clean == text else clean.encode("utf-8", "surrogateescape")
    after = _clean(value, redactor)
    return data if after == value else jsonio.encode(after)


def _clean(value: Any, redactor: Redactor) -> Any:
    own = None if redactor is redact else redactor
    return _without_broken_signatures(value, _mapped(redact_value(value), own))


def _mapped(value: Any, own: Redactor | None) -> Any:
    """With the keys redacted as well, and everything by the caller's own redactor too."""
    if isinstance(value, str):
        return own(value) if own else value
    if isinstance(value, list):
        return [_mapped(item, own) for item in value]
    if not isinstance(value, Mapping):
        return value
    after: dict[str, Any] = {}
    for key, item in value.items():
        name = plain = key if key == (own or redact)(redact(key)) else HIDDEN
        while name in after:
            name = f"{plain} {len(after)}"
        after[name] = _mapped(item, own)
    return after


def _without_broken_signatures(before: Any, after: Any) -> Any:
    content = after.get("content") if isinstance(after, Mapping) else None
    if not isinstance(content, list) or not isinstance(before, Mapping):
        return after
    pairs = zip(before["content"], content, strict=True)
    kept = [new for old, new in pairs if old == new or not (isinstance(new, Mapping) and new.get("signature"))]
    return after if len(kept) == len(content) else {**after, "content": kept}
