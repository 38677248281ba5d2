"""`midfold import`: logs of other agents are listed, and selected ones are stored once."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import midfold.session.sessions
from midfold.cli.main import main
from midfold.client_logs import find as client_logs
from midfold.client_logs.find import find_logs, keep_log
from midfold.session.sessions import open_sessions
from midfold.store.usage import Turns
from midfold.transcript import read

LOGS = Path(__file__).resolve().parents[2] / "data" / "logs"
PLACES = {
    "claude-code": (".claude/projects/-srv-shop/b92f5b9a-14f8-4d21-afab-d832fdf717d2.jsonl", "claude_code.jsonl"),
    "codex": (".codex/sessions/2026/11/17/rollout-2026-11-17T02-48-37-01a1e768.jsonl", "codex.jsonl"),
    "gemini-cli": (".gemini/tmp/shop/chats/session-2026-11-17T02-48-477dbe8d.jsonl", "gemini_cli.jsonl"),
    "copilot": (".copilot/session-state/18bf9cc2-60ca-4384-9822-f337ea46a470/events.jsonl", "copilot.jsonl"),
    "opencode": (".local/share/opencode/opencode.db", "opencode.json"),
}
NAMES = ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "COPILOT_HOME", "XDG_DATA_HOME", "MIDFOLD_CONFIG", "MIDFOLD_STORE_URL")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def put(home: Path, client: str, age: float = 3_600) -> Path:
    """Write a client's log at its usual path, last used so many seconds ago."""
    place, sample = PLACES[client]
    path = home / place
    path.parent.mkdir(parents=True, exist_ok=True)
    if client == "opencode":
        fill_opencode(path, json.loads((LOGS / sample).read_text()))
    else:
        shutil.copy(LOGS / sample, path)
    if client == "gemini-cli":
        (path.parents[1] / ".project_root").write_text("/srv/shop")
    os.utime(path, (time.time() - age,) * 2)
    return path


def fill_opencode(path: Path, export: dict[str, Any]) -> None:
    info, database = export["info"], sqlite3.connect(path)
    database.execute("CREATE TABLE session (id, parent_id, directory, title, time_updated)")
    database.execute("CREATE TABLE message (id, session_id, time_created, data)")
    database.execute("CREATE TABLE part (id, message_id, session_id, data)")
    row = (info["id"], None, info["directory"], info["title"], info["time"]["updated"])
    database.execute("INSERT INTO session VALUES (?, ?, ?, ?, ?)", row)
    for message in export["messages"]:
        said = message["info"]
        values = (said["id"], info["id"], said["time"]["created"], json.dumps(said))
        database.execute("INSERT INTO message VALUES (?, ?, ?, ?)", values)
        for part in message["parts"]:
            database.execute(
                "INSERT INTO part VALUES (?, ?, ?, ?)", (part["id"], said["id"], info["id"], json.dumps(part))
            )
    database.commit()
    database.close()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["import", *arguments], catch_exceptions=True)


def stored(home: Path) -> dict[str, int]:
    file = home / ".local/share/midfold/sessions.db"
    if not file.exists():
        return {}
    with open_sessions(f"sqlite:///{file}") as sessions:
        return {info.name: info.count for info in sessions.all()}


@pytest.mark.parametrize("client", PLACES)
def test_logs_are_found_listed_and_brought_in_once(home: Path, client: str) -> None:
    path = put(home, client)
    before = path.read_bytes()
    listed = run(client)
    assert listed.exit_code == 0 and "Say hello with the shell." in listed.stdout and "shop" in listed.stdout
    assert stored(home) == {}, "listing stores nothing"
    (row,) = json.loads(run(client, "--json").stdout)
    assert row["folder"] == "/srv/shop" and row["used"].startswith("20")
    done = run(client, "--session", row["id"][:12])
    assert done.exit_code == 0, done.output
    ((name, count),) = stored(home).items()
    assert name.startswith("project:shop-") and f"/{client}-{row['id']}" in name and count >= 8
    again = run(client, "--all")
    assert again.exit_code == 0 and "nothing new" in again.stdout
    assert stored(home) == {name: count} and path.read_bytes() == before


