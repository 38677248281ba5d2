"""Parse YAML text into nodes with positions, and edit one key while leaving the rest of the text unchanged.

1. No tag is ever constructed; nodes are data.
2. Errors are ConfigErrors with line and column that do not quote the text, which may contain a secret.
3. Size, depth and the work that merge keys can cause are bounded.
4. An edit touches only the spans that composing marks; each function composes its input again, so positions are never
   stale. Whether the result has the intended meaning is checked by rewrite.py, which parses it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml
from msgspec import Struct
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from midfold.config.fields import KeyPath, dotted_path, render
from midfold.errors import ConfigError

LARGEST_FILE = 256 * 1024
DEEPEST = 32
MOST_MERGED = 2_000
MERGE = "tag:yaml.org,2002:merge"
NULL = "tag:yaml.org,2002:null"

_QUOTED = re.compile(r"'[^'<]{2,}'|\"[^\"<]{2,}\"")
_BREAKS = re.compile("\r\n|[\r\n\x85\u2028\u2029]")


class BoundedLoader(yaml.SafeLoader):
    """YAML composer with a depth limit that gives an alias its own position instead of its anchor's."""

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
    """Return whether a collection is written as `*name`."""
    return isinstance(node, MappingNode | SequenceNode) and node.flow_style is None


def decode(data: bytes, name: str) -> str:
    """Decode a configuration file exactly; keep a byte order mark."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
        hint = " (it looks like UTF-16)" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        raise ConfigError(f"{name}:{line}:{column}: not UTF-8{hint}; save the file as UTF-8") from None


def too_large(name: str) -> ConfigError:
    return ConfigError(f"{name}: larger than {LARGEST_FILE // 1024} KiB, too large for a configuration file")


def compose(text: str, name: str) -> Node | None:
    """Compose the single document of a text, or return None if it is empty."""
    if len(text) > LARGEST_FILE:
        raise too_large(name)
    try:
        loader = BoundedLoader(text)
        node: Node | None = loader.get_single_node()
        return node
    except yaml.reader.ReaderError as error:
        line, column = position(text, error.position)
        what = f"character U+{ord(text[error.position]):04X} is not allowed in YAML"
        raise ConfigError(f"{name}:{line}:{column}: {what}") from None
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{name}:{_where(error)}: {_explain(error, text)}") from None
    except (ValueError, OverflowError):
        # PyYAML converts "%YAML 1.99..." and \U escapes to numbers and characters without checking their range.
        raise ConfigError(f"{name}: not YAML: a version or an escape has a number out of range") from None


def position(text: str, index: int) -> tuple[int, int]:
    """Return the line and column of an index, both starting at 1."""
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
        return "a tab in the indentation: indent with spaces"
    if "undefined alias" in problem:
        return "a value that starts with * is a YAML alias, and no anchor has that name: put it in quotes"
    if "another document" in problem:
        return "a second document starts here: keep one, without ---"
    return f"not YAML: {problem}"


def pairs(node: MappingNode, name: str) -> list[tuple[Node, Node]]:
    """Return the items of a mapping including merged ones (`<<: *base`); the mapping's own keys take precedence."""
    own = [pair for pair in node.value if pair[0].tag != MERGE]
    if len(own) == len(node.value):
        return own
    taken = {key.value for key, _ in own if isinstance(key, ScalarNode)}
    merged = []
    for key, value in _merged_pairs(node, name, [0], 0):
        if isinstance(key, ScalarNode) and key.value not in taken:
            taken.add(key.value)
            merged.append((key, value))
    return own + merged


def _merged_pairs(node: MappingNode, name: str, count: list[int], depth: int) -> Iterator[tuple[Node, Node]]:
    for key, value in node.value:
        if key.tag != MERGE:
            continue
        for source in value.value if isinstance(value, SequenceNode) else [value]:
            count[0] += 1
            if not isinstance(source, MappingNode):
                raise ConfigError(f"{name}:{at(value)}: << requires a mapping or a list of mappings")
            if depth >= DEEPEST or count[0] > MOST_MERGED:
                raise ConfigError(f"{name}:{at(value)}: << merges too much, or itself")
            yield from (pair for pair in source.value if pair[0].tag != MERGE)
            yield from _merged_pairs(source, name, count, depth + 1)


