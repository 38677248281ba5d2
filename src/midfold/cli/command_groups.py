"""Command groups that suggest the closest command for a typo."""

from __future__ import annotations

from difflib import get_close_matches

import click


class HelpfulGroup(click.Group):
    """Click group that suggests the closest commands for an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            near = get_close_matches(name, self.list_commands(ctx), n=3, cutoff=0.65)
            hint = f"did you mean {' or '.join(near)}?" if near else f"see `{ctx.command_path} --help`"
            ctx.fail(f"unknown command {name}; {hint}")
        return super().resolve_command(ctx, args)
