"""`midfold probes`: measure what readers of a compacted context know; readers are models, agents or people."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from midfold.cli.options import settings, with_base_url
from midfold.cli.terminal import console, emit_json, make_table, notice, progress_bar
from midfold.lab.reading import KINDS, METHODS, AnswerFolder, MethodScore, ReadingRun, Waiting, load_probes
from midfold.model.client import ModelClient
from midfold.model.endpoint import Endpoint, endpoint_for
from midfold.model.summary_call import SummaryCall

MAX_ANSWER_TOKENS = 16_000
"""Maximum tokens of an answer."""
DEFAULT = "midfold,mask,window"


def _methods(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
    for name in names:
        if name not in METHODS:
            raise click.BadParameter(f"expected some of {', '.join(METHODS)}, found {name}")
    return names


@click.command()
@click.argument("probes", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="PROBES")
@click.option(
    "-o", "--folder", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Folder of the results."
)
@click.option(
    "--data",
    type=click.Path(exists=True, path_type=Path),
    metavar="DIR",
    help="Recorded sessions that the probes refer to.",
)
@click.option(
    "--methods", callback=_methods, default=DEFAULT, show_default=True, metavar="NAMES", help="Methods, see above."
)
@click.option("--share", type=click.FloatRange(0.1, 100), default=10.0, show_default=True, help="Percent of the past.")
@click.option("--floor", type=click.IntRange(min=100), default=2_000, show_default=True, help="Minimum tokens.")
@click.option("--readers", type=click.IntRange(1, 8), default=1, show_default=True, help="Readers per context.")
@click.option("--model", metavar="NAME", help="Model that reads, grades and summarizes; default: answer by hand.")
@click.option("--provider", metavar="NAME", help="Provider of the model.")
@with_base_url("OpenAI's API")
@click.option("--config", metavar="FILE", help="Read settings from this file.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
def command(
    probes: Path,
    folder: Path,
    data: Path | None,
    methods: tuple[str, ...],
    share: float,
    floor: int,
    readers: int,
    model: str | None,
    provider: str | None,
    base_url: str | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Measure what a reader knows from a compacted context alone.

    PROBES is a folder of JSON files: `messages`, and `questions` with kind (recall, artifact, decision, continuation),
    q and gold. If there are no questions, the model writes them from the whole history.

    \b
    whole           the whole history: the upper bound
    window, mask    the newest messages; all messages with old results masked
    plain           a plain summary by the model and the last user message
    midfold         midfold without an LLM; midfold-model: with it
    once, ...       at default settings, compacted automatically (once-model; once-plain: plain at that size)
    folds, ...      fed message by message, compacted many times (folds-model, folds-plain, folds-window)

    Without --model, prompts are written to DIR as NAME.prompt.txt; put the answers into NAME.answer.txt and run the
    same command again. Give each prompt to a fresh context that sees nothing else.
    """
    ask = None
    if model or base_url:
        ask = _asker(endpoint_for(settings(config), os.environ, model=model, provider=provider, base_url=base_url))
    try:
        loaded = load_probes(probes, data, AnswerFolder(folder / "questions", ask))
    except Waiting as waiting:
        _exit_waiting(1, str(waiting))
    run = ReadingRun(loaded, methods, folder, share=share / 100, floor=floor, readers=readers, model=ask)
    with progress_bar("contexts, readers, grades") as progress:
        scores = run.run(progress)
    if run.waiting:
        _exit_waiting(len(run.waiting), str(run.waiting[0].parent))
    if as_json:
        emit_json([msgspec.to_builtins(score) for score in scores])
    else:
        _show(scores)


def _asker(endpoint: Endpoint) -> Callable[[str], str]:
    def ask(prompt: str) -> str:
        body = {"messages": [{"role": "user", "content": prompt}]}
        call = SummaryCall(endpoint=endpoint, messages=(), max_tokens=MAX_ANSWER_TOKENS, body=body)
        return ModelClient(endpoint).ask_once(call.request()).text

    return ask


def _exit_waiting(count: int, where: str) -> None:
    what = "1 prompt needs an answer" if count == 1 else f"{count:,} prompts need answers"
    notice(f"{what} in {where}; write the answer to each NAME.prompt.txt into NAME.answer.txt, then run this again")
    sys.exit(1)


def _show(scores: list[MethodScore]) -> None:
    table = make_table("method", "right", *KINDS, "odd / even", "wrong", "unknown", "usable", "tokens")
    for score in scores:
        table.add_row(
            score.method,
            f"{score.right:.3f}",
            *(f"{score.by_kind[kind]:.2f}" for kind in KINDS),
            f"{score.halves[0]:.2f} / {score.halves[1]:.2f}",
            str(score.wrong),
            str(score.unknown),
            f"{score.usable:.1f}",
            f"{score.tokens:,.0f}",
        )
    console().print(table)
