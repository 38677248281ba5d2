"""Terminal output and questions: tables and colour on a terminal, plain text in a pipe, JSON on request.

1. Text for people cannot control the terminal, also when piped: control characters, escape sequences, bidirectional
   controls and invisible characters are written as Python escapes. Tabs stay, and line ends in multi-line text.
2. Exact output (JSON and originals) is exact in a pipe; a terminal gets equivalent JSON.
3. A question can be answered only at a keyboard. Input typed or pasted before it appears is discarded, and a pasted
   line is not an answer.
4. rich is imported only by functions that draw, to keep the gateway's start fast.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from threading import Timer
from typing import TYPE_CHECKING, Any, Literal, TextIO

import click

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
    from rich.table import Table
    from rich.text import Text

BAR_WIDTH, BESIDE_BARS = 32, 52
MIN_NAME_COLUMNS = 12
"""Minimum columns of a word in a table, if it has that many."""
PIPED_WIDTH = 100_000
"""Columns of a pipe: its lines are never wrapped."""
EIGHTHS = " ▏▎▍▌▋▊▉█"
SPINNER_DELAY_SECONDS = 1.0
"""Seconds before a spinner appears."""
QUIET = 0.15
"""Seconds without input after which a paste has ended."""
MAX_SETTLE_SECONDS = 30.0
MIN_KEY_SECONDS = 0.02
"""Minimum seconds between a typed letter and the line end; in a paste they arrive together."""
CHUNK = 4_096
PASTES, NO_PASTES = "\x1b[?2004h", "\x1b[?2004l"
ERASERS, ENDS, LEAVES = b"\x7f\x08", b"\r\n", b"\x04"
_UNSEEN = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_NAMED = {"\n": "\\n", "\r": "\\r"}


def visible(text: str, *, lines: bool = False) -> str:
    """Escape control and invisible characters; `lines` keeps line ends."""
    if text.isprintable():
        return text
    return _UNSEEN.sub(lambda found: found[0] if lines and found[0] == "\n" else _escape(found[0]), text)


def visible_json(text: str) -> str:
    """Escape control and invisible characters in JSON without changing its value; line ends between its parts stay."""
    return _UNSEEN.sub(lambda found: found[0] if found[0] == "\n" else _as_json(found[0]), text)


def _escape(character: str) -> str:
    code = ord(character)
    if character in _NAMED:
        return _NAMED[character]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x1_0000 else f"\\U{code:08x}"


def _as_json(character: str) -> str:
    pairs = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{pairs[place]:02x}{pairs[place + 1]:02x}" for place in range(0, len(pairs), 2))


class ConsoleCleaner:
    """Render hook of a rich console that escapes control characters in all text."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_HarmlessItem(item) for item in renderables]


class _HarmlessItem:
    def __init__(self, item: ConsoleRenderable) -> None:
        self.item = item

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        segments: Iterable[Segment] = console.render(self.item, options)
        for segment in segments:
            yield segment if segment.control else Segment(visible(segment.text, lines=True), segment.style)


def console() -> Console:
    """Return a console on standard output: coloured on a terminal, plain and never truncated in a pipe."""
    if sys.stdout.isatty():
        return harmless_console()
    return harmless_console(no_color=True, width=PIPED_WIDTH)


def harmless_console(*, stderr: bool = False, width: int | None = None, no_color: bool | None = None) -> Console:
    """Return a console that interprets neither markup nor control characters in text."""
    from rich.console import Console

    made = Console(highlight=False, markup=False, emoji=False, stderr=stderr, width=width, no_color=no_color)
    made.push_render_hook(ConsoleCleaner())  # type: ignore[arg-type]
    return made


def emit_json(value: Any) -> None:
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    click.echo(visible_json(json.dumps(value, indent=2, ensure_ascii=not unicode)))


def emit_exact(data: bytes) -> None:
    """Print a line of JSON as stored; escape control characters on a terminal."""
    click.echo(visible_json(data.decode("utf-8", "replace")) if sys.stdout.isatty() else data)


def emit_words(text: str) -> None:
    """Print model text, exact in a pipe and escaped on a terminal."""
    click.echo(visible(text, lines=True) if sys.stdout.isatty() else text)


def echo(text: str) -> None:
    """Print one or more lines for people."""
    click.echo(visible(text, lines=True))


def notice(text: str) -> None:
    """Print a message on standard error."""
    click.echo(f"midfold: {visible(text, lines=True)}", err=True)


def make_text(text: str, style: str = "") -> Text:
    """Return untrusted text as one escaped, styled line."""
    from rich.text import Text

    return Text(visible(text), style=style)


def make_line(text: str, style: str = "") -> Text:
    """Return an escaped line that a narrow terminal may truncate."""
    line = make_text(text, style)
    line.no_wrap, line.overflow = True, "ellipsis"
    return line


def make_table(
    *columns: str, header_style: str = "bold", show_header: bool = True, no_wrap: bool = False, keys: int = 1
) -> Table:
    """Return an empty table without borders; a column whose name begins with `>` is right-aligned.

    Cells are not truncated: columns that do not fit continue below, with the first `keys` columns repeated.
    """
    made = _fitted_table()(box=None, pad_edge=False, header_style=header_style, show_header=show_header)
    made.keys = keys
    table: Table = made
    for name in columns:
        justify: Literal["left", "right"] = "right" if name.startswith(">") else "left"
        table.add_column(name.removeprefix(">"), justify=justify, overflow="fold", no_wrap=no_wrap)
    return table


