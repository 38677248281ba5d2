"""Test steps: compaction through every API with the model running, misconfigured and stopped."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import midfold
from e2e import checks
from e2e.environment import ROOT
from e2e.server import MODEL, Server, Witnessed
from midfold.api import request_for
from midfold.compaction.handoff import recognise
from midfold.compaction.receipt import FAILURES, Receipt
from midfold.compaction.request import Flow, Outcome, SummaryRequest
from midfold.config import Config
from midfold.config.schema import Auxiliary, AuxiliaryTask
from midfold.engines import Compressor
from midfold.errors import SummaryFailed
from midfold.model import advance
from midfold.model.run import failed_answer
from midfold.model.summarizer import ModelSummarizer, summarizer_for
from midfold.transcript.message import Transcript

EXAMPLE = ROOT / "examples" / "coding-session.json"
OTHER_EXAMPLE = ROOT / "examples" / "airline-session.json"
SHARED = ROOT.parent / "shared" / "data" / "miniswe_deepseek" / "conversations.jsonl"
CONVERSATION = 32_000
"""Window in tokens of the compacted conversation, not of the summary model."""
MODEL_FAILURES = ("malformed", "filtered", "ineffective")
"""Failure kinds allowed because a model this small may write an invalid summary."""

UNSEEN = ("network", "timeout", "malformed")
"""Failure kinds after which the server's log may have no request."""


class Done(NamedTuple):
    """Finished step: its result, the server's counts, and the violations found."""

    name: str
    seconds: float
    receipt: Receipt
    seen: Witnessed
    broken: list[str]
    handoff: str = ""


class Conversation(NamedTuple):
    name: str
    messages: list[dict[str, Any]]


def conversations() -> tuple[Conversation, Conversation]:
    """Return the project's example and a shared transcript, or the other example if there is none."""
    first = Conversation(EXAMPLE.stem, json.loads(EXAMPLE.read_text(encoding="utf-8"))["messages"])
    if not SHARED.exists():
        return first, Conversation(
            OTHER_EXAMPLE.stem, json.loads(OTHER_EXAMPLE.read_text(encoding="utf-8"))["messages"]
        )
    with SHARED.open(encoding="utf-8") as lines:
        found = json.loads(next(lines))
    return first, Conversation(str(found["id"]).rpartition("/")[2], found["messages"])


def settings(url: str, window: int, *, model: str = MODEL, timeout: float = 600.0) -> Config:
    """Return the configuration a user would write for a local model."""
    task = AuxiliaryTask(
        base_url=url,
        model=model,
        context_length=window,
        timeout=timeout,
        extra_body=json.dumps({"temperature": 0.2, "repeat_penalty": 1.1, "seed": 7}),
    )
    return Config(auxiliary=Auxiliary(compression=task))


def window_for(messages: list[dict[str, Any]]) -> int:
    """Return a window that is smaller than the conversation."""
    size = request_for(midfold.read(messages)).meter.count(midfold.read(messages).messages).tokens
    return min(CONVERSATION, max(size, 2_000))


