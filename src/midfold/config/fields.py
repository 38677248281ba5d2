"""The settings of schema.py as a flat table, with one `Field` for each key that holds a value.

Also reads and checks single values, words their errors, and writes the tables of docs/reference/config.md.

A path is a tuple of key names. In `providers`, `models`, `upstreams` and `keys` the second name is the user's; here it
is `*`.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec
import yaml
from msgspec import Struct, inspect
from msgspec.structs import replace
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from midfold.config.schema import SECTIONS, Config
from midfold.models import LARGEST

KeyPath = tuple[str, ...]
Kind = Literal["boolean", "integer", "number", "text", "choice"]
SECRET_WORDS = ("key", "token", "secret", "password")
PREFIX = "MIDFOLD_"
OPEN = {"providers": "name", "models": "pattern", "upstreams": "pattern", "keys": "name"}

OLD: Mapping[KeyPath, KeyPath] = types.MappingProxyType(
    {
        ("compression", "summary_model"): ("auxiliary", "compression", "model"),
        ("compression", "summary_provider"): ("auxiliary", "compression", "provider"),
        ("compression", "summary_base_url"): ("auxiliary", "compression", "base_url"),
        ("model", "cache_ttl"): ("prompt_caching", "cache_ttl"),
    }
)
"""Keys of earlier versions, with the keys that replaced them."""

GONE: Mapping[KeyPath, str] = types.MappingProxyType(
    {
        ("prompt_caching", "schedule_from"): "0.4",
        ("prompt_caching", "schedule_to"): "0.15",
        ("prompt_caching", "schedule_patience"): "4",
    }
)
"""Removed keys of earlier versions, with the fixed value that applies now."""


class Field(Struct, frozen=True, kw_only=True):
    """A key that holds a value."""

    path: KeyPath
    kind: Kind
    description: str
    default: bool | int | float | str | None
    nullable: bool = False
    choices: tuple[str, ...] = ()
    low: float | None = None
    above: float | None = None
    high: float | None = None
    pattern: str | None = None
    text: str | None = None
    url: bool = False
    json: bool = False
    words: bool = False

    @property
    def allowed_values(self) -> str:
        """A description of the accepted values."""
        return f"{self._accepts()}, or null" if self.nullable else self._accepts()

    def _accepts(self) -> str:
        if self.text is not None:
            return self.text
        if self.kind == "boolean":
            return "true or false"
        if self.kind == "choice":
            return " or ".join((", ".join(self.choices[:-1]), self.choices[-1]))
        noun = {"integer": "a whole number", "number": "a number", "text": "text"}[self.kind]
        if self.above is not None:
            return f"{noun} above {self.above:g}"
        if self.low is not None and self.high in (None, LARGEST):
            return f"{noun}, {self.low:g} or more"
        return f"{noun} from {self.low} to {self.high}"


def _unwrap(kind: inspect.Type) -> tuple[inspect.Type, dict[str, Any]]:
    notes: dict[str, Any] = {}
    while isinstance(kind, inspect.Metadata):
        notes = {**(kind.extra or {}), **(kind.extra_json_schema or {}), **notes}
        kind = kind.type
    return kind, notes


def _leaf(path: KeyPath, kind: inspect.Type, default: Any) -> Field:
    kind, notes = _unwrap(kind)
    nullable = False
    if isinstance(kind, inspect.UnionType):
        nullable = True
        inner, more = _unwrap(next(member for member in kind.types if not isinstance(member, inspect.NoneType)))
        kind, notes = inner, {**more, **notes}
    leaf = Field(
        path=path,
        kind="text",
        description=notes["description"],
        default=default,
        nullable=nullable,
        text=notes.get("allowed"),
        url=notes.get("url", False),
        json=notes.get("json", False),
        words=notes.get("words", False),
    )
    match kind:
        case inspect.BoolType():
            return replace(leaf, kind="boolean")
        case inspect.LiteralType(values=values):
            ordered = sorted((str(value) for value in values), key=lambda value: (value != default, value))
            return replace(leaf, kind="choice", choices=tuple(ordered))
        case inspect.IntType(ge=low, gt=above, le=high):
            return replace(leaf, kind="integer", low=low, above=above, high=high)
        case inspect.FloatType(ge=low, gt=above, le=high):
            return replace(leaf, kind="number", low=low, above=above, high=high)
        case inspect.StrType(pattern=pattern):
            return replace(leaf, pattern=pattern)
    raise TypeError(f"{'.'.join(path)} has a type that config.fields does not know")


def _fields(path: KeyPath, kind: inspect.Type, default: Any) -> Iterator[Field]:
    bare, _ = _unwrap(kind)
    if isinstance(bare, inspect.DictType):
        bare, _ = _unwrap(bare.value_type)
        path = (*path, "*")
    if not isinstance(bare, inspect.StructType):
        yield _leaf(path, kind, default)
        return
    for field in bare.fields:
        if not path and field.name not in SECTIONS:
            continue
        yield from _fields((*path, field.encode_name), field.type, field.default)


def _name_patterns() -> Iterator[tuple[str, str]]:
    root = inspect.type_info(Config)
    assert isinstance(root, inspect.StructType)
    for field in root.fields:
        bare, _ = _unwrap(field.type)
        if isinstance(bare, inspect.DictType):
            key, _ = _unwrap(bare.key_type)
            assert isinstance(key, inspect.StrType) and key.pattern
            yield field.name, key.pattern


FIELDS: Mapping[KeyPath, Field] = types.MappingProxyType(
    {field.path: field for field in _fields((), inspect.type_info(Config), None)}
)
NAME_PATTERNS: Mapping[str, str] = types.MappingProxyType(dict(_name_patterns()))


def generic(path: KeyPath) -> KeyPath:
    """Return the path with the user's own name replaced by `*`."""
    return (path[0], "*", *path[2:]) if len(path) > 1 and path[0] in OPEN else path


