"""Data derived from messages is always redacted; originals only if `store.redact` is set."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import midfold
from support.build import SECRET, WINDOW, assistant, call, user, work

PASSWORD = "Tr0ub4dor" + "horsebattery"


@pytest.mark.parametrize("redacts", [False, True])
def test_no_index_excerpt_summary_or_receipt_holds_a_credential(redacts: bool, tmp_path: Path) -> None:
    file = tmp_path / "s.db"
    talk = [
        user(f"The key is {SECRET}, keep it."),
        assistant("Noted."),
        *call(1, "login", {"password": PASSWORD}, "ok"),
    ]
    with midfold.open(f"sqlite:///{file}", redacts=redacts) as sessions:
        session = sessions.session("s", context_length=WINDOW)
        session.append([*talk, *work(10)])
        handle = session.compact(force=True).receipt.fold
        for secret in (SECRET, SECRET[-32:], PASSWORD, f'"{SECRET}"', f"{SECRET[13:30]}*"):
            assert session.search(secret) == []
            assert sessions.search(secret) == []
        (hit, *_) = session.search("keep")
        assert SECRET not in hit.text
        assert SECRET not in session.state.summary
        originals = json.dumps([*session.view().messages, *session.unfold(handle)])
        assert (SECRET in originals, PASSWORD in originals) == (not redacts, not redacts)
    with closing(sqlite3.connect(file)) as database, database:
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        held = {
            table
            for table in tables
            for row in database.execute(f'SELECT * FROM "{table}"')
            if any(secret.encode() in _bytes(cell) for cell in row for secret in (SECRET, PASSWORD))
        }
    assert held <= (set() if redacts else {"bodies"})
    assert (b"horsebattery" in file.read_bytes()) is not redacts


def _bytes(cell: object) -> bytes:
    return cell if isinstance(cell, bytes) else str(cell).encode()
