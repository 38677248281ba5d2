"""Knowledge about models: window, output, tokenizer factor, caching, prices, and where each value comes from.

1. Nothing here reads a file, a clock or the network: the table is `models_table`, overrides come from the caller.
2. Every answer is a `Belief` that names the source of each field. An unknown model gets `DEFAULT`, and the belief
   says so; look-ups never raise.
3. Matching is deterministic: the pattern with most literal characters wins, then the one without `*`, then the
   alphabet. A match costs one pass over the name.
4. Hosts rename Claude: the version before the family ("claude-4-sonnet"), their own name in front
   ("databricks-claude-sonnet-4"). A name in front is dropped only if nothing else matches and it holds no digit:
   "qwen3-14b-claude-4.5-opus-distill" is a Qwen.
5. `learn_limit` accepts only numbers that a provider's message ties to the size of the input or the context. A
   requested count, an output cap or a rate limit is not a limit of the window; bytes, characters, images and dates
   are not tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from midfold.models_table import GROUPS, INPUT_LIMITS

__all__ = ["DEFAULT", "TABLE", "Belief", "Model", "ModelOverride", "canonical", "learn_limit", "look_up"]

LARGEST: Final = 2**53 - 1
LINE: Final = r"^(?!\s)[^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f]$"
"""A text on one line, as Python and ECMAScript both read it."""
_Tokens = Annotated[int, Meta(ge=1, le=LARGEST)]
_Price = Annotated[float, Meta(ge=0.0, le=float(LARGEST))]


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One row: what is known about the models whose name matches `pattern`.

    `factor` multiplies a count made with o200k; `message_overhead` is added once per message. Cache fields are
    multiples of the input price. `assumed` names the fields that the source does not give.
    """

    pattern: str
    context_window: int
    max_output: int
    tokenizer: str
    factor: float
    message_overhead: int
    max_input: int | None = None
    cache_minimum: int | None = None
    input_price: float | None = None
    output_price: float | None = None
    cache_read: float | None = None
    cache_write_5m: float | None = None
    cache_write_1h: float | None = None
    as_of: str
    source: str
    assumed: tuple[str, ...] = ()

    @property
    def kept_for_output(self) -> int:
        """Return the tokens of the window that no prompt may use, whatever output is requested."""
        return 0 if self.max_input is None else max(self.context_window - self.max_input, 0)


