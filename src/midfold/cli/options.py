"""Options and loaders shared by several commands: settings, transcripts, stored sessions."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from midfold.cli.terminal import notice, show_work
from midfold.config import Config, Loaded, load, locate
from midfold.config.schema import ADDRESS, URL
from midfold.errors import ConfigError, NotStored, StoreError, TranscriptError
from midfold.plugins import configured_engine
from midfold.transcript.document import Document, read_many, require_messages

if TYPE_CHECKING:
    from midfold.session.session import Session
    from midfold.session.sessions import Sessions

LAST = "last"
STORED = "session:"
"""Prefix of a stored session's name in place of a file."""
SHORT = 8
MAX_SESSIONS = 10_000
MAX_NAMED = 5
_HASHED = re.compile(r"(?:^|-)([0-9a-f]{6,})((?:[~+.][0-9a-z~+.]*)?)\Z")

with_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
with_config = click.option("--config", metavar="FILE", help="Read settings from this file.")
with_stored_config = click.option(
    "--config", metavar="FILE", help="Settings file with the store of session:NAME (store.url)."
)
with_url = click.option(
    "--store",
    "url",
    metavar="URL",
    help="sqlite:///PATH or postgresql://...; default: store.url, else a file in your home directory.",
)
with_workers = click.option(
    "--workers", type=click.IntRange(min=1), metavar="N", help="Number of processes; default: number of processors."
)
with_split = click.option(
    "--split",
    type=click.Choice(["all", "train", "held"]),
    default="all",
    help="Use all conversations, or one half of them.",
)
with_plot = click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="OUT.svg", help="Write a chart to this file."
)
with_dialect = click.option(
    "--dialect",
    type=click.Choice(["openai-chat", "openai-responses", "anthropic"]),
    help="Message format; default: detect.",
)
with_conversation = click.option(
    "--conversation", type=int, metavar="N", help="Number of the conversation in a file with several, from 1."
)


