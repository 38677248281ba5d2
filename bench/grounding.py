"""Accuracy of the identifier check on recorded sessions: false alarms, and detected wrong paths.

False alarms are counted in summaries that agents wrote of their own sessions, and in true assistant messages. Wrong
paths combine the folder of one path of a session with the file name of another, and do not occur in it.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from bench.workload import SHARED, report
from midfold import read
from midfold.compaction.injection import Source, identifiers
from midfold.transcript.message import Transcript

LINES = 400
WRONG_PATHS = 40
_FILE = re.compile(r"[\w./~@+-]+/[\w.@+-]+\.\w{1,5}")


def main() -> None:
    if not SHARED.is_dir():
        sys.exit("  needs recorded sessions in ../shared/data")
    conversations = list(_conversations())
    summaries = [pair for messages in conversations for pair in _summaries(messages)]
    known = [_flagged(Source(fold), [text]) for fold, text in summaries]
    _show(f"identifiers flagged in {len(summaries)} summaries that agents wrote", known, most=0.03)
    said = [
        _flagged(Source(read(messages).messages), islice(_lines(messages), LINES))
        for messages in conversations
        if len(messages) >= 12
    ]
    _show("identifiers flagged in what assistants said, against all of it", said, most=0.005)
    wrong = [_noticed(read(messages).messages) for messages in conversations if len(messages) >= 60]
    _show("folder of one path with the file of another, noticed", wrong, least=0.7)


def _show(label: str, counted: list[tuple[int, int]], *, most: float = 1.0, least: float = 0.0) -> None:
    found, total = (sum(column) for column in zip(*counted, strict=True))
    goal = f"<= {most:.1%}" if most < 1 else f">= {least:.0%}"
    report(label, f"{found:,} of {total:,}", goal, met=least * total <= found <= most * total)


def _conversations() -> Iterator[list[dict[str, Any]]]:
    for file in sorted(SHARED.glob("*/conversations.jsonl")):
        for line in file.read_bytes().splitlines():
            yield json.loads(line)["messages"]


def _summaries(messages: list[dict[str, Any]]) -> Iterator[tuple[Transcript, str]]:
    """Yield the messages a recorded compaction folded, with the agent's summary of them."""
    start = 0
    for index, message in enumerate(messages):
        if (message.get("_meta") or {}).get("compact_summary"):
            if index - start >= 10 and isinstance(message["content"], str):
                yield read(messages[start:index]).messages, message["content"]
            start = index


def _lines(messages: list[dict[str, Any]]) -> Iterator[str]:
    for message in messages:
        if message["role"] == "assistant" and isinstance(message.get("content"), str):
            yield from message["content"].split("\n")


def _flagged(source: Source, texts: Iterable[str]) -> tuple[int, int]:
    found = [item for text in texts for line in text.split("\n") for item in identifiers(line)]
    return sum(not source.has(item) for item in found), len(found)


def _noticed(messages: Transcript) -> tuple[int, int]:
    texts = [text for message in messages for text in message.texts()]
    everything = "\n".join(texts).lower()
    found = {item.text for text in texts for line in text[:20_000].split("\n") for item in identifiers(line)}
    paths = sorted(path for path in found if _FILE.fullmatch(path))
    chance = random.Random(3)
    noticed = total = 0
    for _ in range(10 * WRONG_PATHS if len(paths) > 8 else 0):
        one, other = chance.sample(paths, 2)
        wrong = f"{one.rpartition('/')[0]}/{other.rpartition('/')[2]}"
        read_as = identifiers(wrong)
        if wrong.lower() in everything or [item.text for item in read_as] != [wrong]:
            continue
        total += 1
        noticed += not Source(messages).has(read_as[0])
        if total == WRONG_PATHS:
            break
    return noticed, total


if __name__ == "__main__":
    main()
