"""From a YAML scalar, an environment string or a flag to a checked value, or the words for what is wrong with it."""

from __future__ import annotations

import json
import math
import re
from typing import Any
from urllib.parse import urlsplit

import yaml
from msgspec import Struct
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from midfold.config.kinds import LARGEST
from midfold.config.table import Field, is_secret, looks_secret, printable

Value = bool | int | float | str | None

_TAG = "tag:yaml.org,2002:"
_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")
_SIXTIES = re.compile(r"[-+]?[0-9][0-9_]*(:[0-9_.]+)+")
_OCTAL = re.compile(r"[-+]?0[0-9_]+")
_LOOKS_SECRET = re.compile(r"(?i:sk|pk|rk|ghp|gho|xox.|akia|eyj)[-_]?\S{16,}")
_MALFORMED = (ValueError, KeyError, IndexError, OverflowError, yaml.constructor.ConstructorError)


class Refused(Exception):
    """A value cannot be used; the message says what was found and why."""


class Scalar(Struct, frozen=True):
    """A value, and the text it was written as when that was plain YAML."""

    value: Any
    text: str | None = None


def from_node(node: Node) -> Scalar:
    """The value of a scalar node; Refused for collections, foreign tags and numbers YAML reads in a surprising way."""
    if isinstance(node, MappingNode):
        raise Refused("a mapping")
    if not isinstance(node, ScalarNode):
        raise Refused("a list")
    kind = node.tag.removeprefix(_TAG)
    if kind == "timestamp":
        raise Refused("a date (quotes make it text)")
    if kind not in ("null", "bool", "int", "float", "str"):
        raise Refused("a YAML tag midfold does not use")
    text: str = node.value
    plain = node.style is None
    if plain and kind in ("int", "float") and _SIXTIES.fullmatch(text):
        raise Refused("a number in base 60, which is how YAML reads colons between digits")
    if plain and kind == "int" and _OCTAL.fullmatch(text):
        raise Refused("a number that starts with 0, which YAML reads as octal")
    if plain and kind == "str" and _EXPONENT.fullmatch(text):
        return Scalar(float(text), text)
    if kind == "str":
        return Scalar(text, text if plain else None)
    try:
        value = yaml.constructor.SafeConstructor().construct_object(node)
    except _MALFORMED:
        raise Refused(f"something that is no {kind}") from None
    return Scalar(value, text if plain else None)


def read(node: Node, field: Field | None) -> Scalar:
    """The value of a node, as its field takes it: some also take a mapping, or a list."""
    if field is not None and field.json and isinstance(node, MappingNode):
        return _as_json(node)
    if field is not None and field.words and isinstance(node, SequenceNode):
        return _as_words(node)
    return from_node(node)


def _as_words(node: SequenceNode) -> Scalar:
    """A list of words as one text, with commas between them."""
    words = [from_node(item).value for item in node.value]
    if not all(isinstance(word, str) and "," not in word for word in words):
        raise Refused("a list with something in it that is no word")
    return Scalar(", ".join(words) or None)


def _as_json(node: MappingNode) -> Scalar:
    """A mapping as the text of a JSON object."""
    try:
        value = yaml.constructor.SafeConstructor().construct_document(node)
        return Scalar(json.dumps(value, allow_nan=False))
    except (*_MALFORMED, TypeError, yaml.YAMLError, RecursionError):
        raise Refused("a mapping that JSON cannot hold") from None


def from_text(text: str) -> Scalar:
    """The value of an environment variable: a quoted YAML scalar, or a plain one whatever it starts with."""
    stripped = text.strip()
    loader = yaml.SafeLoader("")
    if stripped[:1] in ("'", '"'):
        try:
            node = yaml.compose(stripped, Loader=yaml.SafeLoader)
        except (yaml.YAMLError, ValueError, OverflowError):
            raise Refused("a quote that is not closed") from None
        if not isinstance(node, ScalarNode):
            raise Refused("more than one quoted text")
        return from_node(node)
    tag = loader.resolve(ScalarNode, stripped, (True, False))  # type: ignore[no-untyped-call]
    return from_node(ScalarNode(tag, stripped))


def show(value: object, field: Field) -> str:
    """What was found, in words; only its type where it may be a secret."""
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
    """The value as the key wants it; Refused when it is of another type or out of range."""
    value = scalar.value
    if value is None and field.nullable:
        return None
    if field.kind == "choice" and isinstance(value, bool) and scalar.text is not None:
        # YAML 1.1 reads a bare `off` as false; where `off` is one of the choices, the word that was written counts.
        value = scalar.text.lower()
        if value not in field.choices:
            raise Refused(show(scalar.value, field))
    if _fits(field, value):
        return float(value) if field.kind == "number" else value
    hint = ""
    if field.kind in ("text", "choice") and value is not None and not isinstance(value, str):
        hint = " (quotes make it text)"
    elif field.kind in ("boolean", "integer", "number") and isinstance(value, str):
        hint = " (text, not a value: are there quotes too many?)" if _looks_typed(value) else ""
    raise Refused(show(value, field) + hint)


def _looks_typed(value: str) -> bool:
    try:
        return not isinstance(from_text(value).value, str)
    except Refused:
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
