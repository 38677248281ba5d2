"""Check a summary against its source before it is trusted.

    rejection(text, ask)      why a text is not a summary, or ""
    lacking(text, ask)        what a summary must have and this one lacks, or ""
    accept(answer, ask)       whether to use an answer: strict for models midfold calls, any text of a caller's
    summarizer
    audit_summary(ask, text)  the summary with its claims grounded, instructions quoted and omitted names added

- Refusals, error pages, empty texts and summaries longer than their source are failures. So is a summary that names
  no task, no work or no state, or is far too short for its fold.
- The budget is the model's. Only what models omit and midfold knows verbatim is added below: names from the last
  steps and the trail, never filler. The user's words are quoted before the summary (`user_record`).
- Claims that are uncertain in the source are marked.
- A model's text that is too long loses lines of its longest sections, not its end.
- The result is redacted, within its budget, and cannot be taken for an instruction.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec

from midfold.compaction.handoff import bare_summary
from midfold.compaction.injection import (
    Identifier,
    Source,
    defuse,
    ground,
    identifiers,
    is_suspicious,
    quote_instructions,
)
from midfold.compaction.local.identifiers import constants
from midfold.compaction.local.local_summary import KeptNames, count_names
from midfold.compaction.request import ADDED_SHARE, SummaryAnswer, SummaryRequest
from midfold.compaction.summary import (
    CHARACTERS_PER_TOKEN,
    FENCE,
    SECTIONS,
    StructuredSummary,
    follows_template,
    has_open_code,
    parse_summary,
    sections_text,
)
from midfold.compaction.tracking import without_stale_states, without_trail
from midfold.errors import FailureKind
from midfold.transcript.message import Message, Text, ToolCall, ToolResult
from midfold.transcript.tokens import estimate_text
from midfold.transcript.wrappers import user_words

SCANNED_FOR_MODEL = 150_000
"""Characters read to count the facts that a model's summary has, for the receipt."""
MIN_SOURCE_TOKENS = 400
"""Tokens up to which a fold may have a summary as long as itself."""
MIN_CHECKED_TOKENS = 2_000
"""Minimum tokens of a fold whose summary is checked for content."""
EXPECTED_SHARE = 0.2
"""Share of a fold that its summary should have, at most its budget."""
MIN_EXPECTED_SHARE = 0.15
"""Minimum share of the expected size."""
TASK = ("task_snapshot", "goal", "constraints", "pending")
WORK = ("done", "progress", "in_progress", "decisions", "resolved", "files")
STATE = ("active_state", "in_progress", "blocked", "pending", "next_steps", "task_snapshot")
_REFUSAL = re.compile(
    r"\s*(?:i['’]?m sorry|i am sorry|sorry,|i apologi[sz]e|i can(?:no|['’])t|i am unable|i['’]m unable|i won['’]t|"
    r"as an ai\b|unfortunately, i\b|i must decline|my apologies)",
    re.I,
)
_PAGE = re.compile(r"\s*(?:<!doctype|<html|<\?xml|<head|<body)", re.I)
_ERROR = re.compile(
    r"\s*(?:\{\s*\"(?:error|detail|message)\"|(?:error|exception)\b[: ]|(?:http )?[45][0-9]{2}\b|"
    r"(?:internal server error|bad gateway|service unavailable|gateway time-?out|too many requests|rate limit))",
    re.I,
)
_TOOL_CALL = re.compile(r"\s*(?:<(?:tool_call|function_calls?|invoke)\b|\{\s*\"(?:name|tool|function)\"\s*:)")


class Audit(NamedTuple):
    """Checked summary and the findings of the check."""

    text: str
    unverified: int = 0
    removed: int = 0
    quoted: int = 0
    book: KeptNames = KeptNames()


def rejection(text: str, request: SummaryRequest, *, is_whole: bool = True) -> FailureKind:
    """Return why this is not a summary; empty if it may be one. A part of one (not `is_whole`) may be incomplete."""
    body = bare_summary(text)
    if not body or _PAGE.match(body) or _TOOL_CALL.match(body):
        return "malformed"
    headings = body.count("\n#") + body.startswith("#")
    if not headings and len(body) < 2_000 and _ERROR.match(body):
        return "malformed"
    if not headings and _REFUSAL.match(body):
        return "filtered"
    enough = max(estimate_text(body), MIN_SOURCE_TOKENS + 1)
    if MIN_SOURCE_TOKENS < source_tokens(request, enough) < enough:
        return "ineffective"
    return "malformed" if is_whole and lacking(text, request) else ""


