"""What commands take from the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from midfold.cli.terminal import notice
from midfold.config import Config, load
from midfold.models import ModelOverride


def settings(path: str | None, flags: Mapping[str, Any] | None = None) -> Config:
    """The effective configuration; `flags` are settings of the command line. Notices go to standard error."""
    loaded = load(path, overrides=flags)
    for text in loaded.notices:
        notice(text)
    return loaded.config


def overrides_of(path: str | None) -> dict[str, ModelOverride]:
    """The corrections of the models table that the configuration has."""
    models = settings(path).models
    return {pattern: ModelOverride(**msgspec.structs.asdict(fields)) for pattern, fields in models.items()}
