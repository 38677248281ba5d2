"""Pages from facts: Jinja templates that escape everything they are given."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from midfold.dashboard import charts, wording
from midfold.dashboard.faces import Face
from midfold.dashboard.facts import Facts, Problem
from midfold.dashboard.links import key_of, session_path, with_query
from midfold.dashboard.reader import LINES_PER_PAGE
from midfold.fold.words import parse_query

STYLE = (files("midfold.dashboard") / "static" / "style.css").read_bytes()
STYLE_PATH = f"/assets/style-{blake2b(STYLE, digest_size=6).hexdigest()}.css"
"""Named by its content: browsers keep it, and never too long."""
ICON = (files("midfold.dashboard") / "static" / "icon.svg").read_bytes()
ICON_PATH = "/assets/icon.svg"


class Pages:
    """The templates, and what they need to know."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.environment = Environment(
            loader=PackageLoader("midfold.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self.environment.filters |= {
            "short": wording.short,
            "money": wording.money,
            "percent": wording.percent,
            "moment": wording.moment,
            "iso": wording.iso,
            "plural": wording.plural,
            "key": key_of,
        }
        self.environment.globals |= {
            "charts": charts,
            "session_path": session_path,
            "with_query": with_query,
            "style_path": STYLE_PATH,
            "icon_path": ICON_PATH,
            "per_page": LINES_PER_PAGE,
            "outline": outline,
            "marked": marked,
        }

    def warm(self) -> None:
        """Compiles what the first visitor would wait for."""
        for name in self.environment.list_templates():
            self.environment.get_template(name)

    def render(self, face: Face, facts: Facts, asked: Mapping[str, Any]) -> str:
        ago = partial(wording.ago, now=self.clock())
        path = face.api_path.format_map({name: value for name, value in asked.items() if value is not None})
        query = {param.name: asked[param.name] for param in face.params if param.where == "query"}
        return self.environment.get_template(face.template).render(
            it=facts, face=face.name, ago=ago, api=with_query(path, **query)
        )

    def problem(self, problem: Problem) -> str:
        return self.environment.get_template("problem.html").render(
            it=problem, face="problem", ago=partial(wording.ago, now=self.clock()), api=""
        )


def marked(text: str, query: str) -> Markup:
    """The text with the words that were looked for marked."""
    words = sorted({term.text for term in parse_query(query).terms}, key=len, reverse=True)
    if not words:
        return escape(text)
    pieces = re.split(f"({'|'.join(map(re.escape, words))})", text, flags=re.IGNORECASE)
    made = (
        Markup("<mark>{}</mark>").format(piece) if place % 2 else escape(piece) for place, piece in enumerate(pieces)
    )
    return Markup("").join(made)


Outline = list[tuple[str, list[str]]]


def outline(text: str) -> Outline:
    """A handoff by its lines: headings (`h3`, `h4`), items of a list (`ul`), everything else (`p`); in order."""
    made: Outline = []
    for line in text.split("\n"):
        kind, said = _kind(line)
        if not said.strip():
            continue
        if made and made[-1][0] == kind and kind in ("ul", "p"):
            made[-1][1].append(said)
        else:
            made.append((kind, [said]))
    return made


def _kind(line: str) -> tuple[str, str]:
    for mark, kind in (("### ", "h4"), ("## ", "h3"), ("- ", "ul")):
        if line.startswith(mark):
            return kind, line.removeprefix(mark)
    return "p", line
