"""Recorded conversations as they are replayed: one history each, with times, and with exams along the way.

Rules of this file:
1. What the agent's own compactions cut apart is joined again; the summaries they left are taken out.
2. Every answer of the model was one request, at the time of what it answers. Where no times were recorded, a stated gap
   stands between two requests.
3. At a few requests, evenly spread, the view is examined: does it hold what the rest of the transcript really used?
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import NamedTuple

import msgspec

from midfold.eval.cuts import LEAST_FUTURE, LEAST_PAST, Cut, Split, in_split
from midfold.eval.generic import shared_facts
from midfold.eval.run import facts_by_project
from midfold.eval.score import Exam, exam_at
from midfold.eval.sessions import Session, load
from midfold.eval.sizes import size
from midfold.transcript.message import ToolCall

STATED_GAP = 20.0
"""Seconds between two requests where nothing was recorded."""
MOST_EXAMS = 6


class Recording(NamedTuple):
    """One conversation: `requests` are the places before which the model was asked, `seconds` when."""

    name: str
    session: Session
    requests: tuple[int, ...]
    seconds: tuple[float, ...]
    timed: bool
    exams: dict[int, Exam]


def load_recordings(
    files: Iterable[str | Path],
    *,
    gap: float = STATED_GAP,
    split: Split = "all",
    least_tokens: int = 0,
    exams: int = MOST_EXAMS,
) -> list[Recording]:
    """The conversations of transcript files, or of one half of them."""
    sessions = load(files)
    generic = shared_facts(facts_by_project(sessions)) if exams else frozenset()
    joined = [_joined(list(group)) for _, group in groupby(sessions, key=lambda session: session.conversation)]
    return [
        _recording(session, gap, generic, exams)
        for session in joined
        if in_split(session, split) and sum(map(size, session.messages)) >= least_tokens
    ]


def _joined(sessions: Sequence[Session]) -> Session:
    first, *rest = sessions
    return msgspec.structs.replace(
        first,
        messages=sum((later.messages[1:] for later in rest), first.messages),
        human=sum((later.human[1:] for later in rest), first.human),
        times=sum((later.times[1:] for later in rest), first.times),
    )


def _recording(session: Session, gap: float, generic: frozenset[str], exams: int) -> Recording:
    messages = session.messages
    requests = [
        at
        for at in range(1, len(messages))
        if messages[at].role == "assistant" and messages[at - 1].role != "assistant"
    ]
    seconds: list[float] = []
    for at in requests:
        recorded = session.times[at - 1]
        earliest = seconds[-1] if seconds else 0.0
        seconds.append(max(recorded, earliest) if recorded is not None else earliest + (gap if seconds else 0.0))
    cuts = _spread(session, requests, exams)
    taken = {at: exam_at(Cut(session, at), generic) for at in cuts}
    timed = any(time is not None for time in session.times)
    return Recording(
        session.conversation,
        session,
        tuple(requests),
        tuple(seconds),
        timed,
        {at: e for at, e in taken.items() if e.needs},
    )


def _spread(session: Session, requests: Sequence[int], most: int) -> list[int]:
    """Requests at which the view is examined: enough before them, enough after them, every call answered."""
    before = list(accumulate(map(size, session.messages), initial=0))
    last = len(session.messages) - LEAST_FUTURE
    allowed = [at for at in requests if at <= last and before[at] >= LEAST_PAST and not _calls(session, at - 1)]
    count = min(most, len(allowed))
    return [allowed[(2 * number + 1) * len(allowed) // (2 * count)] for number in range(count)]


def _calls(session: Session, at: int) -> bool:
    return any(isinstance(part, ToolCall) for part in session.messages[at].parts)
