"""One layer of settings (a file, the environment, flags): what it sets, where, and everything that is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from midfold.config import tree, values
from midfold.config.table import (
    FIELDS,
    NAME_PATTERNS,
    OLD,
    OPEN,
    Path,
    children,
    dotted,
    field_at,
    nearest,
    shown,
    split,
)

PREFIX = "MIDFOLD_"
MOST_PROBLEMS = 50


class Place(Struct, frozen=True):
    """Where a value was given: as an error starts, and as `config show` says it."""

    at: str
    origin: str


class FlagText(Struct, frozen=True):
    """A value as typed on a command line, read as a YAML scalar; `flag` is the option, for errors."""

    text: str
    flag: str


class Setting(Struct, frozen=True):
    """One checked value."""

    path: Path
    value: values.Value
    place: Place
    old: Path | None = None


class Problems(Struct):
    """What is wrong, one line each, up to a number people can read."""

    lines: list[str] = field(default_factory=list)
    more: int = 0

    def add(self, place: Place, path: Path, text: str) -> None:
        if len(self.lines) < MOST_PROBLEMS:
            self.lines.append(": ".join(part for part in (place.at, dotted(path), text) if part))
        else:
            self.more += 1

    @property
    def full(self) -> bool:
        return len(self.lines) >= MOST_PROBLEMS

    def __str__(self) -> str:
        if len(self.lines) == 1:
            return self.lines[0]
        rest = [f"and {self.more} more"] if self.more else []
        return "\n  ".join([f"{len(self.lines) + self.more} problems in the configuration:", *self.lines, *rest])


class Layer(Struct):
    """What one source sets. `named` are the sections under providers and models it mentions, even empty ones."""

    problems: Problems
    settings: list[Setting] = field(default_factory=list)
    named: list[Path] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def put(self, path: Path, scalar: values.Scalar, place: Place) -> None:
        """Checks one value and keeps it, or keeps the problem."""
        target = OLD.get(path, path)
        known = field_at(target)
        if known is None:
            self.unknown(path, place)
            return
        try:
            value = values.check(known, scalar)
        except values.Refused as found:
            self.refused(path, str(found), place)
            return
        self.settings.append(Setting(target, value, place, path if path in OLD else None))

    def refused(self, path: Path, found: str, place: Place) -> None:
        known = field_at(OLD.get(path, path))
        if known is None:
            self.unknown(path, place)
            return
        self.problems.add(place, path, f"found {found}; allowed: {known.allowed} ({known.description})")

    def unknown(self, path: Path, place: Place, *, variable: bool = False) -> None:
        if self.problems.full:
            self.problems.add(place, path, "unknown")
            return
        if children(path):
            self.problems.add(place, path, f"is a section; set one of its keys: {_keys(path)}")
            return
        close = nearest(tuple(name[:100] for name in path))
        right = shown(environment_name(close)) if close and variable else dotted(close or ())
        hint = f"; did you mean {right}?" if close else ""
        parent = path[:-1]
        while parent and not children(parent):
            parent = parent[:-1]
        where = f"in {dotted(parent)}" if parent else "at the top level"
        self.problems.add(place, path, f"unknown key{hint} (allowed {where}: {_keys(parent)})")

    def name_is_fine(self, path: Path, place: Place) -> bool:
        """Whether the user's own name of a section can be one."""
        section, name = path[0], path[1]
        if re.fullmatch(NAME_PATTERNS[section], name):
            return True
        rule = "a name without slashes, colons, spaces or only dots, and neither auto nor main"
        if OPEN[section] == "pattern":
            rule = "a pattern of model names on one line, not empty"
        self.problems.add(place, path, f"found the {OPEN[section]} '{shown(name)}'; allowed: {rule}")
        return False

    def settle(self) -> None:
        """Lets a new key win over the older one it replaced, and says what became of each older key."""
        new = {setting.path: setting for setting in self.settings if setting.old is None}
        kept = []
        for setting in self.settings:
            if setting.old is None:
                kept.append(setting)
                continue
            was, now = dotted(setting.old), dotted(setting.path)
            if winner := new.get(setting.path):
                self.notices.append(f"{setting.place.at}: {was} is ignored: {now} is set too, at {winner.place.at}")
                continue
            origin = setting.place.origin.removeprefix("file ")
            hint = "" if origin == setting.place.origin else "; `midfold config migrate` rewrites the file"
            self.notices.append(f"{setting.place.at}: {was} is now {now}{hint}")
            kept.append(replace(setting, place=Place(setting.place.at, f"migrated from {was} in {origin}")))
        self.settings = kept


def from_file(text: str, name: str, problems: Problems) -> Layer:
    """The settings of a YAML text. Syntax errors are raised; every other problem is collected."""
    layer = Layer(problems)
    root = tree.compose(text, name)
    if root is not None and not _is_null(root):
        if isinstance(root, MappingNode):
            _section(layer, root, (), name)
        else:
            place = _place(root, name)
            problems.add(place, (), "found no sections; allowed: keys such as `compression:` with their settings below")
    layer.settle()
    return layer


