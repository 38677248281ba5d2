"""Making the search index anew: when the rules for tokens have changed, or when it is damaged.

Rules of this file:
1. It is done in small transactions, so that others go on reading and writing meanwhile. Every message stays findable:
   what is not indexed yet is read (SQLite), or found by its old tokens (PostgreSQL).
2. It may be stopped at any point. What waits is taken in by the next run, and on SQLite by appends too.
3. The database says which rules its index follows. One that follows newer ones is not touched.
"""

from __future__ import annotations

from collections.abc import Callable

from midfold.fold.words import VERSION
from midfold.store.database import Database

BATCH = 500
Progress = Callable[[int, int], None]
"""Called with how many bodies are done, and how many there are."""


def is_stale(database: Database) -> bool:
    """Whether the index, or a part of it, follows older rules than ours."""
    return database.read(lambda tx: tx.number("oldest_words")) < VERSION


def reindex(database: Database, progress: Progress | None = None, *, everything: bool = True) -> int:
    """Indexes messages anew, all or only what follows older rules; says how many bodies that were."""
    total = database.write(lambda tx: tx.begin_reindex(everything=everything), how="alone")
    done, after = 0, 0
    while True:
        bodies = database.write(lambda tx, after=after: tx.index_some(after, BATCH))  # type: ignore[misc]
        if not bodies:
            break
        done, after = done + len(bodies), bodies[-1]
        if progress is not None:
            progress(min(done, total), total)
    database.write(lambda tx: tx.run("set_words", words=VERSION))
    return done
