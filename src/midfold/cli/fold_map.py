"""A picture of a compaction: head, fold and tail before and after, as bars of tokens."""

from __future__ import annotations

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from midfold.api import Compaction
from midfold.cli.render import clean
from midfold.cli.visible import visible
from midfold.fold.handoff import recognise
from midfold.transcript.message import Transcript

WIDTH = 72
COLOURS = {"head": "green", "fold": "red", "kept": "yellow", "handoff": "magenta", "tail": "cyan"}
SIGNS = {"head": "h", "fold": ".", "kept": "k", "handoff": "S", "tail": "t"}
Segments = list[tuple[str, int, int]]
"""Name, messages, tokens."""


def show(out: Console, result: Compaction) -> None:
    receipt = result.receipt
    colour = {"compacted": "green", "pruned": "green", "aborted": "red"}.get(receipt.status, "yellow")
    out.print(Text(receipt.status, style=f"bold {colour}") + Text(f": {clean(receipt.reason)}"))
    out.print(
        f"{receipt.old_messages:,} messages, {receipt.old_tokens:,} tokens  ->  "
        f"{receipt.new_messages:,} messages, {receipt.new_tokens:,} tokens ({receipt.token_basis})"
    )
    out.print(f"threshold {receipt.threshold_tokens:,} of a {receipt.context_length:,}-token window")
    for line in (*receipt.notices, *receipt.impossible):
        out.print(Text(clean(line), style="yellow"))
    for line in filter(None, (receipt.summary.done, receipt.summary.next)):
        out.print(Text(clean(line), style="yellow"))
    if receipt.boundary is None:
        if receipt.status == "unchanged":
            out.print("--force folds all the same, --target N folds to a size.")
        return
    before, after = segments(result)
    most = max(sum(tokens for _, _, tokens in before), 1)
    out.print()
    out.print(Text("before ") + _strip(before, most))
    if result.changed:
        out.print(Text("after  ") + _strip(after, most))
    out.print()
    out.print(_table(before, after))
    _changes(out, result)


def handoff(out: Console, result: Compaction) -> None:
    """The one message that stands for the fold."""
    for message in result.transcript if result.receipt.status == "compacted" else ():
        found = recognise(message)
        if found is not None and found.kind == "fold":
            out.print()
            out.print(
                Panel(
                    Text(visible(found.body, lines=True)),
                    title=f"handoff ({message.role})",
                    border_style=COLOURS["handoff"],
                )
            )


def segments(result: Compaction) -> tuple[Segments, Segments]:
    """Head, fold and tail before, and what stands there now."""
    before = _before(result)
    return before, _after(result) if result.changed else before


def _before(result: Compaction) -> Segments:
    boundary = result.receipt.boundary
    if boundary is None:
        return []
    pinned = set(boundary.pinned)
    messages = result.before
    fold = tuple(messages[i] for i in range(boundary.start, boundary.end) if i not in pinned)
    return [
        _segment(result, "head", messages[: boundary.start]),
        _segment(result, "fold", fold),
        _segment(result, "kept", tuple(messages[index] for index in boundary.pinned)),
        _segment(result, "tail", messages[boundary.end :]),
    ]


def _after(result: Compaction) -> Segments:
    boundary, messages = result.receipt.boundary, result.transcript
    if boundary is None:
        return []
    if result.receipt.status == "pruned":
        return [
            _segment(result, "head", messages[: boundary.start]),
            _segment(result, "fold", messages[boundary.start : boundary.end]),
            _segment(result, "tail", messages[boundary.end :]),
        ]
    ours = [index for index, message in enumerate(messages) if recognise(message) is not None]
    start = ours[0] if ours else 0
    end = ours[-1] + 1 if ours else 0
    return [
        _segment(result, "head", messages[:start]),
        _segment(result, "handoff", messages[start:end]),
        _segment(result, "tail", messages[end:]),
    ]


def _segment(result: Compaction, name: str, messages: Transcript) -> tuple[str, int, int]:
    return name, len(messages), result.meter.count(messages).tokens


def _strip(segments: Segments, most: int) -> Text:
    strip = Text()
    for name, count, tokens in segments:
        cells = max(round(tokens / most * WIDTH), 1 if count else 0)
        strip.append(SIGNS[name] * cells, style=f"{COLOURS[name]} reverse")
    return strip


def _table(before: Segments, after: Segments) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", "messages before", "tokens", "messages after", "tokens"):
        table.add_column(column, justify="left" if not column else "right")
    now = {name: (count, tokens) for name, count, tokens in after}
    then = {name: (count, tokens) for name, count, tokens in before}
    for name in COLOURS:
        old, new = then.get(name, (0, 0)), now.get(name, (0, 0))
        if old[0] or new[0]:
            label = Text(f"{SIGNS[name]} {name}", style=COLOURS[name])
            table.add_row(label, f"{old[0]:,}", f"{old[1]:,}", f"{new[0]:,}", f"{new[1]:,}")
    return table


def _changes(out: Console, result: Compaction) -> None:
    receipt = result.receipt
    kinds: dict[str, int] = {}
    for digest in receipt.digests:
        kinds[digest.kind] = kinds.get(digest.kind, 0) + 1
    pieces = [f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in kinds.items()]
    pieces += [f"{len(receipt.repairs)} repair(s)"] if receipt.repairs else []
    if pieces:
        out.print("\n" + ", ".join(pieces))
    if receipt.handles:
        out.print(f"{len(receipt.handles):,} handle(s) unfold to the originals; the fold is {receipt.fold or 'none'}")
