"""Overview of a whole transcript without an LLM: the user's requests verbatim, and the tracked work."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from midfold.compaction.handoff import generated_messages
from midfold.compaction.local.fold_reader import sentences
from midfold.compaction.local.line_selection import DEMAND, MAX_SHORT_MESSAGE_CHARS
from midfold.compaction.redact import redact
from midfold.compaction.tracking import Trail, follow, parse, render
from midfold.transcript.message import Transcript
from midfold.transcript.wrappers import user_words


def trail_of(messages: Transcript) -> Trail:
    """Return the tracked work of these messages, continuing from the newest midfold handoff among them."""
    ours = generated_messages(messages)
    start = next((at for at in reversed(ours) if ours[at].kind == "fold" and not ours[at].is_foreign), None)
    if start is None:
        return follow(Trail(), messages, redact)
    before = parse(ours[start].body)
    ahead = before.ahead + sum(start < at <= start + before.ahead for at in ours)
    return follow(msgspec.structs.replace(before, messages=start + 1, ahead=ahead), messages[start + 1 :], redact)


def artifacts_text(messages: Transcript, tokens: int = 3_000) -> str:
    """Return the files, side effects, checks and reads of an agent in at most `tokens` tokens, redacted."""
    trail = trail_of(messages)
    sections = render(trail, tokens).items()
    text = "\n\n".join("\n".join([f"## {name}", *lines]) for name, lines in sections if lines)
    return text or f"{trail.messages:,} messages, and no call in them made, did, checked or read anything that is known"


def asks_text(messages: Transcript, characters: int = 4_000) -> str:
    """Return the user's messages, one per line, in about `characters` characters: the first one and the newest ones.

    A long message is reduced to its beginning and its demands. Secrets are redacted.
    """
    lines = list(_user_lines(messages))
    left, start = characters - sum(map(len, lines[:1])), len(lines)
    while start > 1 and left >= len(lines[start - 1]):
        start -= 1
        left -= len(lines[start])
    between = [f"[{start - 1} earlier asks: search finds them]"] if start > 1 else []
    return "\n".join(f"- {line}" for line in (*lines[:1], *between, *lines[max(start, 1) :]))


def _user_lines(messages: Transcript) -> Iterator[str]:
    known: set[str] = set()
    for message in messages:
        words = redact(user_words(message)).strip()
        if not words or words in known:
            continue
        known.add(words)
        if len(words) <= MAX_SHORT_MESSAGE_CHARS:
            yield " ".join(words.split())
            continue
        first = " ".join(words[: MAX_SHORT_MESSAGE_CHARS // 2].split())
        demands = [one for one in sentences(words[MAX_SHORT_MESSAGE_CHARS // 2 :]) if DEMAND.search(one)]
        yield " ".join([f"{first} […]", *demands])[:MAX_SHORT_MESSAGE_CHARS]
