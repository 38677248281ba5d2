"""`midfold sessions`: what is in a store, and what can be done with it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import click
import msgspec

from midfold.cli.consent import answered
from midfold.cli.inspect import name_of, read_file
from midfold.cli.output import echo, emit_exact, emit_json, notice
from midfold.cli.settings import settings
from midfold.cli.visible import visible
from midfold.config.load import store_url
from midfold.errors import StoreError
from midfold.service import Sessions, open_sessions
from midfold.session import Session
from midfold.store.sqlstore import file_of

UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}

with_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
with_name = click.argument("name")


def with_store(command: Callable[..., None]) -> Callable[..., None]:
    """The options --store and --config; the command is given the opened sessions."""

    @click.option(
        "--store",
        "url",
        metavar="URL",
        help="sqlite:///PATH or postgresql://...; default: store.url, else a file of your own.",
    )
    @click.option("--config", metavar="FILE", help="Read settings from this file.")
    @wraps(command)
    def run(url: str | None, config: str | None, **options: Any) -> None:
        with opened(url, config) as sessions:
            command(sessions, **options)

    return run


@contextmanager
def opened(url: str | None, config: str | None) -> Iterator[Sessions]:
    known = settings(config)
    asked = url or known.store.url
    address = asked or store_url(known, os.environ)
    file = file_of(address)
    if file is not None and not Path(file).exists():
        hint = "" if asked else ": nothing is stored there yet; --store URL, or store.url in config.yaml, names another"
        raise StoreError(f"{address}: there is no such file{hint}")
    with open_sessions(address, config=known, lease_seconds=known.store.lease_seconds) as sessions:
        yield sessions


def existing(sessions: Sessions, name: str) -> Session:
    sessions.store.must(name)
    return sessions.session(name)


@click.group()
def command() -> None:
    """Look into stored sessions and change what may be changed: compactions can be undone, sessions deleted.

    Messages are never rewritten. A session's name is what the host called it; branches are NAME~1, continuations
    NAME+1.
    """


@command.command(name="list")
@with_store
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many.")
@with_json
def list_(sessions: Sessions, limit: int, as_json: bool) -> None:
    """List sessions, those used last first."""
    from midfold.cli.session_tables import session_facts, sessions_table

    rows = [session_facts(info) for info in sessions.all(limit)]
    emit_json(rows) if as_json else sessions_table(rows)


@command.command()
@with_name
@with_store
@with_json
def show(sessions: Sessions, name: str, as_json: bool) -> None:
    """Show one session: its size, its compactions, its family."""
    from midfold.cli.session_tables import health_facts, receipts_table, session_facts, session_page

    session = existing(sessions, name)
    size = session.size
    facts = session_facts(sessions.store.must(name))
    view = session.view()
    facts |= {"view_messages": len(view), "view_tokens": size.tokens, "token_basis": size.basis}
    facts |= {"system_prompt": view.system is not None, "tools": len(view.tools)}
    facts["cache"] = health_facts(session.health)
    records = session.receipts()
    if as_json:
        emit_json(facts | {"receipts": [msgspec.to_builtins(record) for record in records]})
        return
    session_page(facts)
    receipts_table(records)


@command.command()
@with_name
@with_store
@click.option("--at", type=click.IntRange(min=0), metavar="N", help="As compaction N left it; 0: the whole history.")
@with_json
def view(sessions: Sessions, name: str, at: int | None, as_json: bool) -> None:
    """Show what the model sees, or saw.

    With --json the messages are written as a JSON array, each byte for byte as it is stored.
    """
    from midfold.cli.session_tables import view_table

    shown = existing(sessions, name).view(at)
    if as_json:
        emit_exact(shown.json())
    else:
        view_table(shown)


@command.command()
@click.argument("query")
@with_store
@click.option("--session", "name", metavar="NAME", help="Only in this session.")
@click.option("--role", type=click.Choice(["system", "user", "assistant", "tool"]), help="Only messages of this role.")
@click.option("--since", metavar="AGE", help="Only messages younger than, say, 12h or 7d.")
@click.option("--until", metavar="AGE", help="Only messages older than that.")
@click.option("--limit", type=click.IntRange(min=1), default=10, show_default=True, help="How many.")
@with_json
def search(
    sessions: Sessions, query: str, name: str | None, since: str | None, until: str | None, as_json: bool, **asked: Any
) -> None:
    """Search the originals, folded or not.

    All words must occur: parts of paths and of identifiers count as words. "In quotes" means literally, beginning*
    means any word that begins so. Where no message has all of the words, the nearest ones are shown. A hit's handle can
    be given to unfold.
    """
    from midfold.cli.session_tables import hits_table

    def moment(age: str | None) -> int | None:
        return None if age is None else int((sessions.clock() - seconds(age)) * 1000)

    hits = sessions.search(query, session=name, since=moment(since), until=moment(until), **asked)
    emit_json([msgspec.to_builtins(hit) for hit in hits]) if as_json else hits_table(hits)


@command.command()
@with_name
@click.argument("handle")
@with_store
def unfold(sessions: Sessions, name: str, handle: str) -> None:
    """Show the originals behind a handle, byte for byte, one per line.

    HANDLE is one of a receipt, a digest, a handoff or a search hit (mf-...), or its beginning.
    """
    for data in existing(sessions, name).unfold_bytes(handle):
        emit_exact(data)


@command.command()
@with_name
@with_store
@with_json
def undo(sessions: Sessions, name: str, as_json: bool) -> None:
    """Take the last compaction back. It stays on record; everything said since stays."""
    session = existing(sessions, name)
    record = session.undo()
    count = len(session.view())
    if as_json:
        emit_json({"undone": record.seq, "view_messages": count})
    else:
        echo(f"compaction {record.seq} of {name} is undone; the view has {count:,} messages")


@command.command()
@with_name
@with_store
@with_json
def receipts(sessions: Sessions, name: str, as_json: bool) -> None:
    """List the compactions of a session, undone ones too."""
    from midfold.cli.session_tables import receipts_table

    records = existing(sessions, name).receipts()
    emit_json([msgspec.to_builtins(record) for record in records]) if as_json else receipts_table(records)


@command.command()
@with_name
@with_store
@click.option("-o", "--output", metavar="OUT", help="Write here instead of standard output.")
def export(sessions: Sessions, name: str, output: str | None) -> None:
    """Write a session as JSON lines: messages byte for byte, compactions, state."""
    if output is None:
        for line in sessions.export(name):
            emit_exact(line)
        return
    target = Path(output)
    if target.exists():
        raise StoreError(f"{output} exists already; choose another name, so that nothing is lost")
    target.touch(mode=0o600)
    with target.open("wb") as file:
        file.writelines(line + b"\n" for line in sessions.export(name))


@command.command(name="import")
@click.argument("file")
@with_store
@click.option("--as", "name", metavar="NAME", help="Under this name instead of its own.")
def import_(sessions: Sessions, file: str, name: str | None) -> None:
    """Load what export wrote; `-` reads standard input."""
    lines = read_file(file).split(b"\n")
    try:
        loaded = sessions.load(lines, name=name)
    except StoreError as error:
        raise StoreError(f"{name_of(file)}: {error}") from error
    echo(f"{loaded}: {sessions.store.must(loaded).count:,} messages")


@command.command()
@click.option("--older-than", required=True, metavar="AGE", help="Not used for this long: 90d, 12h.")
@with_store
@click.option("--dry-run", is_flag=True, help="Only say which.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def prune(sessions: Sessions, older_than: str, dry_run: bool, yes: bool) -> None:
    """Delete sessions, and turns hidden by recall, that were not used for long.

    Nothing is ever deleted without this, or delete.
    """
    age = seconds(older_than)
    names = sessions.prune(age, dry_run=True)
    for name in names:
        echo(name)
    if dry_run:
        return
    if names:
        _confirmed(f"delete {len(names)} session(s)", yes)
    deleted = sessions.prune(age)
    if names:
        notice(f"{len(deleted)} session(s) deleted")


@command.command()
@with_name
@with_store
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(sessions: Sessions, name: str, yes: bool) -> None:
    """Delete a session, and every original that no other session refers to."""
    count = sessions.store.must(name).count
    _confirmed(f"delete {name} and its {count:,} messages", yes)
    sessions.delete(name)
    notice(f"{name} is deleted")


def _confirmed(what: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise StoreError(f"to {what}, say --yes")
    if answered(f"{visible(what)}? [y]es, [n]o: ", {"y": "yes", "n": "no"}) != "y":
        raise click.Abort


def seconds(age: str) -> float:
    """`90s`, `5m`, `12h`, `7d`, `4w`."""
    match = re.fullmatch(r"(\d{1,9})([smhdw])", age.strip())
    if match is None:
        raise StoreError(f"{age!r} is not an age; expected a number and s, m, h, d or w, as in 30d")
    return float(int(match[1]) * UNITS[match[2]])