def _is_null(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.tag == tree.NULL


def _place(node: Node, name: str) -> Place:
    return Place(f"{name}:{tree.at(node)}", f"file {name}:{node.start_mark.line + 1}")


def _section(layer: Layer, node: MappingNode, path: Path, name: str) -> None:
    seen: dict[str, Node] = {}
    for key, value in tree.pairs(node, name):
        place = _place(key, name)
        if not isinstance(key, ScalarNode):
            layer.problems.add(place, path, "found a list or mapping as a key; allowed: a word")
            continue
        here = (*path, key.value)
        if key.value in seen:
            first, second = seen[key.value].start_mark.line + 1, key.start_mark.line + 1
            layer.problems.add(place, here, f"given twice, on line {first} and on line {second}; keep one")
            continue
        seen[key.value] = key
        _entry(layer, key, value, here, name)


def _entry(layer: Layer, key: ScalarNode, value: Node, path: Path, name: str) -> None:
    place = _place(key, name)
    old_section = isinstance(value, MappingNode) and bool(value.value) and any(old[:-1] == path for old in OLD)
    if field_at(path) or path in OLD:
        try:
            scalar = values.read(value, field_at(path))
        except values.Refused as found:
            layer.refused(path, str(found), _place(value, name))
            return
        layer.put(path, scalar, place)
    elif not children(path) and not old_section:
        layer.unknown(path, place)
    elif not isinstance(value, MappingNode) and not _is_null(value):
        kind = "a list" if isinstance(value, SequenceNode) else "a single value"
        layer.problems.add(place, path, f"found {kind}; allowed: a section with the keys {_keys(path)}")
    else:
        if len(path) == 2 and path[0] in OPEN:
            if key.tag != "tag:yaml.org,2002:str":
                layer.problems.add(
                    place, path, f"found a {OPEN[path[0]]} that YAML does not read as text; allowed: text, in quotes"
                )
                return
            if not layer.name_is_fine(path, place):
                return
            layer.named.append(path)
        if isinstance(value, MappingNode):
            _section(layer, value, path, name)


def _keys(path: Path) -> str:
    return ", ".join(f"<{OPEN[path[0]]}>" if key == "*" else key for key in children(path))


def environment_name(path: Path) -> str:
    """The variable that sets a key: MIDFOLD_COMPRESSION__THRESHOLD."""
    return PREFIX + "__".join(re.sub(r"[^A-Z0-9]", "_", name.upper()) for name in path)


def is_setting(variable: str) -> bool:
    """Whether a variable sets a key, or would with two underscores where it has one."""
    return variable.startswith(PREFIX) and ("__" in variable or _meant(variable) is not None)


def _meant(variable: str) -> str | None:
    """The variable that sets a key, for one that differs from it only in how many underscores stand together."""
    words = re.sub("__+", "_", variable.upper())
    for path in (*FIELDS, *OLD):
        pattern = "_".join("(.+)" if name == "*" else name.upper() for name in path)
        if found := re.fullmatch(PREFIX + pattern, words):
            return environment_name(tuple(found[1] if name == "*" else name for name in path))
    return None


def from_environment(variables: Mapping[str, str], named: Iterable[Path], problems: Problems) -> Layer:
    """The settings of MIDFOLD_SECTION__KEY variables. `named` are the sections of users' own names in the file."""
    layer = Layer(problems)
    known = list(named)
    for variable in sorted(variables):
        place = Place(f"environment {shown(variable)}", f"environment {variable}")
        path = _variable_path(layer, variable, known, place)
        if path is None:
            continue
        try:
            scalar = values.from_text(variables[variable])
        except values.Refused as found:
            layer.refused(path, str(found), place)
            continue
        if path[0] in OPEN:
            layer.named.append(path[:2])
        layer.put(path, scalar, place)
    layer.settle()
    return layer


def _variable_path(layer: Layer, variable: str, known: list[Path], place: Place) -> Path | None:
    first, *rest = variable.removeprefix(PREFIX).lower().split("__")
    path = (first, *rest)
    if first in OPEN and len(rest) > 1:
        same = [one for one in known if one[0] == first and variable.startswith(f"{environment_name(one)}__")]
        exact = [(*one, key) for one in same for key in children(one) if variable == environment_name((*one, key))]
        if len(exact) > 1:
            layer.problems.add(place, path, f"means {' and '.join(map(dotted, exact))}: set it in the file")
            return None
        if not same and OPEN[first] == "pattern":
            layer.problems.add(place, path, "no such pattern in the file, and a variable's name cannot spell one")
            return None
        path = exact[0] if exact else ((*same[0], rest[-1]) if same else (first, "__".join(rest[:-1]), rest[-1]))
        if not same and not layer.name_is_fine(path, place):
            return None
    if variable != variable.upper() or not (field_at(path) or path in OLD):
        if meant := _meant(variable):
            spelling = "in capitals, with two underscores between levels"
            layer.problems.add(place, (), f"sets nothing; did you mean {shown(meant)}? (a variable is {spelling})")
        else:
            layer.unknown(path, place, variable=True)
        return None
    return path


def from_flags(overrides: Mapping[str, Any], problems: Problems) -> Layer:
    """The settings given by the caller, as Python values or as typed."""
    layer = Layer(problems)
    for key, value in overrides.items():
        path = split(key)
        place = Place(value.flag if isinstance(value, FlagText) else "flag", "flag")
        if path[0] in OPEN and field_at(path):
            if not layer.name_is_fine(path, place):
                continue
            layer.named.append(path[:2])
        try:
            scalar = values.from_text(value.text) if isinstance(value, FlagText) else values.Scalar(value)
        except values.Refused as found:
            layer.refused(path, str(found), place)
            continue
        layer.put(path, scalar, place)
    layer.settle()
    return layer
