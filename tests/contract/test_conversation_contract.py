"""All APIs make the same decision, with the same cooldown, size and view, for the same history and settings.

Hygiene has a separate trigger, so it has a separate table at the end.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import msgspec
import pytest

import midfold
from midfold.adapters.hermes import HermesEngine
from midfold.agent.events import ignore
from midfold.agent.window import AgentWindow
from midfold.compaction.budget import Pressure
from midfold.compaction.context import CompactionContext
from midfold.compaction.finish import leave
from midfold.compaction.handoff import UNFOLDS
from midfold.compaction.request import CompactionRequest, Flow, SummaryRequest
from midfold.config import Compression, Config
from midfold.config.schema import GatewaySettings
from midfold.engines import Compressor, ContextEngine
from midfold.errors import SummaryFailed
from midfold.models import ModelOverride
from midfold.testing import FakeClock
from midfold.testing.answers import value
from midfold.testing.doubles import ScriptedProvider
from midfold.transcript.message import plain
from support.gateways import running

TALK: list[dict[str, Any]] = [
    message
    for n in range(80)
    for message in (
        {"role": "user", "content": f"Question {n}: what of part {n}? " + "Tell me all of it. " * 5},
        {"role": "assistant", "content": f"Part {n} is in src/part_{n}.py. " + "It is tested and done. " * 9},
    )
] + [{"role": "user", "content": "And what is left?"}]
SIZE = midfold.compact(TALK, model="m", context_length=10**6).report.old_tokens
UNCOUNTED = value({"choices": []})
"""Answer without usage: sizes remain estimates."""
SUMMARY = "## Goal\nAnswer what the parts are.\n\n## Progress\n### Done\n" + "- the parts were looked at\n" * 60
SUMMARY += "\n## Next Steps\n- tell the user what the parts are"


class Writer:
    """Summary model that fails as scripted and counts its requests."""

    def __init__(self) -> None:
        self.kind: Any = ""
        self.asked = 0

    def __call__(self, ask: SummaryRequest) -> str:
        self.asked += 1
        if self.kind:
            raise SummaryFailed(self.kind)
        return SUMMARY


class Way:
    """API that holds a conversation. `attempt` runs before a request and folds if due."""

    mode: ClassVar[str] = "manage"

    def __init__(self, window: int, *, engine: ContextEngine | None = None, **compression: Any) -> None:
        self.window, self.engine = window, engine
        self.writer, self.clock = Writer(), FakeClock()
        self.config = Config(
            compression=Compression(**compression),
            gateway=GatewaySettings(mode=self.mode),  # type: ignore[arg-type]
            models={"*": ModelOverride(context_window=window)},
        )
        self.stack = ExitStack()
        self.begin()

    def begin(self) -> None:
        self.view: list[Any] = list(TALK)
        self.size = 0

    def restart(self) -> None:
        """End the process and continue in a new one."""
        self.begin()

    def attempt(self, *, force: bool = False) -> bool:
        raise AssertionError


class Plain(Way):
    def begin(self) -> None:
        super().begin()
        self.state = getattr(self, "state", None)

    def attempt(self, *, force: bool = False) -> bool:
        done = midfold.compact(
            self.view,
            model="m",
            context_length=self.window,
            state=self.state,
            force=force,
            config=self.config,
            engine=self.engine,
            summarizer=self.writer,
            clock=self.clock,
        )
        self.view, self.state, self.size = done.messages, done.state, done.report.old_tokens
        return done.changed


class Host(Way):
    def begin(self) -> None:
        super().begin()
        saved = self.host.export() if hasattr(self, "host") else None
        self.host = midfold.EngineHost(
            self.engine,
            model="m",
            context_length=self.window,
            config=self.config,
            summarizer=self.writer,
            clock=self.clock,
        )
        if saved is not None:
            self.host.restore(saved)
        self.host.append(self.view)

    def attempt(self, *, force: bool = False) -> bool:
        self.size = self.host.size.tokens
        if not force and not self.host.should_compress():
            return False
        before, self.view = self.view, self.host.compress(self.view, force=force)
        return self.view is not before


class Stored(Way):
    def begin(self) -> None:
        super().begin()
        if not hasattr(self, "sessions"):
            self.sessions = midfold.open(
                "memory:", config=self.config, engine=self.engine, summarizer=self.writer, clock=self.clock
            )
            self.stack.enter_context(self.sessions)
            self.open().append(self.view)
        self.session = self.open()

    def open(self) -> midfold.Session:
        return self.sessions.session("s", model="m", context_length=self.window)

    def attempt(self, *, force: bool = False) -> bool:
        self.size = self.session.size.tokens
        done = self.session.compact(force=force) if force or self.session.should_compact() else None
        self.view = self.session.view().messages
        return done is not None and done.changed


class StoredVerbs(Stored):
    def begin(self) -> None:
        super().begin()
        self.host = midfold.EngineHost(conversation=self.session)

    attempt = Host.attempt  # type: ignore[assignment]


class Agent(Stored):
    """Context management of midfold's agent."""

    def attempt(self, *, force: bool = False) -> bool:
        if force:
            return super().attempt(force=True)
        self.size = self.session.size.tokens
        room, before = AgentWindow(self.session, ignore, background=False), len(self.session.receipts())
        room.before(first=False)
        self.view = self.session.view().messages
        return len(self.session.receipts()) > before


