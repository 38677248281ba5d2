"""The picture of a compaction, before and after on one scale: bars of tokens in a terminal, every message as SVG."""

from __future__ import annotations

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from midfold.api import Compaction
from midfold.cli.terminal import make_table, make_text, visible
from midfold.drawing import Canvas
from midfold.fold.handoff import recognise
from midfold.transcript.message import Transcript

WIDTH = 72
COLOURS = {"head": "green", "fold": "red", "kept": "yellow", "handoff": "magenta", "tail": "cyan"}
SIGNS = {"head": "h", "fold": ".", "kept": "k", "handoff": "S", "tail": "t"}
Segments = list[tuple[str, int, int]]
"""Name, messages, tokens."""
PICTURE_WIDTH, HEIGHT = 860, 322
LEFT, RIGHT = 78, 24
BEFORE, AFTER, THICK = 104, 204, 40
FILLS = {"head": "#3a9d5d", "fold": "#7a8794", "kept": "#b08900", "handoff": "#8a63d2", "tail": "#2f7fd1"}
SAID = {
    "head": "head",
    "fold": "fold, kept in the archive",
    "kept": "kept",
    "handoff": "handoff: the fold in short",
    "tail": "tail",
}
NARROW = 90
"""A segment narrower than this has no room for its figure: it stands below, unless that is too narrow as well."""
TINY = 30


def show_map(out: Console, result: Compaction) -> None:
    report = result.report
    colour = {"compacted": "green", "pruned": "green", "aborted": "red"}.get(report.status, "yellow")
    out.print(Text(report.status, style=f"bold {colour}") + Text(f": {visible(report.reason)}"))
    out.print(
        f"{report.old_messages:,} messages, {report.old_tokens:,} tokens  ->  "
        f"{report.new_messages:,} messages, {report.new_tokens:,} tokens ({report.token_basis})"
    )
    out.print(f"threshold {report.threshold_tokens:,} of a {report.context_length:,}-token window")
    for line in (*report.notices, *report.impossible):
        out.print(make_text(line, "yellow"))
    for line in filter(None, (report.summary.done, report.summary.next)):
        out.print(make_text(line, "yellow"))
    if report.boundary is None:
        if report.status == "unchanged":
            out.print("--force folds all the same, --target N folds to a size.")
        return
    before, after = segments(result)
    most = max(sum(tokens for _, _, tokens in before), 1)
    out.print()
    out.print(Text("before ") + _strip(before, most))
    if result.changed:
        out.print(Text("after  ") + _strip(after, most))
    out.print()
    out.print(_table(before, after))
    _changes(out, result)


def show_handoff(out: Console, result: Compaction) -> None:
    """The one message that stands for the fold."""
    for message in result.transcript if result.report.status == "compacted" else ():
        found = recognise(message)
        if found is not None and found.kind == "fold":
            out.print()
            out.print(
                Panel(
                    Text(visible(found.body, lines=True)),
                    title=f"handoff ({message.role})",
                    border_style=COLOURS["handoff"],
                )
            )


def segments(result: Compaction) -> tuple[Segments, Segments]:
    """Head, fold and tail before, and what stands there now."""
    before = _before(result)
    return before, _after(result) if result.changed else before


def _before(result: Compaction) -> Segments:
    boundary = result.report.boundary
    if boundary is None:
        return []
    pinned = set(boundary.pinned)
    messages = result.before
    fold = tuple(messages[i] for i in range(boundary.start, boundary.end) if i not in pinned)
    return [
        _segment(result, "head", messages[: boundary.start]),
        _segment(result, "fold", fold),
        _segment(result, "kept", tuple(messages[index] for index in boundary.pinned)),
        _segment(result, "tail", messages[boundary.end :]),
    ]


def _after(result: Compaction) -> Segments:
    boundary, messages = result.report.boundary, result.transcript
    if boundary is None:
        return []
    if result.report.status == "pruned":
        return [
            _segment(result, "head", messages[: boundary.start]),
            _segment(result, "fold", messages[boundary.start : boundary.end]),
            _segment(result, "tail", messages[boundary.end :]),
        ]
    ours = [index for index, message in enumerate(messages) if recognise(message) is not None]
    start = ours[0] if ours else 0
    end = ours[-1] + 1 if ours else 0
    return [
        _segment(result, "head", messages[:start]),
        _segment(result, "handoff", messages[start:end]),
        _segment(result, "tail", messages[end:]),
    ]


def _segment(result: Compaction, name: str, messages: Transcript) -> tuple[str, int, int]:
    return name, len(messages), result.meter.count(messages).tokens


def _strip(segments: Segments, most: int) -> Text:
    strip = Text()
    for name, count, tokens in segments:
        cells = max(round(tokens / most * WIDTH), 1 if count else 0)
        strip.append(SIGNS[name] * cells, style=f"{COLOURS[name]} reverse")
    return strip


def _table(before: Segments, after: Segments) -> Table:
    table = make_table("", ">messages before", ">tokens", ">messages after", ">tokens")
    now = {name: (count, tokens) for name, count, tokens in after}
    then = {name: (count, tokens) for name, count, tokens in before}
    for name in COLOURS:
        old, new = then.get(name, (0, 0)), now.get(name, (0, 0))
        if old[0] or new[0]:
            label = Text(f"{SIGNS[name]} {name}", style=COLOURS[name])
            table.add_row(label, f"{old[0]:,}", f"{old[1]:,}", f"{new[0]:,}", f"{new[1]:,}")
    return table


