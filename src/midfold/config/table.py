"""The settings of schema.py as a flat table: one `Field` for each key that holds a value.

A path is a tuple of key names. In `providers`, `models` and `upstreams` the second name is the user's own; here it is
`*`.
"""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct, inspect

from midfold.config.kinds import LARGEST
from midfold.config.schema import SECTIONS, Config

Path = tuple[str, ...]
Kind = Literal["boolean", "integer", "number", "text", "choice"]
SECRET_WORDS = ("key", "token", "secret", "password")
OPEN = {"providers": "name", "models": "pattern", "upstreams": "pattern", "keys": "name"}

OLD: Mapping[Path, Path] = types.MappingProxyType(
    {
        ("compression", "summary_model"): ("auxiliary", "compression", "model"),
        ("compression", "summary_provider"): ("auxiliary", "compression", "provider"),
        ("compression", "summary_base_url"): ("auxiliary", "compression", "base_url"),
        ("model", "cache_ttl"): ("prompt_caching", "cache_ttl"),
    }
)
"""Keys of earlier versions, and where their values belong now."""


class Field(Struct, frozen=True, kw_only=True):
    """One key that holds a value."""

    path: Path
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
    def allowed(self) -> str:
        """What this key accepts, in words."""
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


def _leaf(path: Path, kind: inspect.Type, default: Any) -> Field:
    kind, notes = _unwrap(kind)
    nullable = False
    if isinstance(kind, inspect.UnionType):
        nullable = True
        inner, more = _unwrap(next(member for member in kind.types if not isinstance(member, inspect.NoneType)))
        kind, notes = inner, {**more, **notes}
    shared: dict[str, Any] = {
        "path": path,
        "description": notes["description"],
        "default": default,
        "nullable": nullable,
        "text": notes.get("allowed"),
        "url": notes.get("url", False),
        "json": notes.get("json", False),
        "words": notes.get("words", False),
    }
    match kind:
        case inspect.BoolType():
            return Field(kind="boolean", **shared)
        case inspect.LiteralType(values=values):
            ordered = sorted((str(value) for value in values), key=lambda value: (value != default, value))
            return Field(kind="choice", choices=tuple(ordered), **shared)
        case inspect.IntType(ge=low, gt=above, le=high):
            return Field(kind="integer", low=low, above=above, high=high, **shared)
        case inspect.FloatType(ge=low, gt=above, le=high):
            return Field(kind="number", low=low, above=above, high=high, **shared)
        case inspect.StrType(pattern=pattern):
            return Field(kind="text", pattern=pattern, **shared)
    raise TypeError(f"{'.'.join(path)} has a type that config.table does not know")


def _fields(path: Path, kind: inspect.Type, default: Any) -> Iterator[Field]:
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


FIELDS: Mapping[Path, Field] = types.MappingProxyType(
    {field.path: field for field in _fields((), inspect.type_info(Config), None)}
)
NAME_PATTERNS: Mapping[str, str] = types.MappingProxyType(dict(_name_patterns()))


def generic(path: Path) -> Path:
    """The path with the user's own name replaced by `*`."""
    return (path[0], "*", *path[2:]) if len(path) > 1 and path[0] in OPEN else path


def field_at(path: Path) -> Field | None:
    return FIELDS.get(generic(path))


def children(path: Path) -> tuple[str, ...]:
    """The keys a section may hold; nothing when the path is no section."""
    prefix = generic(path)
    depth = len(prefix)
    return tuple(dict.fromkeys(known[depth] for known in FIELDS if known[:depth] == prefix and len(known) > depth))


def split(dotted: str) -> Path:
    """A dotted key path as a tuple; a model pattern may hold dots itself."""
    first, *rest = dotted.split(".")
    if first in OPEN and len(rest) > 1:
        return (first, ".".join(rest[:-1]), rest[-1])
    return (first, *rest)


def dotted(path: Path) -> str:
    """A key path to print: never longer than reads well, no control characters, nothing that may be a secret."""
    return ".".join(shown(name) for name in path)


def shown(name: str) -> str:
    """A name somebody wrote, to print: a key pasted into the wrong place is not repeated."""
    return "<a key that looks like a secret>" if looks_secret(name) else printable(name)


_CREDENTIAL = re.compile(
    r"(?<![a-z0-9])(?:(?:sk|pk|rk)[-_]\S{8}|(?:gh[pousr]|github_pat|glpat|xox[a-z]|xapp|hf|gsk|xai|nvapi|pplx|npm|pypi)"
    r"[-_]\S{12}|(?:akia|asia|aiza|eyj|ya29\.)\S{12}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})",
    re.IGNORECASE | re.ASCII,
)
_RUN = re.compile(r"[A-Za-z0-9+=]{20,}")


def looks_secret(text: str) -> bool:
    """Whether a text has the form of a credential: a known beginning, or a long run of letters and digits.

    Names of models and settings have a dash, a dot or an underscore every few letters.
    """
    if _CREDENTIAL.search(text):
        return True
    return any(sum(map(str.isdigit, run)) >= 2 and not run.isdigit() for run in _RUN.findall(text))


def printable(text: str, limit: int = 60) -> str:
    safe = text if text.isprintable() else repr(text)[1:-1]
    return safe if len(safe) <= limit else f"{safe[:limit]}..."


def nearest(path: Path) -> Path | None:
    """The known key that an unknown one was probably meant to be."""
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


def is_secret(path: Path) -> bool:
    """Whether a value under this key may be a secret that no message may repeat."""
    return any(word in name.lower() for name in path for word in SECRET_WORDS)
