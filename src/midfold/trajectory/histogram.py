"""Histograms as SVG, drawn by hand: coloured by the page's own variables, so they suit light and dark ground."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 560, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 26, 40
GAP = 0.18
TICKS = 4
MOST_LABELS = 9


class Series(NamedTuple):
    """One set of bars: a name, the page's colour for it, and a count for each bin."""

    name: str
    colour: str
    counts: Sequence[int]


class Mark(NamedTuple):
    """A dashed line at a place between bins, given in bins."""

    at: float
    label: str


def histogram(title: str, labels: Sequence[str], series: Sequence[Series], mark: Mark | None = None) -> str:
    """Bars side by side for each bin; the label of a bin stands under its left edge."""
    highest = max((max(item.counts, default=0) for item in series), default=0)
    step = nice_step(highest / TICKS)
    top = step * max(-(-highest // step), 1)
    body = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        *_grid(top, step),
        *_bars(labels, series, top),
        *_labels(labels),
    ]
    if mark is not None:
        body += _mark(mark, len(labels))
    return "\n".join([*body, "</svg>"])


def nice_step(rough: float) -> int:
    """1, 2 or 5 times a power of ten, not below `rough`."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power >= rough:
                return factor * power
        power *= 10


def _y(count: float, top: float) -> float:
    return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * count / top, 1)


def _x(place: float, bins: int) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * place / max(bins, 1), 1)


def _grid(top: int, step: int) -> list[str]:
    lines: list[str] = []
    for count in range(0, top + 1, step):
        y = _y(count, top)
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        lines.append(f'<text class="faint" x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{count:,}</text>')
    return lines


def _bars(labels: Sequence[str], series: Sequence[Series], top: float) -> list[str]:
    bins = len(labels)
    slot = (1 - GAP) / max(len(series), 1)
    bars: list[str] = []
    for number, item in enumerate(series):
        for place, count in enumerate(item.counts):
            if not count:
                continue
            left = _x(place + GAP / 2 + number * slot, bins)
            width = round((WIDTH - LEFT - RIGHT) * slot / max(bins, 1), 1)
            y = _y(count, top)
            tip = f"{escape(item.name)}: {count:,} from {escape(labels[place])}"
            height = round(HEIGHT - BOTTOM - y, 1)
            bars.append(
                f'<rect x="{left}" y="{y}" width="{width}" height="{height}" rx="1.5" fill="var(--{item.colour})">'
                f"<title>{tip}</title></rect>"
            )
    return bars


def _labels(labels: Sequence[str]) -> list[str]:
    bins = len(labels)
    every = max(-(-bins // MOST_LABELS), 1)
    return [
        f'<text class="faint" x="{_x(place, bins)}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">'
        f"{escape(label)}</text>"
        for place, label in enumerate(labels)
        if place % every == 0
    ]


def _mark(mark: Mark, bins: int) -> list[str]:
    x = _x(min(max(mark.at, 0), bins), bins)
    anchor = "end" if x > WIDTH * 0.7 else "start"
    shift = -6 if anchor == "end" else 6
    return [
        f'<line class="mark" x1="{x}" x2="{x}" y1="{TOP - 10}" y2="{HEIGHT - BOTTOM}"/>',
        f'<text class="ink" x="{x + shift}" y="{TOP - 12}" text-anchor="{anchor}">{escape(mark.label)}</text>',
    ]
