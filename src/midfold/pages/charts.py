"""Charts: prompt size over requests, tokens by day, window gauge, before and after."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from midfold.drawing import Frame, Markup, drawing, line, path, rect, tag, text, ticks
from midfold.pages.api_types import CacheUse, CompactionFacts, Day, Segment, SessionFacts, Size, TurnFacts
from midfold.pages.formatting import percent, plural, session_path, short

LABEL_APART = 24
LIMITS = 76
"""Right margin in pixels, for the names of the limits."""
LIMIT_APART = 32
DOT = 12
"""Pixels from the top to the numbers of compactions."""
MAX_POINTS = 400
WIDE = 600
SEGMENTS = {
    "fixed": "system prompt and tools",
    "head": "head",
    "folded": "folded",
    "pinned": "pinned",
    "handoff": "handoff",
    "tail": "tail",
    "kept": "kept",
}


class Point(NamedTuple):
    """Request, or position in the history; `x` runs from 0 to 1."""

    x: float
    prompt: int
    read: int
    without: int


def usage(
    facts: SessionFacts,
    turns: Sequence[TurnFacts],
    compactions: Sequence[CompactionFacts],
    *,
    width: float = 960,
    height: float = 300,
) -> Markup:
    """Draw the prompt size per request, or from compaction to compaction if no usage was reported."""
    size = facts.size
    points = _requests(turns) if turns else _folds(facts, compactions)
    frame = Frame(width, height, max(size.window, max((point.prompt for point in points), default=0)), right=LIMITS)
    body = [*_tokens(frame), *_areas(frame, points, step=bool(turns))]
    body += _marks(frame, facts.name, facts.messages, turns, compactions)
    body += _limits(frame, size)
    body += _ends(frame, len(turns), "request") if turns else _ends(frame, facts.messages, "message")
    description = f"Now {size.tokens:,} of {size.window:,} tokens ({percent(size.share)}). "
    description += f"{plural(len(turns), 'request')}, {plural(len(compactions), 'compaction')}. "
    description += " ".join(
        f"Compaction {item.seq}: {item.old_tokens:,} to {item.new_tokens:,} tokens." for item in compactions[-30:]
    )
    return drawing(width, height, "Size of the prompt over time", description, body, "usage")


def _requests(turns: Sequence[TurnFacts]) -> list[Point]:
    """Return at most MAX_POINTS points, each the largest of its neighbours."""
    step = max(len(turns) / MAX_POINTS, 1.0)
    chosen: list[Point] = []
    for number in range(min(len(turns), MAX_POINTS)):
        some = turns[int(number * step) : max(int((number + 1) * step), int(number * step) + 1)]
        top = max(some, key=lambda turn: turn.prompt_tokens)
        x = int(number * step) / len(turns)
        chosen.append(Point(x, top.prompt_tokens, top.cache_read_tokens, top.without_folds))
    return [*chosen, chosen[-1]._replace(x=1.0)]


def _folds(facts: SessionFacts, compactions: Sequence[CompactionFacts]) -> list[Point]:
    total = max(facts.messages, 1)
    made = [Point(0.0, 0, 0, 0)]
    for item in compactions:
        for tokens in (item.old_tokens, item.new_tokens):
            made.append(Point(item.upto / total, tokens, 0, 0))
    return [*made, Point(1.0, facts.size.tokens, 0, 0)]


def _tokens(frame: Frame) -> list[Markup]:
    unit = text(frame.left - 8, frame.top - 14, "tokens", "label unit", "end")
    return [unit, *frame.scale(ticks(frame.most), short, base="axis")]


def _areas(frame: Frame, points: Sequence[Point], *, step: bool) -> list[Markup]:
    def outline(values: Sequence[tuple[float, int]]) -> list[tuple[float, float]]:
        made: list[tuple[float, float]] = []
        for place, (x, value) in enumerate(values):
            if step and place:
                made.append((frame.x(x), made[-1][1]))
            made.append((frame.x(x), frame.y(value)))
        return made

    floor = [(frame.x(1.0), frame.y(0)), (frame.x(points[0].x), frame.y(0))]
    whole = outline([(point.x, point.prompt) for point in points])
    made = [path([*whole, *floor], "sent", closed=True)]
    if any(point.read for point in points):
        made.append(path([*outline([(point.x, point.read) for point in points]), *floor], "read", closed=True))
    made.append(path(whole, "edge"))
    if any(point.without > point.prompt for point in points):
        made.append(path(outline([(point.x, point.without) for point in points]), "without"))
    return made


def _limits(frame: Frame, size: Size) -> list[Markup]:
    """Draw the limits, with their names beside the lines and not overlapping."""
    made = []
    folds = [(size.threshold, "threshold", "threshold")] if size.threshold < size.window else []
    end, free = frame.width - frame.right, float("-inf")
    for value, name, class_ in ((size.window, "window", "window"), *folds):
        y = frame.y(value)
        at = max(y, free)
        made.append(line(frame.left, y, end, y, class_))
        made.append(text(end + 8, at - 3, name, f"label on-{class_}"))
        made.append(text(end + 8, at + 12, short(value), f"label on-{class_}"))
        free = at + LIMIT_APART
    return made


def _marks(
    frame: Frame, name: str, said: int, turns: Sequence[TurnFacts], compactions: Sequence[CompactionFacts]
) -> list[Markup]:
    """Draw a line for each compaction, with a number if it fits."""
    made: list[Markup] = []
    free = 0.0
    counts = [turn.messages for turn in turns]
    for item in compactions:
        share = bisect_left(counts, item.upto) / len(counts) if counts else item.upto / max(said, 1)
        x = frame.x(min(share, 1.0))
        inside = [line(x, DOT, x, frame.height - frame.bottom, "mark")]
        if x >= free:
            inside.append(tag("circle", cx=x, cy=float(DOT), r=9.5, class_="dot"))
            inside.append(text(x, DOT + 4, str(item.seq), "number", "middle"))
            free = x + LABEL_APART
        description = f"Compaction {item.seq}: {item.old_tokens:,} to {item.new_tokens:,} tokens"
        content = Markup("").join((tag("title", description), *inside))
        made.append(tag("a", content, href=session_path(name, "compactions", item.seq), aria_label=description))
    return made


def _ends(frame: Frame, total: int, unit: str) -> list[Markup]:
    y = frame.height - frame.bottom + 18
    made = [text(frame.x(0.5), y + 18, f"{unit}s, oldest first", "label unit", "middle")]
    for value in ticks(total, 8 if frame.width > WIDE else 4, whole=True):
        if value >= 1:
            made.append(text(frame.x(value / total), y, short(value), "label", "middle"))
    return made


def days(given: Sequence[Day], *, width: float = 960, height: float = 240) -> Markup:
    """Draw tokens sent and tokens saved by compaction, by day."""
    most = max((day.tokens_sent + day.tokens_not_sent for day in given), default=0)
    steps = ticks(most)
    frame = Frame(width, height, most if most <= steps[-1] else steps[-1] + steps[1], top=34)
    slot = (frame.x(1) - frame.x(0)) / max(len(given), 1)
    wide = min(slot * 0.62, 46)
    body = _tokens(frame)
    every = max(1, round(56 / slot))
    for place, day in enumerate(given):
        x = frame.x(0) + slot * (place + 0.5) - wide / 2
        sent, rest = frame.y(day.tokens_sent), frame.y(day.tokens_sent + day.tokens_not_sent)
        description = (
            f"{day.day}: {day.tokens_sent:,} sent, {day.tokens_not_sent:,} not sent, {plural(day.requests, 'request')}"
        )
        body.append(rect(x, rest, wide, sent - rest, "not-sent", description))
        body.append(rect(x, sent, wide, frame.y(0) - sent, "sent-bar", description))
        if (len(given) - 1 - place) % every == 0:
            body.append(text(x + wide / 2, frame.height - frame.bottom + 18, day.day[5:], "label", "middle"))
    body.append(text(frame.x(0.5), frame.height - 6, "day, UTC", "label unit", "middle"))
    description = " ".join(f"{day.day}: {day.tokens_sent:,} sent, {day.tokens_not_sent:,} not sent." for day in given)
    return drawing(width, height, "Tokens sent and not sent by day", description, body, "days")


def gauge(size: Size) -> Markup:
    """Draw how full the window is, with a notch at the threshold."""
    width, height = 200.0, 10.0
    share = min(size.share, 1.0)
    level = "brim" if size.share >= 0.95 else "over" if size.tokens >= size.threshold else "fine"
    notch = width * min(size.threshold / size.window, 1.0)
    body = [
        rect(0, 2, width, 6, "track"),
        rect(0, 2, max(width * share, 1.0), 6, f"level {level}"),
    ]
    description = f"{size.tokens:,} of {size.window:,} tokens"
    if size.threshold < size.window:
        body.append(line(notch, 0, notch, height, "notch"))
        description += f"; compacts at {size.threshold:,}"
    return drawing(width, height, f"{percent(size.share)} full", description, body, "gauge", stretch=True)


def bar(value: int, most: int) -> Markup:
    """Draw a decorative bar for a number that is also shown as text."""
    inside = rect(0, 0, max(100 * value / max(most, 1), 0.5), 8, "")
    return tag("svg", inside, viewBox="0 0 100 8", preserveAspectRatio="none", aria_hidden="true")


def strip(segments: Sequence[Segment], most: int, title: str) -> Markup:
    """Draw a row of segments, each as long as its tokens."""
    width, height = 960.0, 34.0
    scale = width / max(most, 1)
    x, body = 0.0, []
    for segment in segments:
        wide = max(segment.tokens * scale, 2.0)
        description = f"{SEGMENTS[segment.what]}: {plural(segment.messages, 'message')}, {segment.tokens:,} tokens"
        body.append(rect(x, 0, wide - 1, height, f"stretch {segment.what}", description))
        x += wide
    description = "; ".join(f"{SEGMENTS[item.what]} {item.tokens:,}" for item in segments)
    return drawing(width, height, title, f"Tokens: {description}", body, "strip", stretch=True)


def cache_bar(use: CacheUse) -> Markup:
    """Draw the shares of prompt tokens read from the cache, written to it, and neither."""
    width, height = 200.0, 10.0
    total = max(use.prompt_tokens, 1)
    read, written = width * use.read_tokens / total, width * use.written_tokens / total
    body = [
        rect(0, 2, width, 6, "track plain"),
        rect(0, 2, read, 6, "level read-part"),
        rect(read, 2, written, 6, "level written-part"),
    ]
    description = f"{use.read_tokens:,} read, {use.written_tokens:,} written, of {use.prompt_tokens:,} tokens"
    return drawing(width, height, f"{percent(use.hit_rate)} from the cache", description, body, "gauge", stretch=True)
