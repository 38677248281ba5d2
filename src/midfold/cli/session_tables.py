"""Tables of sessions, compactions, messages and hits."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from textwrap import dedent
from typing import Any

from rich.table import Table
from rich.text import Text

from midfold.cache.health import Health
from midfold.cli.output import console
from midfold.cli.render import clean
from midfold.fold.handoff import recognise
from midfold.fold.redact import redact
from midfold.recall import Hit
from midfold.store.protocol import CompactionRecord, SessionInfo, View
from midfold.transcript.tokens import Meter

LONGEST_LINE = 70


def session_facts(info: SessionInfo) -> dict[str, Any]:
    """A session as plain values."""
    return {
        "name": info.name,
        "kind": info.kind,
        "parent": info.parent,
        "model": info.model,
        "dialect": info.dialect,
        "messages": info.count,
        "compaction": info.compaction,
        "compactions": info.compactions,
        "created": moment(info.created),
        "used": moment(info.updated),
        "ended": None if info.ended is None else moment(info.ended),
    }


def health_facts(found: Health) -> dict[str, Any]:
    """A session's cache as plain values."""
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
    table = _table(("session", ""), ("kind", ""), ("model", ""), ("messages", "r"), ("compactions", "r"), ("used", ""))
    for row in rows:
        cells = (
            row["name"],
            row["kind"],
            row["model"] or "",
            f"{row['messages']:,}",
            str(row["compactions"]),
            row["used"],
        )
        table.add_row(*(Text(clean(cell)) for cell in cells))
    _print(table, rows, "no sessions")


def session_page(facts: dict[str, Any]) -> None:
    out = console()
    out.print(Text(clean(facts["name"]), style="bold"))
    family = f"{facts['kind']} of {facts['parent']}" if facts["parent"] else facts["kind"]
    out.print(Text(clean(f"{family}, {facts['dialect']}, model {facts['model'] or 'not named'}")))
    out.print(f"{facts['messages']:,} messages, of which the model sees {facts['view_messages']:,}: ", end="")
    out.print(f"{facts['view_tokens']:,} tokens ({facts['token_basis']})")
    if facts["system_prompt"] or facts["tools"]:
        out.print(
            f"with {'a' if facts['system_prompt'] else 'no'} system prompt and {facts['tools']} tools beside them"
        )
    ended = f", ended {facts['ended']}" if facts["ended"] else ""
    known = facts["cache"]
    if known["turns"]:
        misses = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in known["kinds"].items() if kind != "hit")
        out.print(f"prompt cache: {known['hit_rate']:.1%} of {known['turns']:,} prompts read, ", end="")
        out.print(Text(f"${known['saved']:,.2f} saved net of writes{'; ' if misses else ''}{misses}"))
    out.print(f"created {facts['created']}, last used {facts['used']}{ended}")
    out.print()


def receipts_table(records: list[CompactionRecord]) -> None:
    heads = (("#", "r"), ("at", ""), ("status", ""), ("messages", "r"), ("tokens", "r"), ("summary", ""), ("fold", ""))
    table = _table(*heads, ("", ""))
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
        table.add_row(*(Text(clean(cell)) for cell in cells))
    _print(table, records, "no compactions")


def view_table(view: View) -> None:
    """One line per message; redacted, as everything that is shown."""
    meter = Meter()
    table = _table(("#", "r"), ("position", "r"), ("role", ""), ("tokens", "r"), ("", ""))
    for place, item in enumerate(view.items):
        ours = recognise(item.message)
        where = "handoff" if ours and ours.kind == "fold" else "" if item.position is None else str(item.position)
        line = redact(item.message.text[: 10 * LONGEST_LINE]).replace("\n", " ")[:LONGEST_LINE]
        cells = (str(place), where, item.message.role, f"{meter.units(item.message):,}", line)
        table.add_row(*(Text(clean(cell)) for cell in cells))
    _print(table, view.items, "no messages")


def hits_table(hits: list[Hit], *, named: bool = True) -> None:
    """Hits as they are ranked; those that show the same lines as one before them stand in a line below it."""
    out = console()
    if hits and not hits[0].has_every_word:
        out.print("no message has all of these words; the nearest:")
    alike: dict[str, list[Hit]] = {}
    for hit in hits:
        alike.setdefault(hit.text, []).append(hit)
    for text, (first, *others) in alike.items():
        head = Text(clean(_place(first, named)), style="bold")
        out.print(head + Text(f"  {first.role}  {moment(first.at)}  {first.handle}", style="default"))
        for line in dedent(text).splitlines():
            out.print(Text(f"  {clean(line)}"))
        if others:
            places = ", ".join(f"{_place(hit, named)} {hit.handle}" for hit in others)
            out.print(Text(f"  the same in {clean(places)}", style="bright_black"))
    if not hits:
        out.print("nothing found")


def _place(hit: Hit, named: bool) -> str:
    return f"{hit.session} [{hit.position}]" if named else f"[{hit.position}]"


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, side in columns:
        table.add_column(name, justify="right" if side else "left", overflow="fold")
    return table


def _print(table: Table, rows: Iterable[object], empty: str) -> None:
    console().print(table if any(True for _ in rows) else empty)
