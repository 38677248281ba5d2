"""YAML text to nodes that know where they stand, and nothing that YAML can do beyond that.

Rule 1: no tag is ever constructed here; nodes are data.
Rule 2: whatever is wrong with the text is a ConfigError with a line and a column, without repeating the text:
        the piece YAML stumbles over may be a secret.
Rule 3: size, depth and the work that merge keys can cause are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from midfold.errors import ConfigError

LARGEST_FILE = 256 * 1024
DEEPEST = 32
MOST_MERGED = 2_000
MERGE = "tag:yaml.org,2002:merge"
NULL = "tag:yaml.org,2002:null"

_QUOTED = re.compile(r"'[^'<]{2,}'|\"[^\"<]{2,}\"")
_BREAKS = re.compile("\r\n|[\r\n\x85\u2028\u2029]")


class Bounded(yaml.SafeLoader):
    """Composes only; refuses deep nesting; an alias gets the position of the alias, not of what it repeats."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self.depth += 1
        if self.depth > DEEPEST:
            raise yaml.composer.ComposerError(None, None, f"nested more than {DEEPEST} deep", event.start_mark)
        node: Node | None = super().compose_node(parent, index)
        self.depth -= 1
        if isinstance(event, yaml.AliasEvent) and node is not None:
            return _alias(node, event)
        return node


def _alias(node: Node, event: yaml.AliasEvent) -> Node:
    start: Any = event.start_mark
    end: Any = event.end_mark
    if isinstance(node, ScalarNode):
        return ScalarNode(node.tag, node.value, start, end, style=node.style)
    kind = MappingNode if isinstance(node, MappingNode) else SequenceNode
    copy: Node = kind(node.tag, node.value, start, end, flow_style=None)
    return copy


def is_alias(node: Node) -> bool:
    """Whether a collection stands in the text as `*name`."""
    return isinstance(node, MappingNode | SequenceNode) and node.flow_style is None


def decode(data: bytes, name: str) -> str:
    """The text of a configuration file, exactly; a byte order mark stays."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        hint = " (it looks like UTF-16)" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        raise ConfigError(f"{name}:{line}:{column}: not UTF-8{hint}; save the file as UTF-8") from None


def too_large(name: str) -> ConfigError:
    return ConfigError(f"{name}: larger than {LARGEST_FILE // 1024} KiB; this is no configuration file")


def compose(text: str, name: str) -> Node | None:
    """The one document of a text; None when it is empty."""
    if len(text) > LARGEST_FILE:
        raise too_large(name)
    try:
        loader = Bounded(text)
        node: Node | None = loader.get_single_node()
        return node
    except yaml.reader.ReaderError as error:
        line, column = position(text, error.position)
        what = f"character U+{ord(text[error.position]):04X} is not allowed in YAML"
        raise ConfigError(f"{name}:{line}:{column}: {what}") from None
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{name}:{_where(error)}: {_explain(error, text)}") from None
    except (ValueError, OverflowError):
        # PyYAML turns "%YAML 1.99..." and \U escapes into numbers and characters without checking their range.
        raise ConfigError(f"{name}: not YAML: a version or an escape holds a number out of range") from None


def position(text: str, index: int) -> tuple[int, int]:
    """Line and column of an index, both from 1."""
    line, start = 1, 0
    for match in _BREAKS.finditer(text, 0, index):
        line, start = line + 1, match.end()
    return line, index - start + 1


def at(node: Node) -> str:
    return f"{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _where(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return f"{mark.line + 1}:{mark.column + 1}" if mark else "1:1"


def _explain(error: yaml.MarkedYAMLError, text: str) -> str:
    problem = _QUOTED.sub("...", error.problem or "cannot be read")
    mark = error.problem_mark
    if mark is not None and mark.index < len(text) and text[mark.index] == "\t":
        return "a tab where YAML wants spaces: indent with spaces"
    if "undefined alias" in problem:
        return "a value that starts with * is a YAML alias, and no anchor has that name: put it in quotes"
    if "another document" in problem:
        return "a second document starts here: keep one, without ---"
    return f"not YAML: {problem}"


def pairs(node: MappingNode, name: str) -> list[tuple[Node, Node]]:
    """The keys and values of a mapping, merged ones (`<<: *base`) included; the mapping's own keys win."""
    own = [pair for pair in node.value if pair[0].tag != MERGE]
    if len(own) == len(node.value):
        return own
    taken = {key.value for key, _ in own if isinstance(key, ScalarNode)}
    merged = []
    for key, value in _merged(node, name, [0], 0):
        if isinstance(key, ScalarNode) and key.value not in taken:
            taken.add(key.value)
            merged.append((key, value))
    return own + merged


def _merged(node: MappingNode, name: str, count: list[int], depth: int) -> Iterator[tuple[Node, Node]]:
    for key, value in node.value:
        if key.tag != MERGE:
            continue
        for source in value.value if isinstance(value, SequenceNode) else [value]:
            count[0] += 1
            if not isinstance(source, MappingNode):
                raise ConfigError(f"{name}:{at(value)}: << merges a mapping or a list of mappings, nothing else")
            if depth >= DEEPEST or count[0] > MOST_MERGED:
                raise ConfigError(f"{name}:{at(value)}: << merges too much, or itself")
            yield from (pair for pair in source.value if pair[0].tag != MERGE)
            yield from _merged(source, name, count, depth + 1)


def comments(text: str) -> list[tuple[int, int]]:
    """Where each comment of a readable text starts and ends: the text between tokens holds nothing else."""
    found = []
    end = 0
    for token in yaml.scan(text, Loader=Bounded):
        for match in re.finditer("#[^\r\n\x85\u2028\u2029]*", text[end : token.start_mark.index]):
            found.append((end + match.start(), end + match.end()))
        end = max(end, token.end_mark.index)
    return found


def content_end(node: Node, text: str) -> int:
    """The index after the last character that belongs to a node, comments and line breaks behind it left out."""
    if isinstance(node, MappingNode) and node.flow_style is False and node.value:
        key, value = node.value[-1]
        return max(content_end(key, text), content_end(value, text))
    if isinstance(node, SequenceNode) and node.flow_style is False and node.value:
        return content_end(node.value[-1], text)
    end: int = node.end_mark.index
    if isinstance(node, ScalarNode) and node.style in ("|", ">"):
        return len(text[:end].rstrip())
    return end
