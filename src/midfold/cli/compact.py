"""`midfold compact`: compact a transcript and show the result."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import msgspec

from midfold.api import Compaction, compact
from midfold.cli.options import engine_settings, name_of, read_conversation, with_config, with_conversation
from midfold.cli.outputs import STANDARD, check_output, check_picture, with_overwrite, write_output, write_picture
from midfold.cli.terminal import emit_exact, emit_json, notice, show_work
from midfold.config import Config
from midfold.engines.guard import ENGINE_FAILED
from midfold.errors import TranscriptError
from midfold.model import Summarizer, local_summarizer
from midfold.model.endpoint import resolve
from midfold.model.summarizer import ModelSummarizer


@click.command(name="compact")
@click.argument("file")
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    help="Write the result to OUT and the originals to OUT.archive; - prints the result.",
)
@with_overwrite
@with_conversation
@click.option(
    "--context-length", type=click.IntRange(min=1), metavar="N", help="Context window in tokens; default: the model's."
)
@click.option("--model", help="Model; default: the one named in the file.")
@click.option("--target", type=click.IntRange(min=1), metavar="N", help="Compact to about this many tokens.")
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Keep the last N exchanges.")
@click.option("--here", is_flag=True, help="Compact everything before the latest user message.")
@click.option("--focus", metavar="TEXT", help="Topic that gets most of the summary.")
@click.option("--force", is_flag=True, help="Compact even below the threshold.")
@click.option("--preview", is_flag=True, help="Show what would be kept and folded; write nothing.")
@click.option("--local", is_flag=True, help="Use the built-in summary without an LLM, regardless of the settings.")
@click.option(
    "--summarizer",
    metavar="NAME",
    help="Summarizer: local (built in), main (the file's own model), or a provider's name.",
)
@click.option("--picture", metavar="SVG", help="Write a picture of before and after to this file.")
@with_config
@click.option("-q", "--quiet", is_flag=True, help="Print no report.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON: receipt, state and messages.")
def command(
    file: str,
    output: str | None,
    overwrite: bool,
    conversation: int | None,
    context_length: int | None,
    model: str | None,
    target: int | None,
    keep: int | None,
    here: bool,
    focus: str | None,
    force: bool,
    preview: bool,
    local: bool,
    summarizer: str | None,
    picture: str | None,
    config: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Compact a transcript and show the result.

    FILE is JSON or JSON lines in OpenAI chat, OpenAI Responses or Anthropic format, or a Claude Code or Codex
    session log (written as a plain list of messages); `-` reads standard input. The summary is built in, without an
    LLM, unless --summarizer or auxiliary.compression names a model (`midfold doctor` shows which); an API key in
    the environment alone sends nothing. A preview uses no model. Nothing is written without -o; `-o -` prints only
    the result.
    """
    _refuse_both({"--keep": keep is not None, "--here": here})
    _refuse_both({"--local": local, "--summarizer": summarizer is not None})
    _refuse_both({"--json": as_json, "-o -": output == STANDARD})
    check_picture(picture)
    written = None if output in (None, STANDARD) or preview else _check_target(output, file, overwrite=overwrite)
    document, loaded = read_conversation(file, None, conversation, config=config), engine_settings(config)
    writer = _choose_summarizer(loaded, model or document.model, requested="local" if local or preview else summarizer)
    with show_work("compacting") if writer is local_summarizer else nullcontext():
        result = compact(
            document.source,
            context_length=context_length,
            model=model or document.model,
            target_tokens=target,
            keep_last_exchanges=1 if here else keep,
            focus=focus,
            force=force,
            config=_accept_local(loaded) if local or preview else loaded,
            summarizer=writer,
        )
    result.receipt = result.receipt.with_originals(kept=preview or written is not None)
    if picture is not None:
        _draw(result, picture, Path(name_of(file)).stem)
    if written is not None:
        _write(result, written)
    _print_engine_faults(result)
    if as_json:
        emit_json(plain_result(result, with_messages=not preview))
    elif output == STANDARD and not preview:
        emit_exact(_bytes_of(result).removesuffix(b"\n"))
    elif not quiet:
        _show(result, preview=preview)


