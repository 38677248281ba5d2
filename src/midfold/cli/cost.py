"""`midfold cost`: report what recorded sessions cost, and what they would have cost otherwise."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from midfold.cache.health import RecordedTurn, observe_recording
from midfold.cli.cache import call_recording
from midfold.cli.inspect import believe_recording
from midfold.cli.options import (
    STORED,
    name_of,
    open_existing,
    read_conversations,
    settings,
    stored_session,
    with_config,
    with_conversation,
    with_json,
)
from midfold.cli.terminal import console, emit_json, make_line, make_table, make_text, notice, progress_bar
from midfold.config import Config
from midfold.errors import TranscriptError
from midfold.lab.replay_policies import SCHEDULED
from midfold.lab.replays import replay
from midfold.pages.api_types import Saved
from midfold.pages.statistics import Statistics
from midfold.transcript.document import Document

ENOUGH = 0.9
"""Minimum share of requests with known usage for comparing a conversation with its replay."""
Recorded = list[tuple[str, Document, list[RecordedTurn]]]


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts as reported by the provider, and costs in dollars (None if a price is unknown)."""

    requests: int
    prompt_tokens: int
    read: int
    written: int
    answer_tokens: int
    prompts: float | None = None
    answers: float | None = None
    without_cache: float | None = None
    """Cost of the same prompts without a cache."""

    @classmethod
    def of(cls, turns: Sequence[RecordedTurn]) -> Bill:
        counted = cls(
            requests=len(turns),
            prompt_tokens=sum(turn.usage.prompt_tokens for turn in turns),
            read=sum(turn.usage.cache_read_tokens for turn in turns),
            written=sum(turn.usage.cache_write_tokens for turn in turns),
            answer_tokens=sum(turn.usage.completion_tokens for turn in turns),
        )
        if not all(turn.prices.base for turn in turns):
            return counted
        return msgspec.structs.replace(
            counted,
            prompts=sum(turn.cost for turn in turns),
            answers=sum(turn.prices.answer(turn.usage) for turn in turns),
            without_cache=sum(turn.prices.money(turn.usage.prompt_tokens) for turn in turns),
        )

    @property
    def together(self) -> float | None:
        return None if self.prompts is None or self.answers is None else self.prompts + self.answers


class Replayed(msgspec.Struct, frozen=True):
    """Replay of the same requests with midfold: number of compactions, windows, and prompt cost.

    `prompts` is None if nothing was compacted or too little is known to compare.
    """

    folds: int = 0
    windows: tuple[int, ...] = ()
    prompts: float | None = None
    missing: str = ""
    """Missing data that prevents a comparison."""


@click.command(name="cost")
@click.argument("file", metavar="FILE")
@click.option("--model", help="Model for prices; default: the recorded models.")
@with_conversation
@click.option("--no-replay", is_flag=True, help="Skip the replay, which takes about a second per megabyte.")
@with_config
@with_json
def command(
    file: str, model: str | None, conversation: int | None, no_replay: bool, config: str | None, as_json: bool
) -> None:
    """Report what recorded sessions cost, and what they would have cost without a cache and with midfold.

    FILE is a coding agent's log, a stored session (session:NAME), or a transcript whose messages carry usage
    (`_meta.usage`). Prices are those of `midfold models`. "With midfold" replays the same requests at the same
    times in the same window, compacted without an LLM; `midfold replay` compares other policies and windows. A
    stored session that was compacted is compared with the same requests without compaction.
    """
    known = settings(config)
    recorded: Recorded = []
    for number, document in enumerate(read_conversations(file, None, conversation, config=config), 1):
        turns = list(observe_recording(document, known.models, known.prompt_caching.cache_ttl, model or ""))
        if turns:
            recorded.append((call_recording(document, number), document, turns))
    if not recorded:
        raise TranscriptError(f"{name_of(file)}: no reported usage found; Claude Code and Codex logs contain it")
    saved = _savings(file.removeprefix(STORED), config) if file.startswith(STORED) else None
    played = None if no_replay or saved is not None else _replay(recorded, model, known)
    bills = {name: Bill.of(turns) for name, _, turns in recorded}
    total = Bill.of([turn for _, _, turns in recorded for turn in turns])
    if as_json:
        emit_json(_plain(bills, total, saved, played))
        return
    _warn_unknown_prices(recorded)
    _show(bills, total, saved, played)


