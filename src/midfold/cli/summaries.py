"""Who makes a command's summary, said beforehand, with a bar while it takes several calls."""

from __future__ import annotations

import os
import sys

import msgspec

from midfold.cli.output import notice
from midfold.config import Config
from midfold.providers import resolve
from midfold.summarize import Summarizer, local_summarizer


def chosen(config: Config, model: str | None, *, asked: str | None = None) -> Summarizer:
    """Whoever was asked for by name, else who the settings choose; a model is named before anything is sent to it."""
    found = resolve(_with_provider(config, asked), os.environ, model)
    if found.endpoint is None:
        if found.missing or found.unused:
            notice(f"summary by {found.told}{'; --summarizer NAME does it once' if found.unused else ''}")
        return local_summarizer
    from midfold.summarize.client import ModelSummarizer

    notice(f"summary by {found.told}; --local makes it without a model")
    return ModelSummarizer(found.endpoint, found.main, progress=_bar if sys.stderr.isatty() else None)


def _with_provider(config: Config, provider: str | None) -> Config:
    if provider is None:
        return config
    task = msgspec.structs.replace(config.auxiliary.compression, provider=provider)
    return msgspec.structs.replace(config, auxiliary=msgspec.structs.replace(config.auxiliary, compression=task))


def _bar(progress: tuple[int, int]) -> None:
    done, total = progress
    filled = 20 * done // max(total, 1)
    end = "\n" if done == total else ""
    sys.stderr.write(f"\rmidfold: summarising {'█' * filled}{'░' * (20 - filled)} {done}/{total}{end}")
    sys.stderr.flush()
