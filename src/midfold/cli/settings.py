"""What commands take from the configuration."""

from __future__ import annotations

import msgspec

from midfold.cli.output import notice
from midfold.config import Config, load
from midfold.models import ModelOverride


def settings(path: str | None) -> Config:
    """The effective configuration; notices of migrated keys go to standard error."""
    loaded = load(path)
    for text in loaded.notices:
        notice(text)
    return loaded.config


def overrides_of(path: str | None) -> dict[str, ModelOverride]:
    """The corrections of the models table that the configuration has."""
    models = settings(path).models
    return {pattern: ModelOverride(**msgspec.structs.asdict(fields)) for pattern, fields in models.items()}
