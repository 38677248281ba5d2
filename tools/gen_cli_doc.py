"""Write docs/reference/cli.md from the help texts of the commands.

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

Made by `python tools/gen_cli_doc.py` from the help texts. On a terminal commands use colour and tables and say what
takes long, piped they write plain text whose lines are never broken, and with `--json` JSON.

| exit code | says |
|---|---|
| 0 | done; of `cache diff`: the requests are the same, or the second continues the first |
| 1 | `cache diff` found a difference, `doctor` or `store check` a problem |
| 1 | `trajectories` has a record that failed, `plugins show --load` an engine that cannot be used |
| 1 | `import` found a log that could not be brought in; the others were |
| 1 | `agent run` did not come to its end, or something was not run without `--yes` |
| 1 | a question was answered with no; an output broke off |
| 2 | nothing was done: a wrong option, setting, file or name, in one line on standard error |
| 130 | interrupted with Ctrl-C, in one line; in `chat` Ctrl-C ends what runs and not the program |

SIGTERM lets `serve`, `pages` and `mcp --http` end their answers; the exit code is 0.

A file that exists is replaced only with `--overwrite`, a folder must be there before the work begins, and `-o -` is
standard output. A session is named by its name, its short id, a beginning of either, or `last`. Where a transcript is
expected, `session:NAME` is a session of the store.
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
