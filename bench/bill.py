"""Measure the cost of recorded sessions in sessions, gateway and agent, with and without the automatic schedule.

python -m bench.bill ../shared/data [--every 4] [--windows 32k,64k,128k,200k] [--out bench/results/bill.json]

Every recording is played through the public API: `Session.append/compact/observe`, an HTTP gateway in `manage` mode
in front of a simulated provider, and the agent's own compaction. The provider caches prefixes as Anthropic does and
reports reads and writes. Summaries are made without a model, except in the agent, where each one is billed as if
the
conversation's model had written it.
"""

from __future__ import annotations

import argparse
import datetime
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import midfold
from midfold.agent.events import ignore
from midfold.agent.window import AgentWindow
from midfold.cache.schedule import summary_price
from midfold.compaction.request import SummaryAnswer, SummaryRequest
from midfold.config import Config
from midfold.config.schema import GatewaySettings, PromptCaching
from midfold.gateway import create_app
from midfold.lab.recorded_sessions import load_sessions
from midfold.lab.replay_player import Player, Recording, SentView, load_recordings
from midfold.lab.replay_policies import DEFAULT
from midfold.lab.replays import MODEL
from midfold.lab.retention_score import score
from midfold.model import local_summarizer
from midfold.models import ModelOverride
from midfold.testing import FakeClock
from midfold.testing.answers import Answer, value
from midfold.testing.doubles import Request, ScriptedProvider, served
from midfold.transcript.document import read
from midfold.transcript.message import Transcript, Usage
from midfold.transcript.openai_chat import OpenAIChat
from midfold.transcript.replies import ModelAnswer
from midfold.transcript.splice import message_value

WINDOWS = (32_000, 64_000, 128_000, 200_000)
SCHEDULES = ("threshold", "auto")


