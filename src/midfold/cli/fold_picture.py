"""The picture of a compaction: every message as wide as its tokens, before and after, on one scale."""

from __future__ import annotations

from collections.abc import Iterator

from midfold.api import Compaction
from midfold.cli.fold_map import Segments, segments
from midfold.drawing import Markup, document, line, path, rect, text
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


def draw_fold(result: Compaction, name: str) -> str:
    """An SVG; `name` says what was compacted."""
    receipt = result.receipt
    before, after = segments(result)
    title = f"{name}: {receipt.old_tokens:,} tokens become {receipt.new_tokens:,}"
    told = "; ".join(f"{kind} {count} messages, {tokens:,} tokens" for kind, count, tokens in (*before, *after))
    scale = (WIDTH - LEFT - RIGHT) / max(_total(before), _total(after), receipt.threshold_tokens, 1)
    body = [
        text(LEFT, 30, title, "ink title"),
        text(LEFT, 50, _subtitle(result), "faint"),
        *_funnel(before, after, scale),
        *_bar(result, "before", BEFORE, before, result.before, scale),
        *_bar(result, "after", AFTER, after, result.transcript, scale),
        *_threshold(receipt.threshold_tokens, scale),
        *_legend(before, after),
    ]
    return document(WIDTH, HEIGHT, title, body, told)


def _subtitle(result: Compaction) -> str:
    receipt = result.receipt
    messages = f"{receipt.old_messages:,} messages become {receipt.new_messages:,}"
    return f"{messages}; every original unfolds by its handle; window {receipt.context_length:,}"


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
    for message in messages[:-1]:  # a hair between two messages, so that a long one is seen as long
        x += result.meter.count((message,)).tokens * scale
        yield rect(x, top, 0.6, THICK, fill="#ffffff", fill_opacity="0.45")


def _box(x: float, y: float, width: float, height: float, name: str) -> Markup:
    return rect(x, y, width, height, fill=FILLS[name], fill_opacity="0.35" if name == "fold" else None)


def _funnel(before: Segments, after: Segments, scale: float) -> Iterator[Markup]:
    """From the fold to what stands for it."""
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