def _savings(name: str, config: str | None) -> Saved | None:
    """Return what the compactions of a stored session saved, or None if there were none."""
    with open_existing(None, config, option="--config FILE") as sessions:
        info = sessions.store.must(stored_session(sessions, name).name)
        return Statistics(sessions, settings(config), time.time).one(info).facts.saved if info.compactions else None


def _replay(recorded: Recorded, model: str | None, config: Config) -> Replayed:
    cost, folds, windows = 0.0, 0, dict[int, None]()
    with progress_bar("replayed") as report:
        for number, (name, document, turns) in enumerate(recorded, 1):
            belief, window, _ = believe_recording(document, model, config)
            if document.log is None or not document.log.model:
                return Replayed(missing="the system prompt and tools")
            played = replay([document], policies=[SCHEDULED], windows=[window], model=belief.name, exams=0).totals[0]
            if len(turns) < ENOUGH * played.requests:
                return Replayed(missing=f"the usage of {played.requests - len(turns):,} requests of {name}")
            cost, folds = cost + turns[-1].prices.money(played.cost), folds + played.folds
            windows[window] = None
            if report is not None:
                report(number, len(recorded))
    return Replayed(folds, tuple(windows), cost if folds else None)


def _warn_unknown_prices(recorded: Recorded) -> None:
    unknown = {turn.model or "no model" for _, _, turns in recorded for turn in turns if not turn.prices.base}
    if unknown:
        names = ", ".join(sorted(unknown))
        notice(f"no price known for {names}; use --model for another model's prices, or set models: in config.yaml")


def _plain(bills: dict[str, Bill], total: Bill, saved: Saved | None, played: Replayed | None) -> dict[str, Any]:
    return {
        "sessions": [{"session": name, **_bill(bill)} for name, bill in bills.items()],
        "total": _bill(total),
        "folds": None if saved is None else msgspec.to_builtins(saved),
        "with_midfold": None if played is None else msgspec.to_builtins(played),
    }


def _bill(bill: Bill) -> dict[str, Any]:
    return {**msgspec.to_builtins(bill), "paid": bill.together}


def _show(bills: dict[str, Bill], total: Bill, saved: Saved | None, played: Replayed | None) -> None:
    out = console()
    table = make_table("session", ">requests", ">prompt tokens", ">cached", ">answer tokens", ">paid")
    for name, bill in bills.items():
        sizes = (f"{bill.requests:,}", f"{bill.prompt_tokens:,}", f"{bill.read / bill.prompt_tokens:.0%}")
        table.add_row(make_line(name), *sizes, f"{bill.answer_tokens:,}", _money(bill.together))
    out.print(table)
    if total.answers is None:
        return
    out.print()
    sums = make_table("", ">prompts", ">answers", ">total", "")
    for what, prompts, note in _alternatives(total, saved, played):
        together = None if prompts is None else prompts + total.answers
        figures = ("", "", "") if together is None else map(_money, (prompts, total.answers, together))
        sums.add_row(what, *figures, make_text(note))
    out.print(sums)


def _money(dollars: float | None) -> str:
    if dollars is None:
        return "unknown"
    return f"${dollars:,.2f}" if dollars >= 1 else f"${dollars:,.4f}"


def _alternatives(total: Bill, saved: Saved | None, played: Replayed | None) -> Iterator[tuple[str, float | None, str]]:
    """Yield each alternative with its prompt cost and a note."""
    assert total.prompts is not None and total.without_cache is not None
    summaries = (saved.summaries if saved is not None else None) or 0.0
    yield "as recorded", total.prompts + summaries, f"including {_money(summaries)} for summaries" if summaries else ""
    yield "without a cache", total.without_cache + summaries, ""
    if saved is not None and saved.without_folds is not None:
        yield "without compaction", saved.without_folds, f"{saved.tokens_not_sent:,} more tokens sent"
    if played is not None:
        windows = " or ".join(f"{window:,}" for window in played.windows)
        times = "once" if played.folds == 1 else f"{played.folds:,} times"
        note = f"replay compacts {times} in a window of {windows}" if played.folds else ""
        note = note or (f"unknown: {played.missing}" if played.missing else f"no compaction in a window of {windows}")
        yield "with midfold", played.prompts, note
