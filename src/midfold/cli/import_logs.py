"""`midfold import`: list the logs of coding agents on this machine and import selected ones into a store."""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from midfold.cli.command_groups import HelpfulGroup
from midfold.cli.options import MAX_NAMED, open_own, with_config, with_json, with_url
from midfold.cli.sessions import seconds
from midfold.cli.terminal import console, emit_json, make_line, make_table, make_text, notice, progress_bar, visible
from midfold.client_logs.find import FoundLog, LogTitle, describe_log, find_logs, keep_log
from midfold.errors import MidfoldError, NotStored, SchemaError, StoreDamaged, StoreUnavailable
from midfold.session.sessions import ImportedLog, Sessions
from midfold.transcript.logs import CLIENTS

MAX_LISTED = 20
MEGABYTE = 1_000_000
SHOWN_ID = 13
"""Characters of an id that distinguish it, also for ids that begin with a timestamp."""


class _Choice(NamedTuple):
    names: tuple[str, ...]
    is_all: bool

    def __bool__(self) -> bool:
        return self.is_all or bool(self.names)


@click.group(cls=HelpfulGroup)
def command() -> None:
    """Import the logs of coding agents into a store, for search, pages and unfold.

    Logs are only read, and nothing is sent anywhere. Stored messages are redacted if store.redact says so, belong
    to the project's folder, and are not visible to gateway keys. Importing a log again adds only new messages.
    """


def _add(client: str) -> None:
    @command.command(name=client, help=_help_of(client))
    @click.argument("path", required=False, type=click.Path(path_type=Path))
    @click.option("--session", "names", multiple=True, metavar="ID", help="Import this session; can be repeated.")
    @click.option("--all", "is_all", is_flag=True, help="Import all sessions.")
    @click.option("--since", metavar="AGE", help="Only sessions used within this time, such as 12h or 7d.")
    @click.option(
        "--limit", type=click.IntRange(min=1), default=MAX_LISTED, show_default=True, help="Maximum number listed."
    )
    @with_url
    @with_config
    @with_json
    def run(
        path: Path | None,
        names: tuple[str, ...],
        is_all: bool,
        since: str | None,
        limit: int,
        url: str | None,
        config: str | None,
        as_json: bool,
    ) -> None:
        logs = find_logs(client, path, os.environ)
        if since is not None:
            logs = [log for log in logs if time.time() - log.changed <= seconds(since)]
        choice = _Choice(names, is_all or (path is not None and path.is_file()))
        if not choice:
            _list(client, logs, limit, as_json)
            return
        chosen = _choose(logs, choice)
        with open_own(url, config) as sessions:
            _bring_in(sessions, chosen, as_json)


def _help_of(client: str) -> str:
    return (
        f"List the sessions of {CLIENTS[client]} and import selected ones into the store.\n\n"
        "PATH is a log, or a folder of logs; default: the client's own folder. Without --session or --all they are "
        "only listed; a PATH that is one log is imported. Exit code 1 if a log could not be imported."
    )


for _client in CLIENTS:
    _add(_client)


def _list(client: str, logs: list[FoundLog], limit: int, as_json: bool) -> None:
    rows: list[tuple[FoundLog, LogTitle]] = []
    problems: list[str] = []
    with progress_bar("logs") as progress:
        for number, log in enumerate(logs, 1):
            known = _title(log, problems)
            if known.title:
                rows.append((log, known))
            if progress is not None:
                progress(number, len(logs))
            if len(rows) == limit:
                break
    _print_problems(problems)
    if as_json:
        emit_json([_facts(log, known) for log, known in rows])
        return
    out = console()
    table = make_table("id", "used", ">MB", "folder", no_wrap=True)
    table.add_column("title")
    for log, known in rows:
        cells = (known.session[:SHOWN_ID], _moment(log.changed), f"{log.size / MEGABYTE:,.1f}", Path(known.folder).name)
        table.add_row(*map(make_text, cells), make_line(known.title))
    out.print(table if rows else "no log contains a user message")
    if rows:
        notice(f"nothing imported; use `midfold import {client} --session ID` for one session or --all for all")