class Managed(Stored):
    """Gateway: it receives the whole history each time and cannot be requested to fold."""

    def begin(self) -> None:
        super().begin()
        if hasattr(self, "gateway_stack"):
            self.gateway_stack.close()
        self.gateway_stack = self.stack.enter_context(ExitStack())
        self.provider = self.gateway_stack.enter_context(ScriptedProvider(then=lambda request: UNCOUNTED))
        place = msgspec.structs.replace(self.config.gateway, upstream=self.provider.url)
        config = msgspec.structs.replace(self.config, gateway=place)
        self.gateway = self.gateway_stack.enter_context(
            running(self.provider.url, sessions=self.sessions, config=config)
        )

    def attempt(self, *, force: bool = False) -> bool:
        body = msgspec.json.encode({"model": "m", "messages": TALK})
        _, head, _ = self.gateway.post("/v1/chat/completions", body)
        self.view = self.provider.requests[-1].body["messages"]
        self.size = int(head.get("x-midfold-tokens-before", 0)) or SIZE
        return head["x-midfold-action"] in ("compacted", "pruned")


class Hygiene(Managed):
    mode: ClassVar[str] = "hygiene"


class Hermes(Way):
    """Hermes plugin: Hermes decides when to compress, and its own client writes the summary."""

    def begin(self) -> None:
        super().begin()
        saved = self.made._conversation.save() if hasattr(self, "made") else None
        self.made = HermesEngine(config=self.config, call=self.call, clock=self.clock)
        if self.engine is not None:
            self.made._setup.engine = self.engine
        self.made.update_model("m", self.window)
        if saved is not None:
            self.made._conversation.restore(saved)

    def call(self, **request: Any) -> Any:
        try:
            text = self.writer(None)  # type: ignore[arg-type]
        except SummaryFailed as failed:
            raise type("Refused", (Exception,), {"status_code": {"auth": 401, "timeout": 408}[failed.kind]}) from None
        return types.SimpleNamespace(choices=[types.SimpleNamespace(message=types.SimpleNamespace(content=text))])

    def attempt(self, *, force: bool = False) -> bool:
        self.size = SIZE if self.made.should_compress_preflight(self.view) else 0
        if not force and not self.size:
            return False
        before, self.view = self.view, self.made.compress(self.view, self.size or None, force=force)
        return self.view is not before


WAYS: tuple[type[Way], ...] = (Plain, Host, Stored, StoredVerbs, Agent, Managed, Hermes)


@pytest.fixture
def begin() -> Iterator[Callable[..., Way]]:
    with ExitStack() as stack:

        def make(kind: type[Way], window: int, **settings: Any) -> Way:
            way = kind(window, **settings)
            stack.push(way.stack)
            return way

        yield make


ways = pytest.mark.parametrize("kind", WAYS, ids=lambda kind: kind.__name__)
Begin = Callable[..., Way]


