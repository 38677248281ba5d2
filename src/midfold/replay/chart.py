"""Cost by window and policy as one SVG, with what each kept: readable on light and on dark ground, without a script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from midfold.eval.chart import COLOURS, STYLE
from midfold.replay.run import Total

WIDTH, HEIGHT = 860, 460
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 92, 60
STEPS = 5


def chart(totals: Sequence[Total], *, title: str = "What the sessions cost, by policy", subtitle: str = "") -> str:
    """An SVG with one group of bars per window; the number above a bar is the share of needed facts the view held."""
    windows = list(dict.fromkeys(total.window for total in totals))
    policies = list(dict.fromkeys(total.policy for total in totals))
    top = max((_value(total) for total in totals), default=1.0) or 1.0
    body = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}  .small {{ font-size: 11px }}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
        f'<text class="ink title" x="{LEFT}" y="28">{escape(title)}</text>',
        f'<text class="faint" x="{LEFT}" y="47">{escape(subtitle)}</text>',
        *_legend(policies),
        *_axis(top, dollars=any(total.money for total in totals)),
    ]
    inner = (WIDTH - LEFT - RIGHT) / len(windows)
    for number, window in enumerate(windows):
        group = [total for total in totals if total.window == window]
        body += _group(group, policies, LEFT + number * inner, inner, top)
        middle = LEFT + (number + 0.5) * inner
        shown = f"{window // 1000}k window"
        body.append(f'<text class="ink" x="{middle:.1f}" y="{HEIGHT - 34}" text-anchor="middle">{shown}</text>')
    note = "above each bar: share of needed facts in view; hollow: some requests were larger than the window"
    body.append(f'<text class="faint small" x="{LEFT}" y="{HEIGHT - 12}">{note}</text>')
    return "\n".join([*body, "</svg>", ""])


def _value(total: Total) -> float:
    return total.money or total.cost


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top


def _legend(policies: Sequence[str]) -> list[str]:
    made, x = [], float(LEFT)
    for number, policy in enumerate(policies):
        colour = COLOURS[number % len(COLOURS)]
        made.append(f'<rect x="{x:.0f}" y="60" width="12" height="12" rx="2" fill="{colour}"/>')
        made.append(f'<text class="ink" x="{x + 18:.0f}" y="71">{escape(policy)}</text>')
        x += 36 + 7.2 * len(policy)
    return made


def _axis(top: float, *, dollars: bool) -> list[str]:
    made = []
    for step in range(STEPS + 1):
        value = top * step / STEPS
        y = round(_y(value, top), 1)
        shown = (
            f"${value:,.0f}" if dollars and top >= STEPS else f"${value:,.2f}" if dollars else f"{value / 1e6:,.1f}M"
        )
        made.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        made.append(f'<text class="faint" x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{shown}</text>')
    return made


def _group(group: Sequence[Total], policies: Sequence[str], left: float, width: float, top: float) -> list[str]:
    made = []
    bar = width * 0.84 / len(policies)
    for total in group:
        number = policies.index(total.policy)
        x, y = left + width * 0.08 + number * bar, _y(_value(total), top)
        colour = COLOURS[number % len(COLOURS)]
        fill = f'fill="none" stroke="{colour}" stroke-width="2"' if total.overflows else f'fill="{colour}"'
        size = f'width="{bar * 0.86:.1f}" height="{HEIGHT - BOTTOM - y:.1f}"'
        made.append(f'<rect x="{x:.1f}" y="{y:.1f}" {size} {fill}/>')
        if total.retention is not None:
            middle = x + bar * 0.43
            text = f"{total.retention:.2f}".lstrip("0")
            made.append(
                f'<text class="faint small" x="{middle:.1f}" y="{y - 5:.1f}" text-anchor="middle">{text}</text>'
            )
    return made
