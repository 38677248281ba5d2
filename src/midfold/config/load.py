"""Defaults < file < environment < flags, with the origin of every value.

The file is the one named by the caller, else by $MIDFOLD_CONFIG, else $XDG_CONFIG_HOME/midfold/config.yaml, else
~/.config/midfold/config.yaml. A config.yaml in the working directory is never read by itself: the folder may be a
stranger's, and the file decides where conversations are sent.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path as FilePath
from typing import Any

import msgspec
from msgspec import Struct

from midfold.config import layers, tree
from midfold.config.layers import Layer, Problems, Setting
from midfold.config.schema import KNOWN_PROVIDERS, Config
from midfold.config.table import FIELDS, Path, field_at, printable, shown
from midfold.config.values import show
from midfold.errors import ConfigError

PROVIDER = ("auxiliary", "compression", "provider")


class Loaded(Struct, frozen=True, kw_only=True):
    """The effective configuration and how it came to be."""

    config: Config
    origins: Mapping[str, str]
    """Key path to "default", "file PATH:LINE", "environment NAME", "flag" or "migrated from KEY in PATH:LINE"."""
    notices: tuple[str, ...] = ()
    """What a user should be told: older keys that were understood."""
    path: FilePath | None = None
    """The file that was read, if there was one."""


class Environment(Struct, frozen=True):
    """What the environment says."""

    path: FilePath | None
    default_path: FilePath | None
    settings: Mapping[str, str]


def read_environment(environ: Mapping[str, str] | None = None) -> Environment:
    """The one place that looks at environment variables; `environ` stands in for the real ones."""
    variables = os.environ if environ is None else environ
    named = variables.get("MIDFOLD_CONFIG")
    home = variables.get("HOME") or variables.get("USERPROFILE")
    base = FilePath(variables.get("XDG_CONFIG_HOME") or ".")
    if not base.is_absolute():  # the XDG rule: relative paths in this variable are ignored
        base = FilePath(home, ".config") if home else base
    default = base / "midfold" / "config.yaml" if base.is_absolute() else None
    settings = {name: value for name, value in variables.items() if layers.is_setting(name)}
    return Environment(FilePath(named) if named else None, default, settings)


def locate(path: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> FilePath | None:
    """The file that `load` would read. It need not exist; None when there is no home directory to look in."""
    environment = read_environment(environ)
    return FilePath(path) if path is not None else environment.path or environment.default_path


def load(
    path: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Loaded:
    """The effective configuration. A file that was named must exist; the default one may be missing.

    `environ` stands in for the process's environment; `overrides` maps key paths to Python values (or `FlagText`, for
    what was typed on a command line) and wins over all.
    Raises ConfigError with every problem found, one per line.
    """
    environment = read_environment(environ)
    named = FilePath(path) if path is not None else environment.path
    text, found = None, named
    if named is not None:
        text = read_text(named)
    elif environment.default_path is not None and not is_missing(environment.default_path):
        found = environment.default_path
        text = read_text(found)
    problems = Problems()
    read = [layers.from_file(text, str(found), problems)] if text is not None else []
    file_names = [name for layer in read for name in layer.named]
    read.append(layers.from_environment(environment.settings, file_names, problems))
    read.append(layers.from_flags(overrides or {}, problems))
    loaded = _combine(read, problems, found if text is not None else None)
    place = named or environment.default_path
    folder = None if place is None else str(place.parent.absolute())
    return msgspec.structs.replace(loaded, config=msgspec.structs.replace(loaded.config, folder=folder))


def parse(text: str | bytes, name: str = "config.yaml") -> Loaded:
    """The configuration a text holds; no file, no environment."""
    problems = Problems()
    plain = tree.decode(text, name) if isinstance(text, bytes) else text
    return _combine([layers.from_file(plain, name, problems)], problems, None)


def is_missing(path: FilePath) -> bool:
    """Whether there is no such file. One that cannot be looked at is not missing: reading it will say what is wrong."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False
    return False


def read_text(path: FilePath) -> str:
    """The exact text of a configuration file, line ends included."""
    try:
        with path.open("rb") as file:
            data = file.read(tree.LARGEST_FILE * 4 + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable path"
        raise ConfigError(f"{printable(str(path), 300)}: cannot read the configuration: {reason}") from None
    if len(data) > tree.LARGEST_FILE * 4:
        raise tree.too_large(str(path))
    return tree.decode(data, str(path))


def _combine(read: Iterable[Layer], problems: Problems, path: FilePath | None) -> Loaded:
    settings: dict[Path, Setting] = {}
    named: dict[Path, None] = {}
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
    return Loaded(
        config=msgspec.convert(nested, Config),
        origins=origins,
        notices=tuple(notices),
        path=path,
    )


def _check_provider(settings: Mapping[Path, Setting], named: Iterable[Path], problems: Problems) -> None:
    setting = settings.get(PROVIDER)
    own = [name for section, name in named if section == "providers"]
    if setting is None or setting.value in (*KNOWN_PROVIDERS, *own):
        return
    known = field_at(PROVIDER)
    assert known is not None
    close = get_close_matches(str(setting.value)[:100], [*KNOWN_PROVIDERS, *own], n=1)
    hint = f"; did you mean {shown(close[0])}?" if close else ";"
    sections = f" (there: {', '.join(shown(name) for name in own[:20])})" if own else ""
    problems.add(
        setting.place,
        setting.old or PROVIDER,
        f"found {show(setting.value, known)}{hint} allowed: {known.allowed}{sections}",
    )
