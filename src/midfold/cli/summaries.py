"""Who makes a command's summary, said beforehand, with a bar while it takes several calls."""

from __future__ import annotations

import os
import sys

from midfold.cli.output import notice
from midfold.config import Config
from midfold.providers import resolve
from midfold.summarize import Summarizer, local_summarizer


def chosen(config: Config, model: str | None, *, local: bool) -> Summarizer:
    """The summarizer the settings choose; a model is named before anything is sent to it."""
    found = resolve(config, os.environ, model)
    if local or found.endpoint is None:
        if not local and found.missing:
            notice(f"summary by {found.told}")
        return local_summarizer
    from midfold.summarize.client import ModelSummarizer

    notice(f"summary by {found.told}; --local makes it without a model")
    return ModelSummarizer(found.endpoint, found.main, progress=_bar if sys.stderr.isatty() else None)


def _bar(progress: tuple[int, int]) -> None:
    done, total = progress
    filled = 20 * done // max(total, 1)
    end = "\n" if done == total else ""
    sys.stderr.write(f"\rmidfold: summarising {'█' * filled}{'░' * (20 - filled)} {done}/{total}{end}")
    sys.stderr.flush()
