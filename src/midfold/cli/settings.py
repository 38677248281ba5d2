"""What commands take from the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midfold.cli.output import notice
from midfold.config import Config, load
from midfold.plugins import configured_engine


def settings(path: str | None, flags: Mapping[str, Any] | None = None) -> Config:
    """The effective configuration; `flags` are settings of the command line. Notices go to standard error."""
    loaded = load(path, overrides=flags)
    for text in loaded.notices:
        notice(text)
    return loaded.config


def engine_settings(path: str | None, flags: Mapping[str, Any] | None = None) -> Config:
    """The same, for a command that runs the context engine: what is wrong with that one is told as well."""
    config = settings(path, flags)
    for text in configured_engine(config).notices:
        notice(text)
    return config
