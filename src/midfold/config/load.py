"""Load the configuration (defaults < file < environment < flags) and record the origin of every value.

The file is the one named by the caller, else by $MIDFOLD_CONFIG, else $XDG_CONFIG_HOME/midfold/config.yaml, else
~/.config/midfold/config.yaml. A config.yaml in the working directory is never read automatically: the directory may be
untrusted, and the file decides where conversations are sent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from midfold.config import fields, yaml_text
from midfold.config.fields import (
    FIELDS,
    GONE,
    NAME_PATTERNS,
    OLD,
    OPEN,
    PREFIX,
    KeyPath,
    children,
    dotted_path,
    environment_name,
    field_at,
    nearest,
    printable,
    printable_name,
    show,
    split,
)
from midfold.config.schema import KNOWN_PROVIDERS, Config
from midfold.errors import ConfigError

MOST_PROBLEMS = 50


class SettingPlace(Struct, frozen=True):
    """Location of a value: prefix of its errors, and origin shown by `config show`."""

    at: str
    origin: str


class FlagText(Struct, frozen=True):
    """A value as typed on a command line, parsed as a YAML scalar; `flag` is the option, for errors."""

    text: str
    flag: str


class Setting(Struct, frozen=True):
    """A checked value."""

    path: KeyPath
    value: fields.Value
    place: SettingPlace
    old: KeyPath | None = None


class Problems(Struct):
    """Collected errors, one line each, up to `MOST_PROBLEMS`."""

    lines: list[str] = field(default_factory=list)
    more: int = 0

    def add(self, place: SettingPlace, path: KeyPath, text: str) -> None:
        if len(self.lines) < MOST_PROBLEMS:
            self.lines.append(": ".join(part for part in (place.at, dotted_path(path), text) if part))
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
    """Settings from one source; `named` lists the user-named sections it mentions, even empty ones."""

    problems: Problems
    settings: list[Setting] = field(default_factory=list)
    named: list[KeyPath] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def put(self, path: KeyPath, scalar: fields.Scalar, place: SettingPlace) -> None:
        """Check one value and store it, or record the problem."""
        known = self._field(path, place)
        if known is None:
            return
        try:
            value = fields.check(known, scalar)
        except fields.ValueRefused as found:
            self.refuse(path, str(found), place)
            return
        self.settings.append(Setting(OLD.get(path, path), value, place, path if path in OLD else None))

    def refuse(self, path: KeyPath, found: str, place: SettingPlace) -> None:
        if known := self._field(path, place):
            self.problems.add(place, path, f"found {found}; allowed: {known.allowed_values} ({known.description})")

    def _field(self, path: KeyPath, place: SettingPlace) -> fields.Field | None:
        """Return the field of a key, or None after recording a notice or a problem."""
        if path in GONE:
            hint = "; `midfold config migrate` removes it" if place.origin.startswith("file ") else ""
            self.notices.append(
                f"{place.at}: {dotted_path(path)} is ignored: the setting was removed, "
                f"its value is always {GONE[path]}{hint}"
            )
            return None
        known = field_at(OLD.get(path, path))
        if known is None:
            self.refuse_unknown(path, place)
        return known

    def refuse_unknown(self, path: KeyPath, place: SettingPlace, *, variable: bool = False) -> None:
        if self.problems.full:
            self.problems.add(place, path, "unknown")
            return
        if children(path):
            self.problems.add(place, path, f"is a section; set one of its keys: {_keys(path)}")
            return
        close = nearest(tuple(name[:100] for name in path))
        right = printable_name(environment_name(close)) if close and variable else dotted_path(close or ())
        hint = f"; did you mean {right}?" if close else ""
        parent = path[:-1]
        while parent and not children(parent):
            parent = parent[:-1]
        where = f"in {dotted_path(parent)}" if parent else "at the top level"
        self.problems.add(place, path, f"unknown key{hint} (allowed {where}: {_keys(parent)})")

    def name_is_fine(self, path: KeyPath, place: SettingPlace) -> bool:
        """Return whether the user's name of a section is valid; record a problem if not."""
        section, name = path[0], path[1]
        if re.fullmatch(NAME_PATTERNS[section], name):
            return True
        rule = "a name without slashes, colons or spaces, not only dots, and neither auto nor main"
        if OPEN[section] == "pattern":
            rule = "a pattern of model names on one line, not empty"
        self.problems.add(place, path, f"found the {OPEN[section]} '{printable_name(name)}'; allowed: {rule}")
        return False

    def settle(self) -> None:
        """Drop old keys whose replacement is also set, and add a notice for each old key."""
        new = {setting.path: setting for setting in self.settings if setting.old is None}
        kept = []
        for setting in self.settings:
            if setting.old is None:
                kept.append(setting)
                continue
            was, now = dotted_path(setting.old), dotted_path(setting.path)
            if winner := new.get(setting.path):
                self.notices.append(f"{setting.place.at}: {was} is ignored: {now} is also set, at {winner.place.at}")
                continue
            origin = setting.place.origin.removeprefix("file ")
            hint = "" if origin == setting.place.origin else "; `midfold config migrate` rewrites the file"
            self.notices.append(f"{setting.place.at}: {was} is now {now}{hint}")
            kept.append(replace(setting, place=SettingPlace(setting.place.at, f"migrated from {was} in {origin}")))
        self.settings = kept


