"""`midfold cache`: explain prompt cache misses, place breakpoints, report cache savings."""

from __future__ import annotations

import sys

import click
import msgspec
from rich.table import Table
from rich.text import Text

from midfold import cache
from midfold.api import believe, meter_for
from midfold.cache.breakpoints import HOSTS, SIGN
from midfold.cache.health import Health, observe_recording
from midfold.cache.prefix import Difference, prefix_diff
from midfold.cache.prices import Prices, prices_for
from midfold.cli.command_groups import HelpfulGroup
from midfold.cli.options import (
    name_of,
    open_existing,
    read_conversation,
    read_conversations,
    settings,
    stored_session,
    with_config,
    with_conversation,
    with_json,
)
from midfold.cli.sessions import health_facts
from midfold.cli.terminal import console, emit_json, has_unicode, make_line, make_table, make_text
from midfold.errors import StoreError, TranscriptError
from midfold.models import Belief
from midfold.transcript.document import Document, read, recording_of

with_model = click.option("--model", help="Model for prices and token counts; default: the request's model.")


@click.group(cls=HelpfulGroup)
def command() -> None:
    """Show why a prompt cache missed, where breakpoints belong, and what caching saved."""


@command.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--session", metavar="NAME", help="A and B are views of this session: numbers of compactions, or now.")
@click.option("--store", metavar="URL", help="Store of the session; default: store.url.")
@with_conversation
@with_model
@with_config
@with_json
def diff(
    first: str,
    second: str,
    session: str | None,
    store: str | None,
    conversation: int | None,
    model: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Show the first block, field and byte in which two requests differ, the cost, and the cause.

    A and B are request files, the earlier one first; or, with --session, two views of a stored session: 0 is the
    history before any compaction, N the view right after compaction N, now the current view. Exit code 1 if they
    differ.
    """
    known = settings(config)
    if session:
        one, two = _views(session, store, config, (first, second))
    else:
        one, two = (read_conversation(file, None, conversation, config=config) for file in (first, second))
    model = model or two.model or one.model
    prices = prices_for(model, known.prompt_caching.cache_ttl, known.models)
    found = prefix_diff(one, two, meter=meter_for(believe(model, known)), prices=prices)
    emit_json(msgspec.to_builtins(found)) if as_json else _show(found, prices)
    if not found.same:
        sys.exit(1)


def _views(name: str, url: str | None, config: str | None, asked: tuple[str, str]) -> tuple[Document, Document]:
    with open_existing(url, config) as sessions:
        session = stored_session(sessions, name)
        found = []
        for place in asked:
            if place != "now" and not place.isdigit():
                raise StoreError(f"{place}: expected the number of a compaction of {name}, or now")
            view = session.view() if place == "now" else session.view(at=int(place))
            found.append(read(view.json(), dialect=view.dialect.name, name=f"{name} at {place}"))
    return found[0], found[1]


def _show(found: Difference, prices: Prices) -> None:
    out = console()
    if found.same:
        out.print(Text(f"No difference: {found.what}.", style="green"))
        out.print(f"{found.shared_tokens:,} tokens can be read from the cache.")
        return
    where = f"{found.block}{'.' if found.field and not found.field.startswith('[') else ''}{found.field}"
    out.print(make_text(f"First difference: {where}, byte {found.byte:,} of the block", "bold"))
    out.print(make_text(f"{found.what}; changed by: {found.who}"))
    out.print(
        f"{found.shared_tokens:,} tokens before it are shared, {found.lost_tokens:,} tokens of the first are lost,"
    )
    out.print(f"{found.rewritten_tokens:,} tokens of the second must be written again.")
    money = f", ${found.extra_money:,.4f}" if found.extra_money else ""
    rates = f"written at {prices.write:g}x instead of read at {prices.read:g}x"
    out.print(f"Extra cost: {found.extra_units:,.0f} tokens at the base price{money} ({rates}).")


@command.command()
@click.argument("file", metavar="FILE")
@click.option(
    "--provider",
    type=click.Choice(list(HOSTS), case_sensitive=False),
    default="anthropic",
    show_default=True,
    help="Provider that serves the request.",
)
@with_conversation
@with_model
@with_config
@with_json
def plan(
    file: str, provider: str, conversation: int | None, model: str | None, config: str | None, as_json: bool
) -> None:
    """Show where cache breakpoints belong in a request, and why."""
    known = settings(config).prompt_caching
    document = read_conversation(file, None, conversation, config=config)
    model = model or document.model
    hints = cache.plan_document(
        document,
        provider=provider,
        model=model,
        ttl=known.cache_ttl,
        strategy=known.strategy,
        setting=known.enabled,
        models=settings(config).models,
    )
    line = cache.status_line(provider, model, known.cache_ttl, known.enabled, document.dialect.name)
    if as_json:
        emit_json({"status": line, "hints": [msgspec.to_builtins(hint) for hint in hints]})
        return
    out = console()
    out.print(make_text(line if has_unicode(out) else line.removeprefix(SIGN), "bold"))
    for hint in hints:
        where = hint.placement if hint.placement != "message" else f"{document.list_key}[{hint.message_index}]"
        out.print(make_text(f"  {where}: {hint.reason}"))
    if not hints and "ENABLED" in line:
        out.print(make_text(f"  no breakpoint{_shortness(document, believe(model, settings(config)))}"))


def _shortness(document: Document, belief: Belief) -> str:
    """Return a note that the request is too short to be cached, or an empty string."""
    meter, least = meter_for(belief), belief.model.cache_minimum or 0
    size = meter.count(document.messages, meter.fixed_size(document.system, document.tools)).tokens
    return f": {size:,} tokens is below the {least:,}-token cache minimum of {belief.name}" if size < least else ""


@command.command()
@click.argument("file", metavar="FILE")
@with_model
@with_config
@with_json
def health(file: str, model: str | None, config: str | None, as_json: bool) -> None:
    """Classify the turns of recorded sessions by the usage that the provider reported.

    FILE is a coding agent's log, a stored session (session:NAME), or a transcript whose messages carry usage
    (`_meta.usage`). Costs are for prompts only, at the prices of `midfold models`.
    """
    known = settings(config)
    rows = []
    for number, document in enumerate(read_conversations(file, None, None, config=config), 1):
        turns = list(observe_recording(document, known.models, known.prompt_caching.cache_ttl, model or ""))
        if turns:
            rows.append((call_recording(document, number), turns[-1].health, sum(turn.cost for turn in turns)))
    if not rows:
        raise TranscriptError(f"{name_of(file)}: no reported usage found; Claude Code and Codex logs contain it")
    if as_json:
        emit_json([{"conversation": name, **health_facts(found), "paid": round(paid, 4)} for name, found, paid in rows])
        return
    console().print(health_table(rows))


def call_recording(document: Document, number: int) -> str:
    """Return the name of a recorded conversation for tables."""
    return str(document.setting("id") or recording_of(document).session or f"conversation {number}")


def health_table(rows: list[tuple[str, Health, float]]) -> Table:
    table = make_table("session", ">turns", ">hit rate", ">paid for prompts", ">saved, net of writes", "misses")
    for name, found, paid in rows:
        misses = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in found.kinds.items() if kind != "hit")
        cells = (str(found.turns), f"{found.hit_rate:.1%}", f"${paid:,.2f}", f"${found.saved:,.2f}")
        table.add_row(make_line(name), *cells, make_text(misses))
    return table
