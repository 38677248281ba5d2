"""SVG, and the only place that writes it: elements whose text is escaped, whole pictures, and where a chart draws.

No script, no font, no library. Coordinates are rounded to a tenth, so that the same picture is the same bytes. Pictures
on a page take their colours from its style sheet (`style.css`, one for all pages and reports); those in a file of their
own bring a style for light and dark ground.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from html import escape
from importlib.resources import files
from itertools import count
from math import ceil, floor, log10
from typing import NamedTuple

COLOURS = ("#2f7fd1", "#d9730d", "#3a9d5d", "#c2405a", "#8a63d2", "#b08900", "#1a9aa0", "#9c6644", "#7a8794", "#d15fa8")
STYLE = """
  .ground { fill: #ffffff } .ink { fill: #1f2328 } .faint { fill: #59636e } .grid { stroke: #d1d9e0 }
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif }
  .title { font-size: 16px; font-weight: 600 } .small { font-size: 12px }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117 } .ink { fill: #f0f6fc } .faint { fill: #9198a1 } .grid { stroke: #30363d }
  }
"""
_numbers = count(1)


@cache
def page_style() -> str:
    """The style sheet of pages, and of reports that are a page of their own."""
    return (files("midfold") / "style.css").read_text(encoding="utf-8")


class Markup(str):
    """Text that is written as it stands: templates ask for `__html__` and do not escape it again."""

    __slots__ = ()

    def __html__(self) -> str:
        return self

    def join(self, pieces: Iterable[str], /) -> Markup:
        return Markup(super().join(map(_escape, pieces)))


def _escape(text: str) -> str:
    return text if hasattr(text, "__html__") else escape(text)


def tag(name: str, content: str = "", /, **attributes: object) -> Markup:
    """`class_` and `text_anchor` become class and text-anchor; None and an empty text are left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_number(value))}"'
        for key, value in attributes.items()
        if value is not None and value != ""
    )
    return Markup(f"<{name}{written}>{_escape(content)}</{name}>" if content else f"<{name}{written}/>")


def _number(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def line(x1: float, y1: float, x2: float, y2: float, class_: str = "", **look: object) -> Markup:
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=class_, **look)


def text(x: float, y: float, content: str, class_: str = "label", anchor: str | None = None, **look: object) -> Markup:
    return tag("text", content, x=float(x), y=float(y), class_=class_, text_anchor=anchor, **look)


def rect(x: float, y: float, width: float, height: float, class_: str = "", told: str = "", **look: object) -> Markup:
    """`told` is shown where the pointer rests."""
    content = tag("title", told) if told else Markup("")
    wide, high = max(float(width), 0.0), max(float(height), 0.0)
    return tag("rect", content, x=float(x), y=float(y), width=wide, height=high, class_=class_, **look)


def path(points: Iterable[tuple[float, float]], class_: str = "", *, closed: bool = False, **look: object) -> Markup:
    steps = " ".join(f"{'L' if place else 'M'}{x:.1f} {y:.1f}" for place, (x, y) in enumerate(points))
    return tag("path", d=steps + (" Z" if closed else ""), class_=class_, **look)


def drawing(
    width: float, height: float, title: str, told: str, body: Iterable[str], class_: str = "", *, stretch: bool = False
) -> Markup:
    """A picture on a page that can also be read: its title, and in words what it shows. One without text may be
    stretched."""
    number = next(_numbers)
    inside = Markup("").join((tag("title", title, id=f"t{number}"), tag("desc", told, id=f"d{number}"), *body))
    return tag(
        "svg",
        inside,
        viewBox=f"0 0 {width:g} {height:g}",
        preserveAspectRatio="none" if stretch else None,
        role="img",
        aria_labelledby=f"t{number} d{number}",
        class_=f"drawing {class_}".strip(),
    )


def document(width: float, height: float, title: str, body: Iterable[str], description: str = "") -> str:
    """A picture in a file of its own, for light and dark ground."""
    head = [
        tag("title", title),
        tag("desc", description) if description else "",
        tag("style", Markup(STYLE)),
        tag("rect", class_="ground", width=width, height=height, rx=8),
    ]
    inside = Markup("\n" + "\n".join(filter(None, [*head, *body])) + "\n")
    size = f"0 0 {width:g} {height:g}"
    return tag("svg", inside, xmlns="http://www.w3.org/2000/svg", viewBox=size, role="img") + "\n"


class Frame(NamedTuple):
    """Drawing area of a chart: page size, largest value, and margins for axes and labels."""

    width: float
    height: float
    most: float
    left: float = 52
    right: float = 14
    top: float = 46
    bottom: float = 42

    def x(self, share: float) -> float:
        return self.left + (self.width - self.left - self.right) * share

    def y(self, value: float) -> float:
        inner = self.height - self.top - self.bottom
        return self.height - self.bottom - inner * (value / self.most if self.most else 0)

    def scale(
        self, values: Iterable[float], label: Callable[[float], str], class_: str = "label", base: str = "grid"
    ) -> list[Markup]:
        """A line and a label for each of some values; `base` is the class of the line at 0."""
        made = []
        for value in values:
            y = self.y(value)
            made.append(line(self.left, y, self.width - self.right, y, "grid" if value else base))
            made.append(text(self.left - 8, y + 4, label(value), class_, "end"))
        return made


def ticks(most: float, wanted: int = 4, *, whole: bool = False) -> list[float]:
    """Round values from 0 up to `most`; `whole` for what is counted."""
    if most <= 0:
        return [0.0]
    rough = most / wanted
    power = 10.0 ** floor(log10(rough))
    steps = [factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999]
    step = next((step for step in steps if step.is_integer()), 1.0) if whole else steps[0]
    return [index * step for index in range(ceil(most / step - 1e-9) + 1) if index * step <= most * 1.001]
