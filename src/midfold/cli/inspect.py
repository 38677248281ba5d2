"""`midfold inspect`: where the tokens of a transcript go, and what is wrong with it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from midfold.cli.settings import settings
from midfold.errors import TranscriptError
from midfold.models import Belief, ModelOverride, look_up
from midfold.transcript.breakdown import by_kind, largest
from midfold.transcript.document import Document, read_many
from midfold.transcript.message import ToolCall, ToolResult
from midfold.transcript.tokens import ESTIMATE, Meter

MOST_PROBLEMS = 10


@click.command(name="inspect")
@click.argument("file")
@click.option("--model", help="Count as this model would; default: the model the file names.")
@click.option("--dialect", type=click.Choice(["openai-chat", "openai-responses", "anthropic"]), help="Do not guess.")
@click.option("--config", metavar="FILE", help="Read models and other settings from this file.")
@click.option("--conversation", type=int, metavar="N", help="In a file of many conversations, show this one (from 1).")
@click.option("--exact", is_flag=True, help="Count with the model family's vocabulary (needs midfold[tokens]).")
@click.option("--strict", is_flag=True, help="Fail if the transcript has any problem.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON for machines.")
def command(
    file: str,
    model: str | None,
    dialect: str | None,
    config: str | None,
    conversation: int | None,
    exact: bool,
    strict: bool,
    as_json: bool,
) -> None:
    """Show where the tokens of a transcript go, and what is wrong with it.

    FILE is JSON or JSON lines: a list of messages, a request body, one conversation per line, or the log of a Claude
    Code or Codex session. `-` reads standard input. OpenAI chat, OpenAI Responses and Anthropic messages are told
    apart by their shape.
    """
    documents = read_many(read_file(file), dialect=dialect, strict=strict, name=name_of(file))
    if any(document.messages for document in documents) and not any(map(_is_conversation, documents)):
        raise TranscriptError(f"{name_of(file)} is not a transcript: nothing in it is a message with a role")
    overrides = settings(config).models
    if conversation is not None:
        if not 1 <= conversation <= len(documents):
            raise TranscriptError(
                f"{name_of(file)} holds {len(documents)} conversation(s), there is no number {conversation}"
            )
        documents = [documents[conversation - 1]]
    if len(documents) == 1:
        shown = facts(documents[0], model, exact=exact, overrides=overrides)
        _write(shown, "conversation", as_json=as_json)
        return
    rows = [facts(document, model, exact=exact, overrides=overrides) for document in documents]
    _write({"conversations": rows, "totals": _totals(rows)}, "collection", as_json=as_json)


def _write(shown: dict[str, Any], what: str, *, as_json: bool) -> None:
    from midfold.cli import render
    from midfold.cli.output import console, emit_json

    if as_json:
        emit_json(shown)
    elif what == "conversation":
        render.conversation(console(), shown)
    else:
        render.collection(console(), shown)


def read_file(file: str) -> bytes:
    if file == "-":
        if sys.stdin is None:
            raise TranscriptError("standard input is closed")
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise TranscriptError(f"cannot read {file}: {(error.strerror or str(error)).lower()}") from None


def name_of(file: str) -> str:
    return "standard input" if file == "-" else file


def _is_conversation(document: Document) -> bool:
    return any(message.role != "other" for message in document.messages)


def facts(
    document: Document,
    model: str | None = None,
    *,
    exact: bool = False,
    overrides: Mapping[str, ModelOverride] | None = None,
) -> dict[str, Any]:
    """Everything the command shows of one conversation, as plain values; no message content."""
    belief = look_up(model or document.model, overrides)
    meter = meter_for(belief, exact=exact)
    parts = [part for message in document.messages for part in message.parts]
    kinds = by_kind(document.messages, meter, system=document.system, tools=document.tools)
    total = sum(kinds.values())
    window = belief.model.context_window
    return {
        "dialect": document.dialect.name,
        "model": {"name": belief.name, "known": belief.known, "context_window": window, "why": belief.why},
        "messages": len(document.messages),
        "roles": dict(Counter(message.role for message in document.messages).most_common()),
        "tool_calls": sum(isinstance(part, ToolCall) for part in parts),
        "tool_results": sum(isinstance(part, ToolResult) for part in parts),
        "tools_used": dict(Counter(part.name for part in parts if isinstance(part, ToolCall)).most_common()),
        "tokens": {
            "total": total,
            "basis": "counted" if exact else "estimated",
            "counter": meter.counter.name,
            "share_of_window": round(total / window, 4),
            "by_kind": kinds,
        },
        "largest": [item._asdict() for item in largest(document.messages, meter)],
        "problems": [problem._asdict() for problem in document.problems],
    }


def meter_for(belief: Belief, *, exact: bool = False) -> Meter:
    """A meter in the tokens of the model; with its own vocabulary no factor is needed."""
    model = belief.model
    if not exact:
        return Meter(ESTIMATE, factor=model.factor, message_overhead=model.message_overhead)
    from midfold.tokenizers import Tokenizer

    tokenizer = Tokenizer(model.tokenizer)
    factor = 1.0 if tokenizer.exact else model.factor
    return Meter(tokenizer, factor=factor, message_overhead=model.message_overhead)


def _totals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    by_kind_total: Counter[str] = Counter()
    for row in rows:
        by_kind_total.update(row["tokens"]["by_kind"])
    return {
        "conversations": len(rows),
        "messages": sum(row["messages"] for row in rows),
        "tool_calls": sum(row["tool_calls"] for row in rows),
        "tokens": sum(row["tokens"]["total"] for row in rows),
        "by_kind": dict(by_kind_total),
        "problems": sum(len(row["problems"]) for row in rows),
    }