def from_file(text: str, name: str, problems: Problems) -> Layer:
    """Parse the settings of a YAML text; raise on syntax errors, collect all other problems."""
    layer = Layer(problems)
    root = yaml_text.compose(text, name)
    if root is not None and not yaml_text.is_null(root):
        if isinstance(root, MappingNode):
            _section(layer, root, (), name)
        else:
            place = _place(root, name)
            problems.add(place, (), "found no sections; allowed: keys such as `compression:` with their settings below")
    layer.settle()
    return layer


def _place(node: Node, name: str) -> SettingPlace:
    return SettingPlace(f"{name}:{yaml_text.at(node)}", f"file {name}:{node.start_mark.line + 1}")


def _section(layer: Layer, node: MappingNode, path: KeyPath, name: str) -> None:
    seen: dict[str, Node] = {}
    for key, value in yaml_text.pairs(node, name):
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


def _entry(layer: Layer, key: ScalarNode, value: Node, path: KeyPath, name: str) -> None:
    place = _place(key, name)
    old_section = isinstance(value, MappingNode) and bool(value.value) and any(old[:-1] == path for old in OLD)
    if field_at(path) or path in OLD or path in GONE:
        try:
            scalar = fields.read(value, field_at(path))
        except fields.ValueRefused as found:
            layer.refuse(path, str(found), _place(value, name))
            return
        layer.put(path, scalar, place)
    elif not children(path) and not old_section:
        layer.refuse_unknown(path, place)
    elif not isinstance(value, MappingNode) and not yaml_text.is_null(value):
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


def _keys(path: KeyPath) -> str:
    return ", ".join(f"<{OPEN[path[0]]}>" if key == "*" else key for key in children(path))


def is_setting(variable: str) -> bool:
    """Return whether a variable sets a key, or would with the right number of underscores."""
    return variable.startswith(PREFIX) and ("__" in variable or _intended_variable(variable) is not None)


def _intended_variable(variable: str) -> str | None:
    """Return the variable that was probably meant if only the number of underscores differs, or None."""
    words = re.sub("__+", "_", variable.upper())
    for path in (*FIELDS, *OLD, *GONE):
        pattern = "_".join("(.+)" if name == "*" else name.upper() for name in path)
        if found := re.fullmatch(PREFIX + pattern, words):
            return environment_name(tuple(found[1] if name == "*" else name for name in path))
    return None


def from_environment(variables: Mapping[str, str], named: Iterable[KeyPath], problems: Problems) -> Layer:
    """Read MIDFOLD_SECTION__KEY variables; `named` lists the user-named sections of the file."""
    layer = Layer(problems)
    known = list(named)
    for variable in sorted(variables):
        place = SettingPlace(f"environment {printable_name(variable)}", f"environment {variable}")
        path = _variable_path(layer, variable, known, place)
        if path is None:
            continue
        try:
            scalar = fields.from_text(variables[variable])
        except fields.ValueRefused as found:
            layer.refuse(path, str(found), place)
            continue
        if path[0] in OPEN:
            layer.named.append(path[:2])
        layer.put(path, scalar, place)
    layer.settle()
    return layer