def with_base_url(wires: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option --base-url, which validates the URL."""

    def check(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(URL, value):
            raise click.BadParameter(f"expected {ADDRESS}")
        return value

    return click.option("--base-url", callback=check, metavar="URL", help=f"Base URL of a server with {wires}.")


def with_config_path(verb: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option --config of commands that read or write the file itself."""
    help_text = f"File to {verb} instead of $MIDFOLD_CONFIG or ~/.config/midfold/config.yaml."
    return click.option("--config", "file", metavar="FILE", type=click.Path(path_type=Path), help=help_text)


def locate_config(file: Path | None) -> Path:
    found = locate(file)
    if found is None:
        raise ConfigError("no home directory found; name a file with --config or MIDFOLD_CONFIG")
    return found


def load_settings(path: str | Path | None, flags: Mapping[str, Any] | None = None) -> Loaded:
    """Load the configuration with command-line settings in `flags`, and print its notices."""
    loaded = load(path, overrides=flags)
    for text in loaded.notices:
        notice(text)
    return loaded


def settings(path: str | None, flags: Mapping[str, Any] | None = None) -> Config:
    return load_settings(path, flags).config


def engine_settings(path: str | None, flags: Mapping[str, Any] | None = None) -> Config:
    """Load the configuration for a command that runs the context engine, and print the engine's notices too."""
    config = settings(path, flags)
    for text in configured_engine(config).notices:
        notice(text)
    return config


def read_file(file: str) -> bytes:
    """Read a transcript; `-` is standard input."""
    if file == "-":
        if sys.stdin is None:
            raise TranscriptError("standard input is closed")
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise TranscriptError(f"cannot read {file}: {(error.strerror or str(error)).lower()}") from None


def name_of(file: str) -> str:
    return "standard input" if file == "-" else file


def read_conversations(
    file: str, dialect: str | None, number: int | None, *, config: str | None, strict: bool = False
) -> list[Document]:
    """Read the conversations of a file or a stored session; with `number`, only that one."""
    if file.startswith(STORED):
        return [read_stored(file.removeprefix(STORED), config)]
    data = read_file(file)
    with show_work(f"reading {len(data) / 1e6:,.0f} MB"):
        documents = read_many(data, dialect=dialect, strict=strict, name=name_of(file))
    require_messages(documents, name_of(file))
    for document in documents:
        if document.log is not None and document.log.damaged:
            notice(f"{name_of(file)}: {document.log.damage}")
    if number is None:
        return documents
    if not 1 <= number <= len(documents):
        raise TranscriptError(f"{name_of(file)} has {len(documents)} conversation(s); there is no number {number}")
    return [documents[number - 1]]


def read_conversation(file: str, dialect: str | None, number: int | None, *, config: str | None) -> Document:
    """Read the only conversation of a file, or the one with that number."""
    found = read_conversations(file, dialect, number, config=config)
    if len(found) != 1:
        raise TranscriptError(f"{name_of(file)} has {len(found)} conversations; choose one with --conversation N")
    return found[0]


def read_stored(name: str, config: str | None) -> Document:
    """Read the whole history of a stored session, with times and reported usage."""
    from midfold.session.session import read_history

    with open_existing(None, config, option="--config FILE") as sessions:
        return read_history(stored_session(sessions, name))


def files_of(names: tuple[str, ...], config: str | None) -> Iterator[str | Document]:
    """Yield files, the transcripts in folders, and stored sessions."""
    for name in names:
        if name.startswith(STORED):
            yield read_stored(name.removeprefix(STORED), config)
            continue
        if not Path(name).is_dir():
            yield name
            continue
        found = sorted(Path(name).rglob("*.jsonl")) or sorted(Path(name).rglob("*.json"))
        if not found:
            raise TranscriptError(f"{name} is a folder without .jsonl or .json files")
        yield from map(str, found)


def with_store(command: Callable[..., None]) -> Callable[..., None]:
    """Add --store and --config; the command receives the opened sessions."""

    @with_url
    @with_config
    @wraps(command)
    def run(url: str | None, config: str | None, **options: Any) -> None:
        with open_existing(url, config) as sessions:
            command(sessions, **options)

    return run


@contextmanager
def open_existing(url: str | None, config: str | None, option: str = "--store URL") -> Iterator[Sessions]:
    """Open the sessions of an existing store; `option` names the option for another store in the error."""
    from midfold.config.load import store_url
    from midfold.session.sessions import open_sessions
    from midfold.store.sqlstore import file_of

    known = settings(config)
    wanted = url or known.store.url
    address = wanted or store_url(known, os.environ)
    file = file_of(address)
    if file is not None and not Path(file).exists():
        hint = (
            "" if wanted else f"; nothing is stored yet. Name another store with {option} or store.url in config.yaml"
        )
        raise StoreError(f"{address}: no such file{hint}")
    with open_sessions(address, config=known) as sessions:
        yield sessions


def open_own(url: str | None, config: str | None) -> Sessions:
    """Open the sessions of a store; create it if it does not exist."""
    from midfold.session.sessions import open_sessions

    return open_sessions(url, config=settings(config))


def short_id(name: str) -> str:
    """Return the distinguishing part of a session's name: `79d03d` of `20261116-2310-79d03d`."""
    found = _HASHED.search(name)
    return f"{found[1][:SHORT]}{found[2]}" if found else name


def full_name(sessions: Sessions, wanted: str) -> str:
    """Resolve a session by its name, a prefix of its name or short id, or `last`."""
    if sessions.store.info(wanted) is not None:
        return wanted
    names = [info.name for info in sessions.all(MAX_SESSIONS)]
    if wanted == LAST and names:
        return names[0]
    if not wanted:
        raise NotStored("the session name is empty; see `midfold sessions list`")
    matching = [name for name in names if wanted == short_id(name)]
    matching = matching or [name for name in names if wanted and _begins(name, wanted)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        shown = ", ".join(matching[:MAX_NAMED]) + (" and others" if len(matching) > MAX_NAMED else "")
        raise NotStored(f"{wanted} matches {len(matching)} sessions: {shown}")
    near = get_close_matches(wanted, names, n=1)
    hint = f"did you mean {near[0]}?" if near else "see `midfold sessions list`"
    raise NotStored(f"no session {wanted}; {hint}")


def _begins(name: str, wanted: str) -> bool:
    """Return whether the name, its short id, or a client's id inside it starts with `wanted`."""
    return name.startswith(wanted) or short_id(name).startswith(wanted) or f"-{wanted}" in name or f"/{wanted}" in name


def stored_session(sessions: Sessions, name: str) -> Session:
    return sessions.session(full_name(sessions, name))
