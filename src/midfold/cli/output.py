"""How commands write: tables and colour for people, plain text when piped, JSON when asked.

Rules of this file:
1. What people read never steers their terminal: see `visible.py`. That holds for piped text as well.
2. What is asked for exactly, JSON and originals, is exact where it is piped; a terminal gets JSON of the same value.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from midfold.cli.visible import Harmless, visible, visible_json

if TYPE_CHECKING:
    from rich.console import Console


def console() -> Console:
    """Standard output: coloured on a terminal, plain and never cut when piped."""
    if sys.stdout.isatty():
        return harmless_console()
    return harmless_console(no_color=True, width=110, soft_wrap=False)


def harmless_console(**options: Any) -> Console:
    """A console that takes every text as text: neither markup nor control characters in it are obeyed."""
    from rich.console import Console

    made = Console(highlight=False, markup=False, emoji=False, **options)
    made.push_render_hook(Harmless())  # type: ignore[arg-type]
    return made


def emit_json(value: Any) -> None:
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    click.echo(visible_json(json.dumps(value, indent=2, ensure_ascii=not unicode)))


def emit_exact(data: bytes) -> None:
    """A line of JSON as it is stored; on a terminal, without a raw character that steers it."""
    click.echo(visible_json(data.decode("utf-8", "replace")) if sys.stdout.isatty() else data)


def emit_words(text: str) -> None:
    """What a model said, exact for a script; on a terminal, visible."""
    click.echo(visible(text, lines=True) if sys.stdout.isatty() else text)


def echo(text: str) -> None:
    """A line, or lines, for people."""
    click.echo(visible(text, lines=True))


def notice(text: str) -> None:
    """Something the user should know that is not the answer: on standard error."""
    click.echo(f"midfold: {visible(text, lines=True)}", err=True)
