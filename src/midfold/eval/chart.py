"""Recall against budget as one SVG, drawn by hand: readable on light and on dark ground, with no script and no font."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import log

from midfold.eval.figures import Figure, Interval

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 56, 170, 64, 52
LABEL_GAP = 15
COLOURS = ("#2f7fd1", "#d9730d", "#3a9d5d", "#c2405a", "#8a63d2", "#b08900", "#1a9aa0", "#9c6644", "#7a8794", "#d15fa8")
DASHED = "oracle"
STYLE = """
  .ground { fill: #ffffff } .ink { fill: #1f2328 } .faint { fill: #59636e } .grid { stroke: #d1d9e0 }
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif }
  .title { font-size: 16px; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117 } .ink { fill: #f0f6fc } .faint { fill: #9198a1 } .grid { stroke: #30363d }
  }
"""


def chart(figures: Sequence[Figure], *, title: str = "Bound recall against budget", subtitle: str = "") -> str:
    """An SVG with one line per method; whiskers are the 95 % intervals."""
    budgets = sorted({figure.budget for figure in figures})
    methods = list(dict.fromkeys(figure.method for figure in figures))
    frame = _Frame(budgets, hollow=any(figure.over for figure in figures))
    lines = [[figure for figure in figures if figure.method == method] for method in methods]
    heights = _spread([frame.y(_bound(line[-1]).mean) for line in lines])
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        f'<text class="ink title" x="{LEFT}" y="28">{escape(title)}</text>',
        f'<text class="faint" x="{LEFT}" y="47">{escape(subtitle)}</text>',
        *frame.axes(),
    ]
    for number, (method, line) in enumerate(zip(methods, lines, strict=True)):
        body += _line(frame, method, line, COLOURS[number % len(COLOURS)], heights[number])
    return "\n".join([*body, "</svg>", ""])


class _Frame:
    """Where a budget and a share are drawn. Budgets are spaced by their ratio."""

    def __init__(self, budgets: Sequence[float], *, hollow: bool) -> None:
        self.budgets = budgets
        self.label = "budget: tokens kept of the past" + ("; hollow: some outputs took more" if hollow else "")
        self.low, self.high = log(budgets[0]), log(budgets[-1])

    def x(self, budget: float) -> float:
        inner = WIDTH - LEFT - RIGHT
        span = self.high - self.low
        return round(LEFT + inner * ((log(budget) - self.low) / span if span else 0.5), 1)

    def y(self, share: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share, 1)

    def axes(self) -> list[str]:
        made = []
        for tenth in range(0, 11, 2):
            y = self.y(tenth / 10)
            made.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
            made.append(f'<text class="faint" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{tenth / 10:.1f}</text>')
        bottom = HEIGHT - BOTTOM
        for budget in self.budgets:
            shown = f"{budget * 100:g} %"
            made.append(
                f'<text class="faint" x="{self.x(budget)}" y="{bottom + 20}" text-anchor="middle">{shown}</text>'
            )
        middle = (LEFT + WIDTH - RIGHT) / 2
        made.append(f'<text class="faint" x="{middle}" y="{bottom + 40}" text-anchor="middle">{self.label}</text>')
        return made


def _line(frame: _Frame, method: str, line: Sequence[Figure], colour: str, label_y: float) -> list[str]:
    points = [(frame.x(figure.budget), frame.y(_bound(figure).mean)) for figure in line]
    path = " ".join(f"{x},{y}" for x, y in points)
    dash = ' stroke-dasharray="6 4"' if method.startswith(DASHED) else ""
    made = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.2"{dash}/>']
    for (x, y), figure in zip(points, line, strict=True):
        low, high = _bound(figure).low, _bound(figure).high
        if low is not None and high is not None:
            ends = f'y1="{frame.y(low)}" y2="{frame.y(high)}"'
            made.append(f'<line x1="{x}" x2="{x}" {ends} stroke="{colour}" stroke-opacity=".45"/>')
        fill = 'fill="none" stroke-width="2"' if figure.over else f'fill="{colour}"'
        made.append(f'<circle cx="{x}" cy="{y}" r="3.4" {fill} stroke="{colour}"/>')
    x, y = points[-1]
    text_x = WIDTH - RIGHT + 22
    made.append(f'<line x1="{x + 5}" x2="{text_x - 4}" y1="{y}" y2="{label_y}" stroke="{colour}" stroke-opacity=".5"/>')
    shown = f"{escape(method)} {_bound(line[-1]).mean:.2f}"
    made.append(f'<text x="{text_x}" y="{label_y + 4}" fill="{colour}">{shown}</text>')
    return made


def _spread(heights: Sequence[float]) -> list[float]:
    """Heights of labels, moved apart until none covers another, and no further."""
    placed = [0.0] * len(heights)
    lowest = float(HEIGHT - BOTTOM)
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    free = float(TOP)
    for index in order:
        free = placed[index] = max(heights[index], free)
        free += LABEL_GAP
    for index in reversed(order):
        placed[index] = min(placed[index], lowest)
        lowest = placed[index] - LABEL_GAP
    return placed


def _bound(figure: Figure) -> Interval:
    return figure.measures["bound"]