def field_at(path: KeyPath) -> Field | None:
    return FIELDS.get(generic(path))


def children(path: KeyPath) -> tuple[str, ...]:
    """Return the keys of a section, or an empty tuple if the path is not a section."""
    prefix = generic(path)
    depth = len(prefix)
    return tuple(dict.fromkeys(known[depth] for known in FIELDS if known[:depth] == prefix and len(known) > depth))


def split(dotted: str) -> KeyPath:
    """Split a dotted key path; the pattern in a model section may contain dots itself."""
    first, *rest = dotted.split(".")
    if first in OPEN and len(rest) > 1:
        return (first, ".".join(rest[:-1]), rest[-1])
    return (first, *rest)


def dotted_path(path: KeyPath) -> str:
    """Format a key path for messages: bounded length, no control characters, no possible secrets."""
    return ".".join(printable_name(name) for name in path)


def printable_name(name: str) -> str:
    """Format a user's name for messages, hiding it if it looks like a secret pasted in the wrong place."""
    return "<a key that looks like a secret>" if looks_secret(name) else printable(name)


_CREDENTIAL = re.compile(
    r"(?<![a-z0-9])(?:(?:sk|pk|rk)[-_]\S{8}|(?:gh[pousr]|github_pat|glpat|xox[a-z]|xapp|hf|gsk|xai|nvapi|pplx|npm|pypi)"
    r"[-_]\S{12}|(?:akia|asia|aiza|eyj|ya29\.)\S{12}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})",
    re.IGNORECASE | re.ASCII,
)
_RUN = re.compile(r"[A-Za-z0-9+=]{20,}")


def looks_secret(text: str) -> bool:
    """Return whether a text looks like a credential: a known prefix, or a long run of letters and digits.

    Names of models and settings have a dash, a dot or an underscore every few letters.
    """
    if _CREDENTIAL.search(text):
        return True
    return any(sum(map(str.isdigit, run)) >= 2 and not run.isdigit() for run in _RUN.findall(text))


def printable(text: str, limit: int = 60) -> str:
    safe = text if text.isprintable() else repr(text)[1:-1]
    return safe if len(safe) <= limit else f"{safe[:limit]}..."


def nearest(path: KeyPath) -> KeyPath | None:
    """Return the known key that an unknown one was probably meant to be, or None."""
    parent, name = path[:-1], path[-1]
    if close := difflib.get_close_matches(name, [child for child in children(parent) if child != "*"], n=1):
        return (*parent, close[0])
    fixed = [known for known in FIELDS if "*" not in known]
    by_name = {known[-1]: known for known in reversed(fixed)}
    if close := difflib.get_close_matches(name, by_name, n=1, cutoff=0.75):
        return by_name[close[0]]
    whole = {".".join(known): known for known in fixed}
    if close := difflib.get_close_matches(".".join(path), whole, n=1):
        return whole[close[0]]
    return None


def is_secret(path: KeyPath) -> bool:
    """Return whether a value under this key may be a secret that messages must not repeat."""
    return any(word in name.lower() for name in path for word in SECRET_WORDS)


