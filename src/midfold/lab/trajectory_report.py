"""The account of a run as one page: no script, no font, no address; light or dark as the reader's system is."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from midfold.drawing import Frame, Markup, drawing, line, rect, text, ticks
from midfold.lab.trajectory_metrics import RATIO_BINS, RETENTION_BINS, RecordMetrics, Totals, bin_edge
from midfold.lab.trajectory_run import TrajectoryAccount
from midfold.lab.trajectory_work import describe_summarizer

GAP = 0.18
MOST_LABELS = 9


class Series(NamedTuple):
    """One set of bars: a name, the page's colour for it, and a count for each bin."""

    name: str
    colour: str
    counts: Sequence[int]


class Mark(NamedTuple):
    """A dashed line at a place between bins, given in bins."""

    at: float
    label: str


def histogram(title: str, labels: Sequence[str], series: Sequence[Series], mark: Mark | None = None) -> Markup:
    """Bars side by side for each bin; the label of a bin stands under its left edge."""
    bins = len(labels)
    highest = max((max(item.counts, default=0) for item in series), default=0)
    frame = Frame(560, 230, max(highest, 1), left=46, right=12, top=26, bottom=40)
    body = frame.scale(ticks(frame.most, whole=True), "{:,.0f}".format, "faint")
    slot = (1 - GAP) / max(len(series), 1)
    for number, item in enumerate(series):
        for place, count in enumerate(item.counts):
            if count:
                x, y = frame.x((place + GAP / 2 + number * slot) / bins), frame.y(count)
                told = f"{item.name}: {count:,} from {labels[place]}"
                wide = frame.x(slot / bins) - frame.left
                body.append(rect(x, y, wide, frame.y(0) - y, "", told, rx="1.5", fill=f"var(--{item.colour})"))
    every = max(-(-bins // MOST_LABELS), 1)
    for place in range(0, bins, every):
        body.append(text(frame.x(place / bins), frame.y(0) + 17, labels[place], "faint", "middle"))
    if mark is not None:
        x = frame.x(min(max(mark.at, 0), bins) / bins)
        anchor, shift = ("end", -6) if x > frame.width * 0.7 else ("start", 6)
        body.append(line(x, frame.top - 10, x, frame.y(0), "mark"))
        body.append(text(x + shift, frame.top - 12, mark.label, "ink", anchor))
    told = "; ".join(f"{item.name}: {sum(item.counts):,} records" for item in series)
    return drawing(frame.width, frame.height, title, told, body)


MOST_FILES, MOST_ROWS = 40, 40
STATUSES = {
    "under_target": ("under target", "calm"),
    "compressed": ("compressed", "good"),
    "over_limit": ("still over limit", "warn"),
    "failed": ("failed", "bad"),
}
STYLE = """
:root { color-scheme: light dark; --ground: #f6f8fa; --card: #ffffff; --ink: #1f2328; --faint: #59636e;
  --line: #d1d9e0; --calm: #8c959f; --good: #1a7f5a; --warn: #bf7a00; --bad: #cf3b4f; --before: #b6c2cf;
  --after: #2f7fd1 }
@media (prefers-color-scheme: dark) { :root { --ground: #0d1117; --card: #151b23; --ink: #f0f6fc; --faint: #9198a1;
  --line: #30363d; --calm: #6e7781; --good: #3fb68b; --warn: #d9a441; --bad: #f0667a; --before: #46515d;
  --after: #58a6ff } }
* { box-sizing: border-box }
body { margin: 0; padding: 32px 24px 48px; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif }
main { max-width: 1180px; margin: 0 auto }
h1 { font-size: 24px; margin: 0 0 4px; letter-spacing: -0.01em } h2 { font-size: 15px; margin: 0 0 8px }
p { margin: 0 } .faint { color: var(--faint) } .note { font-size: 13px; margin-top: 6px }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(168px, 1fr)); gap: 12px; margin: 24px 0 12px }
.tile, section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px }
.tile b { display: block; font-size: 17px; font-weight: 600; line-height: 1.4; white-space: nowrap }
.tile span { color: var(--faint); font-size: 13px }
.grid2 { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); gap: 12px }
section { margin-bottom: 12px; overflow-x: auto } .grid2 section { margin-bottom: 0 } .grid2 { margin-bottom: 12px }
.bar { display: flex; height: 14px; border-radius: 7px; overflow: hidden; background: var(--line); gap: 2px }
.bar i { display: block; min-width: 3px }
.key { display: flex; flex-wrap: wrap; gap: 6px 18px; margin-top: 10px; font-size: 13px; color: var(--faint) }
.key b { color: var(--ink); font-variant-numeric: tabular-nums; font-weight: 600 }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 6px }
table { border-collapse: collapse; width: 100%; font-size: 14px } th { text-align: left; font-weight: 600 }
th, td { padding: 6px 10px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top }
tr:last-child td { border-bottom: 0 } .n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
svg { width: 100%; height: auto; display: block } svg text { font-size: 11.5px; fill: var(--faint) }
svg .ink { fill: var(--ink); font-weight: 600 } svg .grid { stroke: var(--line); stroke-width: 1 }
svg .mark { stroke: var(--ink); stroke-width: 1.2; stroke-dasharray: 4 3 }
@media print { body { background: none; padding: 0 } }
"""


def report_page(finished: TrajectoryAccount, troubled: Sequence[RecordMetrics] = ()) -> str:
    """The page; `troubled` are records that failed or are still over the limit."""
    totals = finished.totals
    body = [
        "<h1>Trajectories, compressed</h1>",
        f'<p class="faint">{escape(_subtitle(finished))}</p>',
        _tiles(finished),
        _outcome(totals),
        '<div class="grid2">',
        _tokens(finished),
        _shares(totals),
        "</div>",
        _files(finished),
        _troubles(troubled, finished),
    ]
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Trajectories, compressed: {totals.records:,} records</title><style>{STYLE}</style></head>"
    )
    return f"{head}\n<body><main>\n" + "\n".join(filter(None, body)) + "\n</main></body></html>\n"


def _subtitle(finished: TrajectoryAccount) -> str:
    settings = finished.settings
    counted = "estimated" if settings.tokenizer == "estimate" else f"counted with {settings.tokenizer}"
    return (
        f"target {settings.target_tokens:,} tokens, {counted}; summaries of up to {settings.summary_tokens:,} tokens, "
        f"{describe_summarizer(settings)}; the first {', '.join(settings.protect_first) or 'turns not'} and the last "
        f"{settings.protect_last} turns protected"
    )


def _tiles(finished: TrajectoryAccount) -> str:
    totals = finished.totals
    saved = totals.saved_share
    rate = totals.records / finished.seconds if finished.seconds else 0
    tiles = [
        (f"{totals.records:,}", f"records in {len(finished.files):,} file{'s' if len(finished.files) != 1 else ''}"),
        (f"{short(totals.tokens_before)} → {short(totals.tokens_after)}", f"tokens, {saved:.0%} fewer"),
        (f"{short(totals.turns_before)} → {short(totals.turns_after)}", "turns"),
        (f"{totals.summary_calls:,}", f"summary calls, {totals.summary_errors:,} failed"),
        (f"{rate:,.0f}/s", f"{finished.seconds:,.1f} s, {finished.workers} worker{'s' * (finished.workers != 1)}"),
    ]
    if totals.retention is not None:
        tiles.insert(3, (f"{totals.retention:.1%}", f"retention, mean of {totals.retention_records:,}"))
    cells = "".join(f'<div class="tile"><b>{escape(big)}</b><span>{escape(small)}</span></div>' for big, small in tiles)
    return f'<div class="tiles">{cells}</div>'


def short(number: int) -> str:
    """A number in at most four characters and a unit."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}"
    return str(number)


def _outcome(totals: Totals) -> str:
    counts = [(name, colour, getattr(totals, status)) for status, (name, colour) in STATUSES.items()]
    parts = "".join(
        f'<i style="flex:{count};background:var(--{colour})" title="{name}: {count:,}"></i>'
        for name, colour, count in counts
        if count
    )
    key = "".join(
        f'<span><i class="dot" style="background:var(--{colour})"></i>{name} <b>{count:,}</b></span>'
        for name, colour, count in counts
    )
    return f'<section><h2>What became of them</h2><div class="bar">{parts}</div><div class="key">{key}</div></section>'


def _tokens(finished: TrajectoryAccount) -> str:
    totals = finished.totals
    used = sorted({*totals.before, *totals.after})
    if not used:
        return ""
    target = finished.settings.target_tokens
    bins = range(min(used[0], 0), max(used[-1], 0) + 1)
    labels = [short(bin_edge(number - 1, target)) for number in bins]
    series = [
        Series("before", "before", [totals.before.get(number, 0) for number in bins]),
        Series("after", "after", [totals.after.get(number, 0) for number in bins]),
    ]
    mark = Mark(1 - bins.start, f"target {target:,}")
    drawn = histogram("Tokens per record", labels, series, mark)
    return f"<section><h2>Tokens per record</h2>{drawn}{_key(series)}</section>"


def _shares(totals: Totals) -> str:
    if totals.retentions:
        title, counts, bins, colour = "Retention", totals.retentions, RETENTION_BINS, "good"
        note = "Of facts that the kept turns use and only the fold held: the share that is still said, with its words."
    else:
        title, counts, bins, colour = "Share of tokens kept", totals.ratios, RATIO_BINS, "after"
        note = "Of records that were folded: tokens after, as a share of tokens before."
    if not counts:
        return ""
    labels = [f"{100 * number // bins}%" for number in range(bins)]
    values = [counts.get(number, 0) for number in range(bins)]
    values[-1] += counts.get(bins, 0)
    drawn = histogram(title, labels, [Series(title.lower(), colour, values)])
    return f'<section><h2>{title}</h2>{drawn}<p class="faint note">{note}</p></section>'


def _key(series: Sequence[Series]) -> str:
    dots = "".join(
        f'<span><i class="dot" style="background:var(--{item.colour})"></i>{escape(item.name)}</span>'
        for item in series
    )
    return f'<div class="key">{dots}</div>'


def _files(finished: TrajectoryAccount) -> str:
    names = list(finished.files)
    rows = [
        _row(
            escape(name),
            f"{item.records:,}",
            f"{item.compressed:,}",
            f"{item.over_limit:,}",
            f"{item.failed:,}",
            f"{short(item.tokens_before)} → {short(item.tokens_after)}",
        )
        for name, item in list(finished.files.items())[:MOST_FILES]
    ]
    rows += [_row(escape(item.file), "", "", "", "", escape(item.reason)) for item in finished.failed_files]
    more = f'<p class="faint note">and {len(names) - MOST_FILES:,} more files</p>' if len(names) > MOST_FILES else ""
    return _table("Files", ("file", "records", "compressed", "over limit", "failed", "tokens"), rows) + more


def _troubles(troubled: Sequence[RecordMetrics], finished: TrajectoryAccount) -> str:
    if not troubled:
        return ""
    rows = [
        _row(
            f"{escape(record.file)}, line {record.line}",
            escape(STATUSES[record.status][0]),
            f"{record.tokens_after:,}" if record.tokens_after else "",
            escape(record.reason),
            plain=(1, 3),
        )
        for record in troubled[:MOST_ROWS]
    ]
    left = finished.totals.failed + finished.totals.over_limit - len(rows)
    more = f'<p class="faint note">and {left:,} more: all of them are among the metrics</p>' if left > 0 else ""
    return _table("Records to look at", ("where", "outcome", "tokens", "reason"), rows, plain=(1, 3)) + more


def _row(*cells: str, plain: tuple[int, ...] = ()) -> str:
    inner = "".join(
        f"<td>{cell}</td>" if not number or number in plain else f'<td class="n">{cell}</td>'
        for number, cell in enumerate(cells)
    )
    return f"<tr>{inner}</tr>"


def _table(title: str, names: Sequence[str], rows: Sequence[str], plain: tuple[int, ...] = ()) -> str:
    if not rows:
        return ""
    head = "".join(
        f"<th>{name}</th>" if not number or number in plain else f'<th class="n">{name}</th>'
        for number, name in enumerate(names)
    )
    return f"<section><h2>{title}</h2><table><tr>{head}</tr>{''.join(rows)}</table></section>"