def _title(log: FoundLog, problems: list[str]) -> LogTitle:
    """Return the title of a log; record the problem if it cannot be read."""
    try:
        return describe_log(log)
    except MidfoldError as error:
        problems.append(str(error))
        return LogTitle(log.name, "", "")


def _print_problems(problems: list[str]) -> None:
    for problem in problems:
        notice(visible(problem))


def _facts(log: FoundLog, known: LogTitle) -> dict[str, Any]:
    used = _moment(log.changed)
    return {
        "id": known.session,
        "title": known.title,
        "folder": known.folder,
        "used": used,
        "bytes": log.size,
        "place": log.place,
    }


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")


def _choose(logs: list[FoundLog], choice: _Choice) -> list[FoundLog]:
    """Return the selected logs, oldest first, so that the last used one becomes the newest session."""
    if choice.is_all:
        return sorted(logs, key=lambda log: log.changed)
    known = [(log, {log.name, _title(log, []).session}) for log in logs]
    chosen = []
    for wanted in choice.names:
        found = [log for log, names in known if any(wanted in name for name in names)]
        exact = [log for log, names in known if wanted in names]
        if len(exact or found) != 1:
            matches = ", ".join(log.name for log in found[:MAX_NAMED])
            raise NotStored(
                f"{wanted} matches {len(found)} logs: {matches}" if found else f"no log has the id {wanted}"
            )
        chosen += exact or found
    return sorted(set(chosen), key=lambda log: log.changed)


def _bring_in(sessions: Sessions, logs: list[FoundLog], as_json: bool) -> None:
    done: list[tuple[FoundLog, ImportedLog]] = []
    problems: list[str] = []
    total, before = sum(log.size for log in logs), 0
    with progress_bar("kB") as progress:
        for log in logs:

            def report(end: int, of: int, log: FoundLog = log, before: int = before) -> None:
                if progress is not None:
                    progress((before + log.size * end // of) // 1000, total // 1000)

            report(0, 1)
            try:
                done.append((log, keep_log(sessions, log, report)))
            except (StoreUnavailable, StoreDamaged, SchemaError):
                raise
            except MidfoldError as error:
                problems.append(_with_place(log, error))
            before += log.size
    for log, kept in done:
        if kept.damage:
            notice(f"{log.place}: {kept.damage}")
    stored = [(log, kept) for log, kept in done if kept.session]
    if as_json:
        emit_json([{**msgspec.to_builtins(kept._asdict()), "place": log.place} for log, kept in stored])
    else:
        _report(sessions, [kept for _, kept in stored], len(done) - len(stored))
    if problems:
        notice(f"{len(problems):,} log(s) not imported:")
        _print_problems(problems)
        sys.exit(1)


def _with_place(log: FoundLog, error: MidfoldError) -> str:
    reason = str(error)
    return reason if log.place in reason else f"{log.place}: {reason}"


def _report(sessions: Sessions, stored: list[ImportedLog], empty: int) -> None:
    out = console()
    for kept in stored:
        info = sessions.store.info(kept.session)
        title = sessions.title(info) if info is not None else ""
        what = f"{kept.added:,} new of {kept.messages:,} messages" if kept.added else "nothing new"
        more = ", as a branch: earlier messages of the log changed" * kept.branched
        more += ", last message still being written" * kept.waits
        out.print(make_line(f"{kept.session}: {what}{more}  {title}"))
    added = sum(kept.added for kept in stored)
    left = f", {empty:,} without user messages skipped" if empty else ""
    hint = "; see `midfold sessions list` or `midfold pages`" if stored else ""
    notice(f"{len(stored):,} session(s), {added:,} new message(s){left}{hint}")