class Bill(NamedTuple):
    """Totals for one integration, window and schedule; costs are dollars at the prices of `MODEL`."""

    cost: float = 0.0
    sent: int = 0
    written: int = 0
    rewrites: int = 0
    kept: float = 0.0
    exams: int = 0

    def __add__(self, other: Any) -> Bill:
        return Bill(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class Meterman(Player):
    """Simulated provider: bills each view, and checks whether it still has what the recording used later."""

    def __init__(self, recording: Recording, window: int) -> None:
        super().__init__(recording, DEFAULT, window, MODEL, fixed_tokens=0)
        self.bill, self.at = Bill(), 0

    def ask(self, view: Transcript, now: float) -> Usage:
        """Send one request and return the usage that the provider reports."""
        shown = SentView(self.meter, view)
        rewritten = self.view.common(shown) < len(self.view.messages)
        self.view = shown
        usage = self.cache.send(shown, self._breakpoints(), now)
        self.charge(self.prices.units(usage))
        marks = [score(view, self.recording.exams[self.at]).bound] if self.at in self.recording.exams else []
        self.bill += Bill(
            sent=usage.prompt_tokens,
            written=usage.cache_write_tokens,
            rewrites=rewritten,
            kept=sum(marks),
            exams=len(marks),
        )
        return usage

    def charge(self, units: float) -> None:
        self.bill += Bill(cost=self.prices.money(units))

    def requests(self, clock: FakeClock) -> Iterator[tuple[Transcript, float]]:
        """Yield the new messages before each request, with the time of the request."""
        done, began = 0, clock.now
        for at, seconds in zip(self.recording.requests, self.recording.seconds, strict=True):
            clock.now = began + seconds
            self.at = at
            yield self.recording.session.messages[done:at], clock.now
            done = at


def values(messages: Transcript) -> list[Any]:
    """Return the messages as OpenAI chat messages."""
    return [message_value(message, OpenAIChat) for message in messages]


def reported(usage: Usage) -> dict[str, Any]:
    """Return usage as Anthropic reports it."""
    fresh = usage.prompt_tokens - usage.cache_read_tokens - usage.cache_write_tokens
    return {
        "input_tokens": max(fresh, 0),
        "cache_read_input_tokens": usage.cache_read_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "output_tokens": 0,
    }


def in_session(recording: Recording, window: int, schedule: str) -> Bill:
    provider, clock = Meterman(recording, window), FakeClock(1_000.0)
    config = Config(prompt_caching=PromptCaching(schedule=schedule))  # type: ignore[arg-type]
    with midfold.open("memory:", config=config, clock=clock) as sessions:
        session = sessions.session("s", model=MODEL, context_length=window)
        for new, now in provider.requests(clock):
            session.append(values(new))
            session.compact()
            session.observe(reported(provider.ask(session.view().transcript, now)))
    return provider.bill


def in_agent(recording: Recording, window: int, schedule: str) -> Bill:
    provider, clock = Meterman(recording, window), FakeClock(1_000.0)
    config = Config(prompt_caching=PromptCaching(schedule=schedule))  # type: ignore[arg-type]

    def model(ask: SummaryRequest) -> SummaryAnswer:
        folded = provider.meter.tokens(sum(map(provider.meter.units, ask.messages)), len(ask.messages))
        answer = local_summarizer(ask)
        written = provider.meter.counter.count(answer.text)
        provider.charge(summary_price(folded=folded, prompt=folded, written=written, prices=provider.prices))
        return answer

    with midfold.open("memory:", config=config, clock=clock, summarizer=model) as sessions:
        session = sessions.session("s", model=MODEL, context_length=window)
        room = AgentWindow(session, ignore, background=False)
        for new, now in provider.requests(clock):
            session.append(values(new))
            room.before(first=False)
            usage = provider.ask(session.view().transcript, now)
            room.after(ModelAnswer(usage=reported(usage)))
    return provider.bill


def in_gateway(recording: Recording, window: int, schedule: str) -> Bill:
    provider, clock = Meterman(recording, window), FakeClock(1_000.0)

    def answer(request: Request) -> Answer:
        usage = provider.ask(read(request.raw, dialect="openai-chat").messages, clock.now)
        details = {"cached_tokens": usage.cache_read_tokens, "cache_write_tokens": usage.cache_write_tokens}
        counted = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": 0, "prompt_tokens_details": details}
        return value({"choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}}], "usage": counted})

    with ExitStack() as stack:
        upstream = stack.enter_context(ScriptedProvider(then=answer))
        config = Config(
            gateway=GatewaySettings(upstream=upstream.url, mode="manage", recall="off"),
            prompt_caching=PromptCaching(schedule=schedule),  # type: ignore[arg-type]
            models={"*": ModelOverride(context_window=window)},
        )
        sessions = stack.enter_context(midfold.open("memory:", config=config, clock=clock))
        url = stack.enter_context(served(create_app(config, sessions=sessions, environment={})))
        history: list[Any] = []
        with connected(url) as post:
            for new, _ in provider.requests(clock):
                history += values(new)
                post({"model": MODEL, "messages": history, "max_tokens": 100})
    return provider.bill


@contextmanager
def connected(url: str) -> Iterator[Callable[[Any], None]]:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)

    def post(body: Any) -> None:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"the gateway answered {answer.status}: {text[:300]!r}")

    try:
        yield post
    finally:
        connection.close()


PLACES: dict[str, Callable[[Recording, int, str], Bill]] = {
    "session": in_session,
    "gateway": in_gateway,
    "agent": in_agent,
}


def play(work: tuple[str, Recording, int, str]) -> Bill:
    face, recording, window, schedule = work
    return PLACES[face](recording, window, schedule)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", nargs="?", default="../shared/data")
    parser.add_argument("--every", type=int, default=4, help="play every n-th recording")
    parser.add_argument("--windows", default="32k,64k,128k,200k")
    parser.add_argument("--places", default=",".join(PLACES))
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args(sys.argv[1:] if sys.argv[0].endswith("bill.py") else [])
    windows = [int(part.rstrip("k")) * 1000 for part in chosen.windows.split(",")]
    files = sorted(map(str, Path(chosen.data).rglob("*.jsonl")))
    recordings = [one for one in load_recordings(load_sessions(files)) if one.requests][:: chosen.every]
    rows, origin = [], _origin()
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 2)) as pool:
        for window in windows:
            for face in chosen.places.split(","):
                for schedule in SCHEDULES:
                    work = [(face, recording, window, schedule) for recording in recordings]
                    total = sum(pool.map(play, work, chunksize=2), start=Bill())
                    rows.append({"place": face, "window": window, "schedule": schedule, **_row(total)})
                    print(json.dumps(rows[-1]), flush=True)
    if chosen.out is not None:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps({**origin, "recordings": len(recordings), "rows": rows}, indent=1) + "\n")


def _row(bill: Bill) -> dict[str, Any]:
    return {
        "cost": round(bill.cost, 2),
        "sent": bill.sent,
        "written": bill.written,
        "rewrites": bill.rewrites,
        "kept": round(bill.kept / max(bill.exams, 1), 3),
    }


def _origin() -> dict[str, str]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    return {
        "command": f"python -m bench.bill {' '.join(sys.argv[1:])}".strip(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit.stdout.strip(),
        "model": MODEL,
    }


if __name__ == "__main__":
    main()
