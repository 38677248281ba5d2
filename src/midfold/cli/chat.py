"""`midfold chat`: a conversation with a model that has tools, in a terminal."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from midfold.agent import Agent
from midfold.agent.hands import Consent, agree
from midfold.agent.shapes import caching_provider
from midfold.cache import status_line
from midfold.cli.chat_commands import Chat, run
from midfold.cli.chat_screen import Screen
from midfold.cli.consent import answered
from midfold.cli.output import console
from midfold.cli.talking import Talk, with_talk
from midfold.errors import ModelFailed
from midfold.model.endpoint import resolve
from midfold.transcript.message import ToolCall

PROMPT = "> "
CONTINUED = "\\"
ANSWERS = {"y": "yes", "n": "no", "a": "always"}


@click.command()
@with_talk
@click.option("--yes", is_flag=True, help="Run commands and change files without asking.")
def command(talk: Talk, yes: bool) -> None:
    """Talk to a model that has tools, in a conversation that does not run out of room.

    The model can read, search, write and patch files of the working directory and run commands in it; before it changes
    anything you are asked. The conversation is stored as it happens, and folded when it reaches
    compression.threshold of the model's window. /help lists the commands.
    """
    screen = Screen(console())
    asking = Asking(screen)

    def make(name: str | None, given: Talk) -> Agent:
        session = given.workshop.session(given.endpoint, name)
        consent: Consent = agree if yes else asking
        return given.workshop.agent(session, given.endpoint, watch=screen, consent=consent)

    chat = Chat(talk, screen, make)
    _greet(chat)
    while not chat.over:
        line = _read(screen)
        if line is None:
            break
        if line.startswith("/") and "\n" not in line:
            _interruptible(screen, lambda line=line: run(chat, line))
        elif line.strip():
            _interruptible(screen, lambda line=line: chat.agent.run(line))
            screen.status(chat.agent)
    info = chat.agent.session.info
    if info is not None:
        screen.say(f"kept: midfold chat --resume {info.name}", "bright_black")


class Asking:
    """Asks before something is changed; a tool may be allowed for the rest of the conversation."""

    def __init__(self, screen: Screen) -> None:
        self.allowed: set[str] = set()
        self.screen = screen

    def __call__(self, call: ToolCall, about: str) -> bool:
        if call.name in self.allowed:
            return True
        self.screen.whole(about)
        answer = answered(f"  run this {call.name}? [y]es, [n]o, [a]lways: ", ANSWERS)
        if answer == "a":
            self.allowed.add(call.name)
        return answer in ("y", "a")


def _interruptible(screen: Screen, work: Any) -> None:
    """Ctrl-C ends the work, not the program; what a model could not answer is told."""
    try:
        work()
    except KeyboardInterrupt:
        screen.stopped()
    except (ModelFailed, EOFError):
        return


def _read(screen: Screen) -> str | None:
    """A line of the user's, or several; None at the end."""
    lines: list[str] = []
    while True:
        try:
            line = input(PROMPT if not lines else ". ")
        except KeyboardInterrupt:
            screen.say("")
            screen.say("(/quit or Ctrl-D leaves)", "bright_black")
            lines = []
            continue
        except EOFError:
            screen.say("")
            return None
        if not line.endswith(CONTINUED):
            return "\n".join([*lines, line])
        lines.append(line.removesuffix(CONTINUED))


def _greet(chat: Chat) -> None:
    with suppress(ImportError):
        import readline  # arrow keys and history, where the platform has them

        readline.parse_and_bind("set enable-bracketed-paste on")
    agent, screen, config = chat.agent, chat.screen, chat.talk.config
    endpoint, setup = agent.model.endpoint, agent.session.setup
    screen.say(f"{endpoint.model} at {endpoint.place}", "bold")
    folds = f"folds at {setup.budget.threshold_tokens:,}" if config.compression.enabled else "compression is off"
    screen.say(f"window of {setup.window:,} tokens, {folds}; session {agent.session.name}")
    caching = config.prompt_caching
    line = status_line(caching_provider(endpoint), endpoint.model, caching.cache_ttl, caching.enabled, endpoint.dialect)
    screen.say(f"{'💾 ' if screen.out.encoding.lower().startswith('utf') else ''}{line}")
    local = chat.talk.workshop.sessions.summarizer is not None
    told = "local, without a model (--local)" if local else resolve(config, os.environ, None, endpoint).description
    screen.say(f"summaries by {told}")
    screen.say(f"working in {Path(chat.talk.workshop.folder.root)}; /help lists commands", "bright_black")
    if agent.session.info is not None:
        screen.say(f"resumed with {len(agent.session.history()):,} messages", "bright_black")
        screen.status(agent)
