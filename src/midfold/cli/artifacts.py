"""`midfold artifacts`: list what an agent made and did in a transcript, from its tool calls and results."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import click
import msgspec

from midfold import trail_of
from midfold.cli.options import read_conversations, with_conversation, with_dialect, with_json, with_stored_config
from midfold.cli.terminal import console, echo, emit_json, make_table, make_text, pad_rows, show_work, visible
from midfold.compaction.tracking import CheckRun, TrackedFile, Trail, latest_checks

LISTS = ("files", "acts", "running", "checks", "reads")
STATES = {"reverted": "reverted", "scratch": "scratch"}
VERDICTS = {True: "passed", False: "FAILED", None: "unknown"}
OUTCOMES = {True: "", False: " FAILED", None: ", outcome unknown"}


@click.command(name="artifacts")
@click.argument("file")
@with_conversation
@with_dialect
@click.option("--history", is_flag=True, help="Include actions that later ones superseded.")
@with_stored_config
@with_json
def command(
    file: str, conversation: int | None, dialect: str | None, history: bool, config: str | None, as_json: bool
) -> None:
    """Show what an agent made and did in a transcript.

    Lists files created, changed, moved and deleted (by editors or shell commands), other actions (commits,
    installations, bookings) with their outcome, tasks still running, the latest tests, builds and linters, and
    files that were only read. Newest first, with the message index in brackets. No model is used; failed calls are
    ignored and secrets are redacted. If the file contains a midfold handoff, its content is included.

    FILE is JSON or JSON lines in OpenAI chat, OpenAI Responses or Anthropic format, a Claude Code or Codex session
    log, or a stored session (session:NAME); `-` reads standard input. With --json, empty and zero values are
    omitted except the lists; `acts` has all actions in order, with `is_replaced` on those that a later one
    supersedes.
    """
    documents = read_conversations(file, dialect, conversation, config=config)
    with show_work("analyzing"):
        trails = [trail_of(document.messages) for document in documents]
    if as_json:
        plain = [_plain(trail) for trail in trails]
        emit_json(plain[0] if len(plain) == 1 else {"conversations": plain})
    elif len(trails) == 1:
        _show_trail(trails[0], history=history)
    else:
        _show_collection(trails)


def _plain(trail: Trail) -> dict[str, Any]:
    return {**{name: [] for name in LISTS}, **msgspec.to_builtins(trail)}


class _Listing(NamedTuple):
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def _show_trail(trail: Trail, *, history: bool) -> None:
    latest = _without_replaced(trail)
    echo(_summary_line(latest))
    shown = trail if history else latest
    for listing in filter(lambda listing: listing.rows, _listings(shown)):
        echo("")
        _show(listing)
    if replaced := len(trail.acts) - len(shown.acts):
        echo(f"\nSuperseded actions: {replaced:,} (shown with --history)")


def _without_replaced(trail: Trail) -> Trail:
    return msgspec.structs.replace(trail, acts=tuple(act for act in trail.acts if not act.is_replaced))


def _summary_line(trail: Trail) -> str:
    if trail.is_empty:
        return f"{trail.messages:,} messages; no recognized changes, actions, checks or reads."
    states = Counter(STATES.get(file.state, file.state) for file in trail.files)
    files = ", ".join(f"{count:,} {state}" for state, count in states.most_common()) or "none changed"
    where = f" in {trail.root}" if trail.root else ""
    more = f"actions: {len(trail.acts):,}; running: {len(trail.running):,}; only read: {len(trail.reads):,}"
    branch = f"; git branch {trail.git.branch}" if trail.git.branch else ""
    return f"{trail.messages:,} messages; files{where}: {files}; {more}{branch}"


def _listings(trail: Trail) -> list[_Listing]:
    asides = [file for file in trail.files if file.state in STATES]
    files = [*asides, *(file for file in trail.files if file.state not in STATES)]
    return [
        _Listing(
            "Files", (">message", "state", "file", ">lines", ">edits", "touched"), [*map(_file_row, reversed(files))]
        ),
        _Listing(
            "Actions",
            (">message", "", "what", "outcome"),
            [(_place(act.at), f"{act.what}{OUTCOMES[act.ok]}", act.text, act.outcome) for act in reversed(trail.acts)],
        ),
        _Listing(
            "Still running",
            (">message", "id", "what"),
            [(_place(task.at), task.id, task.what) for task in reversed(trail.running)],
        ),
        _Listing(
            "Last checks",
            (">message", "", "outcome", "command", "failing"),
            [*map(_check_row, latest_checks(trail))],
        ),
        _Listing(
            "Read, not changed",
            (">message", "file", "parts"),
            [(_place(read.at), read.path, ", ".join(read.looked)) for read in reversed(trail.reads)],
        ),
    ]


def _place(at: int) -> str:
    return f"[{at}]" if at >= 0 else "[fold]"


def _file_row(file: TrackedFile) -> tuple[str, ...]:
    state = STATES.get(file.state, file.state) + (", removed" if file.gone else "")
    state += f" by {file.by}" if file.by else ""
    path = f"{file.path} (was {file.source})" if file.source else file.path
    lines = f"+{file.added} -{file.removed}" if file.added or file.removed else ""
    return _place(file.at), state, path, lines, str(file.edits or ""), ", ".join(file.names)


def _check_row(check: CheckRun) -> tuple[str, ...]:
    counts = f" ({check.counts})" if check.counts else ""
    before = f", before the last change of {check.before}" if check.before else ""
    return _place(check.at), check.kind, f"{VERDICTS[check.ok]}{counts}{before}", check.command, "; ".join(check.fails)


def _show(listing: _Listing) -> None:
    if not sys.stdout.isatty():
        echo(f"{listing.title}:")
        for line in pad_rows([tuple(map(visible, row)) for row in listing.rows]):
            echo(f"  {line}")
        return
    out = console()
    out.print(make_text(listing.title, "bold"))
    table = make_table(*listing.columns, header_style="bright_black")
    for row in listing.rows:
        style = "red" if any("FAILED" in cell for cell in row[1:3]) else ""
        table.add_row(*(make_text(cell, style) for cell in row))
    out.print(table)


def _show_collection(trails: Sequence[Trail]) -> None:
    table = make_table(">#", ">messages", ">files changed", ">acts", ">running", ">checks", ">only read")
    for number, trail in enumerate(map(_without_replaced, trails), 1):
        counts = (trail.messages, *(len(getattr(trail, name)) for name in LISTS))
        table.add_row(str(number), *(f"{count:,}" for count in counts))
    out = console()
    out.print(table)
    out.print("\nUse --conversation N to show one of them.")