def comments(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each comment; between tokens a valid text has nothing else."""
    found = []
    end = 0
    for token in yaml.scan(text, Loader=BoundedLoader):
        for match in re.finditer("#[^\r\n\x85\u2028\u2029]*", text[end : token.start_mark.index]):
            found.append((end + match.start(), end + match.end()))
        end = max(end, token.end_mark.index)
    return found


def content_end(node: Node, text: str) -> int:
    """Return the index after a node's last character, excluding comments and line breaks after it."""
    if isinstance(node, MappingNode) and node.flow_style is False and node.value:
        key, value = node.value[-1]
        return max(content_end(key, text), content_end(value, text))
    if isinstance(node, SequenceNode) and node.flow_style is False and node.value:
        return content_end(node.value[-1], text)
    end: int = node.end_mark.index
    if isinstance(node, ScalarNode) and node.style in ("|", ">"):
        return len(text[:end].rstrip())
    return end


_BREAK = re.compile("\r\n|[\r\n]")
_STEP = 2
Pair = tuple[ScalarNode, Node]


class NotEditable(Exception):
    """A text whose form this module cannot edit."""


class Insert(Struct, frozen=True, kw_only=True):
    """A value to write with its comments: `beside` includes the leading spaces, `above` does not."""

    value: str
    beside: str = ""
    above: tuple[str, ...] = ()
    quote: str = ""


def put(text: str, path: KeyPath, new: Insert, *, after: str | None = None) -> str:
    """Set the value at `path`: replace the old one, or add a key at the end of its section.

    A new top-level section goes after the section `after`, or to the end.
    """
    body, added = _with_final_break(text)
    root = compose(body, "config.yaml")
    if root is None or (is_null(root) and not _span(root, body)):
        result = body + _block(path, new, 0, body)
    else:
        result = _put(body, root, path, new, after)
    return result.removesuffix(added) if added else result


def _put(body: str, root: Node, path: KeyPath, new: Insert, after: str | None) -> str:
    node = root
    for depth, name in enumerate(path):
        if not isinstance(node, MappingNode) or is_alias(node):
            raise _by_hand(path, node)
        pair = find(node, name)
        if pair is None:
            return _add(body, node, path[depth:], new, after if depth == 0 else None)
        key, node = pair
        if depth == len(path) - 1:
            return _replace(body, node, new.value)
        if is_null(node):
            return _fill(body, key, node, path[depth + 1 :], new)
    raise _by_hand(path, node)


def _replace(body: str, node: Node, value: str) -> str:
    start, end = node.start_mark.index, content_end(node, body)
    if start == end:
        colon = "" if body[:start].endswith(":") else ":"
        return f"{body[:start]}{colon} {value}{body[end:]}"
    return body[:start] + value + body[end:]


def _fill(body: str, key: Node, node: Node, rest: KeyPath, new: Insert) -> str:
    """Add the first key to an empty section (`context:` or `context: null`)."""
    start, end = node.start_mark.index, content_end(node, body)
    line = _line_start(body, key.start_mark.index)
    if body[line : key.start_mark.index].strip(" \ufeff"):
        return _replace(body, node, "{" + _flow(rest, new) + "}")
    cut = len(body[:start].rstrip(" ")) if start != end else start
    body = body[:cut] + body[end:]
    at = _line_end(body, cut)
    return body[:at] + _block(rest, new, key.start_mark.column + _STEP, body) + body[at:]


def _add(body: str, node: MappingNode, rest: KeyPath, new: Insert, after: str | None) -> str:
    anchor = (find(node, after) if after else None) or (node.value[-1] if node.value else None)
    if node.flow_style:
        if anchor is None:
            at = node.end_mark.index - 1
            return body[:at] + _flow(rest, new) + body[at:]
        at = max(content_end(part, body) for part in node.value[-1])
        return f"{body[:at]}, {_flow(rest, new)}{body[at:]}"
    if anchor is None:
        raise _by_hand(rest, node)
    column = node.value[0][0].start_mark.column
    at = _past_comments(body, _line_end(body, max(content_end(part, body) for part in anchor)), column)
    return body[:at] + _block(rest, new, column, body) + body[at:]


def _past_comments(body: str, index: int, column: int) -> int:
    """Skip comment lines indented deeper than `column`: they belong to the preceding key."""
    while comment := re.compile(f" {{{column + 1},}}#").match(body, index):
        index = _line_end(body, comment.end())
    return index


def _block(rest: KeyPath, new: Insert, indent: int, body: str) -> str:
    newline = _newline(body)
    lines = [" " * (indent + _STEP * depth) + _key(name, new) + ":" for depth, name in enumerate(rest)]
    spaces = " " * (indent + _STEP * (len(rest) - 1))
    lines[-1] += f" {new.value}" + new.beside
    lines[-1:-1] = [spaces + comment for comment in new.above]
    return "".join(line + newline for line in lines)


def _flow(rest: KeyPath, new: Insert) -> str:
    name, deeper = rest[0], rest[1:]
    return f"{_key(name, new)}: " + ("{" + _flow(deeper, new) + "}" if deeper else new.value)


def _key(name: str, new: Insert) -> str:
    return render(name, new.quote)


def takes_comments(text: str, path: KeyPath) -> bool:
    """Return whether a new key at `path` would be on a line of its own."""
    node = compose(text, "config.yaml")
    for name in path:
        if not isinstance(node, MappingNode):
            return node is None or is_null(node)
        if node.flow_style:
            return False
        pair = find(node, name)
        if pair is None:
            return True
        node = pair[1]
    return False


def take(text: str, path: KeyPath) -> Insert:
    """Return the value at `path` as written, with the comments on its line and directly above it."""
    body, _ = _with_final_break(text)
    mapping, (key, value) = _resolve(body, path)[-1]
    beside = ""
    above: tuple[str, ...] = ()
    if not mapping.flow_style:
        content = content_end(value, body)
        beside_span = _beside(body, content)
        beside = body[content : beside_span[1]] if beside_span else ""
        above = tuple(body[start:end].strip() for start, end in _above(body, key))
    return Insert(value=_span(value, body) or "null", beside=beside, above=above, quote=key.style or "")


def cut(text: str, path: KeyPath, *, comments_too: bool) -> str:
    """Remove the key at `path`, and its section if that becomes empty; keep other comments."""
    body, added = _with_final_break(text)
    chain = _resolve(body, path)
    spans: list[tuple[int, int]] = []
    mapping, pair = chain.pop()
    while mapping.flow_style and len(mapping.value) == 1 and chain and not _comments_in(body, mapping):
        mapping, pair = chain.pop()
        comments_too = False
    if mapping.flow_style:
        spans.append(_flow_span(body, pair))
    else:
        spans += _line_spans(body, pair, pair[1], comments_too=comments_too)
        while len(mapping.value) == 1 and chain:
            mapping, pair = chain.pop()
            if mapping.flow_style:
                raise _by_hand(path, mapping)
            spans += _line_spans(body, pair, None, comments_too=False)
    for start, end in sorted(spans, reverse=True):
        body = body[:start] + body[end:]
    return body.removesuffix(added) if added else body


def _line_spans(body: str, pair: Pair, value: Node | None, *, comments_too: bool) -> list[tuple[int, int]]:
    """Return the spans of a key and its value; without a value, only of the line that opens the section."""
    key = pair[0]
    start, index = _line_start(body, key.start_mark.index), key.start_mark.index
    if body[start:index].strip(" \ufeff"):
        raise _by_hand((key.value,), key)
    start += len(body[start:index]) - len(body[start:index].lstrip("\ufeff"))
    content = content_end(value, body) if value is not None else key.end_mark.index
    end = _line_end(body, content)
    beside = _beside(body, content)
    if beside and not comments_too:
        return [(index, beside[0])]
    return [(start, end), *(_above(body, key) if comments_too else [])]


def _flow_span(body: str, pair: Pair) -> tuple[int, int]:
    start = pair[0].start_mark.index
    end = max(content_end(part, body) for part in pair)
    if comma := re.match(r"[ \t\r\n]*,[ \t]*", body[end:]):
        end += comma.end()
        line = _line_start(body, start)
        if not body[line:start].strip() and (blank := _BREAK.match(body, end)):
            return line, blank.end()
        return start, end
    before = body[:start].rstrip()
    return (len(before) - 1, end) if before.endswith(",") else (start, end)


def _comments_in(body: str, node: Node) -> bool:
    return any(node.start_mark.index <= start < node.end_mark.index for start, _ in comments(body))


def _beside(body: str, index: int) -> tuple[int, int] | None:
    end = _line_end(body, index)
    return next((span for span in comments(body) if index <= span[0] < end), None)


def _above(body: str, key: Node) -> list[tuple[int, int]]:
    """Return the comment lines directly above a key with the same indentation, assumed to describe it."""
    starts = {start for start, _ in comments(body)}
    column = key.start_mark.column
    lines: list[tuple[int, int]] = []
    line = _line_start(body, key.start_mark.index)
    while line > 0:
        before = _line_start(body, line - len(_last_break(body, line)))
        if before + column not in starts or body[before : before + column].strip(" "):
            break
        lines.insert(0, (before, line))
        line = before
    return lines


def _last_break(body: str, index: int) -> str:
    return "\r\n" if body[:index].endswith("\r\n") else body[index - 1]


def _resolve(body: str, path: KeyPath) -> list[tuple[MappingNode, Pair]]:
    node: Any = compose(body, "config.yaml")
    chain = []
    for name in path:
        pair = find(node, name) if isinstance(node, MappingNode) and not is_alias(node) else None
        if pair is None:
            raise _by_hand(path, node)
        chain.append((node, pair))
        node = pair[1]
    return chain


def find(node: MappingNode, name: str) -> Pair | None:
    """Return the pair of a key that the mapping itself holds, ignoring merged keys."""
    return next(((key, value) for key, value in node.value if isinstance(key, ScalarNode) and key.value == name), None)


def is_null(node: Node) -> bool:
    """Return whether a node is null."""
    return isinstance(node, ScalarNode) and node.tag == NULL


def _span(node: Node, body: str) -> str:
    return body[node.start_mark.index : content_end(node, body)]


def _newline(body: str) -> str:
    match = _BREAK.search(body)
    return match.group() if match else "\n"


def _with_final_break(text: str) -> tuple[str, str]:
    if not text.strip("\ufeff") or text.endswith(("\n", "\r")):
        return text, ""
    return text + _newline(text), _newline(text)


def _line_start(body: str, index: int) -> int:
    return max(body.rfind("\n", 0, index), body.rfind("\r", 0, index)) + 1


def _line_end(body: str, index: int) -> int:
    match = _BREAK.search(body, index)
    return match.end() if match else len(body)


def _by_hand(path: KeyPath, node: Node | None) -> NotEditable:
    where = f" on line {node.start_mark.line + 1}" if node is not None else ""
    return NotEditable(f"{dotted_path(path)}{where} is written in a way that cannot be edited automatically")
