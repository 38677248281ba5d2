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
    "agent": "Run an agent on a task in the working directory, for scripts.",
    "artifacts": "Show what an agent did: changed files, actions, running tasks, latest checks.",
    "cache": "Show why a prompt cache missed, and where breakpoints belong.",
    "chat": "Chat with a model that has tools; long conversations are compacted automatically.",
    "compact": "Compact a transcript and show the result.",
    "config": "Show, check and migrate the configuration.",
    "cost": "Report what recorded sessions cost, and what they would have cost without a cache and with midfold.",
    "demo": "Demonstrate midfold, without a key or network access.",
    "doctor": "Check settings, store and upstreams, and test a compaction.",
    "eval": "Measure how many of the facts used later in a transcript a compaction keeps.",
    "import": "Import the logs of Claude Code, Codex and other clients into a store.",
    "inspect": "Show where the tokens of a transcript go, and list its problems.",
    "install": "Set up another agent to use midfold, or revert that.",
    "keys": "Create keys for the gateway's clients.",
    "mcp": "Serve stored sessions to an agent over the Model Context Protocol.",
    "models": "List known models: context window, tokenizer, prices.",
    "pages": "Serve web pages about stored sessions: size, savings, before and after.",
    "probes": "Measure what a reader knows from a compacted context alone.",
    "plugins": "List context engines and choose one.",
    "replay": "Replay recorded sessions under other policies, and compare cost and retention.",
    "run": "Run Claude Code, Codex, opencode or any command with a private gateway.",
    "serve": "Run the gateway between agents and providers.",
    "sessions": "Inspect stored sessions: list, view, search, unfold, undo, export, delete.",
    "store": "Migrate, check and back up a store of sessions.",
    "trajectories": "Compress recorded agent runs to a token target, from one file to a cluster.",
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
        _print_error(str(error))
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort as stopped:
        if isinstance(stopped.__cause__, KeyboardInterrupt):
            raise stopped.__cause__ from None
        _print_error("nothing was done")
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _print_error(f"{where}{error.strerror or error}")
        os._exit(1)  # avoids a second flush of the broken stream at exit, which would print another error


def _print_error(text: str) -> None:
    from midfold.cli.terminal import notice

    notice(text)
