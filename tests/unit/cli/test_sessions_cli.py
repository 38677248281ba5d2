"""`midfold sessions` and `midfold store` as users run them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import midfold
from midfold.cli.main import main
from midfold.errors import MidfoldError, NotStored, SchemaError, StoreError
from support.fixtures import call, long_tool_heavy_conversation, user

MIGRATIONS = [
    f"000{name}.sql"
    for name in ("1_sessions", "2_prompts", "3_hidden_turns", "4_usage", "5_windows", "6_word_blocks", "7_clients")
]
TALK = long_tool_heavy_conversation().messages


class Shell:
    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, *arguments: str, store: bool = True, **options: Any) -> Result:
        where = ["--store", self.url] if store else []
        result = CliRunner().invoke(main, [*arguments, *where], **options)
        if isinstance(result.exception, MidfoldError):
            raise result.exception
        return result

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json").stdout)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    url = f"sqlite:///{tmp_path}/s.db"
    with midfold.open(url) as sessions:
        session = sessions.session("alice", model="gpt-5.5", context_length=64_000)
        session.append(TALK)
        session.compact(force=True)
        session.append([user("and src/invoice/total_price.py, please \x1b[31m")])
        sessions.session("bob").append([user("hello")])
    return Shell(url)


def test_list_and_show(shell: Shell) -> None:
    assert [row["name"] for row in shell.json("sessions", "list")] == ["bob", "alice"]
    assert "alice" in shell("sessions", "list").stdout
    assert len(shell.json("sessions", "list", "--limit", "1")) == 1
    shown = shell.json("sessions", "show", "alice")
    assert (shown["messages"], shown["model"], len(shown["receipts"])) == (len(TALK) + 1, "gpt-5.5", 1)
    assert "compacted" in shell("sessions", "show", "alice").stdout
    assert "no compactions" in shell("sessions", "receipts", "bob").stdout


def test_views_now_and_then(shell: Shell) -> None:
    now = json.loads(shell("sessions", "view", "alice", "--json").stdout)
    then = json.loads(shell("sessions", "view", "alice", "--at", "1", "--json").stdout)
    assert now[:-1] == then
    assert json.loads(shell("sessions", "view", "alice", "--at", "0", "--json").stdout)[:-1] == TALK
    table = shell("sessions", "view", "alice").stdout
    assert "handoff" in table and "\x1b" not in table


def test_a_view_shows_what_a_json_result_says_first(shell: Shell) -> None:
    rows = [{"path": f"src/{number}.py"} for number in range(500)]
    listed = {"rows": rows, "password": "9f8b7c6d5e4f", "status": "failed", "error": "disk full"}
    with midfold.open(shell.url) as sessions:
        sessions.session("carol").append(
            [user("List."), *call(1, "list", {}, json.dumps(listed)), user('{"rows": [1]}')]
        )
    shown = shell("sessions", "view", "carol").stdout
    assert "error: disk full; status: failed" in shown
    assert '{"rows": [1]}' in shown
    assert "9f8b7c6d5e4f" not in shown


def test_a_view_shows_text_results_by_what_their_tool_tells_first(shell: Shell) -> None:
    hits = "\n".join(f"src/a.py:{number}: the fox" for number in range(1, 9))
    with midfold.open(shell.url) as sessions:
        sessions.session("dora").append(
            [
                user("Look."),
                *call(1, "Bash", {"command": "make"}, "Exit code 2\nboom"),
                *call(2, "Grep", {"pattern": "fox"}, hits),
                *call(3, "Read", {"file_path": "/home/me/shop/src/a.py"}, "import os\n"),
            ]
        )
    shown = shell("sessions", "view", "dora").stdout
    assert "exit code: 2; boom" in shown
    assert "8 matches found; " in shown
    assert "path: `…/src/a.py`; import os" in shown


def test_search_and_unfold(shell: Shell) -> None:
    hit, *_ = shell.json("sessions", "search", "src/invoice/total_price.py", "--session", "alice", "--role", "user")
    assert "total_price.py" in hit["text"]
    assert b"total_price" in shell("sessions", "unfold", "alice", hit["handle"]).stdout_bytes
    (receipt,) = shell.json("sessions", "receipts", "alice")
    originals = shell("sessions", "unfold", "alice", receipt["receipt"]["fold"]).stdout.splitlines()
    assert json.loads(originals[0]) == TALK[receipt["receipt"]["boundary"]["start"]]
    assert "nothing found" in shell("sessions", "search", "zebra", "--since", "1h").stdout
    assert shell.json("sessions", "search", "total_price", "--since", "1h")
    assert shell.json("sessions", "search", "total_price", "--until", "1h") == []
    assert "\x1b" not in shell("sessions", "search", "total_price").stdout


def test_undo(shell: Shell) -> None:
    assert shell.json("sessions", "undo", "alice") == {"undone": 1, "view_messages": len(TALK) + 1}
    assert "undone" in shell("sessions", "receipts", "alice").stdout
    with pytest.raises(NotStored, match="no compaction to undo"):
        shell("sessions", "undo", "alice")


def test_export_and_import(shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "alice.jsonl"
    shell("sessions", "export", "alice", "-o", str(out))
    assert shell("sessions", "export", "alice").stdout_bytes == out.read_bytes()
    with pytest.raises(MidfoldError, match="already exists; use --overwrite to replace it"):
        shell("sessions", "export", "alice", "-o", str(out))
    shell("sessions", "export", "alice", "-o", str(out), "--overwrite")
    assert shell("sessions", "export", "alice", "-o", "-").stdout_bytes == out.read_bytes()
    with pytest.raises(MidfoldError, match="there is no folder"):
        shell("sessions", "export", "alice", "-o", str(tmp_path / "none" / "a.jsonl"))
    assert "carol" in shell("sessions", "import", str(out), "--as", "carol").stdout
    views = [shell("sessions", "view", name, "--json").stdout for name in ("alice", "carol")]
    assert views[0] == views[1]
    with pytest.raises(StoreError, match="already"):
        shell("sessions", "import", str(out))


def test_deleting_needs_a_word(shell: Shell) -> None:
    with pytest.raises(StoreError, match="--yes"):
        shell("sessions", "delete", "bob")
    shell("sessions", "delete", "bob", "--yes")
    assert [row["name"] for row in shell.json("sessions", "list")] == ["alice"]
    assert shell("sessions", "prune", "--older-than", "1d", "--yes").stdout == ""
    assert shell("sessions", "prune", "--older-than", "0s", "--dry-run").stdout == "alice\n"
    shell("sessions", "prune", "--older-than", "0s", "--yes")
    assert shell.json("sessions", "list") == []
    with pytest.raises(StoreError, match="not an age"):
        shell("sessions", "prune", "--older-than", "soon")


def test_the_store_is_checked_migrated_and_copied(shell: Shell, tmp_path: Path) -> None:
    assert shell("store", "check", "--deep").stdout == "no problems\n"
    assert "up to date" in shell("store", "migrate").stdout
    copy = Shell(f"sqlite:///{tmp_path}/copy.db")
    shell("store", "backup", str(tmp_path / "copy.db"))
    assert copy.json("sessions", "list") == shell.json("sessions", "list")
    with closing(sqlite3.connect(tmp_path / "copy.db")) as connection, connection:
        connection.execute("DELETE FROM messages WHERE position = 3")
    connection.close()
    broken = copy("store", "check", "--json")
    assert broken.exit_code == 1 and any("alice" in line for line in json.loads(broken.stdout)["problems"])
    new = Shell(f"sqlite:///{tmp_path}/new.db")
    assert new.json("store", "migrate", "--dry-run")["pending"] == MIGRATIONS
    assert new.json("store", "migrate")["applied"] == MIGRATIONS


def test_pruning_takes_hidden_turns_where_no_session_is_old_enough(tmp_path: Path) -> None:
    shell = Shell(f"sqlite:///{tmp_path}/s.db")
    with midfold.open(shell.url) as sessions:
        sessions.store.hidden_turns.keep("place", "chain", b"{}", session="s")
    shell("sessions", "prune", "--older-than", "0s", "--dry-run")
    shell("sessions", "prune", "--older-than", "1d", "--yes")
    with midfold.open(shell.url) as sessions:
        assert sessions.store.hidden_turns.find("place", ["chain"])
    assert shell("sessions", "prune", "--older-than", "0s").exit_code == 0
    with midfold.open(shell.url) as sessions:
        assert not sessions.store.hidden_turns.find("place", ["chain"])


def test_a_check_finds_hidden_turns_that_were_damaged(tmp_path: Path) -> None:
    shell = Shell(f"sqlite:///{tmp_path}/s.db")
    with midfold.open(shell.url) as sessions:
        sessions.store.hidden_turns.keep("place", "chain", b"{}", session="s")
    with closing(sqlite3.connect(tmp_path / "s.db")) as connection, connection:
        connection.execute("UPDATE hidden_turns SET data = x'5b5d'")
    connection.close()
    assert shell("store", "check").exit_code == 0
    broken = shell("store", "check", "--deep")
    assert broken.exit_code == 1 and "hidden turns" in broken.stdout
    with midfold.open(shell.url) as sessions, pytest.raises(StoreError, match="does not match its hash"):
        sessions.store.hidden_turns.read("place", ["chain"])


def test_which_store(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").touch()
    mine = {"MIDFOLD_CONFIG": str(tmp_path / "empty.yaml"), "XDG_DATA_HOME": str(tmp_path / "data")}
    with pytest.raises(StoreError, match="Name another store with --store URL"):
        shell("sessions", "list", store=False, env=mine)
    with midfold.open(f"sqlite:///{tmp_path}/data/midfold/sessions.db") as sessions:
        sessions.session("of-my-own").append([{"role": "user", "content": "hello"}])
    assert "of-my-own" in shell("sessions", "list", store=False, env=mine).stdout
    configured = {"MIDFOLD_STORE__URL": shell.url}
    assert "alice" in shell("sessions", "list", store=False, env=configured).stdout
    with pytest.raises(StoreError, match="no such file"):
        Shell(f"sqlite:///{tmp_path}/typo.db")("sessions", "list")
    assert not (tmp_path / "typo.db").exists()
    with pytest.raises(NotStored, match="no session nobody"):
        shell("sessions", "show", "nobody")
    (tmp_path / "text.db").write_text("no database " * 200, encoding="ascii")
    with pytest.raises(SchemaError):
        Shell(f"sqlite:///{tmp_path}/text.db")("sessions", "list")


def test_the_index_is_made_anew(shell: Shell) -> None:
    before = shell.json("sessions", "search", "schema")
    assert shell.json("store", "reindex")["indexed"] > 0
    assert "messages indexed" in shell("store", "reindex").stdout
    assert shell.json("sessions", "search", "schema") == before


def test_show_says_what_stands_beside_the_messages(shell: Shell) -> None:
    assert shell.json("sessions", "show", "alice")["system_prompt"] is False
    assert "beside them" not in shell("sessions", "show", "alice").stdout
    with midfold.open(shell.url) as sessions:
        sessions.session("alice", system="Be kind.", tools=[{"name": "sh"}]).append([{"role": "user", "content": "hi"}])
    assert shell.json("sessions", "show", "alice")["tools"] == 1
    assert "a system prompt and 1 tools" in shell("sessions", "show", "alice").stdout
