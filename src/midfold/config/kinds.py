"""The kinds of values that settings have."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

LARGEST = 2**53 - 1

# Python and ECMAScript both read these patterns; the checks use fullmatch, so `$` never admits a final line break.
NAME = r"^(?!\.+$)[^/\\:\s\x00-\x1f\x7f-\x9f]+$"
LINE = r"^(?!\s)[^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f]$"
_URL = r"^[Hh][Tt][Tt][Pp][Ss]?://[^\s/?#@][^\s?#@]*$"
_STORE = r"^(?:memory:|sqlite:///[^\s]+|sqlite://|postgres(?:ql)?://(?:[^\s/:@]+@)?[^\s@]*)$"
_VARIABLE = r"^[A-Z_][A-Z0-9_]*$"
_WORDS = r"^[^\s,\x00-\x1f\x7f-\x9f]+(?:, ?[^\s,\x00-\x1f\x7f-\x9f]+)*$"

Positive = Annotated[int, Meta(ge=1, le=LARGEST)]
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Line = Annotated[str, Meta(pattern=LINE, extra={"allowed": "text on one line, not empty"})]
Name = Annotated[str, Meta(pattern=NAME, extra={"allowed": "a name: no slashes, colons, spaces or only dots"})]
Url = Annotated[
    str,
    Meta(
        pattern=_URL,
        extra={"allowed": "an http:// or https:// address without a user name, password or query", "url": True},
    ),
]
Variable = Annotated[
    str,
    Meta(
        pattern=_VARIABLE, extra={"allowed": "the NAME of an environment variable, in capitals, never the key itself"}
    ),
]
JsonObject = Annotated[
    str,
    Meta(pattern=r"^\{[^\x00-\x1f\x7f]*\}$", extra={"allowed": "a mapping, or a JSON object as text", "json": True}),
]
Words = Annotated[
    str,
    Meta(pattern=_WORDS, extra={"allowed": "a list of words, or words with commas between them", "words": True}),
]
StoreUrl = Annotated[
    str,
    Meta(
        pattern=_STORE,
        extra={
            "allowed": "sqlite:///PATH, postgresql://HOST/DATABASE or memory:, without a password "
            "(PGPASSWORD or a password file has it)"
        },
    ),
]
Price = Annotated[float, Meta(ge=0.0, le=float(LARGEST))]
KeyHeader = Annotated[
    Literal["auto", "bearer", "x-api-key"],
    Meta(
        description="header that carries the key of api_key_env: Authorization: Bearer, or x-api-key; auto goes by "
        "wire, else by the path, and sends Bearer where both vendors have the path, except to api.anthropic.com"
    ),
]