def _variable_path(layer: Layer, variable: str, known: list[KeyPath], place: SettingPlace) -> KeyPath | None:
    first, *rest = variable.removeprefix(PREFIX).lower().split("__")
    path = (first, *rest)
    if first in OPEN and len(rest) > 1:
        same = [one for one in known if one[0] == first and variable.startswith(f"{environment_name(one)}__")]
        exact = [(*one, key) for one in same for key in children(one) if variable == environment_name((*one, key))]
        if len(exact) > 1:
            layer.problems.add(place, path, f"means {' and '.join(map(dotted_path, exact))}: set it in the file")
            return None
        if not same and OPEN[first] == "pattern":
            layer.problems.add(place, path, "no such pattern in the file, and a variable cannot define one")
            return None
        path = exact[0] if exact else ((*same[0], rest[-1]) if same else (first, "__".join(rest[:-1]), rest[-1]))
        if not same and not layer.name_is_fine(path, place):
            return None
    if variable != variable.upper() or not (field_at(path) or path in OLD or path in GONE):
        if meant := _intended_variable(variable):
            spelling = "in capitals, with two underscores between levels"
            layer.problems.add(
                place, (), f"matches no setting; did you mean {printable_name(meant)}? (spell variables {spelling})"
            )
        else:
            layer.refuse_unknown(path, place, variable=True)
        return None
    return path


def from_flags(overrides: Mapping[str, Any], problems: Problems) -> Layer:
    """Read the caller's overrides, given as Python values or as typed text."""
    layer = Layer(problems)
    for key, value in overrides.items():
        path = split(key)
        place = SettingPlace(value.flag if isinstance(value, FlagText) else "flag", "flag")
        if path[0] in OPEN and field_at(path):
            if not layer.name_is_fine(path, place):
                continue
            layer.named.append(path[:2])
        try:
            scalar = fields.from_text(value.text) if isinstance(value, FlagText) else fields.Scalar(value)
        except fields.ValueRefused as found:
            layer.refuse(path, str(found), place)
            continue
        layer.put(path, scalar, place)
    layer.settle()
    return layer


PROVIDER = ("auxiliary", "compression", "provider")


class Loaded(Struct, frozen=True, kw_only=True):
    """The effective configuration and the origin of its values."""

    config: Config
    origins: Mapping[str, str]
    """Key path to "default", "file PATH:LINE", "environment NAME", "flag" or "migrated from KEY in PATH:LINE"."""
    notices: tuple[str, ...] = ()
    """Notices for the user about old keys that were recognized."""
    path: Path | None = None
    """The file that was read, if any."""


class Environment(Struct, frozen=True):
    """Configuration found in the environment."""

    path: Path | None
    default_path: Path | None
    settings: Mapping[str, str]


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """Read the configuration from the environment; `environ` replaces `os.environ`. All access goes through here."""
    variables = os.environ if environ is None else environ
    named = variables.get("MIDFOLD_CONFIG")
    home = variables.get("HOME") or variables.get("USERPROFILE")
    base = Path(variables.get("XDG_CONFIG_HOME") or ".")
    if not base.is_absolute():  # XDG base directory rule: relative paths in this variable are ignored
        base = Path(home, ".config") if home else base
    default = base / "midfold" / "config.yaml" if base.is_absolute() else None
    settings = {name: value for name, value in variables.items() if is_setting(name)}
    return Environment(Path(named) if named else None, default, settings)


