"""Small pieces of SVG. Colours are classes of the style sheet, so that they follow light and dark; text is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from math import ceil, floor, log10

from markupsafe import Markup, escape

_numbers = count(1)


def tag(name: str, content: str | Markup = "", /, **attributes: object) -> Markup:
    """`class_` and `text_anchor` become class and text-anchor; None is left out. Text is escaped."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_short(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{escape(content)}</{name}>")


def _short(value: object) -> object:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value


def drawing(
    width: float,
    height: float,
    title: str,
    told: str,
    body: Iterable[Markup],
    class_: str = "",
    *,
    stretch: bool = False,
) -> Markup:
    """A picture that can also be read: its title, and in words what it shows. One without text may be stretched."""
    number = next(_numbers)
    names = f"t{number} d{number}"
    inside = Markup("").join((tag("title", title, id=f"t{number}"), tag("desc", told, id=f"d{number}"), *body))
    return tag(
        "svg",
        inside,
        viewBox=f"0 0 {width:g} {height:g}",
        preserveAspectRatio="none" if stretch else None,
        role="img",
        aria_labelledby=names,
        class_=f"drawing {class_}".strip(),
    )


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=class_)


def text(x: float, y: float, content: str, class_: str = "label", anchor: str | None = None) -> Markup:
    return tag("text", content, x=float(x), y=float(y), class_=class_, text_anchor=anchor)


def rect(x: float, y: float, width: float, height: float, class_: str, told: str = "") -> Markup:
    content = tag("title", told) if told else Markup("")
    return tag(
        "rect",
        content,
        x=float(x),
        y=float(y),
        width=max(float(width), 0.0),
        height=max(float(height), 0.0),
        class_=class_,
    )


def path(points: Iterable[tuple[float, float]], class_: str, *, closed: bool = False) -> Markup:
    steps = " ".join(f"{'L' if place else 'M'}{x:.1f} {y:.1f}" for place, (x, y) in enumerate(points))
    return tag("path", d=steps + (" Z" if closed else ""), class_=class_)


def ticks(most: float, wanted: int = 4, *, whole: bool = False) -> list[float]:
    """Round values from 0 up to `most`; `whole` for what is counted."""
    if most <= 0:
        return [0.0]
    rough = most / wanted
    power = 10.0 ** floor(log10(rough))
    steps = [factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999]
    step = next((step for step in steps if step.is_integer()), 1.0) if whole else steps[0]
    return [index * step for index in range(ceil(most / step - 1e-9) + 1) if index * step <= most * 1.001]
