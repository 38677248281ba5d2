"""How commands write: tables and colour for people, plain text when piped, JSON when asked."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console


def console() -> Console:
    """Standard output: coloured on a terminal, plain and never cut when piped."""
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, no_color=True, width=110, soft_wrap=False)


def emit_json(value: Any) -> None:
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    click.echo(json.dumps(value, indent=2, ensure_ascii=not unicode))


def notice(text: str) -> None:
    """Something the user should know that is not the answer: on standard error."""
    click.echo(f"midfold: {text}", err=True)