def lacking(text: str, request: SummaryRequest) -> str:
    """Return what a summary of this fold must have and the text lacks, worded for its author; empty if nothing."""
    expected = int(
        min(request.asked_tokens, source_tokens(request, int(request.asked_tokens / EXPECTED_SHARE)) * EXPECTED_SHARE)
    )
    if expected < MIN_CHECKED_TOKENS * EXPECTED_SHARE:
        return ""
    body = bare_summary(text)
    size = estimate_text(body)
    if size < expected * MIN_EXPECTED_SHARE:
        return f"it was far too short, about {size:,} tokens of {request.asked_tokens:,}"
    if not follows_template(body):
        return ""
    summary = parse_summary(body)
    kinds = (("the task", TASK), ("what was done", WORK), ("the present state", STATE))
    missing = [name for name, keys in kinds if not any(getattr(summary, key).strip() for key in keys)]
    return f"it did not say {' nor '.join(missing)}" if missing else ""


class Acceptance(NamedTuple):
    """Failure of an unusable answer, or the notice about a doubtful one that is used."""

    failure: FailureKind
    notice: str = ""


def accept(answer: SummaryAnswer, request: SummaryRequest, *, is_whole: bool) -> Acceptance:
    """Apply the strict checks to a model's answer; accept any text of a caller's summarizer, with a notice."""
    if answer.strict:
        return Acceptance(rejection(answer.text, request, is_whole=is_whole))
    if not bare_summary(answer.text):
        return Acceptance("malformed")
    doubt = _DOUBTS.get(rejection(answer.text, request, is_whole=False), "") or lacking(answer.text, request)
    return Acceptance("", f"Accepted the summarizer's text, although {doubt}." if doubt else "")


_DOUBTS: dict[FailureKind, str] = {
    "malformed": "it looks like an error message or a tool call",
    "filtered": "it looks like a refusal",
    "ineffective": "it is longer than its source",
}


def source_tokens(request: SummaryRequest, enough: int) -> int:
    """Return about how many tokens the summary covers; counting stops at `enough`."""
    length = len(request.previous) + _middles(request)
    for message in request.messages:
        if length // 4 >= enough:
            break
        for part in message.parts:
            if type(part) is Text or type(part) is ToolResult:
                length += len(part.text)
            elif type(part) is ToolCall:
                length += len(part.arguments) + len(part.name)
    return length // 4


def _middles(request: SummaryRequest) -> int:
    """Return the characters of truncated results that only the summary covers."""
    ends = 3 * request.shown_results
    results = (
        (part for message in request.after for part in message.parts if isinstance(part, ToolResult)) if ends else ()
    )
    return sum(max(len(part.text) - ends, 0) for part in results)


def audit_summary(request: SummaryRequest, text: str, *, strict: bool = True) -> Audit:
    """Return the checked summary; if not strict, unknown names and doubts are counted but not marked."""
    known = (*request.before, *request.messages, *request.after)
    written = request.redact(_without_added(without_stale_states(without_trail(bare_summary(text)), request.trail)))
    checked = ground(written, Source(known, request.previous, request.focus or ""))
    certain, doubted = mark_doubts(checked.text if strict else written, request)
    unverified, removed = checked.marked + doubted, checked.removed
    claimed = _with_task(parse_summary(certain), request)
    if not strict:
        unverified, removed, claimed = unverified + removed, 0, parse_summary(written)
    quiet = quote_instructions(claimed.render(), known, request.redact)
    trail = sections_text(request.trail_lines)
    added = _omissions(request, f"{quiet.text}\n{trail}")
    max_tokens = request.max_answer_tokens - estimate_text(added) - estimate_text(trail)
    summary = _with_lines(_fit_into(parse_summary(quiet.text), max_tokens, terse=request.dense), request.trail_lines)
    body = ("\n" if request.dense else "\n\n").join(filter(None, [summary.render(terse=request.dense), added]))
    book = count_names(request, f"{request.words.text}\n{body}", SCANNED_FOR_MODEL)
    return Audit(request.redact(defuse(body)), unverified, removed, quiet.lines, book)


