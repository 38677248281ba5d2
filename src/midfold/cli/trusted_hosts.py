"""Hosts to which `midfold run` may send a client's requests and credentials.

Project files (`.claude/settings.json`, `opencode.json`) can set the provider's base URL, and their author may be
untrusted. Such a URL is shown, and used only if its host is the vendor's, configured by the user, or confirmed by
the user. Confirmed hosts are stored in the user's configuration folder.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import click
import msgspec

from midfold.atomic import replace_file
from midfold.cli.client_setup import VENDOR_BASES, ClientSetup, origin_of
from midfold.cli.terminal import ask, notice, visible
from midfold.config.load import read_environment
from midfold.errors import ConfigError

FILE_NAME = "trusted_hosts.json"


def confirm_hosts(setup: ClientSetup, trusted: Collection[str], environment: Mapping[str, str]) -> None:
    """Print every base URL set by project files; ask about hosts that the user did not choose.

    `trusted` are hosts (`HOST` or `HOST:PORT`) from the command line. Raise if the user declines or cannot be
    asked.
    """
    file = _file(environment)
    agreed = _read(file)
    chosen = {origin_of(base) for base in (*VENDOR_BASES, *setup.own_bases)}
    for name, source in setup.project_files.items():
        origin = origin_of(setup.upstreams[name]) or ""
        notice(visible(f"requests go to {origin}, set by {source}"))
        host = urlsplit(origin).netloc
        if origin in chosen or origin in agreed or host in trusted:
            continue
        question = f"{source} is a project file. Send your requests and credentials to {host}? [y]es, [n]o: "
        answer = ask(visible(question), {"y": "yes", "n": "no"})
        if answer is None:
            reason = f"project file {source} sends requests to {host}, which you have not confirmed"
            hint = f"use --trust-host {host} to allow it, or --upstream URL for another"
            raise ConfigError(visible(f"{reason}; {hint}"))
        if answer == "n":
            raise click.Abort
        agreed.append(origin)
        _write(file, agreed)


def _file(environment: Mapping[str, str]) -> Path | None:
    default = read_environment(environment).default_path
    return default.with_name(FILE_NAME) if default is not None else None


def _read(file: Path | None) -> list[str]:
    if file is None or not file.exists():
        return []
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[str])
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"cannot read {file}: {error}; expected a JSON list of addresses") from None


def _write(file: Path | None, agreed: list[str]) -> None:
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replace_file(file) as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(sorted(agreed)), indent=2) + b"\n")
    except OSError as error:
        notice(f"cannot write {file}: {error.strerror or error}; you will be asked again")