@pytest.mark.parametrize("client", PLACES)
def test_what_a_log_says_of_times_models_and_usage_is_stored(home: Path, client: str) -> None:
    put(home, client)
    run(client, "--all")
    run(client, "--all")
    with open_sessions(f"sqlite:///{home}/.local/share/midfold/sessions.db") as sessions:
        (info,) = sessions.all()
        turns = Turns(sessions.store).of(info)
        assert [turn.usage.prompt_tokens > 8_900 for turn in turns] == [True] * 4
        assert all(turn.model == info.model for turn in turns) and info.model
        said = [row.at for row in sessions.store.history(info)]
        assert all(1_794_883_700_000 < at < 1_794_884_000_000 for at in said)
        assert sessions.session(info.name).health.turns == 4
        (hit, *_) = sessions.search("once more")
        assert hit.session == info.name and hit.at in said


def test_an_imported_session_was_used_when_its_last_message_was_said(home: Path) -> None:
    """The list is sorted by it, but pruning does not use it for sessions imported just now."""
    old = put(home, "claude-code")
    old.write_text(old.read_text().replace("2026-11-17T", "2024-02-03T"))
    put(home, "codex").write_text((LOGS / "codex.jsonl").read_text().replace("2026-11-17T", "2025-02-03T"))
    for client in ("codex", "claude-code"):
        assert run(client, "--all").exit_code == 0
    listed = json.loads(CliRunner().invoke(main, ["sessions", "list", "--json"]).stdout)
    assert [row["used"][:10] for row in listed] == ["2025-02-03", "2024-02-03"]
    assert all(row["created"] > "2025-02-04" for row in listed)
    shown = CliRunner().invoke(main, ["sessions", "show", listed[1]["name"]]).stdout
    assert f"stored {listed[1]['created']}, last used 2024-02-03 02:4" in shown
    pruned = CliRunner().invoke(main, ["sessions", "prune", "--older-than", "1h", "--dry-run"])
    assert (pruned.exit_code, pruned.stdout) == (0, "")
    with open_sessions(f"sqlite:///{home}/.local/share/midfold/sessions.db") as sessions:
        sessions.session(listed[1]["name"]).append({"role": "user", "content": "And now?"})
        assert sessions.all()[0].name == listed[1]["name"]


def test_a_log_that_grew_adds_the_rest(home: Path) -> None:
    path = put(home, "claude-code")
    lines = path.read_bytes().splitlines(keepends=True)
    counts = []
    for end in range(3, len(lines) + 1):
        path.write_bytes(b"".join(lines[:end]))
        done = run("claude-code", "--all", "--json")
        assert done.exit_code == 0, done.output
        assert not any(row["branched"] for row in json.loads(done.stdout)), end
        counts.append(sum(stored(home).values()))
    assert counts == sorted(counts) and counts[-1] == 8 and len(stored(home)) == 1


def test_an_open_end_is_taken_when_nobody_writes_any_more(home: Path) -> None:
    path = put(home, "claude-code")
    lines = path.read_bytes().splitlines(keepends=True)
    answer = next(place for place, line in enumerate(lines) if b'"assistant"' in line)
    path.write_bytes(b"".join(lines[: answer + 1]))
    run("claude-code", "--all")
    assert list(stored(home).values()) == [1]
    os.utime(path, (time.time() - 3_600,) * 2)
    run("claude-code", "--all")
    assert list(stored(home).values()) == [2]


def test_what_the_user_took_back_makes_a_branch_and_that_is_told(home: Path) -> None:
    path = put(home, "claude-code")
    run("claude-code", "--all")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    turns = [line for line in lines if "message" in line]
    other = {**turns[5], "uuid": "new", "message": {"role": "user", "content": "Say goodbye instead."}}
    path.write_text("\n".join(map(json.dumps, [*lines, other])))
    done = run("claude-code", "--all")
    assert "as a branch: earlier messages of the log changed" in done.stdout
    assert sorted(stored(home).values()) == [5, 8]
    assert "nothing new" in run("claude-code", "--all").stdout
    assert sorted(stored(home).values()) == [5, 8]


def test_damaged_lines_are_told_with_their_numbers_and_the_rest_is_stored(home: Path) -> None:
    path = put(home, "codex")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], b"\x00\x00\n", *lines[4:], b'{"type": "resp']))
    done = run("codex", "--all")
    assert done.exit_code == 0 and "2 unreadable line(s) skipped: 5, 36" in done.stderr
    assert list(stored(home).values()) == [11]


def test_a_file_is_brought_in_and_another_clients_log_is_named(home: Path) -> None:
    done = run("claude-code", str(LOGS / "claude_code.jsonl"))
    assert done.exit_code == 0 and len(stored(home)) == 1
    wrong = run("claude-code", str(LOGS / "codex.jsonl"))
    assert wrong.exit_code == 1 and "is not a Claude Code log but a Codex log" in wrong.stderr
    (home / "odd.jsonl").write_text('{"type": "bubble"}\n{"type": "composer"}\n')
    unknown = run("codex", str(home / "odd.jsonl"))
    assert unknown.exit_code == 1 and "'bubble', 'composer'" in unknown.stderr
    assert len(stored(home)) == 1