# Doubts: mark claims that the assistant only supposed, by a rule that marks few true lines.
#
# A line is marked if it has a name and most of the words of the last sentence about that name, and that sentence is
# hedged while the line is not.


UNCERTAIN = " [not certain in the source]"
SAME_CLAIM = 0.75
"""Minimum share of a sentence's longer words for a line to make the same claim."""
MAX_DOUBT_MESSAGES = 600
"""Maximum newest messages that are searched for doubts."""
HEDGE = re.compile(
    r"\b(?:probabl[ey]|likely|perhaps|maybe|might|may be|could be|seems?|appears? to|presumably|i think|not sure|"
    r"unsure|unverified|untested|unclear|unconfirmed|not (?:yet )?(?:been )?(?:verified|confirmed|tested|checked)|"
    r"assum(?:e|ed|es|ing)|suspect|guess|possibly|apparently|should be)\b|\?"
)
"""Pattern for lower-case text; ignoring case would be several times as slow."""
_HINTS = (
    "probabl", "likely", "perhaps", "maybe", "might", "may be", "could be", "seem", "appear", "presumabl", "i think",
    "not ", "unsure", "unverif", "untest", "unclear", "unconfirm", "assum", "suspect", "guess", "possibl", "apparent",
    "should be", "?",
)  # fmt: skip
"""Substrings of which every match of the pattern has one; searching for them costs a tenth of it."""
_SPAN = re.compile(r"`([^`\n]{3,80})`")


def is_hedged(text: str) -> bool:
    """Return whether a text says that it is not certain."""
    low = text.lower()
    return any(map(low.__contains__, _HINTS)) and HEDGE.search(low) is not None


def mark_doubts(text: str, request: SummaryRequest) -> tuple[str, int]:
    """Return a summary with a mark on each line about which the source is uncertain, and the number of marks."""
    lines = text.split("\n")
    certain = {
        place: names
        for place, line in enumerate(lines)
        if not line.startswith("#") and (names := _names(line)) and not is_hedged(line)
    }
    doubts = _doubts(request, set().union(*certain.values()))
    marked = 0
    for place, names in certain.items():
        words = frozenset(_WORDS.findall(lines[place].lower()))
        if any(len(doubts[name] & words) >= SAME_CLAIM * len(doubts[name]) for name in names if name in doubts):
            lines[place] += UNCERTAIN
            marked += 1
    return "\n".join(lines), marked


def _doubts(request: SummaryRequest, names: set[str]) -> dict[str, frozenset[str]]:
    """Return, by name, the words of the assistant's last sentence about it if that was hedged."""
    found: dict[str, frozenset[str]] = {}
    for message in (*request.messages, *request.after)[-MAX_DOUBT_MESSAGES:]:
        for part in message.parts if message.role == "assistant" else ():
            text = part.text[:MAX_READ_CHARACTERS] if isinstance(part, Text) else ""
            near = [name for name in names if name in text] if text and (found or is_hedged(text)) else []
            for sentence in _SENTENCE.split(text) if near else ():
                words = frozenset(_WORDS.findall(HEDGE.sub(" ", sentence.lower()))) if is_hedged(sentence) else ()
                if len(words) >= MIN_CLAIM_WORDS:
                    found.update((name, frozenset(words)) for name in near if name in sentence)
                else:
                    found = {name: doubt for name, doubt in found.items() if name not in sentence}
    return found


def _names(line: str) -> set[str]:
    return {*_SPAN.findall(line), *(item.text for item in identifiers(line))}


# Additions: what a model omitted, added verbatim below its text.


ADDED = "## Word for Word"
CONSTANTS = "- Constants that were read: "
MAX_CONSTANTS = 12
MAX_ADDED_SHARE = 0.15
"""Maximum share of the budget for additions if the text leaves it free."""
TOLERANCE = 1.05
"""Factor on its limit up to which a text is not cut."""
MIN_CLAIM_WORDS = 4
MIN_SPOKEN_SHARE = 0.1
"""Minimum share of a task's longer words that users must have said, in any message."""
LAST_STEPS = 8
"""Number of last messages of the fold whose names belong to open work."""
MAX_NAMES = 8
"""Maximum names of the last steps that are added."""
_WORDS = re.compile(r"\w{4,40}+")
_SENTENCE = re.compile(r"[ \t\n](?:(?<=[.!?][ \t])[ \t]*|(?<=\n)\n*)")


