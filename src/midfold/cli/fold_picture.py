"""The picture of a compaction: every message as wide as its tokens, before and after, on one scale."""

from __future__ import annotations

from midfold.api import Compaction
from midfold.cli.fold_map import Segments, segments
from midfold.drawing import Canvas
from midfold.transcript.message import Transcript

WIDTH, HEIGHT = 860, 322
LEFT, RIGHT = 78, 24
BEFORE, AFTER, THICK = 104, 204, 40
FILLS = {"head": "#3a9d5d", "fold": "#7a8794", "kept": "#b08900", "handoff": "#8a63d2", "tail": "#2f7fd1"}
SAID = {
    "head": "head",
    "fold": "fold, kept in the archive",
    "kept": "kept",
    "handoff": "handoff: the fold in short",
    "tail": "tail",
}
NARROW = 90
"""A segment narrower than this has no room for its figure: it stands below, unless that is too narrow as well."""
TINY = 30


def drawn(result: Compaction, name: str) -> str:
    """An SVG; `name` says what was compacted."""
    receipt = result.receipt
    before, after = segments(result)
    size = f"{receipt.old_tokens:,} tokens become {receipt.new_tokens:,}"
    told = "; ".join(f"{kind} {count} messages, {tokens:,} tokens" for kind, count, tokens in (*before, *after))
    canvas = Canvas(WIDTH, HEIGHT, title=f"{name}: {size}", description=told)
    canvas.text(LEFT, 30, f"{name}: {size}", kind="ink title")
    canvas.text(LEFT, 50, _subtitle(result), kind="faint")
    scale = (WIDTH - LEFT - RIGHT) / max(_total(before), _total(after), receipt.threshold_tokens, 1)
    _funnel(canvas, before, after, scale)
    _bar(canvas, result, "before", BEFORE, before, result.before, scale)
    _bar(canvas, result, "after", AFTER, after, result.transcript, scale)
    _threshold(canvas, receipt.threshold_tokens, scale)
    _legend(canvas, before, after)
    return canvas.svg()


def _subtitle(result: Compaction) -> str:
    receipt = result.receipt
    messages = f"{receipt.old_messages:,} messages become {receipt.new_messages:,}"
    return f"{messages}; every original unfolds by its handle; window {receipt.context_length:,}"


def _bar(
    canvas: Canvas, result: Compaction, label: str, top: float, parts: Segments, messages: Transcript, scale: float
) -> None:
    canvas.text(LEFT - 12, top + THICK / 2 + 5, label, kind="ink", anchor="end")
    starts = _starts(parts, scale)
    for name, _, tokens in parts:
        start, width = starts[name], tokens * scale
        canvas.box(start, top, width, THICK, FILLS[name], opacity=0.35 if name == "fold" else 1.0)
        middle = start + width / 2
        if width >= NARROW:
            fill = "" if name == "fold" else "#ffffff"
            canvas.text(middle, top + THICK / 2 + 5, f"{name} {tokens:,}", anchor="middle", fill=fill)
        elif width >= TINY:
            canvas.text(middle, top + THICK + 16, f"{tokens:,}", anchor="middle", fill=FILLS[name])
    _seams(canvas, result, top, messages, scale)


def _seams(canvas: Canvas, result: Compaction, top: float, messages: Transcript, scale: float) -> None:
    """A hair between two messages, so that a long one is seen as long."""
    x = float(LEFT)
    for message in messages[:-1]:
        x += result.meter.count((message,)).tokens * scale
        canvas.box(x, top, 0.6, THICK, "#ffffff", opacity=0.45)


def _funnel(canvas: Canvas, before: Segments, after: Segments, scale: float) -> None:
    """From the fold to what stands for it."""
    old, new = _starts(before, scale), _starts(after, scale)
    widths = {name: tokens * scale for name, _, tokens in (*before, *after)}
    source = "fold" if "fold" in old else ""
    target = "handoff" if "handoff" in new else source if source in new else ""
    if not source or not target:
        return
    wide = next(tokens for name, _, tokens in before if name == source) * scale
    points = [
        (old[source], BEFORE + THICK),
        (old[source] + wide, BEFORE + THICK),
        (new[target] + widths[target], AFTER),
        (new[target], AFTER),
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    canvas.add(f'<polygon points="{path}" fill="{FILLS[target]}" fill-opacity="0.18"/>')


def _threshold(canvas: Canvas, tokens: int, scale: float) -> None:
    x = LEFT + tokens * scale
    canvas.line((x, BEFORE - 18), (x, AFTER + THICK + 10), "#c2405a", dash="4 3")
    canvas.text(x, BEFORE - 23, f"threshold {tokens:,}", anchor="middle", fill="#c2405a")


def _legend(canvas: Canvas, before: Segments, after: Segments) -> None:
    x = float(LEFT)
    shown = [name for name in FILLS if any(part[0] == name and part[1] for part in (*before, *after))]
    for name in shown:
        canvas.box(x, HEIGHT - 32, 11, 11, FILLS[name], opacity=0.35 if name == "fold" else 1.0)
        canvas.text(x + 17, HEIGHT - 22, SAID[name], kind="faint small")
        x += 34 + 6.4 * len(SAID[name])


def _starts(parts: Segments, scale: float) -> dict[str, float]:
    starts, x = {}, float(LEFT)
    for name, _, tokens in parts:
        starts[name] = x
        x += tokens * scale
    return starts


def _total(parts: Segments) -> int:
    return sum(tokens for _, _, tokens in parts)