@cache
def _fitted_table() -> Any:
    from rich.measure import Measurement
    from rich.table import Column, Table
    from rich.text import Text

    class FittedTable(Table):
        keys = 1

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            widths = [self._least(console, options, column) for column in self.columns]
            parts: list[list[int]] = [[]]
            for place in range(self.keys, len(widths)):
                wide = sum(widths[: self.keys]) + sum(widths[one] + 2 for one in (*parts[-1], place))
                parts += [[place]] if parts[-1] and wide > options.max_width else []
                parts[-1] += [place] if parts[-1][-1:] != [place] else []
            if len(parts) == 1:
                yield from super().__rich_console__(console, options)
                return
            for number, part in enumerate(parts):
                yield Text("") if number else Text("", end="")
                yield self._with([*range(self.keys), *part])

        def _least(self, console: Console, options: ConsoleOptions, column: Column) -> int:
            """Return the minimum width of a column: numbers and unwrapped cells in full, names up to a minimum."""
            cells = [Measurement.get(console, options, cell).maximum for cell in column.cells]
            head = Measurement.get(console, options, column.header).minimum if self.show_header else 0
            most = min(max(cells, default=0), column.max_width or options.max_width)
            return max(most if column.justify == "right" or column.no_wrap else min(most, MIN_NAME_COLUMNS), head)

        def _with(self, places: list[int]) -> Table:
            part = Table(box=None, pad_edge=False, header_style=self.header_style, show_header=self.show_header)
            for place in places:
                one = self.columns[place]
                part.add_column(one.header, justify=one.justify, overflow=one.overflow, no_wrap=one.no_wrap)
            for cells in zip(*(list(self.columns[place].cells) for place in places), strict=True):
                part.add_row(*cells)
            return part

    return FittedTable


def pad_rows(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield lines with aligned cells, for pipes."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def bar(share: float, width: int = BAR_WIDTH, *, ascii_only: bool = False) -> str:
    """Return a bar of up to `width` cells with a resolution of an eighth, or of `#` characters."""
    share = max(0.0, min(share, 1.0))
    if ascii_only:
        return "#" * round(share * width)
    full, rest = divmod(round(share * width * 8), 8)
    return "█" * full + (EIGHTHS[rest] if rest else "")


def share_bar(out: Console, share: float, width: int = BAR_WIDTH) -> str:
    """Return a bar for use beside other columns; shorter on a narrow terminal."""
    return bar(share, max(min(width, out.width - BESIDE_BARS), 1), ascii_only=not has_unicode(out))


def has_unicode(out: Console) -> bool:
    return out.encoding.lower().startswith("utf")


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function that reports progress, or None without a terminal; the bar appears with the first report."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = Progress(*columns, console=Console(stderr=True), transient=True)
    task = shown.add_task(what, total=None)

    def report(done: int, of: int) -> None:
        if not shown.live.is_started:
            shown.start()
        shown.update(task, completed=done, total=of)

    try:
        yield report
    finally:
        shown.stop()


@contextmanager
def show_work(what: str) -> Iterator[None]:
    """Show a spinner with the elapsed time for work that takes more than a second."""
    if not _is_terminal(sys.stderr):
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    shown = Progress(*columns, console=Console(stderr=True), transient=True)
    shown.add_task(what, total=None)
    soon = Timer(SPINNER_DELAY_SECONDS, shown.start)
    soon.daemon = True
    soon.start()
    try:
        yield
    finally:
        soon.cancel()
        soon.join()
        shown.stop()


def ask(question: str, answers: Mapping[str, str]) -> str | None:
    """Ask a question and return the letter of the answer; None without a terminal or at end of input."""
    screen = _screen()
    if screen is None:
        return None
    with _keys(sys.stdin.fileno()) as keys:
        while _settle(keys):
            screen.write(f"{PASTES}{question}")
            screen.flush()
            try:
                typed = _read_answer(keys, screen)
            finally:
                screen.write(f"{NO_PASTES}\n")
                screen.flush()
            if typed is None:
                return None
            if typed.lower() in (*answers, *answers.values()):
                return typed.lower()[:1]
    return None


def _screen() -> TextIO | None:
    """Return the stream on which a user at the keyboard sees the question, or None."""
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
    """Read single keys without echo; Ctrl-C still interrupts."""
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


def _settle(keys: int) -> bool:
    """Discard pending input; return False if it does not end or the terminal is gone."""
    ends = time.monotonic() + MAX_SETTLE_SECONDS
    while select.select([keys], [], [], QUIET)[0]:
        if not os.read(keys, CHUNK) or time.monotonic() > ends:
            return False
    return True


def _read_answer(keys: int, screen: TextIO) -> str | None:
    """Read one line, key by key; return an empty string for pasted input, None at end of input."""
    line, last = "", time.monotonic()
    while True:
        chunk = os.read(keys, CHUNK)
        now = time.monotonic()
        if not chunk or chunk in LEAVES:
            return None
        if chunk.strip(ENDS) == b"":
            return line if now - last >= MIN_KEY_SECONDS and len(chunk) == 1 else ""
        if len(chunk) > 1 and (chunk[:1] == b"\x1b" or chunk.strip(ENDS) != chunk):
            screen.write("(pasted text is ignored)")
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
