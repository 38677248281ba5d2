"""Pictures for a terminal: tables and bars, which stay readable when piped into a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from midfold.cli.visible import visible

BAR_WIDTH = 32
EIGHTHS = " ▏▎▍▌▋▊▉█"
COLOURS = {
    "system prompt": "magenta",
    "tool definitions": "bright_magenta",
    "user text": "green",
    "assistant text": "cyan",
    "thinking": "bright_black",
    "tool calls": "yellow",
    "tool results": "red",
    "media": "blue",
    "message framing": "bright_black",
}
MOST_PROBLEMS = 10
MOST_TOOLS = 8


def clean(text: str) -> str:
    """Text from a file, made harmless for a terminal, on one line."""
    return visible(text)


def bar(share: float, width: int = BAR_WIDTH, *, ascii_only: bool = False) -> str:
    """A bar of `width` cells, filled to an eighth of a cell; of `#` where the terminal has nothing better."""
    if ascii_only:
        return "#" * round(max(0.0, min(share, 1.0)) * width)
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (EIGHTHS[rest] if rest else "")


def _bar(out: Console, share: float, width: int = BAR_WIDTH) -> str:
    return bar(share, width, ascii_only=not out.encoding.lower().startswith("utf"))


def conversation(out: Console, shown: Mapping[str, Any]) -> None:
    tokens = shown["tokens"]
    roles = ", ".join(f"{count:,} {role}" for role, count in shown["roles"].items())
    out.print(Text(f"{shown['messages']:,} messages", style="bold") + Text(f" in {shown['dialect']} shape: {roles}"))
    calls = f"{shown['tool_calls']:,} tool calls, {shown['tool_results']:,} results"
    out.print(Text(clean(calls + _tools(shown["tools_used"]))))
    _window_line(out, shown["model"], tokens)
    out.print()
    kinds_table(out, tokens["by_kind"])
    if shown["largest"]:
        out.print()
        _largest_table(out, shown["largest"], tokens["total"])
    _problems(out, shown["problems"])


def _window_line(out: Console, model: Mapping[str, Any], tokens: Mapping[str, Any]) -> None:
    share = tokens["share_of_window"]
    colour = "red" if share >= 0.85 else "yellow" if share >= 0.5 else "green"
    line = Text(f"{tokens['total']:,} tokens", style="bold")
    how = "estimated" if tokens["basis"] == "estimated" else f"counted with {tokens['counter']}"
    line.append(f" ({how}), ", style="default")
    line.append(f"{share:.1%}", style=colour)
    name = clean(model["name"] or "an unnamed model")
    known = "" if model["known"] else ", a default"
    line.append(f" of the {model['context_window']:,}-token window of {name}{known}", style="default")
    out.print(line)


def _tools(used: Mapping[str, int]) -> str:
    if not used:
        return ""
    shown = [f"{name or '(no name)'} {count:,}" for name, count in list(used.items())[:MOST_TOOLS]]
    more = f", and {len(used) - MOST_TOOLS} more" if len(used) > MOST_TOOLS else ""
    return f": {', '.join(shown)}{more}"


def kinds_table(out: Console, by_kind: Mapping[str, int]) -> None:
    total = sum(by_kind.values()) or 1
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Where the tokens go")
    table.add_column("tokens", justify="right")
    table.add_column("share", justify="right")
    table.add_column("", no_wrap=True)
    for kind, amount in sorted(by_kind.items(), key=lambda item: -item[1]):
        if amount:
            share = amount / total
            table.add_row(kind, f"{amount:,}", f"{share:.1%}", Text(_bar(out, share), style=COLOURS.get(kind, "white")))
    out.print(table)


def _largest_table(out: Console, largest: list[Mapping[str, Any]], total: int) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, justify in (("Largest messages", "right"), ("role", "left"), ("tool", "left"), ("tokens", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("share", justify="right")
    for item in largest:
        share = f"{item['tokens'] / (total or 1):.1%}"
        row = (f"[{item['position']}]", item["role"], ", ".join(item["tools"]), f"{item['tokens']:,}", share)
        table.add_row(*(Text(clean(cell)) for cell in row))
    out.print(table)


def _problems(out: Console, problems: list[Mapping[str, str]]) -> None:
    out.print()
    if not problems:
        out.print(Text("No problems found.", style="green"))
        return
    out.print(Text(f"{len(problems):,} problem(s) found:", style="bold yellow"))
    for problem in problems[:MOST_PROBLEMS]:
        out.print(Text(clean(f"  {problem['path']}: {problem['what']}")))
    if len(problems) > MOST_PROBLEMS:
        out.print(f"  and {len(problems) - MOST_PROBLEMS:,} more; --json lists them all")


def collection(out: Console, shown: Mapping[str, Any]) -> None:
    rows, totals = shown["conversations"], shown["totals"]
    most = max((row["tokens"]["total"] for row in rows), default=1) or 1
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("#", "messages", "calls", "tokens", "of window", "problems"):
        table.add_column(name, justify="right")
    table.add_column("")
    for number, row in enumerate(rows, 1):
        tokens = row["tokens"]
        cells = (f"{number}", f"{row['messages']:,}", f"{row['tool_calls']:,}", f"{tokens['total']:,}")
        rest = (f"{tokens['share_of_window']:.0%}", f"{len(row['problems']):,}", _bar(out, tokens["total"] / most, 24))
        table.add_row(*cells, *rest)
    out.print(table)
    out.print()
    line = f"{totals['conversations']:,} conversations, {totals['messages']:,} messages, {totals['tokens']:,} tokens"
    out.print(Text(line, style="bold"))
    out.print()
    kinds_table(out, totals["by_kind"])
    out.print("\n--conversation N shows one of them.")