class Eager(Compressor):
    """Engine that wants to fold at any size."""

    name: ClassVar[str] = "eager"
    reads_messages: ClassVar[bool] = True

    def should_compress(self, request: CompactionRequest) -> Pressure:
        assert request.messages
        return Pressure.HARD

    def compress(self, request: CompactionRequest) -> Flow:
        return super().compress(msgspec.structs.replace(request, force=True))


class Reluctant(Compressor):
    """Engine that never starts a fold automatically."""

    name: ClassVar[str] = "reluctant"

    def should_compress(self, request: CompactionRequest) -> Pressure:
        return Pressure.NONE


class Useless(Compressor):
    """Engine that attempts folds without any reduction."""

    name: ClassVar[str] = "useless"

    def __init__(self) -> None:
        self.tried = 0

    def compress(self, request: CompactionRequest) -> Flow:
        yield from ()
        self.tried += 1
        return leave(CompactionContext(request), "nothing came of it", strike=True)


@ways
def test_the_threshold_is_inclusive(kind: type[Way], begin: Begin) -> None:
    assert begin(kind, 2 * SIZE).attempt(), "a size that has reached the threshold is folded"
    below = begin(kind, 2 * SIZE + 2)
    assert not below.attempt()
    assert below.view == TALK
    assert below.writer.asked == 0 or isinstance(below, Managed), "only the gateway prepares a fold beside a request"


@ways
def test_the_engine_says_when(kind: type[Way], begin: Begin) -> None:
    assert begin(kind, 20 * SIZE, engine=Eager()).attempt(), "an engine that asks for a fold gets it"
    refusing = begin(kind, SIZE + 2_000, engine=Reluctant())
    assert not refusing.attempt(), "an engine that does not ask for one is left alone"
    assert (refusing.view, refusing.writer.asked) == (TALK, 0)


@ways
def test_disabled_means_nothing_by_itself(kind: type[Way], begin: Begin) -> None:
    way = begin(kind, SIZE + 2_000, enabled=False)
    assert not way.attempt()
    assert (way.view, way.writer.asked) == (TALK, 0)


@ways
def test_two_folds_that_came_to_nothing_stop_the_next(kind: type[Way], begin: Begin) -> None:
    engine = Useless()
    way = begin(kind, SIZE + 2_000, engine=engine)
    for _ in range(5):
        assert not way.attempt()
        way.clock.advance(61)
    assert engine.tried == 2
    way.restart()
    way.attempt()
    assert engine.tried == 2, "and a restart does not make them more hopeful"


@ways
@pytest.mark.parametrize(("failure", "pause", "folds"), [("auth", 300, False), ("timeout", 60, True)])
def test_after_a_failure_nobody_asks_before_the_pause_is_over(
    kind: type[Way], failure: str, pause: int, folds: bool, begin: Begin
) -> None:
    way = begin(kind, SIZE + 2_000, lossy_fallback=True)
    way.writer.kind = failure
    assert way.attempt() is folds
    assert way.writer.asked == 1
    if folds:
        return
    for seconds in (61, 120, 118):
        way.clock.advance(seconds)
        assert not way.attempt()
        assert way.writer.asked == 1, f"asked again {pause - 1} s or less after a failure"
    way.restart()
    assert not way.attempt()
    assert way.writer.asked == 1, "the pause outlives the process"
    way.clock.advance(2)
    way.writer.kind = ""
    assert way.attempt()
    assert way.writer.asked == 2


@ways
def test_without_lossy_summaries_every_failure_waits(kind: type[Way], begin: Begin) -> None:
    way = begin(kind, SIZE + 2_000, lossy_fallback=False)
    way.writer.kind = "timeout"
    assert not way.attempt()
    way.clock.advance(59)
    assert not way.attempt()
    assert way.writer.asked == 1
    way.clock.advance(2)
    way.writer.kind = ""
    assert way.attempt()


@pytest.mark.parametrize("kind", [kind for kind in WAYS if kind is not Managed], ids=lambda kind: kind.__name__)
def test_who_asks_is_obeyed_at_once(kind: type[Way], begin: Begin) -> None:
    way = begin(kind, 20 * SIZE, enabled=False)
    way.writer.kind = "auth"
    assert not way.attempt(force=True)
    way.writer.kind = ""
    assert way.attempt(force=True)
    assert way.writer.asked == 2


