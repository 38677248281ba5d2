"""`midfold agent run`: run one task without interaction, for scripts."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click
import msgspec

from midfold.agent.events import Answered, Called, Event, Finished, Retrying, Said, agree, refuse
from midfold.cli.chat_shared import Screen, Talk, with_talk
from midfold.cli.command_groups import HelpfulGroup
from midfold.cli.signals import INTERRUPTED
from midfold.cli.terminal import emit_exact, emit_words, harmless_console, notice
from midfold.errors import ModelFailed


@click.group(cls=HelpfulGroup)
def command() -> None:
    """Run an agent on a task in the working directory, for scripts."""


@command.command(name="run")
@click.argument("task")
@with_talk
@click.option("--yes", is_flag=True, help="Allow commands and file changes; without it they are declined.")
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON, one per line.")
def run(talk: Talk, task: str, yes: bool, as_json: bool) -> None:
    """Run TASK and print the model's final answer; `-` reads the task from standard input.

    Progress goes to standard error, or with --json to standard output as one JSON object per line. Exit status: 0
    if the model finished, 1 if it did not or if a call was declined because --yes was missing, 130 if interrupted.
    The session is kept; continue it with --resume.
    """
    said = sys.stdin.read() if task == "-" else task
    if not said.strip():
        raise click.UsageError("the task is empty")
    screen = None if as_json else TaskScreen()
    log = TaskLog(_write_event if screen is None else screen)
    session = talk.workshop.session(talk.endpoint, talk.resume)
    agent = talk.workshop.agent(session, talk.endpoint, watch=log, consent=agree if yes else refuse)
    if screen is not None:
        screen.caching(talk.config, talk.endpoint)
    code = 0
    try:
        answer = agent.run(said, is_last=True)
    except ModelFailed:
        code = 1
    except KeyboardInterrupt:
        code = INTERRUPTED
    else:
        code = 0 if log.how == "done" and not log.declined else 1
        if screen is not None:
            screen.status(agent)
            screen.say(f"session {session.name}", "bright_black")
            if answer and not screen.is_whole:
                emit_words(answer)
    agent.room.keep_pause()
    if log.declined:
        calls = "1 call" if len(log.declined) == 1 else f"{len(log.declined)} calls"
        names = ", ".join(dict.fromkeys(log.declined))
        notice(f"{calls} declined ({names}): no terminal to ask on; use --yes to allow commands and changes")
    sys.exit(code)


class TaskLog:
    """Event handler that forwards events and records the outcome and the declined calls."""

    def __init__(self, show: Callable[[Event], None]) -> None:
        self._show = show
        self.how = ""
        self.declined: list[str] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Finished):
            self.how = event.how
        elif isinstance(event, Called) and event.declined:
            self.declined.append(event.name)
        self._show(event)


class TaskScreen(Screen):
    """Screen on standard error that leaves the final answer to standard output, unless a terminal shows both."""

    is_chat = False

    def __init__(self) -> None:
        super().__init__(harmless_console(stderr=True))
        self.is_whole = sys.stdout.isatty() and sys.stderr.isatty()
        self._words: list[str] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, Said) and not self.is_whole:
            self._words.append(event.text)
            return
        if isinstance(event, Answered) and event.calls and self._words:
            super().__call__(Said(text="".join(self._words)))
        if isinstance(event, Answered | Retrying):
            self._words = []
        super().__call__(event)


def _write_event(event: Event) -> None:
    emit_exact(msgspec.json.encode(event))
    sys.stdout.flush()
