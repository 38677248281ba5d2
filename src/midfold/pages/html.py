"""HTML pages from Jinja templates with autoescaping."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from importlib.resources import files
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from midfold.compaction.budget import pressure_text
from midfold.drawing import page_style
from midfold.pages import charts, formatting
from midfold.pages.api_types import ErrorAnswer
from midfold.pages.lookup import LINES_PER_PAGE
from midfold.recall.words import parse_query

if TYPE_CHECKING:
    from midfold.pages.web import WebEndpoint

STYLE = page_style().encode()
STYLE_PATH = f"/assets/style-{blake2b(STYLE, digest_size=6).hexdigest()}.css"
"""Path that contains the content's hash, so that browsers can cache it."""
ICON = (files("midfold.pages") / "static" / "icon.svg").read_bytes()
ICON_PATH = "/assets/icon.svg"


class Templates:
    """Jinja environment with the filters and globals of the templates."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.environment = Environment(
            loader=PackageLoader("midfold.pages"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self.environment.filters |= {
            "short": formatting.short,
            "money": formatting.money,
            "percent": formatting.percent,
            "moment": formatting.moment,
            "iso": formatting.iso,
            "plural": formatting.plural,
            "breakable": breakable,
        }
        self.environment.globals |= {
            "charts": charts,
            "bases": formatting.BASES,
            "forms": formatting.FORMS,
            "writers": formatting.WRITERS,
            "session_path": formatting.session_path,
            "with_query": formatting.with_query,
            "style_path": STYLE_PATH,
            "icon_path": ICON_PATH,
            "per_page": LINES_PER_PAGE,
            "divide": divide,
            "hit_text": hit_text,
            "with_code": with_code,
            "pressure_text": pressure_text,
        }

    def warm(self) -> None:
        """Compile all templates before the first request."""
        for name in self.environment.list_templates():
            self.environment.get_template(name)

    def render(self, endpoint: WebEndpoint, answer: object, asked: Mapping[str, Any]) -> str:
        path = endpoint.api_path.format_map({name: value for name, value in asked.items() if value is not None})
        query = {param.name: asked[param.name] for param in endpoint.params if param.where == "query"}
        return self._fill(endpoint.template, answer, endpoint.name, formatting.with_query(path, **query))

    def error(self, error: ErrorAnswer) -> str:
        return self._fill("problem.html", error, "problem", "")

    def _fill(self, template: str, answer: object, endpoint: str, api: str) -> str:
        ago = partial(formatting.ago, now=self.clock())
        return self.environment.get_template(template).render(it=answer, endpoint=endpoint, ago=ago, api=api)


def breakable(path: str) -> Markup:
    """Return a path with line break opportunities after slashes."""
    return Markup("/<wbr>").join(path.split("/"))


def mark_words(text: str, query: str) -> Markup:
    """Escape text and mark the words of the query."""
    words = sorted({term.text for term in parse_query(query).terms}, key=len, reverse=True)
    if not words:
        return escape(text)
    made, last = [], 0
    for found in re.finditer(rf"(?:{'|'.join(map(re.escape, words))})\w*", text, flags=re.IGNORECASE):
        if _is_beginning(text, found.start()):
            made += [escape(text[last : found.start()]), Markup("<mark>{}</mark>").format(found[0])]
            last = found.end()
    return Markup("").join([*made, escape(text[last:])])


def hit_text(text: str, query: str) -> Markup:
    """Return a search hit with its words marked: its first lines, and some lines around the first match."""
    lines = mark_words(text.strip("\n"), query).split("\n")
    first = next((number for number, line in enumerate(lines) if "<mark>" in line), 0)
    start = max(min(first - HIT_LINES // 3, len(lines) - HIT_LINES), 0)
    shown = lines[start : start + HIT_LINES]
    before = [*lines[: min(start, HIT_HEAD)], *["…"] * (start > HIT_HEAD and shown[0] != "…")]
    after = ["…"] * (start + HIT_LINES < len(lines) and shown[-1] != "…")
    return Markup("\n").join([*before, *shown, *after])


def with_code(line: str) -> Markup:
    """Escape a line and mark text between paired backticks as code."""
    pieces = line.split("`")
    if len(pieces) % 2 == 0:
        return escape(line)
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if number % 2 and piece else escape(piece)
        for number, piece in enumerate(pieces)
    )


def _is_beginning(text: str, place: int) -> bool:
    """Return whether a word, or a part of a name as in `ListTests`, begins here."""
    before, after = text[place - 1 : place], text[place : place + 1]
    return not before.isalnum() or not after.isalpha() or (before.islower() and after.isupper())


HIT_LINES, HIT_HEAD = 8, 2
SHOWN = 36
"""Lines of a handoff that are shown before the rest is collapsed."""
Outline = list[tuple[str, list[str]]]


def outline(text: str) -> Outline:
    """Group the lines of a handoff into headings (`h3`, `h4`), list items (`ul`) and paragraphs (`p`), in order."""
    kinds = [kind for line in text.split("\n") if (kind := _kind(line))[1].strip()]
    made: Outline = []
    for kind, group in groupby(kinds, key=lambda item: item[0]):
        lines = [said for _, said in group]
        made += [(kind, lines)] if kind in ("ul", "p") else [(kind, [line]) for line in lines]
    return made


def _kind(line: str) -> tuple[str, str]:
    for mark, kind in (("### ", "h4"), ("## ", "h3"), ("- ", "ul")):
        if line.startswith(mark):
            return kind, line.removeprefix(mark)
    return "p", line


class HandoffParts(NamedTuple):
    """Handoff divided into the part that is shown, the collapsed rest, and the headings of the rest."""

    first: Outline
    rest: Outline
    headings: list[str]


def divide(text: str) -> HandoffParts:
    """Divide a handoff between two sections; do not divide if the rest would be short."""
    whole = outline(text)
    starts = [number for number, (kind, _) in enumerate(whole) if kind == "h3"]
    lengths = [len(said) for _, said in whole]
    sections = pairwise([*starts, len(whole)])
    place = next((start for start, end in sections if sum(lengths[:end]) > SHOWN), len(whole))
    if place in (0, *starts[:1]) or sum(lengths[place:]) <= SHOWN // 4:
        return HandoffParts(whole, [], [])
    return HandoffParts(whole[:place], whole[place:], [whole[start][1][0] for start in starts if start >= place])
