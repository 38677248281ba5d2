"""What `chat` and `agent` share: their options, and the workshop they open."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import click
import msgspec

from midfold.agent import Workshop
from midfold.agent.tools.surroundings import hide_own_environment
from midfold.cli.output import notice
from midfold.cli.settings import engine_settings
from midfold.config import Config
from midfold.errors import NotStored
from midfold.model import local_summarizer
from midfold.model.endpoint import UNNAMED, Endpoint, endpoint_for

OPTIONS = (
    click.option("--model", metavar="NAME", help="The model; default: agent.model, else one by the keys that are set."),
    click.option("--provider", metavar="NAME", help="Who serves it; default: agent.provider."),
    click.option("--base-url", metavar="URL", help="Address of a server that speaks OpenAI's or Anthropic's wire."),
    click.option(
        "--wire", type=click.Choice(["openai", "anthropic"]), help="What that server speaks; default: openai."
    ),
    click.option(
        "--context-length", type=click.IntRange(min=1_000), metavar="N", help="The window; default: the model's."
    ),
    click.option("--resume", metavar="ID", help="Go on with this session; `last` is the one used last."),
    click.option("--folder", metavar="DIR", default=".", help="The working directory; default: this one."),
    click.option("--local", is_flag=True, help="Make summaries without a model, whatever the settings say."),
    click.option(
        "--store", metavar="URL", help="Where sessions are kept; default: store.url, else a file of your own."
    ),
    click.option("--config", metavar="FILE", help="Read settings from this file."),
)


class Talk(NamedTuple):
    """A conversation about to begin."""

    workshop: Workshop
    endpoint: Endpoint
    resume: str | None
    config: Config

    def other(self, model: str, provider: str | None = None) -> Endpoint:
        """Another model: of this provider, or else at the same address if one was given."""
        if self.endpoint.name == UNNAMED and provider is None:
            return msgspec.structs.replace(self.endpoint, model=model)
        return endpoint_for(self.config, os.environ, model=model, provider=provider)


def with_talk(command: Callable[..., Any]) -> Callable[..., Any]:
    """The shared options; the command is given a `Talk`."""

    @wraps(command)
    def run(
        model: str | None,
        provider: str | None,
        base_url: str | None,
        wire: Any,
        context_length: int | None,
        resume: str | None,
        folder: str,
        local: bool,
        store: str | None,
        config: str | None,
        **rest: Any,
    ) -> Any:
        hide_own_environment()
        known = engine_settings(config)
        endpoint = endpoint_for(known, os.environ, model=model, provider=provider, base_url=base_url, wire=wire)
        summarizer = local_summarizer if local else None
        workshop = Workshop(folder, known, os.environ, store=store, window=context_length, summarizer=summarizer)
        for text in workshop.engine_tools.notices:
            notice(text)
        with workshop:
            return command(Talk(workshop, endpoint, _named(workshop, resume), known), **rest)

    for option in reversed(OPTIONS):
        run = option(run)
    return run


def _named(workshop: Workshop, resume: str | None) -> str | None:
    if resume != "last":
        return resume
    newest = workshop.sessions.all(1)
    if not newest:
        raise NotStored("there is no session to resume yet")
    return newest[0].name
