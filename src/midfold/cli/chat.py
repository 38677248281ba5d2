"""`midfold chat`: chat with a model that has tools, in a terminal."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import click

from midfold.agent import Agent, ModelClient
from midfold.agent.events import Consent, agree
from midfold.cli.chat_shared import Screen, Talk, with_talk
from midfold.cli.options import short_id
from midfold.cli.terminal import ask, console, make_table
from midfold.errors import MidfoldError, ModelFailed
from midfold.model.endpoint import resolve
from midfold.recall import original
from midfold.transcript.message import Message, ToolCall, Transcript
from midfold.transcript.wrappers import user_words

MAX_SESSIONS = 20
MAX_HITS = 8
MAX_SHOWN_CHARS = 4_000
PROMPT = "> "
CONTINUED = "\\"
ANSWERS = {"y": "yes", "n": "no", "a": "always"}


@click.command()
@with_talk
@click.option("--yes", is_flag=True, help="Run commands and change files without asking.")
def command(talk: Talk, yes: bool) -> None:
    """Chat with a model that has tools; long conversations are compacted automatically.

    The model can read, search, write and patch files of the working directory and run commands in it; it asks
    before it changes anything. The conversation is stored as it happens and compacted when it reaches
    compression.threshold of the model's window. /help lists the commands.
    """
    screen = Screen(console())
    asking = ConsentPrompt(screen)

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
            _interruptible(screen, lambda line=line: run_command(chat, line))
        elif line.strip():
            _interruptible(screen, lambda line=line: chat.agent.run(line))
            screen.status(chat.agent)
    chat.agent.room.keep_pause()
    info = chat.agent.session.info
    if info is not None:
        screen.say(f"resume with: midfold chat --resume {short_id(info.name)}", "bright_black")


class ConsentPrompt:
    """Consent callback that asks before a change; a tool can be allowed for the rest of the conversation."""

    def __init__(self, screen: Screen) -> None:
        self.allowed: set[str] = set()
        self.screen = screen

    def __call__(self, call: ToolCall, about: str) -> bool:
        if call.name in self.allowed:
            return True
        self.screen.whole(about)
        answer = ask(f"  run this {call.name}? [y]es, [n]o, [a]lways: ", ANSWERS)
        if answer == "a":
            self.allowed.add(call.name)
        return answer in ("y", "a")


def _interruptible(screen: Screen, work: Any) -> None:
    """Run `work`; Ctrl-C stops it but not the program."""
    try:
        work()
    except KeyboardInterrupt:
        screen.say_stopped()
    except (ModelFailed, EOFError):
        return


def _read(screen: Screen) -> str | None:
    """Read one line, or several joined by trailing backslashes; return None at end of input."""
    lines: list[str] = []
    while True:
        try:
            line = input(PROMPT if not lines else ". ")
        except KeyboardInterrupt:
            screen.say("")
            screen.say("(leave with /quit or Ctrl-D)", "bright_black")
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
        import readline  # arrow keys and history, if the platform has them

        readline.parse_and_bind("set enable-bracketed-paste on")
    agent, screen, config = chat.agent, chat.screen, chat.talk.config
    endpoint, setup = agent.model.endpoint, agent.session.setup
    screen.say(f"{endpoint.model} at {endpoint.place}", "bold")
    folds = f"compacts at {setup.budget.threshold_tokens:,}" if config.compression.enabled else "compaction is off"
    screen.say(f"window of {setup.window:,} tokens, {folds}; session {agent.session.name}")
    screen.caching(config, endpoint)
    local = chat.talk.workshop.sessions.summarizer is not None
    writer = "built in, no LLM (--local)" if local else resolve(config, os.environ, None, endpoint).description
    screen.say(f"summaries: {writer}")
    screen.say(f"working in {Path(chat.talk.workshop.folder.root)}; /help lists commands", "bright_black")
    if agent.session.info is not None:
        history = agent.session.history().transcript
        screen.say(f"resumed with {len(history):,} messages; the last exchange:", "bright_black")
        for said in last_exchange(history):
            screen.words(said)
        screen.status(agent)


def last_exchange(history: Transcript) -> list[Message]:
    """Return the newest user message with text and the last assistant message with text after it."""
    asked = next((at for at in reversed(range(len(history))) if user_words(history[at])), None)
    if asked is None:
        return []
    answers = (message for message in reversed(history[asked:]) if message.role == "assistant" and message.text.strip())
    return [history[asked], *islice(answers, 1)]


class Chat:
    """State of a running chat, for the slash commands."""

    def __init__(self, talk: Talk, screen: Screen, make: Callable[[str | None, Talk], Agent]) -> None:
        self.talk, self.screen = talk, screen
        self._make = make
        self.agent = make(talk.resume, talk)
        self.over = False

    def use(self, talk: Talk) -> None:
        """Continue the session with another model."""
        before = self.agent
        self.agent = self._make(before.session.name if before.session.info is not None else None, talk)
        self.talk = talk
        if isinstance(before.model, ModelClient):
            before.model.close()


class Command(NamedTuple):
    usage: str
    help: str
    run: Callable[[Chat, str], None]


def run_command(chat: Chat, line: str) -> None:
    """Run a slash command."""
    name, _, rest = line[1:].partition(" ")
    matching = [known for known in COMMANDS if known == name] or [known for known in COMMANDS if known.startswith(name)]
    if len(matching) != 1 or not name:
        chat.screen.say(f"unknown command /{name}; see /help", "yellow")
        return
    try:
        COMMANDS[matching[0]].run(chat, rest.strip())
    except MidfoldError as error:
        chat.screen.say(str(error), "red")


def _help(chat: Chat, rest: str) -> None:
    table = make_table("", "", show_header=False)
    for command in COMMANDS.values():
        table.add_row(f"  {command.usage}", command.help)
    chat.screen.out.print(table)
    chat.screen.say("Ctrl-C stops the model or a running command. A line that ends with \\ continues on the next.")


def _compress(chat: Chat, rest: str) -> None:
    words = rest.split()
    preview = "--preview" in words
    words = [word for word in words if word != "--preview"]
    keep, focus = None, " ".join(words) or None
    if words[:1] == ["here"] and (len(words) == 1 or (len(words) == 2 and words[1].isdecimal())):
        keep, focus = max(int(words[1]), 1) if len(words) == 2 else 1, None
    if preview:
        chat.screen.receipt(chat.agent.session.preview(force=True, focus=focus, keep_last_exchanges=keep), preview=True)
        return
    done = chat.agent.room.fold("asked", force=True, focus=focus, keep_last_exchanges=keep)
    chat.screen.receipt(done.receipt)


def _here(chat: Chat, rest: str) -> None:
    _compress(chat, f"here {rest}")


def _context(chat: Chat, rest: str) -> None:
    chat.screen.context(chat.agent)


def _usage(chat: Chat, rest: str) -> None:
    from midfold.pages.statistics import Statistics

    agent, sessions = chat.agent, chat.talk.workshop.sessions
    if agent.session.info is None:
        chat.screen.say("nothing has been sent yet")
        return
    chat.screen.usage(agent, Statistics(sessions, chat.talk.config, sessions.clock).one(agent.session.info))


def _search(chat: Chat, rest: str) -> None:
    from midfold.cli.sessions import hits_table

    if not rest:
        chat.screen.say("usage: /search WORDS", "yellow")
        return
    hits_table(chat.agent.session.search(rest, MAX_HITS), named=False)


def _unfold(chat: Chat, rest: str) -> None:
    session = chat.agent.session
    if not rest:
        chat.screen.say("usage: /unfold HANDLE; see /search and receipts for handles (mf-...)", "yellow")
        return
    for message in session.store.unfold(session.name, rest.split()[0]):
        chat.screen.say(message.role, "bold")
        shown = original(message).partition("\n")[2]
        for line in shown[:MAX_SHOWN_CHARS].splitlines():
            chat.screen.say(f"  {line.expandtabs()}")
        if len(shown) > MAX_SHOWN_CHARS:
            chat.screen.say(f"  and {len(shown) - MAX_SHOWN_CHARS:,} more characters", "bright_black")


def _undo(chat: Chat, rest: str) -> None:
    record = chat.agent.session.undo()
    size = chat.agent.session.size.tokens
    chat.screen.say(f"compaction {record.seq} undone; the conversation has {size:,} tokens again")


def _sessions(chat: Chat, rest: str) -> None:
    from midfold.cli.sessions import session_facts, sessions_table

    sessions = chat.talk.workshop.sessions
    sessions_table([session_facts(info, sessions.title(info)) for info in sessions.all(MAX_SESSIONS)])
    own = short_id(chat.agent.session.name)
    chat.screen.say(f"current session: {own}; resume another with: midfold chat --resume ID", "bright_black")


def _model(chat: Chat, rest: str) -> None:
    words = rest.split()
    if len(words) > 2:
        chat.screen.say("usage: /model [NAME [PROVIDER]]", "yellow")
        return
    if words:
        chat.use(chat.talk._replace(endpoint=chat.talk.other(*words)))
    endpoint, window = chat.agent.model.endpoint, chat.agent.session.setup.window
    chat.screen.say(f"{endpoint.model} at {endpoint.place}, {window:,}-token window")


def _quit(chat: Chat, rest: str) -> None:
    chat.over = True


COMMANDS = {
    "compress": Command("/compress [FOCUS] [--preview]", "compact now; FOCUS gets most of the summary", _compress),
    "here": Command("/compress here [N] [--preview]", "compact everything before the last N exchanges (1)", _here),
    "context": Command("/context", "show token use by kind", _context),
    "usage": Command("/usage", "tokens, cost, and savings of each compaction", _usage),
    "search": Command("/search WORDS", "search this conversation, folded or not", _search),
    "unfold": Command("/unfold HANDLE", "show the originals behind a handle", _unfold),
    "undo": Command("/undo", "undo the last compaction", _undo),
    "sessions": Command("/sessions", "list the stored conversations", _sessions),
    "model": Command("/model [NAME [PROVIDER]]", "show or change the model", _model),
    "help": Command("/help", "this list", _help),
    "quit": Command("/quit", "leave; the session stays stored", _quit),
}