class Steps:
    """Runner of steps against one server, with their results."""

    def __init__(self, server: Server, told: Callable[[Done], None]) -> None:
        self.server = server
        self.told = told
        self.done: list[Done] = []

    def note(self, name: str, started: float, receipt: Receipt, broken: list[str], view: Transcript = ()) -> None:
        seen = self.server.witnessed()
        if receipt.summary.failure not in UNSEEN and receipt.summary.calls != len(seen.statuses):
            broken.append(f"the receipt counts {receipt.summary.calls} calls, the server {len(seen.statuses)}")
        handoff = next((ours.body for message in view if (ours := recognise(message)) and ours.kind == "fold"), "")
        self.done.append(Done(name, time.monotonic() - started, receipt, seen, broken, handoff))
        self.told(self.done[-1])

    def compacts(
        self, name: str, messages: list[Any], config: Config, kinds: tuple[str, ...] = ()
    ) -> midfold.Compaction:
        """Run `midfold.compact`. With `kinds` the summary must fail with one of them; without, it may succeed."""
        given, started = copy.deepcopy(messages), time.monotonic()
        result = midfold.compact(messages, config=config, context_length=window_for(messages))
        receipt = result.receipt
        broken = [] if messages == given else ["the caller's messages were changed"]
        broken += judged(receipt, kinds, config.auxiliary.compression.model or "")
        if receipt.status == "compacted":
            broken += checks.folded(result.before, result.transcript, dict(result.archive), receipt)
        else:
            broken += checks.untouched(messages, result.messages, given)
        self.note(name, started, receipt, broken, result.transcript)
        return result

    def hosted(self, name: str, messages: list[Any], config: Config) -> None:
        """Run `EngineHost` twice: a first fold, then more of the same conversation after its own summary."""
        host = midfold.EngineHost(context_length=window_for(messages), config=config)
        half = midfold.read(messages).messages
        started = time.monotonic()
        host.append(messages)
        broken = [] if host.should_compress() else ["the host sees no pressure"]
        view = host.compress(messages)
        self._judge_host(f"{name}, first", started, host, broken, half, view)
        longer = [*view, *_again(messages)]
        exported = json.loads(json.dumps(host.export()))
        host = midfold.EngineHost(context_length=host.window, config=config)
        host.restore(exported)
        host.append(longer)
        started = time.monotonic()
        again = host.compress(longer, force=True)
        self._judge_host(f"{name}, update after a restart", started, host, [], midfold.read(longer).messages, again)

    def _judge_host(
        self, name: str, started: float, host: midfold.EngineHost, broken: list[str], before: Transcript, view: Any
    ) -> None:
        assert host.last is not None
        after = midfold.read(view).messages
        broken += judged(host.last, ())
        broken += checks.folded(before, after, host.archive, host.last)
        if host.last.fold in host.archive and not host.unfold(host.last.fold):
            broken.append("the fold does not unfold")
        self.note(name, started, host.last, broken, after)

    def awaited(self, name: str, messages: list[Any], config: Config) -> None:
        """Run the same flow with asyncio; the event loop must not be blocked."""
        document = midfold.read(messages)
        request = request_for(document, context_length=window_for(messages), config=config)
        summarizer = summarizer_for(config, None)
        assert isinstance(summarizer, ModelSummarizer)
        started = time.monotonic()
        outcome, longest = asyncio.run(_beside_a_heartbeat(request, summarizer))
        broken = judged(outcome.receipt, ())
        broken += checks.folded(document.messages, outcome.messages, dict(outcome.archive), outcome.receipt)
        broken += [] if longest < 2.0 else [f"the event loop stood still for {longest:.1f} s"]
        self.note(name, started, outcome.receipt, broken, outcome.messages)

    def killed_midway(self, name: str, messages: list[Any], config: Config, after: float) -> None:
        """Kill the server while it writes."""
        threading.Timer(after, self.server.kill).start()
        self.compacts(name, messages, config, ("network", "malformed"))

    def gone(self, messages: list[Any], config: Config) -> None:
        """Check without a server: input unchanged, cooldown kept, force retries, JSON export included."""
        given = copy.deepcopy(messages)
        first = self.compacts("server gone", messages, config, ("network",))
        started = time.monotonic()
        paused = midfold.compact(messages, config=config, context_length=window_for(messages), state=first.state)
        broken = checks.untouched(messages, paused.messages, given)
        quick = time.monotonic() - started < 1.0 and any(
            "no model was asked" in note for note in paused.receipt.notices
        )
        broken += [] if quick else ["the pause after the failure was not kept"]
        self.note("server gone, again at once", started, paused.receipt, broken)
        host, started = midfold.EngineHost(context_length=window_for(messages), config=config), time.monotonic()
        returned = host.compress(messages, force=True)
        broken = checks.untouched(messages, returned, given) + ([] if not host.archive else ["archive"])
        assert host.last is not None
        self.note("server gone, host, forced", started, host.last, broken + judged(host.last, ("network",)))


def judged(receipt: Receipt, kinds: tuple[str, ...], model: str = MODEL) -> list[str]:
    """Check that the receipt has the model's summary or the failure policy's outcome."""
    kind = receipt.summary.failure
    if not kinds and receipt.summary.source == "model":
        return checks.filled(receipt, model)
    broken = checks.decided(receipt, kinds or MODEL_FAILURES)
    then = FAILURES[kind].then if kind in FAILURES else ""
    if kind and receipt.status != {"keep": "aborted", "local": "compacted"}.get(then):
        broken.append(f"{kind} ended as {receipt.status}")
    return broken


async def _awaited(flow: Flow, summarizer: ModelSummarizer) -> Outcome:
    step = advance(flow)
    while isinstance(step, SummaryRequest):
        try:
            answer = await summarizer.later(step)
        except SummaryFailed as failed:
            answer = failed_answer(failed, time.time())
        step = advance(flow, answer)
    return step


async def _beside_a_heartbeat(request: Any, summarizer: ModelSummarizer) -> tuple[Outcome, float]:
    longest = 0.0

    async def heartbeat() -> None:
        nonlocal longest
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.05)
            longest = max(longest, time.monotonic() - before - 0.05)

    beating = asyncio.create_task(heartbeat())
    try:
        return await _awaited(Compressor().compress(request), summarizer), longest
    finally:
        beating.cancel()


def _again(messages: list[Any]) -> list[Any]:
    """Return the newest half of the conversation again, from a position where a user message may follow."""
    start = next((n for n in range(len(messages) // 2, len(messages)) if messages[n]["role"] == "user"), 0)
    return [{"role": "user", "content": "Go on with the rest of it."}, *messages[start + 1 :]]