Value = bool | int | float | str | None

_TAG = "tag:yaml.org,2002:"
_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")
_SIXTIES = re.compile(r"[-+]?[0-9][0-9_]*(:[0-9_.]+)+")
_OCTAL = re.compile(r"[-+]?0[0-9_]+")
_LOOKS_SECRET = re.compile(r"(?i:sk|pk|rk|ghp|gho|xox.|akia|eyj)[-_]?\S{16,}")
_MALFORMED = (ValueError, KeyError, IndexError, OverflowError, yaml.constructor.ConstructorError)


class ValueRefused(Exception):
    """A value that cannot be used; the message says what was found and why."""


class Scalar(Struct, frozen=True):
    """A value, and its source text if it was written as plain YAML."""

    value: Any
    text: str | None = None


def from_node(node: Node) -> Scalar:
    """Return the value of a scalar node; refuse collections, unknown tags, and numbers that YAML reads unexpectedly."""
    if isinstance(node, MappingNode):
        raise ValueRefused("a mapping")
    if not isinstance(node, ScalarNode):
        raise ValueRefused("a list")
    kind = node.tag.removeprefix(_TAG)
    if kind == "timestamp":
        raise ValueRefused("a date (quotes make it text)")
    if kind not in ("null", "bool", "int", "float", "str"):
        raise ValueRefused("an unsupported YAML tag")
    text: str = node.value
    plain = node.style is None
    if plain and kind in ("int", "float") and _SIXTIES.fullmatch(text):
        raise ValueRefused("a number in base 60, which is how YAML reads colons between digits")
    if plain and kind == "int" and _OCTAL.fullmatch(text):
        raise ValueRefused("a number that starts with 0, which YAML reads as octal")
    if plain and kind == "str" and _EXPONENT.fullmatch(text):
        return Scalar(float(text), text)
    if kind == "str":
        return Scalar(text, text if plain else None)
    try:
        value = yaml.constructor.SafeConstructor().construct_object(node)
    except _MALFORMED:
        raise ValueRefused(f"an invalid {kind}") from None
    return Scalar(value, text if plain else None)


def read(node: Node, field: Field | None) -> Scalar:
    """Return the value of a node; some fields also accept a mapping or a list."""
    if field is not None and field.json and isinstance(node, MappingNode):
        return _as_json(node)
    if field is not None and field.words and isinstance(node, SequenceNode):
        return _as_words(node)
    return from_node(node)


def _as_words(node: SequenceNode) -> Scalar:
    """Join a list of words with commas."""
    words = [from_node(item).value for item in node.value]
    if not all(isinstance(word, str) and "," not in word for word in words):
        raise ValueRefused("a list with an item that is not a word")
    return Scalar(", ".join(words) or None)


def _as_json(node: MappingNode) -> Scalar:
    """Convert a mapping to the text of a JSON object."""
    try:
        value = yaml.constructor.SafeConstructor().construct_document(node)
        return Scalar(json.dumps(value, allow_nan=False))
    except (*_MALFORMED, TypeError, yaml.YAMLError, RecursionError):
        raise ValueRefused("a mapping that is not valid JSON") from None


def from_text(text: str) -> Scalar:
    """Parse an environment variable as a quoted YAML scalar, or as a plain one whatever its first character."""
    stripped = text.strip()
    loader = yaml.SafeLoader("")
    if stripped[:1] in ("'", '"'):
        try:
            node = yaml.compose(stripped, Loader=yaml.SafeLoader)
        except (yaml.YAMLError, ValueError, OverflowError):
            raise ValueRefused("a quote that is not closed") from None
        if not isinstance(node, ScalarNode):
            raise ValueRefused("more than one quoted text")
        return from_node(node)
    tag = loader.resolve(ScalarNode, stripped, (True, False))  # type: ignore[no-untyped-call]
    return from_node(ScalarNode(tag, stripped))


def show(value: object, field: Field) -> str:
    """Describe a value for an error, by its type only if it may be a secret."""
    kind = _type_of(value)
    if value is None:
        return "null"
    if is_secret(field.path) or not isinstance(value, bool | int | float | str):
        return kind
    if isinstance(value, str):
        if field.url and re.search("[@?]", value):
            return "an address that may hold a secret"
        if _LOOKS_SECRET.match(value) or looks_secret(value):
            return "text that looks like a secret"
        return f"the text '{printable(value)}'"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST:
        return "a number beyond 2^53"
    return str(value).lower()


