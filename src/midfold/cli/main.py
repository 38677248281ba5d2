"""Entry point of the `midfold` command; turns `MidfoldError` into one line and exit code 2."""

from __future__ import annotations

import importlib
import io
import os
import sys

import click

from midfold import __version__
from midfold.cli.command_groups import HelpfulGroup
from midfold.errors import MidfoldError

COMMANDS = {
    "agent": "Let an agent do a task in the working directory, for scripts.",
    "artifacts": "Show what an agent made: files it changed, acts, what still runs, the last checks.",
    "cache": "See why a prompt cache missed, and where breakpoints belong.",
    "chat": "Talk to a model that has tools, in a conversation that does not run out of room.",
    "compact": "Fold the middle of a transcript and show what happened.",
    "config": "Show, check and migrate the configuration.",
    "cost": "Say what recorded sessions cost, and what they would have cost without a cache and with midfold.",
    "demo": "Show what midfold does, without a key and without the network.",
    "doctor": "Check the settings, say who would summarise, and prove a compaction.",
    "eval": "Measure what compactions keep of the facts that the rest of a transcript really used.",
    "import": "Bring the logs of Claude Code, Codex and others into a store: list them, choose some.",
    "inspect": "Show where the tokens of a transcript go, and what is wrong with it.",
    "install": "Let another agent use midfold: show the change to its files, make it, take it back.",
    "keys": "Make keys that clients show to the gateway.",
    "mcp": "Let an agent search and unfold kept sessions by the Model Context Protocol.",
    "models": "Show what is believed about models: windows, tokenizers, prices.",
    "pages": "Look at stored sessions in a browser: how full, what was saved, before and after.",
    "probes": "Measure what a reader knows who sees only a compacted context.",
    "plugins": "List context engines and choose one.",
    "replay": "Play recorded sessions again under other policies, and see what they cost and keep.",
    "run": "Run Claude Code, Codex, opencode or any command with a gateway of its own.",
    "serve": "Run the gateway between agents and providers.",
    "sessions": "Look into stored sessions: list, view, search, unfold, undo, export, delete.",
    "store": "Look after a store of sessions: migrate, check, back up.",
    "trajectories": "Fit recorded runs of agents into a token target, from one file to a cluster.",
    "unfold": "Show the originals behind a handle.",
}
MODULES = {"import": "import_logs"}
"""Modules whose name differs from their command, because it is a Python keyword."""


class LazyGroup(HelpfulGroup):
    """Group that imports `midfold.cli.<name>` only when `<name>` is run, so that --help stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = MODULES.get(cmd_name, cmd_name)
        command: click.Command = importlib.import_module(f"midfold.cli.{module}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="midfold")
def main() -> None:
    """Keep an LLM agent's conversation inside its context window without losing the thread."""


def run_command() -> None:
    """Run the command line and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        sys.exit(main(prog_name="midfold", standalone_mode=False))
    except MidfoldError as error:
        _tell(str(error))
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort as stopped:
        if isinstance(stopped.__cause__, KeyboardInterrupt):
            raise stopped.__cause__ from None
        _tell("nothing was done")
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _tell(f"{where}{error.strerror or error}")
        os._exit(1)  # avoids a second flush of the broken stream at exit, which would print another error


def _tell(text: str) -> None:
    from midfold.cli.terminal import notice

    notice(text)
