"""`midfold unfold`: read originals from an archive written by `midfold compact -o`."""

from __future__ import annotations

from pathlib import Path

import click
from msgspec import Raw

from midfold.errors import TranscriptError
from midfold.transcript import jsonio
from midfold.transcript.jsonio import elements, entries


@click.command(name="unfold")
@click.argument("archive")
@click.argument("handle", required=False)
@click.option("--json", "as_json", is_flag=True, help="List handles as JSON.")
def command(archive: str, handle: str | None, as_json: bool) -> None:
    """Show the originals behind a handle.

    ARCHIVE is the OUT.archive file of `midfold compact -o OUT`. With a HANDLE (`mf-…`, or a prefix) the original
    messages are written as JSON lines, byte for byte. Without one, the handles are listed.
    """
    from midfold.cli.terminal import echo, emit_exact, emit_json

    found = load(archive)
    if handle is None:
        counts = {name: len(messages) for name, messages in found.items()}
        if as_json:
            emit_json(counts)
        else:
            for name, count in counts.items():
                echo(f"{name}  {count:,} message{'' if count == 1 else 's'}")
        return
    matching = [name for name in found if name == handle] or [name for name in found if name.startswith(handle)]
    if len(matching) != 1:
        problem = "has no handle" if not matching else "has several handles that begin with"
        raise TranscriptError(f"{archive} {problem} {handle}; list them with midfold unfold {archive}")
    for message in found[matching[0]]:
        emit_exact(bytes(message))


def load(path: str) -> dict[str, list[Raw]]:
    """Return the original messages by handle, each with its exact bytes."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise TranscriptError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    found: dict[str, list[Raw]] = {}
    for number, line in enumerate(lines, 1):
        try:
            entry = entries(line)
            found[jsonio.decode(entry["handle"])] = elements(entry["messages"])
        except (jsonio.NotJSON, KeyError):
            raise TranscriptError(f"{path}, line {number}: expected a line of an archive") from None
    return found
