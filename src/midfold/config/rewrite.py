"""Rewrite a configuration file: migrate old keys, set one value, replace the file atomically.

The result is parsed again and compared; unless it has the same meaning, nothing is changed.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace
from yaml.nodes import MappingNode, Node, ScalarNode

from midfold.atomic import replace_file
from midfold.config import yaml_text
from midfold.config.fields import GONE, OLD, KeyPath, Value, ValueRefused, dotted_path, from_node, printable, render
from midfold.config.load import Loaded, Problems, from_flags, parse
from midfold.config.schema import Config
from midfold.config.yaml_text import Insert
from midfold.errors import ConfigError


def migrate(text: str, name: str = "config.yaml") -> tuple[str, list[str]]:
    """Move old keys to their new places and return the text and a line for each; keep every other byte.

    Raises ConfigError, changing nothing, when the text has problems or rewriting would change its meaning.
    """
    before = parse(text, name)
    new_text = text
    notices = []
    try:
        for old, new in OLD.items():
            if _node(new_text, old) is None:
                continue
            if _node(new_text, new) is None:
                notices.append(f"{dotted_path(old)} is now {dotted_path(new)}")
                new_text = _move(new_text, old, new)
            else:
                notices.append(f"{dotted_path(old)} removed: {dotted_path(new)} is also set and takes precedence")
                new_text = yaml_text.cut(new_text, old, comments_too=False)
        for old in GONE:
            if _node(new_text, old) is not None:
                notices.append(
                    f"{dotted_path(old)} removed: the setting no longer exists, its value is always {GONE[old]}"
                )
                new_text = yaml_text.cut(new_text, old, comments_too=False)
        _prove(before, text, new_text)
    except (yaml_text.NotEditable, ConfigError) as error:
        why = str(error) if isinstance(error, yaml_text.NotEditable) else "an anchor or alias would break"
        seen = "\n".join(before.notices)
        steps = [
            f"move {dotted_path(old)} to {dotted_path(new)}" for old, new in OLD.items() if dotted_path(old) in seen
        ]
        steps += [f"remove {dotted_path(old)}" for old in GONE if dotted_path(old) in seen]
        raise ConfigError(
            f"{name}: not rewritten: {why}. Nothing was changed; edit it by hand: {', '.join(steps)}"
        ) from None
    return new_text, notices


def _move(text: str, old: KeyPath, new: KeyPath) -> str:
    taken = yaml_text.take(text, old)
    node = _node(text, old)
    own_line = yaml_text.takes_comments(text, new)
    bare_text = isinstance(node, ScalarNode) and node.style is None and node.tag == "tag:yaml.org,2002:str"
    if len(taken.value.splitlines()) > 1 or (bare_text and not own_line and not taken.value.startswith(("&", "*"))):
        taken = replace(taken, value=render(_value(node)))
    if not own_line:
        taken = replace(taken, beside="", above=())
    # Between `put` and `cut` the value is in the text twice, which an anchor must not be, so use a placeholder.
    word = "moving"
    while word in text:
        word += "-moving"
    placed = yaml_text.put(text, new, replace(taken, value=word), after=old[0])
    return yaml_text.cut(placed, old, comments_too=own_line).replace(word, taken.value)


def _prove(before: Loaded, text: str, new_text: str) -> None:
    after = parse(new_text)
    if after.config != before.config or after.notices:
        raise yaml_text.NotEditable("the result would have another meaning (an anchor, alias or merge key is involved)")
    if _comment_texts(text) != _comment_texts(new_text):
        raise yaml_text.NotEditable("a comment would be lost")


def _comment_texts(text: str) -> list[str]:
    return sorted(text[start:end] for start, end in yaml_text.comments(text))


def _node(text: str, path: KeyPath) -> Node | None:
    node = yaml_text.compose(text, "config.yaml")
    for name in path:
        pair = yaml_text.find(node, name) if isinstance(node, MappingNode) else None
        if pair is None:
            return None
        node = pair[1]
    return node


def _value(node: Node | None) -> Value:
    value: Value = from_node(node).value if node is not None else None
    return value


def set_value(text: str, key: str, value: Value, name: str = "config.yaml") -> str:
    """Set one key (`set_value(text, "context.engine", "lcm")`), keeping comments and everything else.

    Raises ConfigError when the key is unknown, the value is not allowed, or the text cannot be changed safely.
    """
    problems = Problems()
    layer = from_flags({key: value}, problems)
    if problems.lines or not layer.settings:
        raise ConfigError(str(problems) if problems.lines else "\n".join(layer.notices))
    path, wanted = layer.settings[0].path, layer.settings[0].value
    try:
        node = _node(text, path)
        quote = node.style if isinstance(node, ScalarNode) else None
        new_text = text
        if node is None or not _same(node, wanted):
            new_text = yaml_text.put(text, path, Insert(value=render(wanted, quote)))
    except yaml_text.NotEditable as error:
        raise ConfigError(f"{name}: {error}; nothing was changed") from None
    _prove_set(text, new_text, path, wanted, name)
    return new_text


def _same(node: Node, wanted: Value) -> bool:
    try:
        found = _value(node)
    except ValueRefused:
        return False
    return type(found) is type(wanted) and found == wanted


def _prove_set(text: str, new_text: str, path: KeyPath, wanted: Value, name: str) -> None:
    after = parse(new_text, name)
    try:
        before = parse(text, name)
    except ConfigError:
        before = None
    expected: dict[str, Any] = (before or after).config.values()
    level = expected
    for part in path[:-1]:
        level = level.setdefault(part, {})
    level[path[-1]] = wanted
    if msgspec.convert(expected, Config) != after.config:
        raise ConfigError(
            f"{name}: {dotted_path(path)} shares its value with other keys; nothing was changed: edit it by hand"
        )


def write_text(path: Path, text: str, *, backup: bool = True) -> Path | None:
    """Replace the file atomically, keeping its mode and links to it, and return the path of the backup.

    The backup is config.yaml.bak, config.yaml.bak.2 and so on: no earlier backup is overwritten.
    """
    try:
        target = path.resolve(strict=True)
        saved = _back_up(target) if backup else None
        with replace_file(target, sync=True) as file:
            file.write(text.encode("utf-8"))
    except OSError as error:
        reason = error.strerror or "unknown reason"
        raise ConfigError(f"{printable(str(path), 300)}: cannot write the configuration: {reason}") from None
    return saved


def _back_up(target: Path) -> Path:
    number = 1
    while True:
        saved = target.with_name(f"{target.name}.bak" + (f".{number}" if number > 1 else ""))
        try:
            handle = os.open(saved, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            number += 1
            continue
        with os.fdopen(handle, "wb") as file:
            file.write(target.read_bytes())
        shutil.copystat(target, saved)
        return saved
