"""`midfold keys`: create a gateway key."""

from __future__ import annotations

import re

import click

from midfold.cli.command_groups import HelpfulGroup

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@click.group(cls=HelpfulGroup, name="keys")
def command() -> None:
    """Manage the keys that clients send to the gateway.

    A gateway that listens on a public address requires one. Each key has its own sessions: no key can read, search
    or unfold another key's.
    """


@command.command(name="new")
@click.argument("name")
def new(name: str) -> None:
    """Create a key for NAME and print it once, with the lines for config.yaml.

    Only the key's hash goes into the configuration; the key itself is not stored.
    """
    from midfold.gateway.admission import hash_key, new_key

    if not NAME.fullmatch(name):
        raise click.BadParameter("expected 1 to 64 letters, digits, _, . or -", param_hint="NAME")
    key = new_key()
    click.echo(f"key (shown only once): {key}\n")
    click.echo(f'keys:\n  {name}:\n    hash: "{hash_key(key)}"')
