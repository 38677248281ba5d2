"""`midfold store`: bring a store up to date, check it, copy it."""

from __future__ import annotations

import sys

import click

from midfold.cli.output import emit_json
from midfold.cli.sessions import NO_STORE, with_json, with_store
from midfold.cli.settings import settings
from midfold.errors import StoreError
from midfold.service import Sessions
from midfold.store import open_database
from midfold.store.migrations import migrate as apply
from midfold.store.migrations import pending


@click.group()
def command() -> None:
    """Look after a store of sessions."""


@command.command()
@click.option("--store", "url", metavar="URL", help="sqlite:///PATH or postgresql://...; default: store.url.")
@click.option("--config", metavar="FILE", help="Read settings from this file.")
@click.option("--dry-run", is_flag=True, help="Only say what would be applied.")
@with_json
def migrate(url: str | None, config: str | None, dry_run: bool, as_json: bool) -> None:
    """Make a store, or bring its schema up to date, in one transaction.

    A store that a newer midfold has written is refused.
    """
    address = url or settings(config).store.url
    if address is None:
        raise StoreError(NO_STORE)
    database = open_database(address)
    try:
        done = pending(database) if dry_run else apply(database)
    finally:
        database.close()
    names = [migration.name for migration in done]
    if as_json:
        emit_json({"applied": [] if dry_run else names, "pending": names if dry_run else []})
    else:
        word = "would apply" if dry_run else "applied"
        click.echo("\n".join(f"{word} {name}" for name in names) or "the schema is up to date")


@command.command()
@with_store
@click.option("--deep", is_flag=True, help="Also read every message and compare it with its hash.")
@with_json
def check(sessions: Sessions, deep: bool, as_json: bool) -> None:
    """Verify the invariants; exit 1 if one is violated.

    Every message is in a view or covered by a compaction, every handle leads to its originals, chains are whole, and no
    row belongs to nothing.
    """
    problems = sessions.check(deep=deep)
    if as_json:
        emit_json({"problems": problems})
    else:
        click.echo("\n".join(problems) or "all is well")
    if problems:
        sys.exit(1)


@command.command()
@click.argument("target")
@with_store
def backup(sessions: Sessions, target: str) -> None:
    """Copy a SQLite store while it is used; PostgreSQL has pg_dump."""
    sessions.backup(target)
    click.echo(target)
