"""Rewrites docs/reference/cli.md from the help texts of the commands.

python tools/gen_cli_doc.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from midfold.cli.main import main as midfold

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "cli.md"
INTRODUCTION = """# Commands

Made by `python tools/gen_cli_doc.py` from the help texts. Errors are one line on standard error and exit code 2.
On a terminal commands use colour and tables, piped they write plain text, and with `--json` JSON.
"""


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None:
                yield from commands(child, click.Context(child, info_name=name, parent=context, terminal_width=100))


def page() -> str:
    root = click.Context(midfold, info_name="midfold", terminal_width=100, help_option_names=["-h", "--help"])
    sections = [f"## {path}\n\n```\n{text}\n```\n" for path, text in commands(midfold, root)]
    return "\n".join([INTRODUCTION, *sections])


def main() -> None:
    if "--check" in sys.argv:
        if PAGE.read_text(encoding="utf-8") != page():
            sys.exit(f"{PAGE.name} is out of date: run python tools/gen_cli_doc.py")
        return
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
