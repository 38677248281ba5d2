"""`midfold agent run`: one task, for scripts."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec

from midfold.agent.events import Event, Finished, agree, refuse
from midfold.cli.talk import Screen, Talk, with_talk
from midfold.cli.terminal import emit_exact, emit_words, harmless_console
from midfold.errors import ModelFailed

INTERRUPTED = 130


@click.group()
def command() -> None:
    """Let an agent do a task in the working directory, for scripts."""


@command.command(name="run")
@click.argument("task")
@with_talk
@click.option("--yes", is_flag=True, help="Run commands and change files; without it every change is declined.")
@click.option("--json", "as_json", is_flag=True, help="Write what happens as JSON, one event per line.")
def run(talk: Talk, task: str, yes: bool, as_json: bool) -> None:
    """Do TASK and print the model's last word; `-` reads the task from standard input.

    What happens on the way is told on standard error, or with --json as one JSON object per line on standard output.
    Exit status: 0 if the model came to its end, 1 if not, 130 if it was interrupted. The session is kept; --resume goes
    on with it.
    """
    said = sys.stdin.read() if task == "-" else task
    if not said.strip():
        raise click.UsageError("the task is empty")
    last: list[Finished] = []
    screen = None if as_json else Screen(harmless_console(stderr=True))

    def watch(event: Event) -> None:
        if isinstance(event, Finished):
            last.append(event)
        _write_event(event) if screen is None else screen(event)

    session = talk.workshop.session(talk.endpoint, talk.resume)
    agent = talk.workshop.agent(session, talk.endpoint, watch=watch, consent=agree if yes else refuse)
    if screen is not None:
        screen.caching(talk.config, talk.endpoint)
    code = 0
    try:
        answer = agent.run(said)
    except ModelFailed:
        code = 1
    except KeyboardInterrupt:
        code = INTERRUPTED
    else:
        code = 0 if last and last[-1].how == "done" else 1
        if screen is not None:
            screen.status(agent)
            screen.say(f"session {session.name}", "bright_black")
            emit_words(answer)
    sys.exit(code)


def _write_event(event: Any) -> None:
    emit_exact(msgspec.json.encode(event))
    sys.stdout.flush()
