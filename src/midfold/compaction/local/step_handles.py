"""Add message handles to the lines of a summary about steps, files and errors.

1. Rules decide, not the summarizer: a line gets the handle of the call, result or text of the fold that shares most of
   its rare names, or none if there is no clear match.
2. Errors and files come first, then the newest steps, within the reserved tokens. In a small summary only errors and
   files get handles.
3. Each handle is written once, long enough to be unique. A line carried unchanged into the next summary keeps its
   handle.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from midfold.compaction.archive import PREFIX, UNFOLD_TOOL, framed_handles, handle_of, handles_in
from midfold.compaction.request import CompactionRequest, SummaryRequest
from midfold.transcript.message import Message, Text, ToolCall, ToolResult, Transcript
from midfold.transcript.tokens import estimate_text

WRITTEN_DIGITS = 8
_HANDLE_CHARS = len(PREFIX) + WRITTEN_DIGITS
MAX_FOLD_CHARS = 300_000
"""Characters of the fold scanned for names."""
MIN_TEXT_CHARS = 300
MAX_TEXT_CHARS = 4_000
"""Minimum and maximum characters scanned of one text."""
MAX_RARE_PLACES = 3
"""Maximum number of messages that share a rare name."""
MIN_MATCH_WEIGHT = 0.5
"""Minimum weight of shared names for a match."""
SMALL_BUDGET = 1_500
SHARE = 0.05
SMALL_SHARE = 0.025
"""Shares of a summary's budget for handles, from SMALL_BUDGET tokens on and below."""
_ADDED = re.compile(rf" {PREFIX}[0-9a-f]{{{WRITTEN_DIGITS}}}$", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9_./@:-]{4,}")
_ERROR = re.compile(r"\b(?:fail|error|exception|traceback|refused|denied)|\bexit [1-9]", re.IGNORECASE)
_FILE = re.compile(r"[\w-]\.[a-z]{1,5}\b")


def can_unfold(request: CompactionRequest) -> bool:
    """Return whether the model has an unfold tool, or gets one with the fold."""
    offered = (*request.tools, *request.late_tools)
    return request.has_unfold_tool or any(tool.name == UNFOLD_TOOL for tool in offered)


def handle_tokens(budget: int) -> int:
    """Return the tokens to reserve for handles."""
    return int(budget * (SHARE if budget >= SMALL_BUDGET else SMALL_SHARE))


def short_handle(message: Message) -> str:
    """Return the handle of a message as written in summaries."""
    return handle_of(message)[:_HANDLE_CHARS]


def without_step_handles(summary: str) -> str:
    """Return the summary without added handles."""
    return _ADDED.sub("", summary)


def with_step_handles(
    body: str, request: SummaryRequest, folded: Transcript, earlier: str, is_own: Callable[[str], bool]
) -> str:
    """Append handles to the lines they support.

    `folded` are the summarized messages, `earlier` is the previous summary, `is_own` returns whether a handle resolves.
    """
    left = request.handle_tokens
    lines = body.split("\n")
    known = {line[: match.start()]: match[0][1:] for line in earlier.split("\n") if (match := _ADDED.search(line))}
    ranked = [(rank, place) for place, line in enumerate(lines) if (rank := _rank(line, place, request.budget_tokens))]
    if not left or not ranked:
        return body
    names = {place: _names(_with_details(lines, place), MAX_TEXT_CHARS) for _, place in ranked}
    sources = _sources(folded, set().union(*names.values()))
    written = {handle[:_HANDLE_CHARS] for handle in handles_in(body)}
    for _, place in sorted(ranked, reverse=True):
        handle = known.get(lines[place]) or _best(names[place], sources)
        cost = estimate_text(f" {handle}")
        if handle and handle not in written and cost <= left and is_own(handle):
            left -= cost
            written.add(handle)
            lines[place] += f" {handle}"
    return "\n".join(lines)


def _rank(line: str, place: int, budget: int) -> tuple[int, int] | None:
    if not line.startswith("- ") or line.startswith("- ("):
        return None
    kind = 2 if _ERROR.search(line) else 1 if _FILE.search(line) else 0
    return (kind, place) if kind or budget >= SMALL_BUDGET else None


def _with_details(lines: list[str], place: int) -> Iterator[str]:
    """Yield a line and the indented lines below it."""
    yield lines[place]
    for line in lines[place + 1 :]:
        if not line.startswith(" "):
            return
        yield line


def _sources(messages: Transcript, wanted: set[str]) -> dict[str, list[str]]:
    """Map names to the handles of the texts that contain them, newest last."""
    max_chars = min(max(MAX_FOLD_CHARS // max(len(messages), 1), MIN_TEXT_CHARS), MAX_TEXT_CHARS)
    found: dict[str, list[str]] = {}
    for handle, texts in _by_handle(messages):
        for name in wanted & _names(texts, max_chars).keys():
            found.setdefault(name, []).append(handle)
    return found


def _names(texts: Iterable[str], max_chars: int) -> dict[str, None]:
    """Return names in text order, which decides between handles of equal weight."""
    return dict.fromkeys(name for text in texts for name in _NAME.findall(text[:max_chars]))


def _by_handle(messages: Transcript) -> Iterator[tuple[str, list[str]]]:
    """Yield the texts of each handle. A call joins its result, so that its handle shows the outcome."""
    calls: dict[str, str] = {}
    for message in messages:
        own = short_handle(message)
        said = []
        for part in message.parts:
            if isinstance(part, ToolCall):
                calls[part.id] = part.arguments
            elif isinstance(part, ToolResult):
                framed = sorted(framed_handles([part.text]))
                handle = framed[0][:_HANDLE_CHARS] if framed else own
                yield handle, [calls.pop(part.call_id, ""), part.text]
            elif isinstance(part, Text):
                said.append(part.text)
        if said:
            yield own, said


def _best(names: Iterable[str], sources: dict[str, list[str]]) -> str:
    weights: dict[str, float] = {}
    for name in names:
        places = dict.fromkeys(sources.get(name, ()))
        if 0 < len(places) <= MAX_RARE_PLACES:
            for handle in places:
                weights[handle] = weights.get(handle, 0.0) + 1 / len(places)
    best = max(reversed(weights), key=weights.__getitem__, default="")
    return best if best and weights[best] >= MIN_MATCH_WEIGHT else ""
