"""Numbered SQL files, applied once and in order, each in a transaction with its number and checksum.

Rules of this file:
1. A file that was released never changes: its checksum is in the databases it was applied to.
2. A database with a number this program does not know was written by a newer midfold; it is not touched.
3. What a migration only adds, an older program goes on without. What it makes needless is taken out in the same
   transaction by `_cleared`, with what refers to it.
4. A database without our table of migrations is new; if it has tables of our names, creating them fails and nothing is
   done.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from typing import NamedTuple

from midfold.errors import SchemaError
from midfold.fold.words import VERSION as WORDS
from midfold.store import indexing, removing
from midfold.store.database import Database, Tx
from midfold.store.queries import Flavour

_FILE = re.compile(r"(\d{4})_\w+\.sql")
TABLE = {
    "sqlite": "CREATE TABLE IF NOT EXISTS midfold_migrations "
    "(number INTEGER PRIMARY KEY, checksum TEXT NOT NULL, words INTEGER NOT NULL, at INTEGER NOT NULL)",
    "postgres": "CREATE TABLE IF NOT EXISTS midfold_migrations "
    "(number integer PRIMARY KEY, checksum text NOT NULL, words integer NOT NULL, at bigint NOT NULL)",
}
PRESENT = {
    "sqlite": "SELECT count(*) FROM sqlite_master WHERE name = 'midfold_migrations'",
    "postgres": "SELECT count(*) FROM pg_class WHERE oid = to_regclass('midfold_migrations')",
}
HIDDEN_TURNS = 3
"""The migration after which hidden turns are no sessions."""
_OLD_HIDDEN = re.compile(r"gw-hidden-[0-9a-f]{24}")
ALONE = {"sqlite": "SELECT 1", "postgres": "SELECT pg_advisory_xact_lock(7310593858020254828)"}
"""Two programs that migrate at once do it one after the other."""


class Migration(NamedTuple):
    number: int
    name: str
    text: str
    checksum: str


@cache
def migrations(flavour: Flavour) -> tuple[Migration, ...]:
    found: list[Migration] = []
    for source in (files("midfold.store") / "sql" / flavour).iterdir():
        match = _FILE.fullmatch(source.name)
        if match:
            text = source.read_text(encoding="utf-8")
            checksum = blake2b(text.encode(), digest_size=16).hexdigest()
            found.append(Migration(int(match[1]), source.name, text, checksum))
    return tuple(sorted(found))


def pending(database: Database) -> list[Migration]:
    """What would be applied. Raises if the database is newer than this program, or its migrations are not ours."""
    return database.read(lambda tx: _pending(tx, database))


def _pending(tx: Tx, database: Database) -> list[Migration]:
    known = migrations(database.flavour)
    if not tx.connection.execute(PRESENT[database.flavour]).fetchone()[0]:
        return list(known)
    applied = dict(tx.all("versions"))
    if tx.number("newest_words") > WORDS:
        raise SchemaError(f"{database.where}: its search index was made by a newer midfold: update this one")
    ours = {migration.number: migration for migration in known}
    newer = sorted(set(applied) - set(ours))
    if newer:
        raise SchemaError(
            f"{database.where}: its schema has number {newer[-1]}, this midfold knows up to {known[-1].number}; "
            "it was written by a newer midfold: update this one"
        )
    for number, checksum in applied.items():
        if checksum != ours[number].checksum:
            raise SchemaError(f"{database.where}: migration {ours[number].name} was applied with other contents")
    return [migration for migration in known if migration.number not in applied]


def migrate(database: Database, progress: indexing.Progress | None = None) -> list[Migration]:
    """Brings the schema and the search index up to date; says what was applied."""
    done = _applied(database) if pending(database) else []
    if indexing.is_stale(database):
        indexing.reindex(database, progress, everything=False)
    return done


def _applied(database: Database) -> list[Migration]:

    def apply(tx: Tx) -> list[Migration]:
        tx.connection.execute(ALONE[database.flavour])
        tx.connection.execute(TABLE[database.flavour])
        todo = _pending(tx, database)
        for migration in todo:
            for statement in statements(migration.text):
                tx.connection.execute(statement)
            tx.run("add_version", number=migration.number, checksum=migration.checksum, words=WORDS)
        if any(migration.number == HIDDEN_TURNS for migration in todo):
            _cleared(tx)
        return todo

    return database.write(apply, how="alone")


def _cleared(tx: Tx) -> None:
    """Without the sessions that held hidden turns before: nobody knows whose they were, so nobody may have them."""
    for (name,) in tx.all("old_hidden_sessions"):
        if _OLD_HIDDEN.fullmatch(name):
            removing.delete(tx, name)


def statements(text: str) -> list[str]:
    """The statements of a file; comments stand on lines of their own, and no statement has a semicolon inside."""
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    return [statement for piece in "\n".join(lines).split(";") if (statement := piece.strip())]
