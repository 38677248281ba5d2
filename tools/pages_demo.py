"""Fills a store with recorded transcripts, replayed turn by turn, so that there is something to look at.

python tools/pages_demo.py sqlite:///demo.db FILE.jsonl...   conversations in OpenAI chat shape, one per line

Sessions are folded as they go, in the windows their models would leave an agent that shares them. Usage is what a
prefix cache with a lifetime of five minutes would report for the requests midfold made; nothing is sent anywhere.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from midfold.core.message import Message
from midfold.core.tokens import Meter
from midfold.core.usage import Usage
from midfold.service import Sessions, open_sessions
from midfold.session import Session
from midfold.turns import Turns

LIFETIME_MS = 300_000
SECONDS_PER_TURN = 20
WINDOWS = {"claude": 64_000, "gpt": 96_000, "deepseek": 24_000}
UNKNOWN_WINDOW = 12_000
LEAST_CACHED = 1_024
UUID = 36


class Clock:
    """The time at which things were said."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class PrefixCache:
    """What a provider with automatic caching would report: the longest prefix of the last prompt, while it lives."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.last: list[bytes] = []
        self.at = 0

    def usage(self, messages: tuple[Message, ...], at: int, *, bills_writes: bool) -> Usage:
        digests = [message.digest for message in messages]
        sizes = [self.meter.tokens(self.meter.units(message), 1) for message in messages]
        alive = at - self.at <= LIFETIME_MS
        pairs = zip(self.last, digests, strict=False)
        common = next(
            (place for place, (old, new) in enumerate(pairs) if old != new), min(len(self.last), len(digests))
        )
        read = sum(sizes[:common]) if alive else 0
        read = read if read >= LEAST_CACHED else 0
        self.last, self.at = digests, at
        prompt = max(sum(sizes), 1)
        written = max(prompt - read - 8, 0) if bills_writes else 0
        return Usage(prompt_tokens=prompt, completion_tokens=200, cache_read_tokens=read, cache_write_tokens=written)


def conversations(paths: list[str]) -> Iterator[dict[str, Any]]:
    for path in paths:
        with Path(path).open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def replay(
    sessions: Sessions, clock: Clock, conversation: dict[str, Any], *, began: float, name: str, window: int
) -> Session:
    """One conversation, turn by turn, with its own pauses where they were recorded."""
    model = conversation["model"]
    session = sessions.session(name, model=model, context_length=window)
    turns, cache = Turns(sessions.store), PrefixCache(Meter())
    first = next(filter(None, map(_seconds, conversation["messages"])), 0.0)
    clock.now = began
    for message in conversation["messages"]:
        said = _seconds(message)
        clock.now = max(clock.now + 0.2, began + said - first if said else clock.now + SECONDS_PER_TURN / 2)
        if message["role"] == "assistant" and session.info is not None:
            if session.should_compact():
                session.compact()
            usage = cache.usage(session.view().transcript, int(clock.now * 1000), bills_writes="claude" in model)
            session.observe(usage)
            info = session.info
            assert info is not None
            turns.record(info, usage, at=int(clock.now * 1000), model=model)
        session.append([{key: value for key, value in message.items() if key not in ("_meta", "reasoning_content")}])
    return session


def name_of(conversation: dict[str, Any]) -> str:
    source, last = conversation["id"].partition("/")[0], conversation["id"].rpartition("/")[2]
    return f"{source.replace('_', '-')}/{last[:8] if len(last) == UUID else last}"


def _seconds(message: dict[str, Any]) -> float:
    said = (message.get("_meta") or {}).get("ts")
    return datetime.fromisoformat(said).timestamp() if said else 0.0


def main(arguments: list[str]) -> int:
    if len(arguments) < 2:
        print(__doc__)
        return 2
    url, *paths = arguments
    clock = Clock()
    found = list(conversations(paths))
    now = time.time()
    with open_sessions(url, clock=clock) as sessions:
        for number, conversation in enumerate(found):
            began = now - 86_400 * 9 * (1 - number / len(found)) - 3_600
            window = next((size for part, size in WINDOWS.items() if part in conversation["model"]), UNKNOWN_WINDOW)
            session = replay(sessions, clock, conversation, began=began, name=name_of(conversation), window=window)
            info = session.info
            if info is not None:
                print(f"{info.name}: {info.count:,} messages, {info.compactions} compactions", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