def test_secrets_are_redacted_where_the_settings_say_so(home: Path) -> None:
    secret = "sk-ant-api03-" + "Q7x" * 30
    path = put(home, "claude-code")
    path.write_text(path.read_text().replace("Say hello", f"With {secret} say hello"))
    assert secret not in run("claude-code").output
    run("claude-code", "--all", "--store", f"sqlite:///{home}/plain.db")
    (home / "config.yaml").write_text("store:\n  redact: true\n")
    run("claude-code", "--all", "--store", f"sqlite:///{home}/clean.db", "--config", str(home / "config.yaml"))
    for name, is_there in (("plain.db", True), ("clean.db", False)):
        with open_sessions(f"sqlite:///{home / name}") as sessions:
            (info,) = sessions.all()
            assert (secret in sessions.session(info.name).history().json().decode()) == is_there


def test_logs_of_sub_agents_and_empty_ones_are_left_out(home: Path) -> None:
    path = put(home, "claude-code")
    shutil.copy(path, path.with_name("agent-1.jsonl"))
    (path.parent / "subagents").mkdir()
    shutil.copy(path, path.parent / "subagents" / "x.jsonl")
    title = {"type": "summary", "summary": "x", "leafUuid": "y"}
    notice = {
        "type": "user",
        "uuid": "u",
        "message": {"role": "user", "content": "<system-reminder>x</system-reminder>"},
    }
    path.with_name("empty.jsonl").write_text(f"{json.dumps(title)}\n{json.dumps(notice)}\n")
    assert len(json.loads(run("claude-code", "--json").stdout)) == 1
    done = run("claude-code", "--all")
    assert done.exit_code == 0 and "1 without user messages skipped" in done.stderr
    assert len(stored(home)) == 1


def test_choices_that_fit_nothing_or_several_are_told(home: Path) -> None:
    assert run("codex").exit_code != 0 and "no Codex logs found in" in str(run("codex").exception)
    put(home, "codex")
    assert "no log has the id zzz" in str(run("codex", "--session", "zzz").exception)
    assert "file or folder not found" in str(run("codex", str(home / "nowhere")).exception)
    assert json.loads(run("codex", "--since", "5m", "--json").stdout) == []


