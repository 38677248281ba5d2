"""`midfold demo`: demonstrate midfold on this machine, without a key or network access."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec

from midfold.cli import demo_session
from midfold.cli.options import with_json
from midfold.cli.terminal import console, emit_json, make_table
from midfold.config import Config
from midfold.config.schema import GatewaySettings
from midfold.errors import MissingExtra
from midfold.models import ModelOverride

if TYPE_CHECKING:
    from rich.console import Console

MODEL = "claude-opus-4-6"
BARS = "▁▂▃▄▅▆▇█"
WIDTH = 60


class DemoRun(msgspec.Struct, kw_only=True):
    """Progress and provider cost of one session."""

    turns: int
    done: int
    refused: int
    error: str
    folds: int
    prompts: list[int]
    cache_read_share: float
    billed_tokens: int
    """Tokens weighted by price, relative to an uncached token."""


@click.command()
@click.option(
    "--gateway", is_flag=True, help="Run a coding session longer than the window, without and with the gateway."
)
@click.option("--turns", default=300, show_default=True, type=click.IntRange(1, 5_000), help="Number of turns.")
@click.option(
    "--window",
    default=32_768,
    show_default=True,
    type=click.IntRange(8_192, 1_000_000),
    help="Context window in tokens.",
)
@with_json
def command(gateway: bool, turns: int, window: int, as_json: bool) -> None:
    """Demonstrate midfold on an example conversation: no key, no network, nothing is stored.

    Without --gateway, one conversation is compacted. With it, a client that resends its whole history works for 300
    turns with a simulated provider that enforces the real API rules: directly, directly with its own cache markers,
    and through the gateway.
    """
    if gateway:
        _gateway(turns, window, as_json)
    else:
        _fold(as_json)


def _fold(as_json: bool) -> None:
    from midfold.api import compact
    from midfold.cli import fold_picture
    from midfold.cli.compact import plain_result

    result = compact(demo_session.example_conversation(), context_length=demo_session.EXAMPLE_WINDOW)
    if as_json:
        emit_json(plain_result(result, with_messages=False))
        return
    fold_picture.show_map(console(), result)
    fold_picture.show_handoff(console(), result)


def _doubles() -> Any:
    """Import the test servers; lazily, so that nothing else in the package depends on them."""
    return importlib.import_module("midfold.testing.doubles")


def _gateway(turns: int, window: int, as_json: bool) -> None:
    try:
        _doubles().uvicorn_module()
    except ImportError:
        raise MissingExtra("midfold demo --gateway", "gateway") from None
    with _progress(3 * turns, quiet=as_json) as advance:
        alone = session(turns, window, advance=advance)
        marking = session(turns, window, marks=True, advance=advance)
        ours = session(turns, window, through_gateway=True, advance=advance)
    if as_json:
        runs = {"without": alone, "marking": marking, "with": ours}
        emit_json({"window": window, **{name: msgspec.to_builtins(run) for name, run in runs.items()}})
    else:
        _show(console(), window, {"directly": alone, "with own markers": marking, "through midfold": ours})
    if ours.done < turns or ours.refused:
        sys.exit(1)


def session(
    turns: int,
    window: int,
    *,
    through_gateway: bool = False,
    marks: bool = False,
    advance: Callable[[int], None],
) -> DemoRun:
    """Run the coding session against a simulated provider; call `advance` with the number of turns made."""
    from midfold.gateway import create_app
    from midfold.session.sessions import open_sessions

    doubles, answers = _doubles(), importlib.import_module("midfold.testing.answers")
    accounts: list[Any] = []
    error = ""
    provider = demo_session.DemoProvider(window)

    def answer(request: Any) -> Any:
        status, body = provider.answer(request.raw, request.body)
        return answers.value(body, status)

    with doubles.ScriptedProvider(then=answer) as server, open_sessions("memory:") as sessions:
        config = Config(
            gateway=GatewaySettings(upstream=server.url), models={"*": ModelOverride(context_window=window)}
        )
        app = create_app(config, sessions=sessions, environment={})
        app.gateway.accountants.append(accounts.append)
        with doubles.served(app) as url:
            client = demo_session.DemoClient(url if through_gateway else server.url, MODEL, marks=marks)
            work = demo_session.CodingSession(client, turns)
            try:
                work.run(lambda turn: advance(1))
            except demo_session.RequestRefused as refused:
                error = str(refused)
            client.close()
        advance(turns - work.done)
        bills = provider.bills
    prompt = sum(bill.prompt for bill in bills)
    return DemoRun(
        turns=turns,
        done=work.done,
        refused=len(provider.refused),
        error=error,
        folds=sum(account.action in ("compacted", "pruned") for account in accounts),
        prompts=[bill.prompt for bill in bills],
        cache_read_share=sum(bill.read for bill in bills) / max(prompt, 1),
        billed_tokens=round(sum(bill.cost for bill in bills)),
    )


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    if quiet or not sys.stderr.isatty():
        yield lambda count: None
        return
    with click.progressbar(length=total, label="midfold: three sessions", file=sys.stderr) as bar:
        yield bar.update


def _show(out: Console, window: int, runs: dict[str, DemoRun]) -> None:
    from rich.text import Text

    alone = runs["directly"]
    out.print(Text(f"Coding session of {alone.turns} turns in a {window:,}-token window", style="bold"))
    out.print(
        Text(
            "The client resends its history every turn; the provider checks pairing, roles, markers and length,\n"
            "and bills by a simulated prompt cache. Clients with cache markers pay less, but fail at the same turn.\n"
            "Nothing leaves this machine.\n"
        )
    )
    table = make_table("", *(f">{name}" for name in runs))
    rows: tuple[tuple[str, Callable[[DemoRun], str]], ...] = (
        ("turns finished", lambda run: f"{run.done} of {run.turns}"),
        ("requests refused", lambda run: f"{run.refused}"),
        ("largest prompt, tokens", lambda run: f"{max(run.prompts, default=0):,}"),
        ("compactions", lambda run: f"{run.folds}"),
        ("prompt read from the cache", lambda run: f"{run.cache_read_share:.0%}"),
        ("billed per finished turn, tokens", lambda run: f"{run.billed_tokens / max(run.done, 1):,.0f}"),
    )
    for label, value in rows:
        table.add_row(label, *map(value, runs.values()))
    out.print(table)
    for name, run in (("directly", alone), ("through midfold", runs["through midfold"])):
        out.print(Text(f"\nprompt size, {name}:", style="bold"))
        end = "  refused" if run.error else ""
        out.print(Text(_curve(run, window) + end, style="red" if run.error else "green"))
    if alone.error:
        out.print(Text(f"\nProvider's error without midfold: {alone.error}"))


def _curve(run: DemoRun, window: int) -> str:
    """Return a line chart of the prompt size over the session."""
    columns = min(WIDTH, run.turns)
    places = [place * run.turns // columns for place in range(columns)]
    picked = [run.prompts[place] for place in places if place < len(run.prompts)]
    return "".join(BARS[min(prompt * len(BARS) // window, len(BARS) - 1)] for prompt in picked)
