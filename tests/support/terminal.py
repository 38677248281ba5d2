"""Run a program in a pseudo-terminal: type, wait for output, press keys."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]|\x1b[=>]|\r")
CTRL_C, CTRL_D = b"\x03", b"\x04"


class Terminal:
    """Context manager for a program; on exit it ends the program and all processes of its session."""

    def __init__(
        self, command: Sequence[str], *, folder: Path, environment: Mapping[str, str], size: tuple[int, int] = (40, 110)
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))

        # A session leader that opens a terminal controls it, so Ctrl-C reaches the program as a signal.
        opened = ("/bin/sh", "-c", 'tty=$1; shift; exec "$@" <>"$tty" >&0 2>&0', "sh", os.ttyname(slave))
        self.process = subprocess.Popen(
            (*opened, *command), cwd=folder, env=dict(environment), start_new_session=True, close_fds=True
        )
        self._slave = slave
        self.raw = b""
        self._read_to = 0

    @property
    def shown(self) -> str:
        """Return all output so far, without colours."""
        return ESCAPES.sub("", self.raw.decode("utf-8", "replace"))

    def type(self, text: str) -> None:
        os.write(self._master, text.encode() + b"\r")

    def answer(self, letter: str) -> None:
        """Type a letter and then the line end, as separate keys."""
        for key in (letter.encode(), b"\r"):
            time.sleep(0.2)
            os.write(self._master, key)

    def paste(self, text: str, *, bracketed: bool = True) -> None:
        """Send many keys at once, as a bracketed paste if the terminal enabled it."""
        data = text.replace("\n", "\r").encode()
        os.write(self._master, b"\x1b[200~" + data + b"\x1b[201~" if bracketed else data)

    def press(self, key: bytes) -> None:
        time.sleep(0.3)  # not immediately after a prompt appears, as a person would
        os.write(self._master, key)

    def wait_for(self, words: str, seconds: float = 90.0) -> str:
        """Wait until `words` appear after the previous match; return the output up to there."""
        ends = time.monotonic() + seconds
        while True:
            new = self.shown[self._read_to :]
            if words in new:
                place = new.index(words) + len(words)
                self._read_to += place
                return new[:place]
            left = ends - time.monotonic()
            if left <= 0 or not self._more(left):
                raise AssertionError(f"{words!r} did not appear in:\n{self.shown[-3_000:]}")

    def _more(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], seconds)
        if ready:
            self.raw += os.read(self._master, 65_536)
        return bool(ready)

    def ended(self, seconds: float = 60.0) -> int:
        """Wait for the end and return the exit status."""
        ends = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < ends:
            self._more(0.1)
        while self._more(0.05):
            pass
        return self.process.wait(1)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self._slave)
        os.close(self._master)