def _changes(out: Console, result: Compaction) -> None:
    report = result.report
    kinds: dict[str, int] = {}
    for digest in report.digests:
        kinds[digest.kind] = kinds.get(digest.kind, 0) + 1
    pieces = [f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in kinds.items()]
    pieces += [f"{len(report.repairs)} repair(s)"] if report.repairs else []
    if pieces:
        out.print("\n" + ", ".join(pieces))
    if report.handles:
        out.print(f"{len(report.handles):,} handle(s) unfold to the originals; the fold is {report.fold or 'none'}")


def draw_svg(result: Compaction, name: str) -> str:
    """An SVG; `name` says what was compacted."""
    report = result.report
    before, after = segments(result)
    size = f"{report.old_tokens:,} tokens become {report.new_tokens:,}"
    told = "; ".join(f"{kind} {count} messages, {tokens:,} tokens" for kind, count, tokens in (*before, *after))
    canvas = Canvas(PICTURE_WIDTH, HEIGHT, title=f"{name}: {size}", description=told)
    canvas.text(LEFT, 30, f"{name}: {size}", kind="ink title")
    canvas.text(LEFT, 50, _subtitle(result), kind="faint")
    scale = (PICTURE_WIDTH - LEFT - RIGHT) / max(_total(before), _total(after), report.threshold_tokens, 1)
    _funnel(canvas, before, after, scale)
    _bar(canvas, result, "before", BEFORE, before, result.before, scale)
    _bar(canvas, result, "after", AFTER, after, result.transcript, scale)
    _threshold(canvas, report.threshold_tokens, scale)
    _legend(canvas, before, after)
    return canvas.svg()


def _subtitle(result: Compaction) -> str:
    report = result.report
    messages = f"{report.old_messages:,} messages become {report.new_messages:,}"
    return f"{messages}; every original unfolds by its handle; window {report.context_length:,}"


def _bar(
    canvas: Canvas, result: Compaction, label: str, top: float, parts: Segments, messages: Transcript, scale: float
) -> None:
    canvas.text(LEFT - 12, top + THICK / 2 + 5, label, kind="ink", anchor="end")
    starts = _starts(parts, scale)
    for name, _, tokens in parts:
        start, width = starts[name], tokens * scale
        canvas.box(start, top, width, THICK, FILLS[name], opacity=0.35 if name == "fold" else 1.0)
        middle = start + width / 2
        if width >= NARROW:
            fill = "" if name == "fold" else "#ffffff"
            canvas.text(middle, top + THICK / 2 + 5, f"{name} {tokens:,}", anchor="middle", fill=fill)
        elif width >= TINY:
            canvas.text(middle, top + THICK + 16, f"{tokens:,}", anchor="middle", fill=FILLS[name])
    _seams(canvas, result, top, messages, scale)


def _seams(canvas: Canvas, result: Compaction, top: float, messages: Transcript, scale: float) -> None:
    """A hair between two messages, so that a long one is seen as long."""
    x = float(LEFT)
    for message in messages[:-1]:
        x += result.meter.count((message,)).tokens * scale
        canvas.box(x, top, 0.6, THICK, "#ffffff", opacity=0.45)


def _funnel(canvas: Canvas, before: Segments, after: Segments, scale: float) -> None:
    """From the fold to what stands for it."""
    old, new = _starts(before, scale), _starts(after, scale)
    widths = {name: tokens * scale for name, _, tokens in (*before, *after)}
    source = "fold" if "fold" in old else ""
    target = "handoff" if "handoff" in new else source if source in new else ""
    if not source or not target:
        return
    wide = next(tokens for name, _, tokens in before if name == source) * scale
    points = [
        (old[source], BEFORE + THICK),
        (old[source] + wide, BEFORE + THICK),
        (new[target] + widths[target], AFTER),
        (new[target], AFTER),
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    canvas.add(f'<polygon points="{path}" fill="{FILLS[target]}" fill-opacity="0.18"/>')


def _threshold(canvas: Canvas, tokens: int, scale: float) -> None:
    x = LEFT + tokens * scale
    canvas.line((x, BEFORE - 18), (x, AFTER + THICK + 10), "#c2405a", dash="4 3")
    canvas.text(x, BEFORE - 23, f"threshold {tokens:,}", anchor="middle", fill="#c2405a")


def _legend(canvas: Canvas, before: Segments, after: Segments) -> None:
    x = float(LEFT)
    shown = [name for name in FILLS if any(part[0] == name and part[1] for part in (*before, *after))]
    for name in shown:
        canvas.box(x, HEIGHT - 32, 11, 11, FILLS[name], opacity=0.35 if name == "fold" else 1.0)
        canvas.text(x + 17, HEIGHT - 22, SAID[name], kind="faint small")
        x += 34 + 6.4 * len(SAID[name])


def _starts(parts: Segments, scale: float) -> dict[str, float]:
    starts, x = {}, float(LEFT)
    for name, _, tokens in parts:
        starts[name] = x
        x += tokens * scale
    return starts


def _total(parts: Segments) -> int:
    return sum(tokens for _, _, tokens in parts)