def _omissions(request: SummaryRequest, written: str) -> str:
    """Return names of the last steps and constants that a text lacks, in a section of their own.

    The section uses tokens that the text leaves free, and at least its fixed share.
    """
    left = min(request.max_answer_tokens - estimate_text(written), int(request.budget_tokens * MAX_ADDED_SHARE))
    max_tokens = max(left, int(request.budget_tokens * ADDED_SHARE))
    names = _open_names(request, f"{request.words.text}\n{written}")
    while names and estimate_text(line := f"- Named in the last steps: {', '.join(names)}") > max_tokens:
        names.pop()
    lines = [line] if names else []
    max_tokens -= estimate_text(line) if names else 0
    lines += _constants_line(request, written, max_tokens)
    return "\n".join([ADDED, *lines]) if lines else ""


def _without_added(text: str) -> str:
    """Drop the added section that a model copied from the previous summary; it is written anew."""
    before, found, rest = text.partition(f"{ADDED}\n")
    return f"{before}{rest[rest.find(chr(10) + '#') + 1 :] if chr(10) + '#' in rest else ''}" if found else text


def _with_task(summary: StructuredSummary, request: SummaryRequest) -> StructuredSummary:
    """Drop a task that no user mentioned; the user's own words are quoted before the summary."""
    said = filter(None, map(user_words, reversed((*request.messages, *request.after))))
    newest = next(said, "")
    own = set(_WORDS.findall(summary.task_snapshot.lower()))
    unspoken = set(own)
    for text in chain((newest, request.previous), map(_text_of, request.before), said):
        if not newest or len(own) - len(unspoken) >= MIN_SPOKEN_SHARE * len(own):
            return summary
        unspoken.difference_update(_WORDS.findall(text.lower()))
    if len(own) - len(unspoken) >= MIN_SPOKEN_SHARE * len(own):
        return summary
    return msgspec.structs.replace(summary, task_snapshot="")


def _open_names(request: SummaryRequest, written: str) -> list[str]:
    """Return the addresses, paths and ids that the assistant used repeatedly in its last steps and a text lacks."""
    counts: dict[str, int] = {}
    for message in request.messages[-LAST_STEPS:]:
        for part in message.parts if message.role == "assistant" else ():
            text = part.text if type(part) is Text else part.arguments if type(part) is ToolCall else ""
            named = (
                item.text for item in identifiers(request.redact(text[:MAX_READ_CHARACTERS])) if _is_specific(item)
            )
            for name in dict.fromkeys(named):
                counts[name] = counts.get(name, 0) + 1
    known = "\n".join([written, *(_text_of(message) for message in (*request.before, *request.after))])
    root = f"{request.trail.root}/"
    written_as = {name: name.removeprefix(root) for name in counts}
    owners = Counter(map(_own_name, counts))
    written_as |= {name: own for name in counts if owners[own := _own_name(name)] == 1}
    absent = [name for name, count in counts.items() if count > 1 and not _occurs_in(written_as[name], known)]
    return [f"`{name.removeprefix(root)}`" for name in absent[-MAX_NAMES:]]


def _own_name(name: str) -> str:
    """Return the name of a file without its folders; any other name unchanged."""
    last = name.rpartition("/")[2]
    return last if "." in last and "://" not in name else name


def _occurs_in(name: str, text: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(name)}", text) is not None


def _constants_line(request: SummaryRequest, written: str, max_tokens: int) -> list[str]:
    """Return a line with the newest constants, read or from the previous summary, that a text lacks and that fit.

    Their values cannot be guessed, and each takes only a few words.
    """
    found = constants(request.previous)
    for message in request.messages:
        for part in message.parts:
            if type(part) is ToolResult:
                found.update(constants(part.text[:MAX_READ_CHARACTERS]))
    absent = [f"`{name} = {value}`" for name, value in found.items() if name not in written]
    safe = (item for item in absent if request.redact(item) == item and not is_suspicious(item))
    kept = list(safe)[-MAX_CONSTANTS:]
    while kept and estimate_text(line := f"{CONSTANTS}{', '.join(kept)}") > max_tokens:
        kept.pop(0)
    return [line] if kept else []