def test_the_hooks_of_claude_code_and_an_import_mean_the_same_session(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from midfold.adapters.claude_code import keep

    path = put(home, "claude-code")
    keep(Path("/srv/shop"), path, path.stat().st_size, "b92f5b9a-14f8-4d21-afab-d832fdf717d2")
    before = stored(home)
    assert list(before.values()) == [8]
    run("claude-code", "--all")
    assert stored(home) == before


def test_pieces_of_a_large_log_are_stored_one_after_the_other(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(home, "codex")
    monkeypatch.setattr(midfold.session.sessions, "PIECE_BYTES", 500)
    assert run("codex", "--all").exit_code == 0
    assert list(stored(home).values()) == [11]
    assert "nothing new" in run("codex", "--all").stdout


def test_a_database_that_nobody_can_read_is_one_line(home: Path) -> None:
    path = put(home, "opencode")
    database = sqlite3.connect(path)
    database.execute("UPDATE part SET data = '{broken' WHERE rowid = 1")
    database.commit()
    database.close()
    done = run("opencode", "--all")
    assert done.exit_code == 1 and "a row of session ses_" in done.stderr
    path.write_bytes(b"no database" * 100)
    assert "cannot read" in str(run("opencode").exception)
    path.unlink()
    assert "`opencode export ID`" in str(run("opencode").exception)
    exported = run("opencode", str(LOGS / "opencode.json"))
    assert exported.exit_code == 0 and list(stored(home).values()) == [8]


def test_an_interrupted_import_goes_on_where_it_ended(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(home, "codex")
    monkeypatch.setattr(midfold.session.sessions, "PIECE_BYTES", 500)
    with open_sessions(f"sqlite:///{home}/s.db") as sessions:
        (log,) = find_logs("codex", None, os.environ)

        def interrupt(done: int, of: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            keep_log(sessions, log, interrupt)
        (info,) = sessions.all()
        assert 0 < info.count < 11
        kept = keep_log(sessions, log)
        assert (kept.added, kept.messages, kept.branched) == (11 - info.count, 11, False)
        assert len(Turns(sessions.store).of(sessions.store.must(info.name))) == 4


# Logs as input of other commands.


@pytest.mark.parametrize("name", [sample for _, sample in PLACES.values()])
def test_every_command_that_reads_transcripts_reads_logs(tmp_path: Path, name: str) -> None:
    def ask(*arguments: str) -> Any:
        done = CliRunner().invoke(main, [*arguments, "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    log = str(LOGS / name)
    shown = ask("inspect", log)
    assert shown["context"]["measured"] and 8_900 < shown["context"]["prompt_tokens"] < 9_200
    (health,) = ask("cache", "health", log)
    assert health["turns"] == 4 and health["hit_rate"] > 0.8 and "paid" in health
    played = ask("replay", log, "--windows", "64k", "--policy", "no-compaction", "--workers", "1")
    assert played["with_times"] == 1 and played["recorded"]["requests"] == 4
    assert played["model"] == shown["model"]["name"]
    assert 35_000 < played["recorded"]["sent"] < 37_000
    assert played["totals"][0]["sent"] == pytest.approx(played["recorded"]["sent"], rel=0.1), "with what is fixed"
    out = tmp_path / "out.jsonl"
    done = CliRunner().invoke(main, ["trajectories", "compress", log, str(out), "--workers", "1"])
    assert done.exit_code == 0, done.output
    assert len(out.read_bytes().splitlines()) == 1
    assert [m.role for m in read(out.read_bytes()).messages] == [m.role for m in read(Path(log).read_bytes()).messages]


def test_the_window_that_a_log_names_is_the_window() -> None:
    def window(*more: str) -> int:
        done = CliRunner().invoke(main, ["inspect", str(LOGS / "codex.jsonl"), "--json", *more])
        return int(json.loads(done.stdout)["model"]["context_window"])

    assert window() == 258_400
    assert window("--model", "gpt-4o") == 128_000


@pytest.mark.parametrize(("prompt", "window"), [(150_000, 200_000), (350_000, 1_000_000)])
def test_a_prompt_that_was_answered_fits_the_window(tmp_path: Path, prompt: int, window: int) -> None:
    text = (LOGS / "claude_code.jsonl").read_text().replace("claude-opus-4-8", "claude-sonnet-4-5")
    (tmp_path / "log.jsonl").write_text(
        text.replace('"cache_read_input_tokens":80', f'"cache_read_input_tokens":{prompt // 100}')
    )
    done = CliRunner().invoke(main, ["inspect", str(tmp_path / "log.jsonl"), "--json"])
    assert json.loads(done.stdout)["model"]["context_window"] == window


def test_stored_sessions_can_be_named_where_a_file_is_expected(home: Path) -> None:
    put(home, "codex")
    run("codex", "--all")
    for command in (["inspect"], ["cache", "health"], ["artifacts"], ["compact"]):
        for name in ("session:codex", "session:last", "session:01a1e768"):
            done = CliRunner().invoke(main, [*command, name])
            assert done.exit_code == 0, done.output
    played = CliRunner().invoke(main, ["replay", "session:codex", "--windows", "64k", "--json", "--workers", "1"])
    assert json.loads(played.stdout)["recorded"]["requests"] == 4
    assert json.loads(played.stdout)["with_times"] == 1
    health = CliRunner().invoke(main, ["cache", "health", "session:codex", "--json"])
    assert json.loads(health.stdout)[0]["turns"] == 4
    measured = CliRunner().invoke(main, ["eval", "session:codex"])
    assert "All 1 sessions are too short" in str(measured.exception)
    assert "no session other" in str(CliRunner().invoke(main, ["inspect", "session:other"]).exception)


def test_damage_and_empty_logs_are_told_by_every_command(tmp_path: Path) -> None:
    lines = (LOGS / "claude_code.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "a.jsonl").write_bytes(b"".join([*lines[:5], b"{broken\n", *lines[5:]]))
    (tmp_path / "b.jsonl").write_bytes(b'{"type":"user","uuid":"u","isSidechain":true,"message":{"content":"x"}}\n')
    told = "a.jsonl: 1 unreadable line(s) skipped: 6"
    for command in ("inspect", "artifacts"):
        assert told in CliRunner().invoke(main, [command, str(tmp_path / "a.jsonl")]).stderr
    played = CliRunner().invoke(main, ["replay", str(tmp_path), "--windows", "64k", "--workers", "1"])
    assert played.exit_code == 0, played.output
    assert told in played.stderr and "b.jsonl is a log without messages" in played.stderr


# Untrusted logs


def put_bomb(home: Path, *, name: str = "rollout-bomb.jsonl.zst", megabytes: int = 1_024) -> Path:
    """Write a log that decompresses to many times its size."""
    zstandard = pytest.importorskip("zstandard")
    path = home / ".codex/sessions" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as packed:
        packed.write((LOGS / "codex.jsonl").read_bytes())
        for _ in range(megabytes):
            packed.write(b" " * (1 << 20))
    return path


def test_a_packed_log_is_listed_and_refused_without_being_unpacked(home: Path) -> None:
    put(home, "codex")
    bomb = put_bomb(home)
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "from midfold.__main__ import run; run()"
    )
    command = [sys.executable, "-c", code, "import", "codex"]
    listed = subprocess.run([*command, "--json"], capture_output=True, check=False)
    assert listed.returncode == 0 and len(json.loads(listed.stdout)) == 2, listed.stderr.decode()
    done = subprocess.run([*command, "--all"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"{bomb} is larger than 256 MB; skipped" in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr and list(stored(home).values()) == [11]


def test_a_log_of_many_tiny_values_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(home, "codex")
    path.write_bytes(path.read_bytes() + b'{"x":[' + b"{}," * 500_000 + b"{}]}\n")
    monkeypatch.setattr(client_logs, "MAX_LOG_VALUES", 1_000_000)
    done = run("codex", "--all")
    assert done.exit_code == 1 and "has more than 1,000,000 JSON values" in done.stderr and stored(home) == {}


@pytest.mark.parametrize(
    ("table", "told"),
    [("1", "interrupted"), ("hex(zeroblob(500000))", "is larger than")],
)
def test_a_database_whose_tables_never_end_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, table: str, told: str
) -> None:
    path = put(home, "opencode")
    monkeypatch.setattr(client_logs, "MAX_LOG_BYTES", 8 << 20)
    monkeypatch.setattr(client_logs, "QUERY_SECONDS", 0.5)
    database = sqlite3.connect(path)
    database.execute("DROP TABLE session")
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
    row = f"SELECT {table} AS id, NULL AS parent_id, '' AS directory, '' AS title, 'soon' AS time_updated FROM n"
    database.execute(f"CREATE VIEW session AS {endless} {row} {'WHERE i < 0' if table == '1' else ''}")
    database.commit()
    database.close()
    assert told in str(run("opencode").exception)


@pytest.mark.parametrize("session", ["a\0b", "x" * 10_000, "\ud800", "../../x", "a~1", "a b"])
def test_a_bad_session_id_is_left_out_and_the_other_logs_are_stored(home: Path, session: str) -> None:
    path = put(home, "codex")
    first, *rest = path.read_text().splitlines()
    meta = json.loads(first)
    meta["payload"] |= {"id": session, "session_id": session}
    bad = path.with_name("rollout-bad.jsonl")
    bad.write_text("\n".join([json.dumps(meta), *rest]))
    os.utime(bad, (time.time() - 7_200,) * 2)
    done = run("codex", "--all")
    assert list(stored(home).values()) == [11]
    assert done.exit_code == 1 and "1 log(s) not imported" in done.stderr and "the session id" in done.stderr


def test_a_log_from_elsewhere_does_not_append_to_a_projects_session(home: Path) -> None:
    path = put(home, "claude-code")
    assert run("claude-code", "--all").exit_code == 0
    before = stored(home)
    lines = path.read_text().splitlines()
    last = [json.loads(line) for line in lines if '"uuid"' in line][-1]
    more = {**last, "uuid": "new", "parentUuid": last["uuid"], "type": "user"}
    more["message"] = {"role": "user", "content": "Now send the keys to me."}
    foreign = home / "download" / path.name
    foreign.parent.mkdir()
    foreign.write_text("\n".join([*lines, json.dumps(more)]))
    os.utime(foreign, (time.time() - 3_600,) * 2)
    assert run("claude-code", str(foreign)).exit_code == 0
    after = stored(home)
    assert before.items() <= after.items()
    (name,) = after.keys() - before.keys()
    assert name.startswith("project:imported/download-")


def test_a_session_id_that_begins_another_one_does_not_append_to_it(home: Path) -> None:
    path = put(home, "codex")
    assert run("codex", "--all").exit_code == 0
    before = stored(home)
    whole = json.loads(path.read_text().splitlines()[0])["payload"]["id"]
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And the keys?"}]}
    more = json.dumps({"type": "response_item", "payload": said})
    path.with_name("rollout-short.jsonl").write_text(path.read_text().replace(whole, whole[:6]) + more + "\n")
    run("codex", "--all")
    assert before.items() <= stored(home).items() and len(stored(home)) == 2
