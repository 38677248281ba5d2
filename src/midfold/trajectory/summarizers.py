"""Who writes the summaries, by name: the rules of this room, a configured model, or a caller's function."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from midfold.errors import ConfigError
from midfold.model import Summarizer
from midfold.trajectory.settings import Settings

if TYPE_CHECKING:
    from midfold.config import Config
    from midfold.model.endpoint import Resolution


def summarizer_of(settings: Settings) -> Summarizer | None:
    """The summarizer that the settings name; None for the local one. Keys come from the worker's own environment."""
    if settings.summarizer == "local":
        return None
    if ":" in settings.summarizer:
        from midfold.eval.methods import load_compactor

        function: Any = load_compactor(f"summarizer={settings.summarizer}")[1]
        return function  # type: ignore[no-any-return]
    found = _resolved(settings)
    if found.endpoint is None:
        raise ConfigError(f"the summarizer {settings.summarizer} cannot be used: {found.why}")
    from midfold.model.summaries import ModelSummarizer

    return ModelSummarizer(found.endpoint, found.main)


def told(settings: Settings) -> str:
    """Who will be asked, in a line for people."""
    if settings.summarizer == "local":
        return "local, without a model"
    if ":" in settings.summarizer:
        return settings.summarizer
    return _resolved(settings).description


def _resolved(settings: Settings) -> Resolution:
    from midfold.model.endpoint import resolve

    return resolve(_config(settings), os.environ, settings.model)


def _config(settings: Settings) -> Config:
    from midfold.config import Config

    config = settings.config or Config()
    chosen = config.auxiliary.compression
    if settings.summarizer != "model":
        chosen = msgspec.structs.replace(chosen, provider=settings.summarizer)
    if settings.model is not None:
        chosen = msgspec.structs.replace(chosen, model=settings.model)
    auxiliary = msgspec.structs.replace(config.auxiliary, compression=chosen)
    return msgspec.structs.replace(config, auxiliary=auxiliary)
