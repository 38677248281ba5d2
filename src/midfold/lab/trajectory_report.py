"""HTML report of a run, in the design of the web pages.

The page is self-contained, without scripts, fonts or links, and light or dark by the reader's system.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from midfold.drawing import Frame, Markup, drawing, line, page_style, rect, text, ticks
from midfold.lab.trajectory_metrics import RATIO_BINS, RETENTION_BINS, RecordMetrics, Totals, bin_edge
from midfold.lab.trajectory_run import TrajectoryAccount
from midfold.lab.trajectory_work import describe_summarizer

GAP = 0.18
MOST_LABELS = 8


class Series(NamedTuple):
    """A set of bars: name, CSS class, and a count for each bin."""

    name: str
    look: str
    counts: Sequence[int]


class Mark(NamedTuple):
    """A dashed line at a position in bins."""

    at: float
    label: str


def histogram(title: str, labels: Sequence[str], series: Sequence[Series], mark: Mark | None = None) -> Markup:
    """Draw bars side by side for each bin, with the bin's label below its left edge."""
    bins = len(labels)
    highest = max((max(item.counts, default=0) for item in series), default=0)
    frame = Frame(460, 220, max(highest, 1), left=46, right=12, top=26, bottom=30)
    body = frame.scale(ticks(frame.most, whole=True), "{:,.0f}".format, base="axis")
    slot = (1 - GAP) / max(len(series), 1)
    for number, item in enumerate(series):
        for place, count in enumerate(item.counts):
            if count:
                x, y = frame.x((place + GAP / 2 + number * slot) / bins), frame.y(count)
                label = f"{item.name}: {count:,} from {labels[place]}"
                wide = frame.x(slot / bins) - frame.left
                body.append(rect(x, y, wide, frame.y(0) - y, item.look, label, rx="1.5"))
    every = max(-(-bins // MOST_LABELS), 1)
    for place in range(0, bins, every):
        body.append(text(frame.x(place / bins), frame.y(0) + 17, labels[place], "label", "middle"))
    if mark is not None:
        x = frame.x(min(max(mark.at, 0), bins) / bins)
        anchor, shift = ("end", -6) if x > frame.width * 0.7 else ("start", 6)
        body.append(line(x, frame.top - 18, x, frame.y(0), "threshold"))
        body.append(text(x + shift, frame.top - 10, mark.label, "label on-threshold", anchor))
    label = "; ".join(f"{item.name}: {sum(item.counts):,} records" for item in series)
    return drawing(frame.width, frame.height, title, label, body)


MOST_FILES, MOST_ROWS = 40, 40
STATUSES = {
    "under_target": ("under target", "calm"),
    "compressed": ("compressed", "good"),
    "over_limit": ("still over limit", "warn"),
    "failed": ("failed", "bad"),
}
BRAND = Markup(
    '<svg viewBox="0 0 20 20" aria-hidden="true"><path d="M3 3h14M3 17h14" class="ends"/>'
    '<path d="M3 7.5 10 10l7-2.5M3 12.5 10 10l7 2.5" class="folds"/></svg>'
)


def report_page(finished: TrajectoryAccount, troubled: Sequence[RecordMetrics] = ()) -> str:
    """Return the page; `troubled` are records that failed or are still over the limit."""
    totals = finished.totals
    body = [
        "<h1>Trajectories, compressed</h1>",
        f'<p class="lead">{escape(_subtitle(finished))}</p>',
        _figures(finished),
        _outcome(totals),
        '<div class="columns even">',
        _tokens(finished),
        _shares(totals),
        "</div>",
        _files(finished),
        _troubles(troubled, finished),
    ]
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>Trajectories, compressed: {totals.records:,} records</title><style>{page_style()}</style></head>"
    )
    top = f'<header class="top"><div class="inner"><span class="brand">{BRAND}midfold</span></div></header>'
    return f"{head}\n<body>{top}<main>\n" + "\n".join(filter(None, body)) + "\n</main></body></html>\n"


def _subtitle(finished: TrajectoryAccount) -> str:
    settings = finished.settings
    counted = "estimated" if settings.tokenizer == "estimate" else f"counted with {settings.tokenizer}"
    return (
        f"target {settings.target_tokens:,} tokens, {counted}; summaries of up to {settings.summary_tokens:,} tokens, "
        f"{describe_summarizer(settings)}; the first {', '.join(settings.protect_first) or 'turns not'} and the last "
        f"{settings.protect_last} turns protected"
    )


def _figures(finished: TrajectoryAccount) -> str:
    totals = finished.totals
    rate = totals.records / finished.seconds if finished.seconds else 0
    kept = f"{short(totals.tokens_before)} → {short(totals.tokens_after)}"
    workers = f"{finished.workers} worker{'s' * (finished.workers != 1)}"
    figures = [
        ("Records", f"{totals.records:,}", f"in {len(finished.files):,} file{'s' if len(finished.files) != 1 else ''}"),
        ("Tokens", kept, f"{totals.saved_share:.0%} fewer"),
        ("Turns", f"{short(totals.turns_before)} → {short(totals.turns_after)}", ""),
        ("Summary calls", f"{totals.summary_calls:,}", f"{totals.summary_errors:,} failed"),
        ("Speed", f"{rate:,.0f}/s", f"{finished.seconds:,.1f} s, {workers}"),
    ]
    if totals.retention is not None:
        figures.insert(3, ("Retention", f"{totals.retention:.1%}", f"mean of {totals.retention_records:,}"))
    cells = "".join(
        f'<div class="figure"><dt>{label}</dt><dd><span class="value num">{escape(value)}</span>'
        f'<span class="note">{escape(note)}</span></dd></div>'
        for label, value, note in figures
    )
    return f'<dl class="figures many">{cells}</dl>'


def short(number: int) -> str:
    """Format a number in at most four characters and a unit."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return str(number)


def _outcome(totals: Totals) -> str:
    counts = [(name, f"record-{look}", getattr(totals, status)) for status, (name, look) in STATUSES.items()]
    width, height = 960.0, 14.0
    whole, x, body = max(sum(count for _, _, count in counts), 1), 0.0, []
    for name, look, count in counts:
        if count:
            wide = width * count / whole
            body.append(rect(x, 0, max(wide - 1, 2), height, look, f"{name}: {count:,}"))
            x += wide
    label = "; ".join(f"{name} {count:,}" for name, _, count in counts)
    drawn = drawing(width, height, "Outcome of the records", label, body, "outcome", stretch=True)
    key = "".join(
        f'<span class="key {look}">{name} <strong class="num">{count:,}</strong></span>' for name, look, count in counts
    )
    inside = f'{drawn}<p class="legend under">{key}</p>'
    return f'<section><h2>Outcome</h2><div class="card">{inside}</div></section>'


def _tokens(finished: TrajectoryAccount) -> str:
    totals = finished.totals
    used = sorted({*totals.before, *totals.after})
    if not used:
        return ""
    target = finished.settings.target_tokens
    bins = range(min(used[0], 0), max(used[-1], 0) + 1)
    labels = [short(bin_edge(number - 1, target)) for number in bins]
    series = [
        Series("before", "before-bar", [totals.before.get(number, 0) for number in bins]),
        Series("after", "after-bar", [totals.after.get(number, 0) for number in bins]),
    ]
    mark = Mark(1 - bins.start, f"target {target:,}")
    key = "".join(f'<span class="key {item.look}">{item.name}</span>' for item in series)
    drawn = histogram("Tokens per record", labels, series, mark)
    inside = f'<p class="legend">{key}</p>{drawn}'
    return f'<section><h2>Tokens per record</h2><div class="card">{inside}</div></section>'


def _shares(totals: Totals) -> str:
    if totals.retentions:
        title, counts, bins = "Retention", totals.retentions, RETENTION_BINS
        note = (
            "Share of the facts that kept turns use and only the fold contained that is still present with its context."
        )
    else:
        title, counts, bins = "Share of tokens kept", totals.ratios, RATIO_BINS
        note = "Compressed records: tokens after, as a share of tokens before."
    if not counts:
        return ""
    labels = [f"{100 * number // bins}%" for number in range(bins)]
    values = [counts.get(number, 0) for number in range(bins)]
    values[-1] += counts.get(bins, 0)
    drawn = histogram(title, labels, [Series(title.lower(), "after-bar", values)])
    inside = f'<p class="legend">{note}</p>{drawn}'
    return f'<section><h2>{title}</h2><div class="card">{inside}</div></section>'


def _files(finished: TrajectoryAccount) -> str:
    columns = (("File", ""), *((name, "r num") for name in ("Records", "Compressed", "Over limit", "Failed", "Tokens")))
    rows = [
        (
            name,
            f"{item.records:,}",
            f"{item.compressed:,}",
            f"{item.over_limit:,}",
            f"{item.failed:,}",
            f"{short(item.tokens_before)} → {short(item.tokens_after)}",
        )
        for name, item in list(finished.files.items())[:MOST_FILES]
    ]
    left = len(finished.files) - MOST_FILES
    unread = [(item.file, item.reason) for item in finished.failed_files]
    made = _table("Files", columns, rows, f"and {left:,} more files" if left > 0 else "")
    return made + _table("Files that could not be read", (("File", ""), ("Reason", "words")), unread)


def _troubles(troubled: Sequence[RecordMetrics], finished: TrajectoryAccount) -> str:
    columns = (("Where", ""), ("Outcome", ""), ("Tokens", "r num"), ("Reason", "words"))
    rows = [
        (
            f"{record.file}, line {record.line}",
            STATUSES[record.status][0],
            f"{record.tokens_after:,}" if record.tokens_after else "",
            record.reason,
        )
        for record in troubled[:MOST_ROWS]
    ]
    left = finished.totals.failed + finished.totals.over_limit - len(rows)
    more = f"and {left:,} more, listed in the metrics" if left > 0 else ""
    return _table("Records to look at", columns, rows, more)


def _table(title: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]], more: str = "") -> str:
    """Render a table; each column has a name and a class, the first one names its row. Cells are escaped here."""
    if not rows:
        return ""

    def cell(number: int, said: str) -> str:
        name, look = columns[number]
        if not number:
            return f'<th scope="row">{escape(said)}</th>'
        return f'<td class="{look if said else "none"}" data-label="{name}">{escape(said)}</td>'

    head = "".join(f'<th scope="col" class="{look}">{name}</th>' for name, look in columns)
    body = "".join(f"<tr>{''.join(cell(*item) for item in enumerate(row))}</tr>" for row in rows)
    note = f'<p class="soft small">{more}</p>' if more else ""
    table = f'<table class="list"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f"<section><h2>{title}</h2>{table}{note}</section>"
