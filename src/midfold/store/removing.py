"""Deleting a session: its rows, and every body that nothing else refers to, with its place in the index."""

from __future__ import annotations

from contextlib import suppress

from midfold.errors import NotStored, StoreDamaged
from midfold.fold.words import search_text, searchable
from midfold.store.appending import tip
from midfold.store.bodies import inflated
from midfold.store.database import Tx

ROWS = ("messages", "pieces", "handles", "compactions", "appends", "prompts")


def delete(tx: Tx, name: str) -> None:
    """Branches and continuations of the session are sessions of their own, and stay."""
    session = tip(tx, name)
    if session is None:
        raise NotStored(f"there is no session {name}")
    bodies = [row[0] for row in tx.all("bodies_of", session=session.id)]
    for rows in ROWS:
        tx.run(f"delete_{rows}", session=session.id)
    tx.run("delete_lease", name=name)
    tx.run("delete_hidden_turns", name=name)
    tx.run("forget_parent", session=session.id)
    tx.run("delete_session", session=session.id)
    for body in sorted(bodies):
        row = tx.one("unreferenced", id=body)
        if row is None:
            continue
        _, indexed, *stored = row
        if indexed:
            # Of a damaged text nobody knows what it was found by: `store check` will ask for a new index.
            with suppress(StoreDamaged):
                tx.unindex(body, search_text(searchable(inflated(*stored))))
        tx.run("delete_body", id=body)


def delete_unused(tx: Tx, name: str, age: int) -> bool:
    """The same, unless the session was used within the last `age` milliseconds, or is gone; says whether it was."""
    if tip(tx, name) is None or tx.one("is_unused", name=name, age=age) is None:
        return False
    delete(tx, name)
    return True
