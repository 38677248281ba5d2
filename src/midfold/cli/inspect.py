"""`midfold inspect`: show token use and problems of a transcript."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from midfold.api import budget_for
from midfold.cli.options import read_conversations, settings, with_conversation, with_dialect
from midfold.cli.terminal import (
    console,
    emit_json,
    make_table,
    make_text,
    progress_bar,
    share_bar,
    show_work,
    visible,
)
from midfold.config import Config
from midfold.models import Belief, look_up
from midfold.transcript.breakdown import FREE, RESERVE, ContextShare, by_kind, context_breakdown, fit_sizes, largest
from midfold.transcript.document import Document
from midfold.transcript.log_lines import Log
from midfold.transcript.message import ToolCall, ToolResult, Usage, read_usage
from midfold.transcript.tokens import ESTIMATE, Meter

if TYPE_CHECKING:
    from rich.console import Console

COLOURS = {
    "system prompt": "magenta",
    "tool definitions": "bright_magenta",
    "user text": "green",
    "assistant text": "cyan",
    "thinking": "bright_black",
    "tool calls": "yellow",
    "tool results": "red",
    "media": "blue",
    "MCP tools": "bright_magenta",
    "conversation": "cyan",
    "message framing": "bright_black",
}
LONG = "[1m]"
LOGGED = "from the log"
MAX_PROBLEMS = 10
MAX_TOOLS = 8


@click.command(name="inspect")
@click.argument("file")
@click.option("--model", help="Model for token counts; default: the one named in the file.")
@with_dialect
@click.option("--config", metavar="FILE", help="Read models and other settings from this file.")
@with_conversation
@click.option(
    "--prompt-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help="Prompt tokens reported by the provider; default: the usage in FILE, if any.",
)
@click.option("--exact", is_flag=True, help="Count with the model family's vocabulary (needs midfold[tokens]).")
@click.option("--strict", is_flag=True, help="Fail if the transcript has any problem.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    file: str,
    model: str | None,
    dialect: str | None,
    config: str | None,
    conversation: int | None,
    prompt_tokens: int | None,
    exact: bool,
    strict: bool,
    as_json: bool,
) -> None:
    """Show where the tokens of a transcript go, and list its problems.

    FILE is JSON or JSON lines: a list of messages, a request body, one conversation per line, or a Claude Code or
    Codex session log. `-` reads standard input. OpenAI chat, OpenAI Responses and Anthropic formats are detected
    automatically.
    """
    documents = read_conversations(file, dialect, conversation, strict=strict, config=config)
    known = settings(config)
    if len(documents) == 1:
        with show_work("counting"):
            shown = describe(documents[0], model, exact=exact, config=known, prompt_tokens=prompt_tokens)
        emit_json(shown) if as_json else _show_conversation(console(), shown)
        return
    rows = []
    with progress_bar("conversations") as progress:
        for number, document in enumerate(documents, 1):
            rows.append(describe(document, model, exact=exact, config=known))
            if progress is not None:
                progress(number, len(documents))
    both = {"conversations": rows, "totals": _totals(rows)}
    emit_json(both) if as_json else _show_collection(console(), both)


def describe(
    document: Document,
    model: str | None = None,
    *,
    exact: bool = False,
    config: Config | None = None,
    prompt_tokens: int | None = None,
) -> dict[str, Any]:
    """Return everything that the command shows of a conversation as plain values, without message content."""
    config = config or Config()
    belief, window, why = believe_recording(document, model, config)
    meter = meter_for(belief, exact=exact)
    parts = [part for message in document.messages for part in message.parts]
    kinds = by_kind(document.messages, meter, system=document.system, tools=document.tools)
    total = sum(kinds.values())
    reservation = config.compression.output_reservation or document.max_output
    context = context_breakdown(
        document.messages,
        meter,
        system=document.system,
        tools=document.tools,
        measured_prompt_tokens=prompt_tokens or _reported_tokens(document, meter),
        context_max_tokens=window,
        reserved_tokens=budget_for(window, reservation, config).output_reservation,
    )
    return {
        "dialect": document.dialect.name,
        "model": {"name": belief.name, "known": belief.known or why == LOGGED, "context_window": window, "why": why},
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
        "context": {
            "prompt_tokens": context.total_tokens,
            "measured": context.measured_prompt_tokens is not None,
            "shares": [{**share._asdict(), "share": round(share.share, 4)} for share in context.shares],
        },
        "largest": [item._asdict() for item in largest(document.messages, meter)],
        "problems": [problem._asdict() for problem in document.problems],
    }


def believe_recording(document: Document, model: str | None, config: Config) -> tuple[Belief, int, str]:
    """Return the model facts, the window in tokens, and the source of the window."""
    belief = _belief_of(document, model, config)
    logged = document.log.window if document.log is not None and model is None else 0
    return (belief, logged, LOGGED) if logged else (belief, belief.model.context_window, belief.why)


def _belief_of(document: Document, model: str | None, config: Config) -> Belief:
    """Return the model facts; infer Claude Code's long window from the usage, because its log does not record it."""
    belief = look_up(model or document.model, config.models)
    if model is not None or document.log is None or document.log.client != "claude-code":
        return belief
    largest = max((usage.prompt_tokens for _, usage in _counts_of(document.log)), default=0)
    longer = look_up(f"{document.model}{LONG}", config.models) if largest > belief.model.context_window else belief
    return longer if longer.model.context_window >= largest else belief


