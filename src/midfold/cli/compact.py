"""`midfold compact`: fold the middle of a transcript, and see what happened."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from midfold.api import Compaction, compact
from midfold.cli.options import engine_settings, name_of, read_file, with_config
from midfold.cli.terminal import notice
from midfold.config import Config
from midfold.errors import TranscriptError
from midfold.model import Summarizer, local_summarizer
from midfold.model.endpoint import resolve
from midfold.model.summaries import ModelSummarizer
from midfold.transcript.document import read


@click.command(name="compact")
@click.argument("file")
@click.option("-o", "--output", metavar="OUT", help="Write the result here, the originals to OUT.archive.")
@click.option("--context-length", type=click.IntRange(min=1), metavar="N", help="The window; default: the model's.")
@click.option("--model", help="The model; default: the one the file names.")
@click.option("--target", type=click.IntRange(min=1), metavar="N", help="Fold to about this many tokens.")
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Keep the last N exchanges.")
@click.option("--here", is_flag=True, help="Fold everything before the latest user message.")
@click.option("--focus", metavar="TEXT", help="What the summary should give most room to.")
@click.option("--force", is_flag=True, help="Fold even below the threshold.")
@click.option("--preview", is_flag=True, help="Only show what would stay and what would be folded; write nothing.")
@click.option("--local", is_flag=True, help="Make the summary without a model, whatever the settings say.")
@click.option(
    "--summarizer", metavar="NAME", help="Who writes it: local, main (the file's own model), or a provider's name."
)
@click.option("--picture", metavar="SVG", help="Draw before and after into this file.")
@with_config
@click.option("--json", "as_json", is_flag=True, help="Write JSON: receipt, state and messages.")
def command(
    file: str,
    output: str | None,
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
    as_json: bool,
) -> None:
    """Fold the middle of a transcript and show what happened.

    FILE is JSON or JSON lines in OpenAI chat, OpenAI Responses or Anthropic shape, or the log of a Claude Code or
    Codex session (written as a plain list of messages); `-` reads standard input. The summary is made on this machine,
    unless --summarizer or auxiliary.compression names a model that writes it (`midfold doctor` says which): a key in
    the environment alone sends nothing. A preview asks no model. Nothing is written without -o.
    """
    if keep is not None and here:
        raise click.UsageError("--keep and --here exclude each other")
    if local and summarizer is not None:
        raise click.UsageError("--local and --summarizer exclude each other")
    content, loaded = read_file(file), engine_settings(config)
    own_model = model or read(content, name=name_of(file)).model
    writer = _choose_summarizer(loaded, own_model, asked="local" if local or preview else summarizer)
    if local or preview:
        # Whoever asks for a summary without a model accepts it; a preview stands for one that a model may write.
        accepted = msgspec.structs.replace(loaded.compression, lossy_fallback=True)
        loaded = msgspec.structs.replace(loaded, compression=accepted)
    result = compact(
        content,
        context_length=context_length,
        model=model,
        target_tokens=target,
        keep_last_exchanges=1 if here else keep,
        focus=focus,
        force=force,
        config=loaded,
        summarizer=writer,
    )
    result.receipt = result.receipt.with_originals(kept=preview or output is not None)
    if picture is not None:
        from midfold.cli.fold_picture import draw_svg

        Path(picture).write_text(draw_svg(result, Path(name_of(file)).stem), encoding="utf-8")
    _show(result, preview=preview, as_json=as_json)
    if output is not None and not preview:
        _write(result, output, name_of(file))


def _show(result: Compaction, *, preview: bool, as_json: bool) -> None:
    from midfold.cli import fold_picture
    from midfold.cli.terminal import console, emit_json

    if as_json:
        emit_json(plain_result(result, with_messages=not preview))
        return
    out = console()
    fold_picture.show_map(out, result)
    if not preview:
        fold_picture.show_handoff(out, result)


def plain_result(result: Compaction, *, with_messages: bool = True) -> dict[str, Any]:
    """The receipt, the state and the messages as plain values."""
    from midfold.transcript.splice import message_value

    receipt = result.receipt.to_dict()
    shown: dict[str, Any] = {"receipt": receipt, "report": receipt, "state": msgspec.to_builtins(result.state)}
    if with_messages:
        shown["messages"] = [message_value(message, result.dialect) for message in result.transcript]
    return shown


def _write(result: Compaction, output: str, name: str) -> None:
    target = Path(output)
    if target.exists() and target.resolve() == Path(name).resolve():
        raise TranscriptError(f"{output} is the transcript itself; choose another name, so that nothing is lost")
    if result.changed:
        archive = b"".join(line + b"\n" for line in result.archive.lines())
        _atomically(Path(f"{output}.archive"), archive)
    written = result.messages
    _atomically(target, written if isinstance(written, bytes) else bytes(written))


def _atomically(path: Path, data: bytes) -> None:
    """Written beside and moved into place, readable by the owner only: originals may hold secrets."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.touch(mode=0o600)
    temporary.write_bytes(data)
    temporary.replace(path)


def _choose_summarizer(config: Config, model: str | None, *, asked: str | None = None) -> Summarizer:
    """Whoever was asked for by name, else who the settings choose; a model is named before anything is sent to it."""
    found = resolve(_with_provider(config, asked), os.environ, model)
    if found.endpoint is None:
        if found.missing or found.unused:
            notice(f"summary by {found.description}{'; --summarizer NAME does it once' if found.unused else ''}")
        return local_summarizer
    notice(f"summary by {found.description}; --local makes it without a model")
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
    sys.stderr.write(f"\rmidfold: summarising {'█' * filled}{'░' * (20 - filled)} {done}/{total}{end}")
    sys.stderr.flush()