def test_sizes_and_views_are_the_same_everywhere(begin: Begin) -> None:
    made = {kind.__name__: begin(kind, SIZE + 2_000) for kind in WAYS}
    assert all(way.attempt() for way in made.values())
    assert {name: way.size for name, way in made.items()} == dict.fromkeys(made, SIZE)
    views = {name: [plain(message) for message in way.view] for name, way in made.items()}
    # Hermes offers the unfold tools, and a handoff mentions them only if they are offered.
    views["Hermes"] = json.loads(json.dumps(views["Hermes"]).replace(UNFOLDS, ""))
    first = views["Plain"]
    assert len(first) < len(TALK)
    assert views == dict.fromkeys(views, first)


@contextmanager
def measured(window: int, body: dict[str, Any]) -> Iterator[int]:
    """Yield the size that a gateway measures."""
    config = Config(models={"*": ModelOverride(context_window=window)}, gateway=GatewaySettings(mode="manage"))
    with (
        ScriptedProvider(then=lambda request: UNCOUNTED) as provider,
        midfold.open("memory:") as sessions,
    ):
        place = msgspec.structs.replace(config.gateway, upstream=provider.url)
        with running(provider.url, sessions=sessions, config=msgspec.structs.replace(config, gateway=place)) as gateway:
            _, head, _ = gateway.post("/v1/messages", msgspec.json.encode(body))
            yield int(head["x-midfold-tokens-before"])


def test_system_blocks_and_tools_are_counted_the_same_everywhere() -> None:
    blocks = [
        {"type": "text", "text": "You are careful. " * 50, "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "So be it.\n" * 20},
    ]
    tools = [{"name": "look", "description": "Looks. " * 30, "input_schema": {"type": "object", "properties": {}}}]
    body = {"model": "claude-x", "max_tokens": 100, "system": blocks, "tools": tools, "messages": TALK}
    report = midfold.compact(TALK, system=blocks, tools=tools, model="claude-x", context_length=10**6).report
    host = midfold.EngineHost(model="claude-x", system=blocks, tools=tools)
    host.append(TALK)
    session = midfold.open("memory:").session("s", model="claude-x", system=blocks, tools=tools, dialect="anthropic")
    session.append(TALK)
    text = midfold.EngineHost(model="claude-x", system="You are careful. " * 50 + "So be it.\n" * 20, tools=tools)
    text.append(TALK)
    with measured(report.old_tokens + 2_000, body) as seen:
        assert {report.old_tokens, host.size.tokens, session.size.tokens} == {seen}
    assert abs(text.size.tokens - host.size.tokens) < 5, "blocks cost what their text costs"


EDGE = max(window for window in range(SIZE, 2 * SIZE) if int(window * 0.85) <= SIZE)
"""Largest window in which this conversation takes 85 %."""
HYGIENE = [
    ("a token below 85 %", EDGE + 1, False),
    ("at 85 %", EDGE, True),
]


@pytest.mark.parametrize(("what", "window", "folds"), HYGIENE, ids=[row[0] for row in HYGIENE])
def test_hygiene_acts_at_its_own_trigger(what: str, window: int, folds: bool, begin: Begin) -> None:
    assert begin(Hygiene, window).attempt() is folds


@pytest.mark.parametrize("failure", ["auth", "network"])
def test_hygiene_keeps_the_pause_of_the_table(failure: str, begin: Begin) -> None:
    way = begin(Hygiene, SIZE)
    way.writer.kind = failure
    pause = {"auth": 300, "network": 30}[failure]
    assert not way.attempt()
    way.clock.advance(pause - 1)
    assert not way.attempt()
    way.restart()
    assert not way.attempt()
    assert way.writer.asked == 1
    way.clock.advance(2)
    way.writer.kind = ""
    assert way.attempt()


def test_hygiene_lets_strikes_stop_it(begin: Begin) -> None:
    engine = Useless()
    way = begin(Hygiene, SIZE, engine=engine)
    for _ in range(4):
        assert not way.attempt()
        way.clock.advance(61)
    assert engine.tried == 2
