"""Questions that only a person at the keyboard can answer.

Rules of this file:
1. What was typed or pasted before the question stands there is thrown away, also what still arrives of it.
2. An answer is typed: its line end comes by itself, after the letter. A pasted line is neither yes nor no.
3. Where no person is, standard input is no terminal or nobody sees the question, there is no answer.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

QUIET = 0.15
"""Seconds without a byte after which nothing more of a paste is to be expected."""
LONGEST_WAIT = 30.0
BETWEEN_KEYS = 0.02
"""Seconds that a hand needs at least between a letter and the line end; a paste needs none."""
CHUNK = 4_096
PASTES, NO_PASTES = "\x1b[?2004h", "\x1b[?2004l"
ERASERS, ENDS, LEAVES = b"\x7f\x08", b"\r\n", b"\x04"


def answered(question: str, answers: Mapping[str, str]) -> str | None:
    """What of `answers` was typed, by its letter or its word; None if nobody is there to be asked, or leaves."""
    screen = _screen()
    if screen is None:
        return None
    with _keys(sys.stdin.fileno()) as keys:
        while _settled(keys):
            screen.write(f"{PASTES}{question}")
            screen.flush()
            try:
                typed = _typed(keys, screen)
            finally:
                screen.write(f"{NO_PASTES}\n")
                screen.flush()
            if typed is None:
                return None
            if typed.lower() in (*answers, *answers.values()):
                return typed.lower()[:1]
    return None


def _screen() -> TextIO | None:
    """Where a person who types would see the question."""
    if not _is_terminal(sys.stdin):
        return None
    return next((stream for stream in (sys.stdout, sys.stderr) if _is_terminal(stream)), None)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


@contextmanager
def _keys(handle: int) -> Iterator[int]:
    """The keyboard, key by key and without an echo; Ctrl-C interrupts as ever."""
    import termios

    before = termios.tcgetattr(handle)
    now = termios.tcgetattr(handle)
    now[3] &= ~(termios.ICANON | termios.ECHO)
    now[6][termios.VMIN], now[6][termios.VTIME] = 1, 0
    try:
        termios.tcsetattr(handle, termios.TCSAFLUSH, now)
        yield handle
    finally:
        termios.tcsetattr(handle, termios.TCSAFLUSH, before)


def _settled(keys: int) -> bool:
    """Throws away what comes until nothing does; False if it never ends, or nobody is there any more."""
    ends = time.monotonic() + LONGEST_WAIT
    while select.select([keys], [], [], QUIET)[0]:
        if not os.read(keys, CHUNK) or time.monotonic() > ends:
            return False
    return True


def _typed(keys: int, screen: TextIO) -> str | None:
    """One line, key by key. Empty if something in it was pasted; None at the end of input."""
    line, last = "", time.monotonic()
    while True:
        chunk = os.read(keys, CHUNK)
        now = time.monotonic()
        if not chunk or chunk in LEAVES:
            return None
        if chunk.strip(ENDS) == b"":
            return line if now - last >= BETWEEN_KEYS and len(chunk) == 1 else ""
        if len(chunk) > 1 and (chunk[:1] == b"\x1b" or chunk.strip(ENDS) != chunk):
            screen.write("(pasted text is no answer)")
            return ""
        last = now
        if chunk in ERASERS:
            screen.write("\b \b" * bool(line))
            line = line[:-1]
        else:
            new = "".join(letter for letter in chunk.decode("ascii", "ignore") if letter.isalpha())
            screen.write(new)
            line += new
        screen.flush()
