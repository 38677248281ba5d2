"""Claude Code hooks: store the session log, and add a note to the context after a compaction.

    python -P -m midfold.adapters.claude_code PROJECT < the event that Claude Code writes

1. A hook never blocks Claude Code: it exits with 0 within its time limit and prints nothing on any error.
2. Before a compaction and with each prompt, a separate process stores the log. It reads only the bytes that the log had
   at that time, so that a message that is being written is not cut in half.
3. After a compaction the note quotes the user's messages and lists what was done, from calls and their results. No LLM
   is used; secrets are redacted.
4. Claude Code starts hooks in the project's directory, which may be untrusted: nothing is imported from there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

import midfold

if TYPE_CHECKING:
    from midfold.types import Transcript

MODULE = "midfold.adapters.claude_code"
SAFE = ("-P",)
"""Python options that prevent imports from the working directory."""
SECONDS = 1.5
"""Time limit in seconds from the start of this module; Claude Code itself waits for `TIMEOUT`."""
TIMEOUT = 2
EVENTS = {"PreCompact": None, "SessionStart": "compact", "UserPromptSubmit": None}
"""Hook events to register, with their matchers."""
KEEPS = ("PreCompact", "UserPromptSubmit")
MAX_MESSAGES_CHARS, MAX_TRAIL_TOKENS, MAX_NOTE_CHARS = 4_000, 1_200, 9_500
"""Characters, tokens, characters. Claude Code accepts 10,000 characters from a hook."""


def main(arguments: list[str]) -> None:
    """Run a hook, or the process that stores a log; suppress every error."""
    try:
        if len(arguments) == 5 and arguments[1] == "keep":
            _, _, log, size, session = arguments
            keep(Path(arguments[0]), Path(log), int(size), session)
        elif len(arguments) == 1:
            Timer(SECONDS, os._exit, (0,)).start()
            event = json.loads(sys.stdin.buffer.read())
            if isinstance(event, dict) and (said := answer(event, Path(arguments[0]))):
                os.write(sys.stdout.fileno(), said)
    finally:
        os._exit(0)


def answer(event: Mapping[str, Any], project: Path) -> bytes:
    """Return a hook's output for an event; empty for most events."""
    name, log, session = (str(event.get(key) or "") for key in ("hook_event_name", "transcript_path", "session_id"))
    if not log or not session or not Path(log).is_file():
        return b""
    if name in KEEPS:
        _begin_keeping(project, Path(log), session)
        return b""
    if name != "SessionStart" or event.get("source") != "compact":
        return b""
    text = note(midfold.read(Path(log).read_bytes()).messages, session)
    return json.dumps({"hookSpecificOutput": {"hookEventName": name, "additionalContext": text}}).encode()


def _begin_keeping(project: Path, log: Path, session: str) -> None:
    command = [sys.executable, *SAFE, "-m", MODULE, str(project)]
    subprocess.Popen(
        [*command, "keep", str(log), str(log.stat().st_size), session],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def session_name(session: str) -> str:
    """Return the name under which a Claude Code session is stored in its project."""
    return f"claude-code-{session}"


def keep(project: Path, log: Path, size: int, session: str) -> None:
    """Import the first `size` bytes of a log into the store, under the project's sessions."""
    with log.open("rb") as file:
        document = midfold.read(file.read(size))
    with midfold.open(config=midfold.load_config().config) as sessions:
        waits = document.log is not None and document.log.is_open
        sessions.keep_log(document, midfold.types.project_prefix(project) + session_name(session), waits=waits)


def note(messages: Transcript, session: str) -> str:
    """Return the note added to a session after its compaction."""
    opening = (
        "This session was compacted. What follows is from its log, not from the summary: the user's own words, and "
        "what the calls and their results show. The whole log is kept: the tools of the MCP server midfold (search, "
        f"unfold, describe, artifacts; session {session_name(session)}) show the exact originals."
    )
    asks, done = midfold.asks_text(messages, MAX_MESSAGES_CHARS), midfold.artifacts_text(messages, MAX_TRAIL_TOKENS)
    text = f"{opening}\n\n## What the user asked for\n{asks}\n\n{done}"
    return text if len(text) <= MAX_NOTE_CHARS else f"{text[:MAX_NOTE_CHARS]}\n[cut off: ask artifacts for the rest]"


if __name__ == "__main__":
    main(sys.argv[1:])
