"""`midfold sessions`: inspect and manage stored sessions."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from textwrap import dedent
from typing import Any

import click
import msgspec
from rich.table import Table
from rich.text import Text

from midfold.cache.health import Health
from midfold.cli.command_groups import HelpfulGroup
from midfold.cli.fold_picture import BASES
from midfold.cli.options import full_name, name_of, read_file, short_id, stored_session, with_json, with_store
from midfold.cli.outputs import STANDARD, check_output, with_overwrite, write_output
from midfold.cli.terminal import (
    ask,
    console,
    echo,
    emit_exact,
    emit_json,
    make_line,
    make_table,
    make_text,
    notice,
    show_work,
    visible,
)
from midfold.client_logs.export import (
    TARGETS,
    Target,
    claude_code_file,
    codex_file,
    request_of,
    resume_command,
)
from midfold.client_logs.find import client_folders
from midfold.compaction.handoff import recognise
from midfold.compaction.redact import redact
from midfold.compaction.render_results import brief
from midfold.errors import StoreError
from midfold.pages.formatting import client_of
from midfold.recall import Hit
from midfold.session.sessions import Sessions
from midfold.store.protocol import CompactionRecord, SessionInfo, View
from midfold.store.usage import LastRequests
from midfold.transcript import jsonio
from midfold.transcript.message import RESULT, Message, ToolCall, ToolResult
from midfold.transcript.tokens import Meter

UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
with_name = click.argument("name")
COLUMNS = ("session", "used", ">messages", ">folds", "model")
MIN_TITLE_COLUMNS = 24
"""Minimum columns of a title before another column is added."""
DAY, MINUTE = "2026-11-17", "2026-11-17 09:45"
MAX_LINE_CHARS = 70
REDACTED_CHARS = 10 * MAX_LINE_CHARS
"""Characters that are redacted before a line is truncated, so that a secret across the cut is still found."""


@click.group(cls=HelpfulGroup)
def command() -> None:
    """Inspect stored sessions; undo compactions, export and delete sessions.

    Messages are never rewritten. The host names a session; branches are NAME~1, continuations NAME+1. NAME can be
    the full name, the id shown by list, a prefix of either, or `last` for the most recently used session.
    """


@command.command(name="list")
@with_store
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Maximum number.")
@with_json
def list_(sessions: Sessions, limit: int, as_json: bool) -> None:
    """List sessions, most recently used first."""

    clients = LastRequests(sessions.store.database).clients()
    rows = [session_facts(info, sessions.title(info), clients.get(info.id, "")) for info in sessions.all(limit)]
    emit_json(rows) if as_json else sessions_table(rows)


@command.command()
@with_name
@with_store
@with_json
def show(sessions: Sessions, name: str, as_json: bool) -> None:
    """Show a session's size, compactions and relatives."""

    session = stored_session(sessions, name)
    size = session.size
    info = sessions.store.must(session.name)
    sent = LastRequests(sessions.store.database).of(info.id)
    facts = session_facts(info, sessions.title(info), sent.client if sent is not None else "")
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
@click.option("--at", type=click.IntRange(min=0), metavar="N", help="View after compaction N; 0 for the whole history.")
@with_json
def view(sessions: Sessions, name: str, at: int | None, as_json: bool) -> None:
    """Show what the model sees, or saw.

    With --json the messages are written as a JSON array, each byte for byte as stored.
    """

    shown = stored_session(sessions, name).view(at)
    if as_json:
        emit_exact(shown.json())
    else:
        view_table(shown)


