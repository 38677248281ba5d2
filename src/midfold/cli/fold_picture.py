"""Picture of a compaction, before and after on one scale: token bars in a terminal, every message in an SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from midfold.api import Compaction
from midfold.cli.terminal import make_table, make_text, visible
from midfold.compaction.handoff import recognise
from midfold.compaction.receipt import Receipt
from midfold.drawing import Markup, document, line, path, rect, text
from midfold.transcript.message import Transcript

WIDTH = 72
BASES = {
    "estimated": "estimated",
    "calibrated": "estimated, calibrated by reported usage",
    "reported": "reported by the provider",
}
"""Labels for the source of a token count."""
SHORTENED = {
    "digest": "old results digested",
    "duplicate": "duplicate results dropped",
    "placeholder": "old results dropped",
    "arguments": "arguments shortened",
    "spill": "long texts truncated",
    "media": "old images dropped",
}
COLOURS = {"head": "green", "fold": "red", "kept": "yellow", "handoff": "magenta", "tail": "cyan"}
SIGNS = {"head": "h", "fold": ".", "kept": "k", "handoff": "S", "tail": "t"}
Segments = list[tuple[str, int, int]]
"""Name, message count and tokens of each segment."""
PICTURE_WIDTH, HEIGHT = 860, 322
LEFT, RIGHT = 78, 24
BEFORE, AFTER, THICK = 104, 204, 40
FILLS = {"head": "#3a9d5d", "fold": "#7a8794", "kept": "#b08900", "handoff": "#8a63d2", "tail": "#2f7fd1"}
SAID = {
    "head": "head",
    "fold": "fold, kept in the archive",
    "kept": "kept",
    "handoff": "handoff: summary of the fold",
    "tail": "tail",
}
NARROW = 90
"""Minimum pixels of a segment for a label inside it; narrower ones have it below, those under TINY have none."""
TINY = 30


def show_map(out: Console, result: Compaction, *, preview: bool = False) -> None:
    receipt = result.receipt
    colour = {"compacted": "green", "pruned": "green", "aborted": "red"}.get(receipt.status, "yellow")
    what, why = outcome_words(receipt, preview=preview)
    out.print(Text(what, style=f"bold {colour}") + Text(f": {visible(why)}"))
    out.print(
        f"{receipt.old_messages:,} messages, {receipt.old_tokens:,} tokens  ->  "
        f"{receipt.new_messages:,} messages, {receipt.new_tokens:,} tokens ({BASES[receipt.token_basis]})"
    )
    out.print(f"threshold {receipt.threshold_tokens:,} of a {receipt.context_length:,}-token window")
    sentences = (*receipt.notices, *receipt.impossible, receipt.summary.done, receipt.summary.next)
    for sentence in filter(None, sentences):
        out.print(make_text(sentence, "yellow"))
    if not receipt.recoverable:
        out.print("The originals exist only in the input file; use -o FILE to write them to FILE.archive.")
    if receipt.boundary is None:
        if receipt.status == "unchanged":
            out.print("Use --force to compact anyway, or --target N to compact to a size.")
        return
    before, after = segments(result)
    most = max(sum(tokens for _, _, tokens in before), 1)
    out.print()
    width = min(WIDTH, out.width - len("before "))
    out.print(Text("before ") + _strip(before, most, width), overflow="crop", no_wrap=True)
    if result.changed:
        out.print(Text("after  ") + _strip(after, most, width), overflow="crop", no_wrap=True)
    out.print()
    out.print(_table(before, after))
    _print_changes(out, result)


def outcome_words(receipt: Receipt, *, preview: bool) -> tuple[str, str]:
    """Return what a compaction did or would do, and the reason."""
    if not preview:
        return receipt.status, receipt.reason
    if receipt.status not in ("compacted", "pruned"):
        return "would be unchanged", receipt.reason
    why = receipt.reason.replace("were enough", "would be enough").removeprefix("folded, ")
    return f"would be {receipt.status}", why


def show_handoff(out: Console, result: Compaction) -> None:
    """Print the handoff message."""
    for message in result.transcript if result.receipt.status == "compacted" else ():
        found = recognise(message)
        if found is not None and found.kind == "fold":
            title, body = f"handoff ({message.role})", Text(visible(found.body, lines=True))
            out.print()
            if out.is_terminal:
                out.print(Panel(body, title=title, border_style=COLOURS["handoff"]))
            else:
                out.print(Text(f"{title}:\n") + body, soft_wrap=True)


def segments(result: Compaction) -> tuple[Segments, Segments]:
    """Return the segments before and after the compaction."""
    before = _sizes(result, _before(result))
    return before, _sizes(result, _after(result)) if result.changed else before


def _before(result: Compaction) -> list[tuple[str, Transcript]]:
    boundary = result.receipt.boundary
    if boundary is None:
        return []
    pinned = set(boundary.pinned)
    messages = result.before
    fold = tuple(messages[i] for i in range(boundary.start, boundary.end) if i not in pinned)
    return [
        ("head", messages[: boundary.start]),
        ("fold", fold),
        ("kept", tuple(messages[index] for index in boundary.pinned)),
        ("tail", messages[boundary.end :]),
    ]


def _after(result: Compaction) -> list[tuple[str, Transcript]]:
    boundary, messages = result.receipt.boundary, result.transcript
    if boundary is None:
        return []
    if result.receipt.status == "pruned":
        return [
            ("head", messages[: boundary.start]),
            ("fold", messages[boundary.start : boundary.end]),
            ("tail", messages[boundary.end :]),
        ]
    ours = [index for index, message in enumerate(messages) if recognise(message) is not None]
    start = ours[0] if ours else 0
    end = ours[-1] + 1 if ours else 0
    return [("head", messages[:start]), ("handoff", messages[start:end]), ("tail", messages[end:])]


def _sizes(result: Compaction, parts: list[tuple[str, Transcript]]) -> Segments:
    """Return the segments with token counts rounded cumulatively, so that they add up to the total."""
    meter, units, count, before = result.meter, 0, 0, 0
    sized: Segments = []
    for name, messages in parts:
        units += sum(map(meter.units, messages))
        count += len(messages)
        whole = meter.tokens(units, count)
        sized.append((name, len(messages), whole - before))
        before = whole
    return sized


def _strip(segments: Segments, most: int, width: int) -> Text:
    strip = Text()
    for name, count, tokens in segments:
        cells = max(round(tokens / most * width), 1 if count else 0)
        strip.append(SIGNS[name] * cells, style=f"{COLOURS[name]} reverse")
    return strip


def _table(before: Segments, after: Segments) -> Table:
    table = make_table("", ">messages before", ">tokens", ">messages after", ">tokens")
    now = {name: (count, tokens) for name, count, tokens in after}
    then = {name: (count, tokens) for name, count, tokens in before}
    for name in COLOURS:
        old, new = then.get(name, (0, 0)), now.get(name, (0, 0))
        if old[0] or new[0]:
            label = Text(f"{SIGNS[name]} {name}", style=COLOURS[name])
            table.add_row(label, f"{old[0]:,}", f"{old[1]:,}", f"{new[0]:,}", f"{new[1]:,}")
    return table


def _print_changes(out: Console, result: Compaction) -> None:
    receipt = result.receipt
    kinds = Counter(digest.kind for digest in receipt.digests)
    pieces = [f"{SHORTENED[kind]}: {count:,}" for kind, count in kinds.items()]
    pieces += [f"repairs: {len(receipt.repairs):,}"] if receipt.repairs else []
    if pieces:
        out.print("\n" + ", ".join(pieces))
    if receipt.handles:
        out.print(
            f"{len(receipt.handles):,} handle(s) unfold to the originals; handle of the fold: {receipt.fold or 'none'}"
        )


def draw_svg(result: Compaction, name: str) -> str:
    """Return the SVG; `name` is the name of the transcript."""
    receipt = result.receipt
    before, after = segments(result)
    title = f"{name}: {receipt.old_tokens:,} tokens become {receipt.new_tokens:,}"
    description = "; ".join(f"{kind} {count} messages, {tokens:,} tokens" for kind, count, tokens in (*before, *after))
    scale = (PICTURE_WIDTH - LEFT - RIGHT) / max(_total(before), _total(after), receipt.threshold_tokens, 1)
    body = [
        text(LEFT, 30, title, "ink title"),
        text(LEFT, 50, _subtitle(result), "faint"),
        *_funnel(before, after, scale),
        *_bar(result, "before", BEFORE, before, result.before, scale),
        *_bar(result, "after", AFTER, after, result.transcript, scale),
        *_threshold(receipt.threshold_tokens, scale),
        *_legend(before, after),
    ]
    return document(PICTURE_WIDTH, HEIGHT, title, body, description)


def _subtitle(result: Compaction) -> str:
    receipt = result.receipt
    messages = f"{receipt.old_messages:,} messages become {receipt.new_messages:,}"
    return f"{messages}; every original can be unfolded; window {receipt.context_length:,}"


def _bar(
    result: Compaction, label: str, top: float, parts: Segments, messages: Transcript, scale: float
) -> Iterator[Markup]:
    yield text(LEFT - 12, top + THICK / 2 + 5, label, "ink", "end")
    starts = _starts(parts, scale)
    for name, _, tokens in parts:
        start, width = starts[name], tokens * scale
        yield _box(start, top, width, THICK, name)
        middle = start + width / 2
        if width >= NARROW:
            look = ("ink", "") if name == "fold" else ("", "#ffffff")
            yield text(middle, top + THICK / 2 + 5, f"{name} {tokens:,}", look[0], "middle", fill=look[1])
        elif width >= TINY:
            yield text(middle, top + THICK + 16, f"{tokens:,}", "", "middle", fill=FILLS[name])
    x = float(LEFT)
    for message in messages[:-1]:  # thin line between messages, to show their lengths
        x += result.meter.count((message,)).tokens * scale
        yield rect(x, top, 0.6, THICK, fill="#ffffff", fill_opacity="0.45")


def _box(x: float, y: float, width: float, height: float, name: str) -> Markup:
    return rect(x, y, width, height, fill=FILLS[name], fill_opacity="0.35" if name == "fold" else None)


def _funnel(before: Segments, after: Segments, scale: float) -> Iterator[Markup]:
    """Draw the area that connects the fold with its handoff."""
    old, new = _starts(before, scale), _starts(after, scale)
    widths = {name: tokens * scale for name, _, tokens in (*before, *after)}
    target = "handoff" if "handoff" in new else "fold"
    if "fold" not in old or target not in new:
        return
    wide = next(tokens for name, _, tokens in before if name == "fold") * scale
    points = [
        (old["fold"], BEFORE + THICK),
        (old["fold"] + wide, BEFORE + THICK),
        (new[target] + widths[target], AFTER),
        (new[target], AFTER),
    ]
    yield path(points, closed=True, fill=FILLS[target], fill_opacity="0.18")


def _threshold(tokens: int, scale: float) -> Iterator[Markup]:
    x = LEFT + tokens * scale
    yield line(x, BEFORE - 18, x, AFTER + THICK + 10, stroke="#c2405a", stroke_dasharray="4 3")
    yield text(x, BEFORE - 23, f"threshold {tokens:,}", "", "middle", fill="#c2405a")


def _legend(before: Segments, after: Segments) -> Iterator[Markup]:
    x = float(LEFT)
    for name in FILLS:
        if any(part[0] == name and part[1] for part in (*before, *after)):
            yield _box(x, HEIGHT - 32, 11, 11, name)
            yield text(x + 17, HEIGHT - 22, SAID[name], "faint small")
            x += 34 + 6.4 * len(SAID[name])


def _starts(parts: Segments, scale: float) -> dict[str, float]:
    starts, x = {}, float(LEFT)
    for name, _, tokens in parts:
        starts[name] = x
        x += tokens * scale
    return starts


def _total(parts: Segments) -> int:
    return sum(tokens for _, _, tokens in parts)