def _type_of(value: object) -> str:
    names = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text",
        dict: "a mapping",
        list: "a list",
    }
    return names.get(type(value), f"a value of type {type(value).__name__}")


def check(field: Field, scalar: Scalar) -> Value:
    """Return the value converted for the key; raise ValueRefused if its type or range is wrong."""
    value = scalar.value
    if value is None and field.nullable:
        return None
    if field.kind == "choice" and isinstance(value, bool) and scalar.text is not None:
        # YAML 1.1 reads a bare `off` as false; if `off` is one of the choices, use the source text.
        value = scalar.text.lower()
        if value not in field.choices:
            raise ValueRefused(show(scalar.value, field))
    if _fits(field, value):
        return float(value) if field.kind == "number" else value
    hint = ""
    if field.kind in ("text", "choice") and value is not None and not isinstance(value, str):
        hint = " (quotes make it text)"
    elif field.kind in ("boolean", "integer", "number") and isinstance(value, str):
        hint = " (text; remove the quotes?)" if _looks_typed(value) else ""
    raise ValueRefused(show(value, field) + hint)


def _looks_typed(value: str) -> bool:
    try:
        return not isinstance(from_text(value).value, str)
    except ValueRefused:
        return False


def _fits(field: Field, value: Any) -> bool:
    match field.kind:
        case "boolean":
            return isinstance(value, bool)
        case "choice":
            return isinstance(value, str) and value in field.choices
        case "text":
            return isinstance(value, str) and _fits_text(field, value)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool) and _in_range(field, value)
        case "number":
            right = isinstance(value, int | float) and not isinstance(value, bool)
            return right and _in_range(field, value) and math.isfinite(value)


def _in_range(field: Field, value: float) -> bool:
    low = field.low is None or value >= field.low
    above = field.above is None or value > field.above
    return low and above and (field.high is None or value <= field.high)


def _fits_text(field: Field, value: str) -> bool:
    if field.pattern is not None and not re.fullmatch(field.pattern, value):
        return False
    if not field.url:
        return True
    try:
        parts = urlsplit(value)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def environment_name(path: KeyPath) -> str:
    """Return the variable that sets a key, such as MIDFOLD_COMPRESSION__THRESHOLD."""
    return PREFIX + "__".join(re.sub(r"[^A-Z0-9]", "_", name.upper()) for name in path)


def render(value: Value, quote: str | None = None) -> str:
    """Format a scalar as YAML that is safe in any context, quoted if necessary or if `quote` is given."""
    style = quote if isinstance(value, str) and quote in ("'", '"') else None
    dumped: str = yaml.safe_dump([value], default_flow_style=True, width=10**9, allow_unicode=True)
    if style is not None:
        dumped = "[" + yaml.safe_dump(value, default_style=style, width=10**9, allow_unicode=True).rstrip("\n") + "]\n"
    return dumped[1:-2]


def json_schema() -> dict[str, Any]:
    """Return a JSON Schema (draft 2020-12) of config.yaml."""
    _, definitions = msgspec.json.schema_components([Config], ref_template="#/$defs/{name}")
    root = definitions.pop("Config")
    del root["properties"]["folder"]
    for definition in (root, *definitions.values()):
        definition.pop("required", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **root,
        "title": "midfold config.yaml",
        "$defs": definitions,
    }


def reference() -> str:
    """Return the tables of all settings in Markdown."""
    return "\n".join([*_sections(), *_old_keys()])


def _sections() -> Iterator[str]:
    sections: dict[KeyPath, list[Field]] = {}
    for field in FIELDS.values():
        sections.setdefault(field.path[:-1], []).append(field)
    for section, fields in sections.items():
        shown = tuple(f"<{OPEN[section[0]]}>" if name == "*" else name for name in section)
        yield f"### `{dotted_path(shown)}`\n"
        yield "| key | default | allowed | meaning |\n|---|---|---|---|"
        for field in fields:
            yield f"| `{field.path[-1]}` | `{render(field.default)}` | {field.allowed_values} | {field.description} |"
        if "*" not in section:
            example = environment_name(fields[0].path)
            yield f"\nAs an environment variable, for example: `{example}`."
        yield ""


def _old_keys() -> Iterator[str]:
    yield "### Older keys\n"
    yield "| older key | now |\n|---|---|"
    for old, new in OLD.items():
        yield f"| `{dotted_path(old)}` | `{dotted_path(new)}` |"
    for old, value in GONE.items():
        yield f"| `{dotted_path(old)}` | removed: always {value} |"
    yield ""