@command.command()
@click.argument("query")
@with_store
@click.option("--session", "name", metavar="NAME", help="Only in this session.")
@click.option("--role", type=click.Choice(["system", "user", "assistant", "tool"]), help="Only messages of this role.")
@click.option("--since", metavar="AGE", help="Only messages younger than this, such as 12h or 7d.")
@click.option("--until", metavar="AGE", help="Only messages older than this.")
@click.option("--limit", type=click.IntRange(min=1), default=10, show_default=True, help="Maximum number.")
@with_json
def search(
    sessions: Sessions,
    query: str,
    name: str | None,
    role: str | None,
    since: str | None,
    until: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Search the original messages, folded or not.

    Hits with the most words come first; a tool call is found together with its result. Parts of paths and
    identifiers count as words, as do other forms of a word. "In quotes" matches literally, beginning* matches a
    prefix. Pass a hit's handle to unfold.
    """

    def when(age: str | None) -> int | None:
        return None if age is None else int((sessions.clock() - seconds(age)) * 1000)

    only = None if name is None else full_name(sessions, name)
    hits = sessions.search(query, session=only, role=role, since=when(since), until=when(until), limit=limit)
    if as_json:
        emit_json([msgspec.to_builtins(hit) for hit in hits])
        return
    found = {hit.session for hit in hits} if only is None else set()
    hits_table(hits, titles={name: sessions.title(sessions.store.must(name)) for name in found})


@command.command()
@with_name
@click.argument("handle")
@with_store
def unfold(sessions: Sessions, name: str, handle: str) -> None:
    """Show the originals behind a handle, byte for byte, one per line.

    HANDLE is a handle from a receipt, digest, handoff or search hit (mf-...), or a prefix of one.
    """
    for data in stored_session(sessions, name).unfold_bytes(handle):
        emit_exact(data)


@command.command()
@with_name
@with_store
@with_json
def undo(sessions: Sessions, name: str, as_json: bool) -> None:
    """Undo the last compaction. Its record and all later messages stay."""
    session = stored_session(sessions, name)
    record = session.undo()
    count = len(session.view())
    if as_json:
        emit_json({"undone": record.seq, "view_messages": count})
    else:
        echo(f"compaction {record.seq} of {session.name} undone; the view has {count:,} messages")


@command.command()
@with_name
@with_store
@with_json
def receipts(sessions: Sessions, name: str, as_json: bool) -> None:
    """List the compactions of a session, including undone ones."""

    records = stored_session(sessions, name).receipts()
    emit_json([msgspec.to_builtins(record) for record in records]) if as_json else receipts_table(records)


@command.command()
@with_name
@with_store
@click.option("--for", "target", type=click.Choice(TARGETS), help="Format to continue without midfold; see above.")
@click.option(
    "-o", "--output", metavar="OUT", help="Output file; default: standard output, or the client's session folder."
)
@with_overwrite
def export(sessions: Sessions, name: str, target: Target | None, output: str | None, overwrite: bool) -> None:
    """Write a session as JSON lines: messages byte for byte, compactions, state.

    With --for, write what the model sees, to continue without midfold: as a request body (anthropic, openai), or as
    a new session file of the client for this folder (claude-code, codex), with the command that resumes it.
    """
    name = full_name(sessions, name)
    lines: Iterable[bytes] = sessions.export(name) if target is None else ()
    if target in ("anthropic", "openai"):
        lines = [jsonio.encode(request_of(stored_session(sessions, name).view(), target))]
    elif target is not None:
        lines, output = _client_lines(sessions, name, target, output)
    if output in (None, STANDARD):
        for line in lines:
            emit_exact(line)
        return
    file = check_output(output or "", overwrite=overwrite)
    write_output(file, (line + b"\n" for line in lines))


def _client_lines(sessions: Sessions, name: str, target: Target, output: str | None) -> tuple[list[bytes], str]:
    """Return the lines of a client's session file and its path."""
    view, folder = stored_session(sessions, name).view(), Path.cwd()
    if target == "claude-code":
        found = claude_code_file(view, sessions.store.must(name).model, folder, sessions.clock())
    else:
        found = codex_file(view, folder, sessions.clock())
    if output is None:
        file = client_folders(target, os.environ)[0] / found.place
        file.parent.mkdir(parents=True, exist_ok=True)
        notice(f"{file}; resume in this folder with `{' '.join(resume_command(target, found.id))}`")
        return found.lines, str(file)
    return found.lines, output


@command.command(name="import")
@click.argument("file")
@with_store
@click.option("--as", "name", metavar="NAME", help="Store under this name instead of its own.")
def import_(sessions: Sessions, file: str, name: str | None) -> None:
    """Load a session written by export; `-` reads standard input."""
    lines = read_file(file).split(b"\n")
    try:
        with show_work("loading"):
            loaded = sessions.load(lines, name=name)
    except StoreError as error:
        raise StoreError(f"{name_of(file)}: {error}") from error
    echo(f"{loaded}: {sessions.store.must(loaded).count:,} messages")


@command.command()
@click.option("--older-than", required=True, metavar="AGE", help="Minimum time since last use, such as 90d or 12h.")
@with_store
@click.option("--dry-run", is_flag=True, help="Only list them.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def prune(sessions: Sessions, older_than: str, dry_run: bool, yes: bool) -> None:
    """Delete sessions, and turns hidden by recall, that have not been used for a given time.

    Only this command and delete remove anything.
    """
    age = seconds(older_than)
    names = sessions.prune(age, dry_run=True)
    for name in names:
        echo(name)
    if dry_run:
        return
    if names:
        _confirm(f"delete {len(names)} session(s)", yes)
    deleted = sessions.prune(age)
    if names:
        notice(f"{len(deleted)} session(s) deleted")


@command.command()
@with_name
@with_store
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(sessions: Sessions, name: str, yes: bool) -> None:
    """Delete a session and every original that no other session uses. With --yes, NAME must be the full name."""
    name = name if yes else full_name(sessions, name)
    count = sessions.store.must(name).count
    _confirm(f"delete {name} and its {count:,} messages", yes)
    sessions.delete(name)
    notice(f"{name} deleted")


def _confirm(what: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise StoreError(f"no terminal to ask on; use --yes to {what}")
    if ask(f"{visible(what)}? [y]es, [n]o: ", {"y": "yes", "n": "no"}) != "y":
        raise click.Abort


def seconds(age: str) -> float:
    """Parse an age such as `90s`, `5m`, `12h`, `7d` or `4w` into seconds."""
    match = re.fullmatch(r"(\d{1,9})([smhdw])", age.strip())
    if match is None:
        raise StoreError(f"{age!r} is not an age; expected a number and s, m, h, d or w, as in 30d")
    return float(int(match[1]) * UNITS[match[2]])


def session_facts(info: SessionInfo, title: str, client: str = "") -> dict[str, Any]:
    """Return a session as plain values."""
    return {
        "name": info.name,
        "id": short_id(info.name),
        "title": title,
        "kind": info.kind,
        "parent": info.parent,
        "model": info.model,
        "client": client_of(info.name, client),
        "sent_by": client,
        "dialect": info.dialect,
        "messages": info.count,
        "compaction": info.compaction,
        "compactions": info.compactions,
        "created": moment(info.created),
        "used": moment(info.updated),
        "ended": None if info.ended is None else moment(info.ended),
    }


def health_facts(found: Health) -> dict[str, Any]:
    """Return a session's cache statistics as plain values."""
    return {
        "turns": found.turns,
        "kinds": found.kinds,
        "hit_rate": round(found.hit_rate, 4),
        "prompt_tokens": found.prompt_tokens,
        "read": found.read,
        "written": found.written,
        "saved_units": round(found.saved_units),
        "saved": round(found.saved, 4),
        "last": None if found.last is None else found.last.kind,
    }


def moment(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def sessions_table(rows: list[dict[str, Any]]) -> None:
    """Print sessions; a terminal gets short ids and only the columns that leave space for titles, a pipe full names."""
    known, out = Counter(row["id"] for row in rows), console()
    cells = []
    for row in rows:
        name = row["id"] if out.is_terminal and known[row["id"]] == 1 else row["name"]
        cells.append((name, row["used"], f"{row['messages']:,}", str(row["compactions"]), row["model"] or ""))
    longest = [max(map(len, column)) for column in zip(*cells, strict=True)] or [0] * len(COLUMNS)
    widths = [
        min(longest[0], out.width // 3),
        len(DAY),
        *map(max, longest[2:], (len(name.strip(">")) for name in COLUMNS[2:])),
    ]
    left = [out.width - sum(widths[:count]) - 2 * count for count in range(len(COLUMNS) + 1)]
    shown = next((count for count in (5, 4, 3) if left[count] >= MIN_TITLE_COLUMNS), 2)
    table = make_table(*COLUMNS[:shown], no_wrap=True)
    table.columns[0].max_width, table.columns[0].overflow = widths[0], "ellipsis"
    table.add_column("title")
    when = MINUTE if left[shown] >= MIN_TITLE_COLUMNS + len(MINUTE) - len(DAY) else DAY
    for row, (name, used, *rest) in zip(rows, cells, strict=True):
        kind = "" if row["kind"] == "root" else f"({row['kind']}) "
        line = (name, used[: len(when)], *rest)[:shown]
        table.add_row(*map(make_text, line), make_line(f"{kind}{row['title']}"))
    out.print(table if rows else "no sessions")


def session_page(facts: dict[str, Any]) -> None:
    out = console()
    out.print(make_text(facts["name"], "bold") + make_text(f"  {facts['title']}", "default"))
    family = f"{facts['kind']} of {facts['parent']}" if facts["parent"] else facts["kind"]
    out.print(make_text(f"{family}, {facts['dialect']}, model {facts['model'] or 'unknown'}"))
    out.print(f"{facts['messages']:,} messages, {facts['view_messages']:,} in the model's view: ", end="")
    out.print(f"{facts['view_tokens']:,} tokens ({BASES[facts['token_basis']]})")
    if facts["system_prompt"] or facts["tools"]:
        out.print(f"with {'a' if facts['system_prompt'] else 'no'} system prompt and {facts['tools']} tools")
    ended = f", ended {facts['ended']}" if facts["ended"] else ""
    known = facts["cache"]
    if known["turns"]:
        misses = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in known["kinds"].items() if kind != "hit")
        out.print(f"prompt cache: {known['hit_rate']:.1%} of {known['turns']:,} prompts read, ", end="")
        out.print(Text(f"${known['saved']:,.2f} saved net of writes{'; ' if misses else ''}{misses}"))
    begun = "created" if facts["created"] <= facts["used"] else "stored"
    out.print(f"{begun} {facts['created']}, last used {facts['used']}{ended}")
    out.print()


def receipts_table(records: list[CompactionRecord]) -> None:
    table = make_table(">#", "at", "status", ">messages", ">tokens", "summary", "fold", "")
    for record in records:
        receipt = record.receipt
        state = "undone" if record.undone is not None else f"continues as {record.child}" if record.child else ""
        cells = (
            str(record.seq),
            moment(record.at),
            receipt.status,
            f"{receipt.old_messages:,} -> {receipt.new_messages:,}",
            f"{receipt.old_tokens:,} -> {receipt.new_tokens:,}",
            receipt.summary.source,
            receipt.fold,
            state,
        )
        table.add_row(*map(make_text, cells))
    _print(table, records, "no compactions")


def view_table(view: View) -> None:
    """Print one redacted line per message."""
    meter = Meter()
    table = make_table(">#", ">position", "role", ">tokens", no_wrap=True)
    table.add_column("")
    calls: dict[str, ToolCall] = {}
    for place, item in enumerate(view.items):
        calls.update({part.id: part for part in item.message.parts if isinstance(part, ToolCall)})
        ours = recognise(item.message)
        where = "handoff" if ours and ours.kind == "fold" else "" if item.position is None else str(item.position)
        line = " ".join(redact(_beginning(item.message, calls)).split())[:MAX_LINE_CHARS]
        cells = (str(place), where, item.message.role, f"{meter.units(item.message):,}")
        table.add_row(*map(make_text, cells), make_line(line))
    _print(table, view.items, "no messages")


def _beginning(message: Message, calls: Mapping[str, ToolCall]) -> str:
    """Return the start of a message's text, of its tool results, or else of its tool call arguments."""
    if message.kinds & RESULT:
        parts = (part for part in message.parts if isinstance(part, ToolResult))
        texts = (brief(part, calls.get(part.call_id), max_chars=REDACTED_CHARS) for part in parts)
    else:
        texts = (text[:REDACTED_CHARS] for text in message.texts())
    words = "\n".join(islice(texts, MAX_LINE_CHARS))[:REDACTED_CHARS]
    if words.strip():
        return words
    made = (part for part in message.parts if isinstance(part, ToolCall))
    return "; ".join(f"{call.name} {call.arguments[:REDACTED_CHARS]}" for call in islice(made, MAX_LINE_CHARS))[
        :REDACTED_CHARS
    ]


def hits_table(hits: list[Hit], *, titles: Mapping[str, str] | None = None, named: bool = True) -> None:
    """Print hits in rank order; hits with the same text are listed below the first one."""
    out = console()
    if hits and not any(hit.has_every_word for hit in hits):
        out.print("no message has all of the words; closest matches:")
    alike: dict[str, list[Hit]] = {}
    for hit in hits:
        alike.setdefault(hit.text, []).append(hit)
    for text, (first, *others) in alike.items():
        shown = msgspec.structs.replace(first, session=short_id(first.session)) if out.is_terminal else first
        head = make_text(_place(shown, named), "bold")
        out.print(head + Text(f"  {first.role}  {moment(first.at)}  {first.handle}", style="default"))
        if title := (titles or {}).get(first.session):
            out.print(make_line(f"  {title}", "bright_black"))
        for line in dedent(text).splitlines():
            out.print(Text(f"  {visible(line)}"))
        if others:
            places = ", ".join(f"{_place(hit, named)} {hit.handle}" for hit in others)
            out.print(Text(f"  same text in {visible(places)}", style="bright_black"))
    if not hits:
        out.print("nothing found")


def _place(hit: Hit, named: bool) -> str:
    return f"{hit.session} [{hit.position}]" if named else f"[{hit.position}]"


def _print(table: Table, rows: Iterable[object], empty: str) -> None:
    console().print(table if any(True for _ in rows) else empty)