def _draw(result: Compaction, picture: str, title: str) -> None:
    from midfold.cli.fold_picture import draw_svg

    write_picture(Path(picture), draw_svg(result, title))


def _print_engine_faults(result: Compaction) -> None:
    for text in result.receipt.notices:
        if text.startswith(ENGINE_FAILED):
            notice(text)


def _refuse_both(given: dict[str, bool]) -> None:
    if all(given.values()):
        raise click.UsageError(f"{' and '.join(given)} cannot be combined")


def _accept_local(config: Config) -> Config:
    """Allow the built-in summary, which --local asks for and a preview uses as a stand-in."""
    accepted = msgspec.structs.replace(config.compression, lossy_fallback=True)
    return msgspec.structs.replace(config, compression=accepted)


def _show(result: Compaction, *, preview: bool) -> None:
    from midfold.cli import fold_picture
    from midfold.cli.terminal import console

    out = console()
    fold_picture.show_map(out, result, preview=preview)
    if not preview:
        fold_picture.show_handoff(out, result)


def plain_result(result: Compaction, *, with_messages: bool = True) -> dict[str, Any]:
    """Return receipt, state and messages as plain values."""
    from midfold.transcript.splice import message_value

    receipt = result.receipt.to_dict()
    shown: dict[str, Any] = {"receipt": receipt, "report": receipt, "state": msgspec.to_builtins(result.state)}
    if with_messages:
        shown["messages"] = [message_value(message, result.dialect) for message in result.transcript]
    return shown


def _check_target(output: str, file: str, *, overwrite: bool) -> Path:
    if Path(output).exists() and Path(output).resolve() == Path(file).resolve():
        raise TranscriptError(f"{output} is the input file; choose another output name")
    target = check_output(output, overwrite=overwrite)
    check_output(_archive_of(target), overwrite=overwrite)
    return target


def _archive_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.archive")


def _write(result: Compaction, target: Path) -> None:
    """Write the result and its archive; remove a stale archive if nothing was compacted."""
    archive = _archive_of(target)
    if result.changed:
        write_output(archive, (line + b"\n" for line in result.archive.lines()))
    else:
        archive.unlink(missing_ok=True)
    write_output(target, [_bytes_of(result)])


def _bytes_of(result: Compaction) -> bytes:
    written = result.messages
    return written if isinstance(written, bytes) else bytes(written)


def _choose_summarizer(config: Config, model: str | None, *, requested: str | None = None) -> Summarizer:
    """Return the summarizer chosen by name or by the settings; print a model's name before anything is sent to it."""
    found = resolve(_with_provider(config, requested), os.environ, model)
    if found.endpoint is None:
        if found.missing or found.unused:
            notice(f"summary: {found.description}{'; use --summarizer NAME for one run' if found.unused else ''}")
        return local_summarizer
    notice(f"summary: {found.description}; use --local for the built-in summary")
    return ModelSummarizer(found.endpoint, found.main, progress=_bar if sys.stderr.isatty() else None)


def _with_provider(config: Config, provider: str | None) -> Config:
    if provider is None:
        return config
    task = msgspec.structs.replace(config.auxiliary.compression, provider=provider)
    return msgspec.structs.replace(config, auxiliary=msgspec.structs.replace(config.auxiliary, compression=task))


def _bar(progress: tuple[int, int]) -> None:
    done, total = progress
    filled = 20 * done // max(total, 1)
    end = "\n" if done == total else ""
    sys.stderr.write(f"\rmidfold: summarizing {'█' * filled}{'░' * (20 - filled)} {done}/{total}{end}")
    sys.stderr.flush()
