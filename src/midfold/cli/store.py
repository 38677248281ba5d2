"""`midfold store`: migrate, check and back up a store."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from midfold.cli.command_groups import HelpfulGroup
from midfold.cli.options import settings, with_config, with_json, with_store, with_url
from midfold.cli.outputs import check_output
from midfold.cli.terminal import echo, emit_json, progress_bar, show_work
from midfold.config.load import store_url
from midfold.session.sessions import Sessions
from midfold.store import open_database
from midfold.store.sqlstore import file_of
from midfold.store.upkeep import migrate as apply
from midfold.store.upkeep import pending


@click.group(cls=HelpfulGroup)
def command() -> None:
    """Migrate, check and back up a store of sessions."""


@command.command()
@with_url
@with_config
@click.option("--dry-run", is_flag=True, help="Only list what would be applied.")
@with_json
def migrate(url: str | None, config: str | None, dry_run: bool, as_json: bool) -> None:
    """Create a store or migrate its schema, in one transaction; then rebuild its search index if needed.

    Fails for a store written by a newer midfold.
    """
    address = url or store_url(settings(config), os.environ)
    file = file_of(address)
    database = open_database("memory:" if dry_run and file and not Path(file).exists() else address)
    try:
        with progress_bar("indexing") as progress:
            done = pending(database) if dry_run else apply(database, progress)
    finally:
        database.close()
    names = [migration.name for migration in done]
    if as_json:
        emit_json({"applied": [] if dry_run else names, "pending": names if dry_run else []})
    else:
        word = "would apply" if dry_run else "applied"
        echo("\n".join(f"{word} {name}" for name in names) or "the schema is up to date")


@command.command()
@with_store
@click.option("--deep", is_flag=True, help="Also read every message and compare it with its hash.")
@with_json
def check(sessions: Sessions, deep: bool, as_json: bool) -> None:
    """Verify the invariants; exit 1 if one is violated.

    Every message is in a view or covered by a compaction, every handle has its originals, chains are complete, and
    there are no orphaned rows.
    """
    with show_work("checking"):
        problems = sessions.check(deep=deep)
    if as_json:
        emit_json({"problems": problems})
    else:
        echo("\n".join(problems) or "no problems")
    if problems:
        sys.exit(1)


@command.command()
@with_store
@with_json
def reindex(sessions: Sessions, as_json: bool) -> None:
    """Rebuild the search index, if check reports that it does not match the messages.

    The store stays usable meanwhile. After an update that requires it, this happens automatically when the store is
    opened.
    """
    with progress_bar("indexing") as progress:
        count = sessions.reindex(progress)
    emit_json({"indexed": count}) if as_json else echo(f"{count:,} messages indexed")


@command.command()
@click.argument("target")
@with_store
def backup(sessions: Sessions, target: str) -> None:
    """Copy a SQLite store while it is in use; for PostgreSQL use pg_dump."""
    checked = check_output(target)
    with show_work("copying"):
        sessions.backup(str(checked))
    echo(target)
