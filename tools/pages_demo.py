"""Fill a store with recorded transcripts, replayed turn by turn, as demo data for the pages.

python tools/pages_demo.py sqlite:///demo.db FILE.jsonl...   conversations in OpenAI chat format, one per line

Sessions are folded during the replay, in small windows. Usage is simulated by the cache model of midfold.lab, with
a
lifetime of five minutes; nothing is sent anywhere.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from midfold.cache import is_claude
from midfold.cache.prices import prices_for
from midfold.lab.replay_player import SentView, SimulatedCache
from midfold.session.session import Session
from midfold.session.sessions import Sessions, open_sessions
from midfold.store.usage import Turns
from midfold.transcript.message import Usage
from midfold.transcript.tokens import Meter

SECONDS_PER_TURN = 20
WINDOWS = {"claude": 64_000, "gpt": 96_000, "deepseek": 24_000}
UNKNOWN_WINDOW = 12_000
LEAST_CACHED, ANSWER = 1_024, 200
UUID = 36
NAMES = {
    "claude_code_entire": "entire/claude-code-",
    "claude_code_packmind": "packmind/claude-code-",
    "codex_agentv": "agentv/codex-",
    "miniswe_deepseek": "bench/mini-swe-agent-",
    "tau_airline_gpt4o": "airline/",
}


class Clock:
    """Clock set to the time of the recorded messages."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def conversations(paths: list[str]) -> Iterator[dict[str, Any]]:
    for path in paths:
        with Path(path).open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def replay(
    sessions: Sessions, clock: Clock, conversation: dict[str, Any], *, began: float, name: str, window: int
) -> Session:
    """Replay one conversation turn by turn, with its recorded pauses if there are any."""
    model = conversation["model"]
    session = sessions.session(name, model=model, context_length=window)
    turns, cache, meter = Turns(sessions.store), SimulatedCache(prices_for(model), LEAST_CACHED), Meter()
    first = next(filter(None, map(_seconds, conversation["messages"])), 0.0)
    clock.now = began
    for message in conversation["messages"]:
        said = _seconds(message)
        clock.now = max(clock.now + 0.2, began + said - first if said else clock.now + SECONDS_PER_TURN / 2)
        if message["role"] == "assistant" and session.info is not None:
            if session.should_compact():
                session.compact()
            usage = billed(cache, SentView(meter, session.view().transcript), session, clock.now)
            session.observe(usage)
            info, told = session.info, session.health.last.kind if session.health.last else None
            assert info is not None
            turns.record(info, usage, at=int(clock.now * 1000), model=model, kind=told)
        session.append([{key: value for key, value in message.items() if key not in ("_meta", "reasoning_content")}])
    return session


def billed(cache: SimulatedCache, view: SentView, session: Session, now: float) -> Usage:
    """Return the usage Anthropic would report with the planned markers, or a provider with automatic caching."""
    if is_claude(session.setup.model):
        places = (hint.message_index for hint in session.cache_hints())
        marked = [place for place in places if 0 <= place < len(view.messages)]
        return msgspec.structs.replace(cache.send(view, marked, now), completion_tokens=ANSWER)
    usage = cache.send(view, range(len(view.messages)), now)
    return msgspec.structs.replace(usage, cache_write_tokens=0, completion_tokens=ANSWER)


def name_of(conversation: dict[str, Any]) -> str:
    """Return a session name as a gateway or plugin would build it: owner, client, id."""
    source, last = conversation["id"].partition("/")[0], conversation["id"].rpartition("/")[2]
    return f"{NAMES.get(source, f'{source}/')}{last[:8] if len(last) == UUID else last}"


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