class ModelOverride(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Corrections to the built-in table for the models a pattern matches; null leaves the table's value.

    It is a section of config.yaml; its descriptions and bounds are those of the reference.
    """

    context_window: Annotated[_Tokens | None, Meta(description="context window in tokens")] = None
    max_output: Annotated[_Tokens | None, Meta(description="maximum tokens of a response")] = None
    max_input: Annotated[_Tokens | None, Meta(description="maximum tokens of a prompt, if less than the window")] = None
    tokenizer: Annotated[
        Annotated[str, Meta(pattern=LINE, extra={"allowed": "text on one line, not empty"})] | None,
        Meta(description="tokenizer family of the model"),
    ] = None
    factor: Annotated[
        Annotated[float, Meta(gt=0.0, le=float(LARGEST))] | None,
        Meta(description="tokens of the model per token of o200k_base"),
    ] = None
    cache_minimum: Annotated[
        Annotated[int, Meta(ge=0, le=LARGEST)] | None, Meta(description="minimum tokens of a cached prefix")
    ] = None
    input_price: Annotated[_Price | None, Meta(description="US dollars per million input tokens")] = None
    output_price: Annotated[_Price | None, Meta(description="US dollars per million output tokens")] = None
    cache_read: Annotated[
        _Price | None, Meta(description="price of a cache read, as a multiple of the input price")
    ] = None
    cache_write: Annotated[
        _Price | None, Meta(description="price of a cache write, as a multiple of the input price")
    ] = None


TABLE: Final[tuple[Model, ...]] = tuple(
    Model(
        pattern=pattern,
        context_window=window,
        max_output=output,
        tokenizer=group.tokenizer,
        factor=group.factor,
        message_overhead=group.overhead,
        max_input=INPUT_LIMITS.get(pattern),
        cache_minimum=group.minimum,
        input_price=price_in,
        output_price=price_out,
        cache_read=read,
        cache_write_5m=group.write,
        cache_write_1h=group.write_long,
        as_of=group.as_of,
        source=group.source,
        assumed=group.assumed,
    )
    for group in GROUPS
    for pattern, window, output, price_in, price_out, read in group.rows
)

DEFAULT: Final = Model(
    pattern="*",
    context_window=128_000,
    max_output=8_192,
    tokenizer="o200k",
    factor=1.0,
    message_overhead=15,
    as_of="2026-11-15",
    source="default",
)

FIELDS: Final = tuple(name for name in Model.__struct_fields__ if name not in ("pattern", "as_of", "source", "assumed"))
_LONG_WINDOW = 1_000_000
_LEARNED = " A provider's error named"


class Belief(msgspec.Struct, frozen=True, kw_only=True):
    """Knowledge about one model, with the source of each field: table, default, config or learned."""

    name: str
    model: Model
    known: bool
    why: str
    fields: dict[str, str]

    def corrected(self, limit: int) -> Belief:
        """Return the belief with the context window that a provider named; for this session only."""
        if limit < 1:
            raise ValueError(f"a context window is at least 1 token, not {limit}")
        before = self.why.partition(_LEARNED)[0]
        return msgspec.structs.replace(
            self,
            model=msgspec.structs.replace(
                self.model, context_window=limit, max_output=min(self.model.max_output, limit)
            ),
            why=f"{before}{_LEARNED} a limit of {limit:,} tokens, which replaces the context window.",
            fields={**self.fields, "context_window": "learned"},
        )


def look_up(name: str | None, overrides: Mapping[str, ModelOverride] | None = None) -> Belief:
    """Return what is known about the model `name`, with `overrides` (pattern -> values) on top of the table.

    All matching overrides apply, the most specific pattern last.
    """
    given = (name or "").strip()
    names = _spellings(given)
    row = _best(names)
    if row is DEFAULT and (hosted := _without_host(names)):
        names = (*names, *hosted)
        row = _best(names)
    known = not row.source.startswith("default")
    fields = {field: "table" if known and field not in row.assumed else "default" for field in FIELDS}
    values: dict[str, object] = {}
    notes = [_because(given, row, known)]
    if given.lower().endswith("[1m]") and row.context_window < _LONG_WINDOW:
        values["context_window"] = _LONG_WINDOW
        fields["context_window"] = "table"
        notes.append("The [1m] in the name asks for the window of 1,000,000.")
    for pattern in _matching(overrides or {}, names):
        changed = _override_fields((overrides or {})[pattern])
        if changed:
            # A limit from the table applies to the table's window.
            values |= {"max_input": None} | changed if "context_window" in changed else changed
            fields |= dict.fromkeys(changed, "config")
            notes.append(f'The configuration ("{pattern}") sets {", ".join(changed)}.')
    model = msgspec.structs.replace(row, **values)
    if model.max_output > model.context_window:
        model = msgspec.structs.replace(model, max_output=model.context_window)
    return Belief(name=given, model=model, known=known, why=" ".join(notes), fields=fields)


def _because(name: str, row: Model, known: bool) -> str:
    stated = f"a window of {row.context_window:,} and {row.max_output:,} tokens of output"
    if not name:
        return f"No model was named, so the stated default is used: {stated}."
    if row is DEFAULT:
        return f'No pattern matches "{name}", so the stated default is used: {stated}.'
    if not known:
        return f'No row is about "{name}"; "{row.pattern}" gives the default for its family: {stated}.'
    return f'"{name}" matches "{row.pattern}" (as of {row.as_of}, from {row.source}).'


def _override_fields(override: ModelOverride) -> dict[str, object]:
    """Return the fields of `Model` that `override` sets; `cache_write` is the multiplier of the 5 minute cache."""
    renamed = {"cache_write": "cache_write_5m"}
    given = ((field, getattr(override, field)) for field in ModelOverride.__struct_fields__)
    return {renamed.get(field, field): value for field, value in given if value is not None}


def canonical(text: str) -> str:
    """Return the form in which names and patterns are compared: "Claude_Sonnet-4.5" equals "claude-sonnet-4-5"."""
    text = _POINT.sub("-", text.strip().lower().replace("_", "-"))
    return _LLAMA.sub("llama-", text)


_POINT = re.compile(r"(?<=\d)[.p](?=\d)")
_LLAMA = re.compile(r"^(?:meta-)?llama-?v?(?=\d)")
_SUFFIX = re.compile(
    r"\[1m\]$|:[a-z-]+$|-v\d+(?::\d+)?$|[-@]20\d{6}$|-20\d\d-\d\d-\d\d$|[-@]latest$|@default$", re.ASCII
)
_SUFFIXES_AT_MOST = 4
_ORDERS = (
    re.compile(r"^claude-(\d(?:-\d{1,2})?)-([a-z]+)(?![0-9a-z])", re.ASCII),
    re.compile(r"^claude-([a-z]+)-(\d(?:-\d{1,2})?)(?![0-9a-z])", re.ASCII),
)
_HOST = re.compile(r"^(?:[a-z]+-){1,3}(?=claude-)")
_REGION_OR_VENDOR = re.compile(r"^(?:[a-z-]+\.)+(?=[a-z])")


def _spellings(name: str) -> tuple[str, ...]:
    """Return `name` as given, without its provider prefix, and without dates, versions and variants."""
    given = canonical(name)
    bare = canonical(_REGION_OR_VENDOR.sub("", given.rpartition("/")[2]))
    forms = [given, bare, bare.partition(":")[2]]
    for form in (bare, forms[-1]):
        stem = form
        for _ in range(_SUFFIXES_AT_MOST):
            stem = _SUFFIX.sub("", stem)
        forms.append(stem)
    forms += [order.sub(r"claude-\2-\1", form) for order in _ORDERS for form in forms]
    return tuple(dict.fromkeys(form for form in forms if form))


def _without_host(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the spellings of a Claude model behind a host's own prefix; none for other names."""
    return tuple(form for name in names if (bare := _HOST.sub("", name)) != name for form in _spellings(bare))


def _glob(pattern: str, text: str, *, keep_versions: bool) -> bool:
    """Return whether `text` matches `pattern`. A `*` matches anything except the rest of a number it follows.

    With `keep_versions` it does not match the rest of a version either: "gpt-5*" is not gpt-5-1.
    """
    head, star, rest = pattern.partition("*")
    if not star:
        return text == pattern
    if not text.startswith(head):
        return False
    if head[-1:].isdigit() and (_MINOR if keep_versions else _DIGIT).match(text, len(head)):
        return False
    *middle, tail = rest.split("*")
    at, end = len(head), len(text) - len(tail)
    for piece in middle:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return at <= end and text.endswith(tail)


_DIGIT = re.compile(r"\d", re.ASCII)
_MINOR = re.compile(r"\d|-[1-9]\d?(?![0-9a-z])", re.ASCII)


def _rank(pattern: str) -> tuple[int, bool, str]:
    literal = pattern.replace("*", "")
    return len(literal), literal == pattern, pattern


_BY_RANK: Final = tuple(
    sorted(((canonical(row.pattern), row) for row in TABLE), key=lambda pair: _rank(pair[0]), reverse=True)
)


def _best(names: tuple[str, ...]) -> Model:
    for pattern, row in _BY_RANK:
        if any(_glob(pattern, name, keep_versions=True) for name in names):
            return row
    return DEFAULT


def _matching(overrides: Mapping[str, ModelOverride], names: tuple[str, ...]) -> list[str]:
    """Return the override patterns that match, the least specific first."""
    forms = {pattern: canonical(pattern) for pattern in overrides}
    matching = [
        pattern for pattern, form in forms.items() if any(_glob(form, name, keep_versions=False) for name in names)
    ]
    return sorted(matching, key=lambda pattern: (_rank(forms[pattern]), pattern))


_READ_AT_MOST = 4_096
SMALLEST_LIMIT = 512
_PLAUSIBLE = range(SMALLEST_LIMIT, 20_000_001)
_NOT_TOKENS = r"i?b|bytes?|char(?:acter)?s?|words?|lines?|pages?|images?|files?|messages?|items?|pixels?|m?s|seconds?"
_NUMBER = (
    r"(?P<number>\d{1,3}(?:[,_]\d{3}){1,3}|\d{1,9})(?!\d|[-.,:/_]\d| ?[kmg]? ?(?:" + _NOT_TOKENS + r")\b)"
    r"(?! ?[km]?(?: tokens?)?(?: per |/)(?:min|hour|day|sec|month)) ?(?P<unit>[km]\b)?"
)
_GAP = r"[\s\"'`:=(\[\\]{0,5}(?:(?:is|of|only|limit)\b[\s\"'`:=(\\]{0,5}){0,3}"
_LIMITS = (
    r"context limit: [\d,]{1,11} \+ [\d,]{1,11} > NUMBER",
    r"(?:maximum|max)[ _-](?:context|prompt|model|sequence|input)[ _-](?:length|size|window|limit)GAPNUMBER",
    r"(?:maximum allowed input length|max(?:imum)?[ _]input[ _]tokens|max_model_len|n_ctx)\bGAPNUMBER",
    r"maximum number of (?:input )?tokens allowedGAPNUMBER",
    r"(?:context (?:length|size|window|limit)|context_window|model token limit)GAPNUMBER",
    r"NUMBER (?:tokens? )?maximum context length",
    r"tokens > NUMBER(?: tokens)? maximum",
    r"input tokens:? \(?[\d,]{1,11}\)? exceeds? (?:the )?limit(?: of|:)? NUMBER",
    r"current length is [\d,]{1,11}(?: tokens)?,? while (?:the )?limit is NUMBER",
    r"(?:prompt|input) token count(?: of)? \(?[\d,]{1,11}\)? exceeds the limit of NUMBER",
    r"input tokens exceed the configured limit of NUMBER",
    r"tokens\) exceeds budget \(NUMBER tokens",
    r"range of input length should be \[\d{1,3}, ?NUMBER\]",
    r"tokens in the prompt cannot exceed NUMBER",
    r"`inputs` tokens \+ `max_new_tokens` must be <= NUMBER",
)


@cache
def _limits() -> tuple[re.Pattern[str], ...]:
    """Compile the patterns on first use, to keep the import cheap."""
    return tuple(re.compile(phrase.replace("GAP", _GAP).replace("NUMBER", _NUMBER)) for phrase in _LIMITS)


def learn_limit(message: str, *, is_quoted: Callable[[str], bool] | None = None) -> int | None:
    """Return the context size in tokens that a provider's overflow error names; None if it names none.

    `is_quoted` says whether a phrase of the error is repeated from elsewhere; such a phrase is ignored.
    """
    text = " ".join(message[:_READ_AT_MOST].lower().split())
    for phrase in _limits():
        for match in phrase.finditer(text):
            scale = {"k": 1_000, "m": 1_000_000}.get(match["unit"], 1)
            limit = int(re.sub(r"\D", "", match["number"])) * scale
            if limit in _PLAUSIBLE and (is_quoted is None or not is_quoted(match[0])):
                return limit
    return None
