"""What every SVG of midfold begins with: one style for light and dark ground, a title and a description for readers.

Pictures are strings made here: no script, no font, no library. `Canvas` holds the elements; charts know their axes.
"""

from __future__ import annotations

from html import escape

COLOURS = ("#2f7fd1", "#d9730d", "#3a9d5d", "#c2405a", "#8a63d2", "#b08900", "#1a9aa0", "#9c6644", "#7a8794", "#d15fa8")
STYLE = """
  .ground { fill: #ffffff } .ink { fill: #1f2328 } .faint { fill: #59636e } .grid { stroke: #d1d9e0 }
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif }
  .title { font-size: 16px; font-weight: 600 } .small { font-size: 12px }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117 } .ink { fill: #f0f6fc } .faint { fill: #9198a1 } .grid { stroke: #30363d }
  }
"""


class Canvas:
    """An SVG being drawn. Coordinates are rounded to a tenth, so that the same picture is the same bytes."""

    def __init__(self, width: int, height: int, *, title: str, description: str = "") -> None:
        self.width, self.height = width, height
        self.title, self.description = title, description
        self._elements: list[str] = []

    def add(self, element: str) -> None:
        """An element written by the caller, who escapes what it holds."""
        self._elements.append(element)

    def text(self, x: float, y: float, text: str, *, kind: str = "ink", anchor: str = "start", fill: str = "") -> None:
        colour = f' fill="{fill}"' if fill else f' class="{kind}"'
        place = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self.add(f'<text x="{number(x)}" y="{number(y)}"{colour}{place}>{escape(text)}</text>')

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, *, opacity: float = 1.0, tip: str = ""
    ) -> None:
        """A rectangle; `tip` is shown where the pointer rests."""
        shade = "" if opacity == 1.0 else f' fill-opacity="{number(opacity, 2)}"'
        where = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
        inner = f"><title>{escape(tip)}</title></rect>" if tip else "/>"
        self.add(f'<rect {where} fill="{fill}"{shade}{inner}')

    def line(self, start: tuple[float, float], end: tuple[float, float], stroke: str = "", *, dash: str = "") -> None:
        """A line; in the colour of the grid unless one is given."""
        look = f'stroke="{stroke}"' if stroke else 'class="grid"'
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        ends = f'x1="{number(start[0])}" y1="{number(start[1])}" x2="{number(end[0])}" y2="{number(end[1])}"'
        self.add(f"<line {ends} {look}{dashes}/>")

    def svg(self) -> str:
        size = f'viewBox="0 0 {self.width} {self.height}"'
        told = f"<desc>{escape(self.description)}</desc>" if self.description else ""
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(self.title)}</title>{told}",
            f"<style>{STYLE}</style>",
            f'<rect class="ground" width="{self.width}" height="{self.height}" rx="8"/>',
        ]
        return "\n".join([*head, *self._elements, "</svg>", ""])


def number(value: float, places: int = 1) -> str:
    """12.0 is 12, 12.34 is 12.3."""
    return f"{round(value, places):g}" if abs(value) < 100_000 else f"{value:.0f}"
