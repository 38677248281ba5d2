"""What commands take from the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midfold.cli.output import notice
from midfold.config import Config, load


def settings(path: str | None, flags: Mapping[str, Any] | None = None) -> Config:
    """The effective configuration; `flags` are settings of the command line. Notices go to standard error."""
    loaded = load(path, overrides=flags)
    for text in loaded.notices:
        notice(text)
    return loaded.config
