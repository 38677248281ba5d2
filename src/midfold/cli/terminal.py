"""How commands write: tables and colour for people, plain text when piped, JSON when asked.

Rules of this file:
1. What people read never steers their terminal: see `visible.py`. That holds for piped text as well.
2. What is asked for exactly, JSON and originals, is exact where it is piped; a terminal gets JSON of the same value.
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, ConsoleRenderable, RenderResult


# Text from transcripts, stores and models, made harmless for a terminal: what would steer it is shown instead.
#
# Control characters, escape sequences, characters that turn the direction of writing and those that nobody sees are
# written as Python would escape them. Tabs stay, and line ends where lines are meant.


_UNSEEN = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_NAMED = {"\n": "\\n", "\r": "\\r"}


def visible(text: str, *, lines: bool = False) -> str:
    """The text with everything shown that is not meant to be seen; `lines` keeps its line ends."""
    if text.isprintable():
        return text
    return _UNSEEN.sub(lambda found: found[0] if lines and found[0] == "\n" else _escape(found[0]), text)


def visible_json(text: str) -> str:
    """JSON of the same value, without a raw character that steers a terminal; line ends between its parts stay."""
    return _UNSEEN.sub(lambda found: found[0] if found[0] == "\n" else _as_json(found[0]), text)


def _escape(character: str) -> str:
    code = ord(character)
    if character in _NAMED:
        return _NAMED[character]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x1_0000 else f"\\U{code:08x}"


def _as_json(character: str) -> str:
    pairs = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{pairs[place]:02x}{pairs[place + 1]:02x}" for place in range(0, len(pairs), 2))


class Harmless:
    """A hook of a rich console: whatever is printed, its text cannot steer the terminal. Colours are the console's."""

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
    """Standard output: coloured on a terminal, plain and never cut when piped."""
    if sys.stdout.isatty():
        return harmless_console()
    return harmless_console(no_color=True, width=110, soft_wrap=False)


def harmless_console(**options: Any) -> Console:
    """A console that takes every text as text: neither markup nor control characters in it are obeyed."""
    from rich.console import Console

    made = Console(highlight=False, markup=False, emoji=False, **options)
    made.push_render_hook(Harmless())  # type: ignore[arg-type]
    return made


def emit_json(value: Any) -> None:
    unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    click.echo(visible_json(json.dumps(value, indent=2, ensure_ascii=not unicode)))


def emit_exact(data: bytes) -> None:
    """A line of JSON as it is stored; on a terminal, without a raw character that steers it."""
    click.echo(visible_json(data.decode("utf-8", "replace")) if sys.stdout.isatty() else data)


def emit_words(text: str) -> None:
    """What a model said, exact for a script; on a terminal, visible."""
    click.echo(visible(text, lines=True) if sys.stdout.isatty() else text)


def echo(text: str) -> None:
    """A line, or lines, for people."""
    click.echo(visible(text, lines=True))


def notice(text: str) -> None:
    """Something the user should know that is not the answer: on standard error."""
    click.echo(f"midfold: {visible(text, lines=True)}", err=True)


# Questions that only a person at the keyboard can answer.
#
# Rules of this file:
# 1. What was typed or pasted before the question stands there is thrown away, also what still arrives of it.
# 2. An answer is typed: its line end comes by itself, after the letter. A pasted line is neither yes nor no.
# 3. Where no person is, standard input is no terminal or nobody sees the question, there is no answer.


QUIET = 0.15
"""Seconds without a byte after which nothing more of a paste is to be expected."""
LONGEST_WAIT = 30.0
BETWEEN_KEYS = 0.02
"""Seconds that a hand needs at least between a letter and the line end; a paste needs none."""
CHUNK = 4_096
PASTES, NO_PASTES = "\x1b[?2004h", "\x1b[?2004l"
ERASERS, ENDS, LEAVES = b"\x7f\x08", b"\r\n", b"\x04"


def ask(question: str, answers: Mapping[str, str]) -> str | None:
    """What of `answers` was typed, by its letter or its word; None if nobody is there to be asked, or leaves."""
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


def _settle(keys: int) -> bool:
    """Throws away what comes until nothing does; False if it never ends, or nobody is there any more."""
    ends = time.monotonic() + LONGEST_WAIT
    while select.select([keys], [], [], QUIET)[0]:
        if not os.read(keys, CHUNK) or time.monotonic() > ends:
            return False
    return True


def _read_answer(keys: int, screen: TextIO) -> str | None:
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


# A bar on standard error, if somebody is looking.


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """It starts with the first report, after any processes have; None where nobody looks."""
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


# Pictures for a terminal: tables and bars, which stay readable when piped into a file.


BAR_WIDTH = 32
EIGHTHS = " ▏▎▍▌▋▊▉█"
COLOURS = {
    "system prompt": "magenta",
    "tool definitions": "bright_magenta",
    "user text": "green",
    "assistant text": "cyan",
    "thinking": "bright_black",
    "tool calls": "yellow",
    "tool results": "red",
    "media": "blue",
    "message framing": "bright_black",
}
MOST_PROBLEMS = 10
MOST_TOOLS = 8


