"""Run shell commands in the working directory with limits on time and output.

1. Each command has its own process group. However it ends, the group is killed, including background processes.
2. Only the start and the end of the output are kept while reading, so memory use is bounded.
3. This is not a sandbox. A command may read and write whatever the user may, and a program that leaves its process
   group on purpose survives.
4. The environment comes from `command_environment`: no keys, no passwords, no midfold settings.
"""

from __future__ import annotations

import ctypes
import os
import re
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import suppress

from midfold.agent.tools.base import AgentTool
from midfold.agent.tools.files import Folder
from midfold.compaction.redact import is_sensitive_key, redact
from midfold.errors import ToolRefused
from midfold.transcript.tools import ToolSpec, arguments

# Environment of a command: everything except secrets, unless `agent.shell_environment` names them.
#
# 1. A variable is withheld because of its name (keys, tokens, passwords, stores, midfold's own), because the settings
#    name
#    it as a key, or because its value looks like a credential.
# 2. This is not a sandbox. A command runs as the user and may read the user's files and the environment of the user's
#    other programs.
# 3. midfold's own environment can be hidden from the commands it starts, but not from the superuser.


_SECRET_NAME = re.compile(
    r"(?:MIDFOLD_|PG[A-Z]).*"
    r"|(?:.*_)?(?:(?:API|ACCESS|PRIVATE)?KEYS?|TOKENS?|SECRETS?|PASS|CREDENTIALS?|COOKIES?|AUTH|DSN|DATABASE_URL)"
    r"|.*(?:PASSWORD|PASSWD|PASSPHRASE|_PWD|_PAT)S?",
    re.IGNORECASE,
)
_FOLDERS = frozenset({"PWD", "OLDPWD"})
_LONGEST_NAME = 200
_PR_SET_DUMPABLE = 4


def command_environment(
    environment: Mapping[str, str], *, hidden: Collection[str] = (), named: Collection[str] = ()
) -> dict[str, str]:
    """Return the variables for a command; `hidden` ones are always withheld, `named` ones never."""
    return {
        name: value
        for name, value in environment.items()
        if name in named or not (name in hidden or is_secret(name, value))
    }


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable holds a credential."""
    if len(name) > _LONGEST_NAME or redact(value) != value:
        return True
    return name not in _FOLDERS and (_SECRET_NAME.fullmatch(name) is not None or is_sensitive_key(name))


def hide_own_environment() -> None:
    """Make /proc/PID/environ of this process unreadable to the user's other processes, if the kernel supports it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


CHUNK = 65_536
GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL for a process group."""
LONGEST_COMMAND = 100_000


class Shell:
    """Runner of commands in one directory."""

    def __init__(
        self,
        folder: Folder,
        timeout: float,
        limit: int,
        environment: Mapping[str, str],
        *,
        hidden: Collection[str] = (),
        named: Collection[str] = (),
    ) -> None:
        self.folder = folder
        self.timeout = timeout
        self.limit = limit
        self.environment = command_environment(environment, hidden=hidden, named=named)

    def tool(self) -> AgentTool:
        return AgentTool(spec=spec(self.timeout), run=self.run, changes=True, label=lambda given: given["command"])

    def run(self, command: str, timeout: int | None = None) -> str:
        """Return stdout and stderr interleaved, followed by the exit status."""
        if not command.strip() or "\x00" in command or len(command) > LONGEST_COMMAND:
            raise ToolRefused("the command is empty, too long, or has a character no command can have")
        allowed = min(float(timeout), self.timeout) if timeout and timeout > 0 else self.timeout
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=self.folder.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        output = OutputEnds(self.limit)
        try:
            in_time = _read(process, output, time.monotonic() + allowed)
        finally:
            end_group(process)
            if process.stdout is not None:
                process.stdout.close()
        text = output.text()
        ending = f"[exit {_code(process.returncode)}]" if in_time else f"[killed after {allowed:g} s]"
        return f"{text.rstrip()}\n{ending}" if text.strip() else ending


class OutputEnds:
    """Start and end of a byte stream; the bytes between them are only counted."""

    def __init__(self, limit: int) -> None:
        self._head_limit = max(limit * 2 // 3, 1)
        self._tail_limit = max(limit // 3, 1)
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._kept = 0
        self._seen = 0

    def add(self, chunk: bytes) -> None:
        self._seen += len(chunk)
        free = self._head_limit - len(self._head)
        self._head += chunk[:free]
        rest = chunk[free:]
        if rest:
            self._tail.append(rest)
            self._kept += len(rest)
            while self._kept - len(self._tail[0]) >= self._tail_limit:
                self._kept -= len(self._tail.popleft())

    def text(self) -> str:
        tail = b"".join(self._tail)[-self._tail_limit :]
        left = self._seen - len(self._head) - len(tail)
        gap = f"\n[... {left:,} bytes left out ...]\n" if left else ""
        return self._head.decode("utf-8", "replace") + gap + tail.decode("utf-8", "replace")


def _read(process: subprocess.Popen[bytes], output: OutputEnds, ends: float) -> bool:
    """Read until the command exits or times out and return whether it exited.

    Children may hold the pipe open for longer.
    """
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    os.set_blocking(pipe, False)
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            left = ends - time.monotonic()
            ready = selector.select(max(min(left, 0.1), 0.0))
            chunk = os.read(pipe, CHUNK) if ready else None
            if chunk:
                output.add(chunk)
            elif chunk == b"":
                return _wait_until(process, ends)
            elif process.poll() is not None:
                return True
            if left <= 0:
                return False


def _wait_until(process: subprocess.Popen[bytes], ends: float) -> bool:
    try:
        process.wait(max(ends - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        return False
    return True


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Terminate a command and its process group, killing processes that ignore SIGTERM."""
    if process.poll() is None and _signal_group(process.pid, signal.SIGTERM):
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()


def _signal_group(group: int, number: signal.Signals) -> bool:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _code(code: int | None) -> str:
    if code is not None and code < 0:
        return f"by signal {-code}"
    return str(code)


def spec(timeout: float) -> ToolSpec:
    return ToolSpec(
        name="shell",
        description=(
            "Run a command with /bin/sh in the working directory. Its output and exit status are returned. There is no "
            f"input, and after {timeout:g} seconds it is killed with everything it started."
        ),
        parameters=arguments(
            {
                "command": {"type": "string", "description": "The command."},
                "timeout": {"type": "integer", "description": "Seconds before it is killed; at most the limit above."},
            },
            "command",
        ),
    )
