"""`midfold install`: add midfold to the settings of other agents, and remove it again.

1. The whole change is shown before anything is written, and needs a confirmation.
2. Only midfold's entries are added and removed. A backup is kept beside each file; if nothing else has changed
   since, removal restores it byte for byte. A file that did not exist is deleted.
3. If one file cannot be parsed, none is changed.
4. Only files inside the project are read or written; links that lead outside are refused.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from difflib import unified_diff
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import click

from midfold.adapters.claude_code import EVENTS, MODULE, SAFE, TIMEOUT
from midfold.atomic import replace_file
from midfold.cli.command_groups import HelpfulGroup
from midfold.cli.outputs import write_output
from midfold.cli.terminal import ask, echo, notice, visible
from midfold.errors import ConfigError

SERVER = "midfold"
BEFORE = ".before-midfold"
MARKS = (MODULE.encode(), f'"{SERVER}"'.encode())
"""Substrings of every hook and server entry that midfold writes."""
Settings = dict[str, Any]
Edit = Callable[[Settings, Path | None], None]


class FileChange(NamedTuple):
    """File content before and after a change; None if the file does not exist."""

    path: Path
    before: bytes | None
    after: bytes | None

    @property
    def backup(self) -> Path:
        """Return the path of the backup from before the installation."""
        return self.path.with_name(self.path.name + BEFORE)


@click.group(cls=HelpfulGroup)
def command() -> None:
    """Set up another agent to use midfold. The change to its files is shown first and can be reverted."""


@command.command(name="claude-code")
@click.option(
    "--project",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="Project folder; default: the working directory.",
)
@click.option("--remove", is_flag=True, help="Revert the change.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def claude_code(project: Path, remove: bool, yes: bool) -> None:
    """Store a project's Claude Code sessions, and restore requests and results after a compaction.

    Adds hooks (PreCompact, SessionStart after a compaction, UserPromptSubmit) to .claude/settings.local.json and
    the MCP server midfold to .mcp.json, both in the project's folder. Sessions are kept in the store of `midfold
    sessions`.
    """
    folder = project.resolve()
    files = {folder / ".claude" / "settings.local.json": edit_hooks, folder / ".mcp.json": edit_servers}
    changes = []
    for named, edit in files.items():
        path = inside(named, folder)
        changes.append(_removal(path, edit) if remove else _addition(path, edit, folder))
    changes = [change for change in changes if change.before != change.after]
    if not changes:
        echo("nothing to remove" if remove else "already installed")
        return
    for change in changes:
        for line in diff_of(change):
            echo(visible(line))
    _confirm(yes)
    for change in changes:
        _write(change, remove=remove)
    echo("removed" if remove else "installed; Claude Code will ask once to allow the MCP server midfold")
    if not remove and find_spec("mcp") is None:
        notice("the MCP server needs an optional package: pip install 'midfold[mcp]'; the hooks work without it")


def inside(path: Path, folder: Path) -> Path:
    """Return the real path of a file to change; raise if it or its backup is outside the project."""
    real = path.resolve()
    for place in (real, real.with_name(real.name + BEFORE).resolve()):
        if not place.is_relative_to(folder):
            raise ConfigError(f"{path} resolves to {place}, outside the project; remove the link. Nothing was changed")
    return real


def read_settings(path: Path) -> tuple[Settings, bytes | None]:
    """Return the parsed settings file and its bytes."""
    try:
        data = path.read_bytes()
        known = json.loads(data.strip() or b"{}")
    except FileNotFoundError:
        return {}, None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; nothing was changed") from None
    except ValueError:
        raise ConfigError(f"{path} is not JSON; nothing was changed") from None
    if not isinstance(known, dict):
        raise ConfigError(f"{path} is not a JSON object; nothing was changed")
    return known, data


def edit_hooks(known: Settings, folder: Path | None) -> None:
    """Remove our hooks, then add those for `folder` unless it is None."""
    hooks = _inside(known, "hooks", dict)
    for event, matcher in EVENTS.items():
        groups = _inside(hooks, event, list)
        for group in [one for one in groups if isinstance(one, dict) and isinstance(one.get("hooks"), list)]:
            others = [hook for hook in group["hooks"] if not _is_ours(hook)]
            if len(others) < len(group["hooks"]):
                group["hooks"] = others
                if not others:
                    groups.remove(group)
        if folder is not None:
            line = shlex.join([sys.executable, *SAFE, "-m", MODULE, str(folder)])
            hook = {"type": "command", "command": line, "timeout": TIMEOUT}
            groups.append({**({"matcher": matcher} if matcher else {}), "hooks": [hook]})
        _drop_empty(hooks, event)
    _drop_empty(known, "hooks")


def edit_servers(known: Settings, folder: Path | None) -> None:
    """Remove our MCP server, then add the one for `folder` unless it is None."""
    servers = _inside(known, "mcpServers", dict)
    found = servers.get(SERVER)
    if found is not None and not _is_our_server(found):
        if folder is not None:
            raise ConfigError(f"mcpServers already has a different server named {SERVER}; nothing was changed")
        return
    servers.pop(SERVER, None)
    if folder is not None:
        arguments = [*SAFE, "-m", "midfold", "mcp", "--project", str(folder)]
        servers[SERVER] = {"command": sys.executable, "args": arguments}
    _drop_empty(known, "mcpServers")


def _is_our_server(server: Any) -> bool:
    """Return whether midfold wrote the entry; earlier versions started Python without `-P`."""
    arguments = server.get("args") if isinstance(server, dict) else None
    return isinstance(arguments, list) and [one for one in arguments if one not in SAFE][:2] == ["-m", "midfold"]


def _is_ours(hook: Any) -> bool:
    return isinstance(hook, dict) and f" -m {MODULE} " in str(hook.get("command"))


def _inside(known: Settings, key: str, kind: type) -> Any:
    found = known.setdefault(key, kind())
    if not isinstance(found, kind):
        raise ConfigError(f"{key} in Claude Code's settings has an unexpected type; nothing was changed")
    return found


def _drop_empty(known: Settings, key: str) -> None:
    if not known[key]:
        del known[key]


def _addition(path: Path, edit: Edit, folder: Path) -> FileChange:
    known, before = read_settings(path)
    edit(known, folder)
    is_same = before is not None and json.loads(before.strip() or b"{}") == known
    return FileChange(path, before, before if is_same else _text(known))


def _removal(path: Path, edit: Edit) -> FileChange:
    """Remove our entries; restore the backup if it has the same settings and no entries of ours."""
    known, before = read_settings(path)
    change = FileChange(path, before, before)
    if before is None or b"midfold" not in before:
        return change
    edit(known, None)
    if change.backup.exists():
        earlier, saved = read_settings(change.backup)
        edit(earlier, None)
        # A backup made during an earlier installation would restore its entries.
        if earlier == known and saved is not None and not any(mark in saved for mark in MARKS):
            return change._replace(after=saved)
    return change._replace(after=_text(known) if known else None)


def _text(known: Settings) -> bytes:
    return (json.dumps(known, indent=2, ensure_ascii=False) + "\n").encode()


def diff_of(change: FileChange) -> Iterator[str]:
    """Return the lines of a change in unified diff format."""
    old, new = ((data or b"").decode("utf-8", "replace").splitlines() for data in (change.before, change.after))
    was, becomes = (str(change.path) if data is not None else "/dev/null" for data in (change.before, change.after))
    return unified_diff(old, new, was, becomes, lineterm="")


def _confirm(yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError("nothing was changed; use --yes to make this change")
    if ask("make this change? [y]es, [n]o: ", {"y": "yes", "n": "no"}) != "y":
        raise click.Abort


def _write(change: FileChange, *, remove: bool) -> None:
    target = change.path
    if not remove:
        target.parent.mkdir(exist_ok=True)
        if change.before is not None and not change.backup.exists():
            write_output(change.backup, [change.before])
    if change.after is None:
        target.unlink()
    else:
        with replace_file(target, mode=0o644) as stream:
            stream.write(change.after)
    if remove:
        change.backup.unlink(missing_ok=True)
        if target.parent.name == ".claude" and not any(target.parent.iterdir()):
            target.parent.rmdir()
