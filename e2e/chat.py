"""Short chat with the real model through the agent loop, until it has been folded once."""

from __future__ import annotations

import json
import time

import midfold
from e2e.environment import ROOT
from e2e.server import MODEL, Server
from e2e.steps import Done, Steps, judged, settings
from midfold.agent import Agent, ModelClient, Toolbox
from midfold.agent.events import Answered, Event, Folded, Overflowed
from midfold.compaction.handoff import recognise
from midfold.model.endpoint import Endpoint
from midfold.transcript.laws import violations

EXAMPLE = ROOT / "examples" / "coding-session.json"
MOST_TURNS = 10
LONGEST_ANSWER = 24
ASKED = 450
"""Characters of each user message, taken from a real conversation."""


def chatted(steps: Steps, server: Server, window: int) -> None:
    """Run turns until the conversation was folded, and one more after the fold."""
    started, events = time.monotonic(), list[Event]()
    config = settings(server.url, window)
    texts = [text for message in json.loads(EXAMPLE.read_text())["messages"] if (text := message.get("content"))]
    material = "\n".join(text for text in texts if isinstance(text, str))
    endpoint = Endpoint(name="e2e", wire="openai", base_url=server.url, model=MODEL, timeout=300.0)
    with midfold.open("memory:", config=config) as sessions:
        session = sessions.session("chat", model=MODEL, context_length=window, system="Answer briefly.")
        asking = {"longest_answer": LONGEST_ANSWER, "background": False}  # this server answers one request at a time
        agent = Agent(session, ModelClient(endpoint), Toolbox([]), watch=events.append, **asking)  # type: ignore[arg-type]
        for number in range(MOST_TURNS):
            part = material[number * ASKED : (number + 1) * ASKED]
            agent.run(f"Question {number}. What is this about?\n{part}")
            if any(_is_fold(event) for event in events):
                break
        agent.run("Thank you. What did I ask you first?")
        made = [record.receipt for record in session.receipts()]
        view = session.view().transcript
        handoffs = [ours.body for message in view if (ours := recognise(message)) and ours.kind == "fold"]
        broken = [] if len(made) == 1 and len(handoffs) == 1 else [f"{len(made)} folds, {len(handoffs)} handoffs"]
        broken += [f"illegal: {what}" for what in violations(view)]
        broken += ["a request was too large"] if any(isinstance(event, Overflowed) for event in events) else []
        broken += [] if made and session.unfold(made[0].fold) else ["the fold does not unfold"]
        broken += judged(made[0], ()) if made else []
        answers = sum(isinstance(event, Answered) for event in events)
        seen = server.witnessed()
        if made and len(seen.statuses) != answers + made[0].summary.calls:
            broken.append(
                f"{answers} answers and {made[0].summary.calls} summary calls, but {len(seen.statuses)} requests"
            )
        receipt = made[0] if made else session.preview(force=True)
        done = Done(f"a chat of {answers} turns", time.monotonic() - started, receipt, seen, broken, "".join(handoffs))
    steps.done.append(done)
    steps.told(done)


def _is_fold(event: Event) -> bool:
    return isinstance(event, Folded) and event.status == "compacted"