def _is_specific(item: Identifier) -> bool:
    """Return whether a name is specific to the work: no device, system folder or file without a folder."""
    if item.kind != "path":
        return item.kind in ("url", "hash", "id")
    return item.text.count("/") > 1 and not item.text.startswith(("/dev/", "/bin/", "/usr/", "/etc/", "/proc/"))


MAX_READ_CHARACTERS = 20_000


def _text_of(message: Message) -> str:
    return "\n".join(
        part.arguments if isinstance(part, ToolCall) else part.text
        for part in message.parts
        if isinstance(part, (Text, ToolCall, ToolResult))
    )


def _with_lines(summary: StructuredSummary, lines: Mapping[str, Sequence[str]]) -> StructuredSummary:
    """Return a summary with lines appended to its sections."""
    return msgspec.structs.replace(
        summary,
        **{key: "\n".join([*filter(None, [getattr(summary, key).strip()]), *more]) for key, more in lines.items()},
    )


LEFT_OUT = "- […]"
GAP = " […]"
MIN_WORDS_TOKENS = 12
"""Minimum tokens for the beginning of a truncated line to be kept."""


def _fit_into(summary: StructuredSummary, max_tokens: int, *, terse: bool) -> StructuredSummary:
    """Return a summary cut to its limit: the longest sections lose lines, those of finished work their oldest."""
    sizes = {section.key: estimate_text(getattr(summary, section.key)) for section in SECTIONS}
    over = estimate_text(summary.render(terse=terse)) - int(max_tokens * TOLERANCE)
    if over <= 0:
        return summary
    low, high = 0, max(sizes.values())
    while high - low > 1:
        most = (low + high) // 2
        if sum(max(size - most, 0) for size in sizes.values()) >= over:
            low = most
        else:
            high = most
    return msgspec.structs.replace(
        summary,
        **{key: _shorter(getattr(summary, key), low, key == "done") for key, size in sizes.items() if size > low},
    )


def _shorter(text: str, max_tokens: int, oldest: bool) -> str:
    """Return the lines of a section that fit, dropping the last ones, or the `oldest`."""
    lines = text.strip().split("\n")
    kept: list[str] = []
    left = max_tokens - estimate_text(LEFT_OUT) - 1
    cut_line = ""
    for line in reversed(lines) if oldest else lines:
        if estimate_text(line) + 1 > left:
            cut_line = first_words(line, left)
            break
        left -= estimate_text(line) + 1
        kept.append(line)
    if not kept:
        return cut_line or first_words(lines[0], max_tokens) or LEFT_OUT
    rest = "\n".join(reversed(kept) if oldest else kept)
    cut = [FENCE] if has_open_code(rest) else []
    mark = LEFT_OUT if cut else cut_line or LEFT_OUT
    return "\n".join([mark, *cut, rest] if oldest else [rest, *cut, mark])


def first_words(line: str, max_tokens: int) -> str:
    """Return the first words of a line that fit; empty if they would hardly say anything."""
    max_tokens -= estimate_text(GAP)
    words = line[: int(max_tokens * CHARACTERS_PER_TOKEN)].rpartition(" ")[0] if max_tokens >= MIN_WORDS_TOKENS else ""
    while words and (size := estimate_text(words)) > max_tokens:
        words = line[: int(len(words) * max_tokens / size)].rpartition(" ")[0]
    return words and f"{words}{GAP}"


def trust_summary(request: SummaryRequest, text: str) -> Audit:
    """Return a summary as its author wrote it, for callers who check their summaries themselves."""
    return Audit(request.redact(defuse(bare_summary(text))))


def local_audit(request: SummaryRequest, answer: SummaryAnswer) -> Audit:
    """Check a summary made by rules: it makes no claims of its own, but what it quotes is defused."""
    quiet = quote_instructions(
        bare_summary(answer.text), (*request.before, *request.messages, *request.after), request.redact
    )
    kept, recoverable, estimate = answer.facts or (0, 0, 1.0)
    book = KeptNames(kept=kept, recoverable=recoverable, estimate=estimate)
    return Audit(request.redact(defuse(quiet.text)), quoted=quiet.lines, book=book)