def locate(path: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the path that `load` would read; it may not exist. None if there is no home directory."""
    environment = read_environment(environ)
    return Path(path) if path is not None else environment.path or environment.default_path


def load(
    path: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Loaded:
    """Load the effective configuration. An explicitly named file must exist; the default one may be missing.

    `environ` replaces the process's environment; `overrides` maps key paths to Python values (or `FlagText`, for
    command line text) and has the highest priority. Raises ConfigError with every problem found, one per line.
    """
    environment = read_environment(environ)
    named = Path(path) if path is not None else environment.path
    text, found = None, named
    if named is not None:
        text = read_text(named)
    elif environment.default_path is not None and not is_missing(environment.default_path):
        found = environment.default_path
        text = read_text(found)
    problems = Problems()
    read = [from_file(text, str(found), problems)] if text is not None else []
    file_names = [name for layer in read for name in layer.named]
    read.append(from_environment(environment.settings, file_names, problems))
    read.append(from_flags(overrides or {}, problems))
    loaded = _combine(read, problems, found if text is not None else None)
    place = named or environment.default_path
    folder = None if place is None else str(place.parent.absolute())
    return msgspec.structs.replace(loaded, config=msgspec.structs.replace(loaded.config, folder=folder))


def parse(text: str | bytes, name: str = "config.yaml") -> Loaded:
    """Parse the configuration in a text, without file or environment."""
    problems = Problems()
    plain = yaml_text.decode(text, name) if isinstance(text, bytes) else text
    return _combine([from_file(plain, name, problems)], problems, None)


def is_missing(path: Path) -> bool:
    """Return whether the file does not exist; False if that is unknown, so that reading it reports the error."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False
    return False


def read_text(path: Path) -> str:
    """Return the exact text of a configuration file, including line endings."""
    try:
        with path.open("rb") as file:
            data = file.read(yaml_text.LARGEST_FILE * 4 + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path"
        raise ConfigError(f"{printable(str(path), 300)}: cannot read the configuration: {reason}") from None
    if len(data) > yaml_text.LARGEST_FILE * 4:
        raise yaml_text.too_large(str(path))
    return yaml_text.decode(data, str(path))


def _combine(read: Iterable[Layer], problems: Problems, path: Path | None) -> Loaded:
    settings: dict[KeyPath, Setting] = {}
    named: dict[KeyPath, None] = {}
    notices: list[str] = []
    for layer in read:
        settings.update((setting.path, setting) for setting in layer.settings)
        named.update(dict.fromkeys(layer.named))
        notices += layer.notices
    _check_provider(settings, named, problems)
    if problems.lines:
        raise ConfigError(str(problems))
    origins = {".".join(key): "default" for key in FIELDS if "*" not in key}
    nested: dict[str, Any] = {}
    for name in named:
        nested.setdefault(name[0], {}).setdefault(name[1], {})
    for key, setting in settings.items():
        level = nested
        for part in key[:-1]:
            level = level.setdefault(part, {})
        level[key[-1]] = setting.value
        origins[".".join(key)] = setting.place.origin
    return Loaded(config=msgspec.convert(nested, Config), origins=origins, notices=tuple(notices), path=path)


def _check_provider(settings: Mapping[KeyPath, Setting], named: Iterable[KeyPath], problems: Problems) -> None:
    setting = settings.get(PROVIDER)
    own = [name for section, name in named if section == "providers"]
    if setting is None or setting.value in (*KNOWN_PROVIDERS, *own):
        return
    known = field_at(PROVIDER)
    assert known is not None
    close = get_close_matches(str(setting.value)[:100], [*KNOWN_PROVIDERS, *own], n=1)
    hint = f"; did you mean {printable_name(close[0])}?" if close else ";"
    sections = f" (there: {', '.join(printable_name(name) for name in own[:20])})" if own else ""
    problems.add(
        setting.place,
        setting.old or PROVIDER,
        f"found {show(setting.value, known)}{hint} allowed: {known.allowed_values}{sections}",
    )


def store_url(config: Config, environment: Mapping[str, str]) -> str:
    """Return the store's URL: `store.url`, or by default a database in the user's data directory."""
    if config.store.url is not None:
        return config.store.url
    home = environment.get("HOME") or environment.get("USERPROFILE")
    base = environment.get("XDG_DATA_HOME") or ""
    data = Path(base) if Path(base).is_absolute() else Path(home, ".local", "share") if home else None
    if data is None:
        raise ConfigError("no home directory to store sessions in; set store.url in config.yaml")
    return f"sqlite:///{data / 'midfold' / 'sessions.db'}"