def _counts_of(log: Log) -> list[tuple[int, Usage]]:
    """Return index and usage of the responses with reported usage."""
    return [(place, usage) for place, turn in log.turns.items() if (usage := read_usage(turn.usage)) is not None]


def _reported_tokens(document: Document, meter: Meter) -> int | None:
    """Return the reported prompt tokens, plus an estimate for messages after the last report in a log.

    Return None after a compaction by the client, whose prompts do not consist of these messages.
    """
    usage = read_usage(document.setting("usage"))
    if usage is not None or document.log is None or document.log.folds:
        return usage.prompt_tokens if usage is not None else None
    counted = _counts_of(document.log)
    if not counted:
        return None
    place, usage = max(counted, key=lambda item: item[0])
    rest = document.messages[place + 1 :]
    return usage.prompt_tokens + usage.completion_tokens + meter.tokens(sum(map(meter.units, rest)), len(rest))


def meter_for(belief: Belief, *, exact: bool = False) -> Meter:
    """Return a meter for the model; no correction factor is needed with its own vocabulary."""
    model = belief.model
    if not exact:
        return Meter(ESTIMATE, factor=model.factor, message_overhead=model.message_overhead)
    from midfold.transcript.tokenizers import Tokenizer

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


def _show_conversation(out: Console, shown: Mapping[str, Any]) -> None:
    tokens = shown["tokens"]
    roles = ", ".join(f"{count:,} {role}" for role, count in shown["roles"].items())
    out.print(
        make_text(f"{shown['messages']:,} messages", "bold")
        + make_text(f" in {shown['dialect']} format{': ' if roles else ''}{roles}")
    )
    calls = f"{shown['tool_calls']:,} tool calls, {shown['tool_results']:,} results"
    out.print(make_text(calls + _tools(shown["tools_used"])))
    _window_line(out, shown["model"], tokens, shown["context"])
    out.print()
    context = shown["context"]
    kinds_table(out, fit_sizes(tokens["by_kind"], context["prompt_tokens"]))
    out.print()
    context_table(out, [ContextShare(**share) for share in context["shares"]], measured=context["measured"])
    if shown["largest"]:
        table = make_table(">Largest messages", "role", "tool", ">tokens", ">share")
        scale = context["prompt_tokens"] / (tokens["total"] or 1)
        for item in shown["largest"]:
            share, size = f"{item['tokens'] / (tokens['total'] or 1):.1%}", f"{round(item['tokens'] * scale):,}"
            row = (f"[{item['position']}]", item["role"], ", ".join(item["tools"]), size, share)
            table.add_row(*map(make_text, row))
        out.print()
        out.print(table)
    _show_problems(out, shown["problems"])