def clean(text: str) -> str:
    """Text from a file, made harmless for a terminal, on one line."""
    return visible(text)


def bar(share: float, width: int = BAR_WIDTH, *, ascii_only: bool = False) -> str:
    """A bar of `width` cells, filled to an eighth of a cell; of `#` where the terminal has nothing better."""
    if ascii_only:
        return "#" * round(max(0.0, min(share, 1.0)) * width)
    eighths = round(max(0.0, min(share, 1.0)) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (EIGHTHS[rest] if rest else "")


def _bar(out: Console, share: float, width: int = BAR_WIDTH) -> str:
    return bar(share, width, ascii_only=not out.encoding.lower().startswith("utf"))


def conversation(out: Console, shown: Mapping[str, Any]) -> None:
    tokens = shown["tokens"]
    roles = ", ".join(f"{count:,} {role}" for role, count in shown["roles"].items())
    out.print(Text(f"{shown['messages']:,} messages", style="bold") + Text(f" in {shown['dialect']} shape: {roles}"))
    calls = f"{shown['tool_calls']:,} tool calls, {shown['tool_results']:,} results"
    out.print(Text(clean(calls + _tools(shown["tools_used"]))))
    _window_line(out, shown["model"], tokens)
    out.print()
    kinds_table(out, tokens["by_kind"])
    if shown["largest"]:
        out.print()
        _largest_table(out, shown["largest"], tokens["total"])
    _problems(out, shown["problems"])


def _window_line(out: Console, model: Mapping[str, Any], tokens: Mapping[str, Any]) -> None:
    share = tokens["share_of_window"]
    colour = "red" if share >= 0.85 else "yellow" if share >= 0.5 else "green"
    line = Text(f"{tokens['total']:,} tokens", style="bold")
    how = "estimated" if tokens["basis"] == "estimated" else f"counted with {tokens['counter']}"
    line.append(f" ({how}), ", style="default")
    line.append(f"{share:.1%}", style=colour)
    name = clean(model["name"] or "an unnamed model")
    known = "" if model["known"] else ", a default"
    line.append(f" of the {model['context_window']:,}-token window of {name}{known}", style="default")
    out.print(line)


def _tools(used: Mapping[str, int]) -> str:
    if not used:
        return ""
    shown = [f"{name or '(no name)'} {count:,}" for name, count in list(used.items())[:MOST_TOOLS]]
    more = f", and {len(used) - MOST_TOOLS} more" if len(used) > MOST_TOOLS else ""
    return f": {', '.join(shown)}{more}"


def kinds_table(out: Console, by_kind: Mapping[str, int]) -> None:
    total = sum(by_kind.values()) or 1
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Where the tokens go")
    table.add_column("tokens", justify="right")
    table.add_column("share", justify="right")
    table.add_column("", no_wrap=True)
    for kind, amount in sorted(by_kind.items(), key=lambda item: -item[1]):
        if amount:
            share = amount / total
            table.add_row(kind, f"{amount:,}", f"{share:.1%}", Text(_bar(out, share), style=COLOURS.get(kind, "white")))
    out.print(table)


def _largest_table(out: Console, largest: list[Mapping[str, Any]], total: int) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, justify in (("Largest messages", "right"), ("role", "left"), ("tool", "left"), ("tokens", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("share", justify="right")
    for item in largest:
        share = f"{item['tokens'] / (total or 1):.1%}"
        row = (f"[{item['position']}]", item["role"], ", ".join(item["tools"]), f"{item['tokens']:,}", share)
        table.add_row(*(Text(clean(cell)) for cell in row))
    out.print(table)


def _problems(out: Console, problems: list[Mapping[str, str]]) -> None:
    out.print()
    if not problems:
        out.print(Text("No problems found.", style="green"))
        return
    out.print(Text(f"{len(problems):,} problem(s) found:", style="bold yellow"))
    for problem in problems[:MOST_PROBLEMS]:
        out.print(Text(clean(f"  {problem['path']}: {problem['what']}")))
    if len(problems) > MOST_PROBLEMS:
        out.print(f"  and {len(problems) - MOST_PROBLEMS:,} more; --json lists them all")


def collection(out: Console, shown: Mapping[str, Any]) -> None:
    rows, totals = shown["conversations"], shown["totals"]
    most = max((row["tokens"]["total"] for row in rows), default=1) or 1
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("#", "messages", "calls", "tokens", "of window", "problems"):
        table.add_column(name, justify="right")
    table.add_column("")
    for number, row in enumerate(rows, 1):
        tokens = row["tokens"]
        cells = (f"{number}", f"{row['messages']:,}", f"{row['tool_calls']:,}", f"{tokens['total']:,}")
        rest = (f"{tokens['share_of_window']:.0%}", f"{len(row['problems']):,}", _bar(out, tokens["total"] / most, 24))
        table.add_row(*cells, *rest)
    out.print(table)
    out.print()
    line = f"{totals['conversations']:,} conversations, {totals['messages']:,} messages, {totals['tokens']:,} tokens"
    out.print(Text(line, style="bold"))
    out.print()
    kinds_table(out, totals["by_kind"])
    out.print("\n--conversation N shows one of them.")