def _window_line(out: Console, model: Mapping[str, Any], tokens: Mapping[str, Any], context: Mapping[str, Any]) -> None:
    share = context["prompt_tokens"] / model["context_window"]
    colour = "red" if share >= 0.85 else "yellow" if share >= 0.5 else "green"
    line = make_text(f"{context['prompt_tokens']:,} tokens", "bold")
    how = "estimated" if tokens["basis"] == "estimated" else f"counted with {tokens['counter']}"
    if context["measured"]:
        how = f"reported by the provider; {how}: {tokens['total']:,}"
    line.append(f" ({how}), ", style="default")
    line.append(f"{share:.1%}", style=colour)
    name = visible(model["name"] or "an unnamed model")
    known = "" if model["known"] else " (default)"
    line.append(f" of the {model['context_window']:,}-token window of {name}{known}", style="default")
    out.print(line)


def _tools(used: Mapping[str, int]) -> str:
    if not used:
        return ""
    shown = [f"{name or '(no name)'} {count:,}" for name, count in list(used.items())[:MAX_TOOLS]]
    more = f", and {len(used) - MAX_TOOLS} more" if len(used) > MAX_TOOLS else ""
    return f": {', '.join(shown)}{more}"


def kinds_table(out: Console, by_kind: Mapping[str, int]) -> None:
    """Print tokens by kind, largest first."""
    total = sum(by_kind.values()) or 1
    table = make_table("Where the tokens go", ">tokens", ">share")
    table.add_column("", no_wrap=True)
    for kind, amount in sorted(by_kind.items(), key=lambda item: -item[1]):
        if amount:
            share = amount / total
            filled = make_text(share_bar(out, share), COLOURS.get(kind, "white"))
            table.add_row(kind, f"{amount:,}", f"{share:.1%}", filled)
    out.print(table)


def context_table(out: Console, shares: Sequence[ContextShare], *, measured: bool) -> None:
    """Print the window: fixed costs, conversation, output reservation and free tokens."""
    table = make_table("Context window", ">tokens", ">of the window")
    table.add_column("", no_wrap=True)
    for share in shares:
        colour = "bright_black" if share.name in (RESERVE, FREE) else COLOURS.get(share.name, "white")
        filled = make_text(share_bar(out, share.share), colour)
        table.add_row(make_text(share.name), f"{share.tokens:,}", f"{share.share:.1%}", filled)
    out.print(table)
    if measured:
        out.print(make_text("The total is reported by the provider; its parts are estimates scaled to it."))


def _show_problems(out: Console, problems: list[Mapping[str, str]]) -> None:
    out.print()
    if not problems:
        out.print(make_text("No problems found.", "green"))
        return
    out.print(make_text(f"{len(problems):,} problem(s) found:", "bold yellow"))
    for problem in problems[:MAX_PROBLEMS]:
        out.print(make_text(f"  {problem['path']}: {problem['what']}"))
    if len(problems) > MAX_PROBLEMS:
        out.print(f"  and {len(problems) - MAX_PROBLEMS:,} more; see --json")


def _show_collection(out: Console, shown: Mapping[str, Any]) -> None:
    rows, totals = shown["conversations"], shown["totals"]
    most = max((row["tokens"]["total"] for row in rows), default=1) or 1
    table = make_table(">#", ">messages", ">calls", ">tokens", ">of window", ">problems", "")
    for number, row in enumerate(rows, 1):
        tokens = row["tokens"]
        cells = (f"{number}", f"{row['messages']:,}", f"{row['tool_calls']:,}", f"{tokens['total']:,}")
        filled = share_bar(out, tokens["total"] / most, 24)
        table.add_row(*cells, f"{tokens['share_of_window']:.0%}", f"{len(row['problems']):,}", filled)
    out.print(table)
    out.print()
    line = f"{totals['conversations']:,} conversations, {totals['messages']:,} messages, {totals['tokens']:,} tokens"
    out.print(make_text(line, "bold"))
    out.print()
    kinds_table(out, totals["by_kind"])
    out.print("\nUse --conversation N to show one of them.")
