"""Break-even, the schedule, prices, and cache health of a session."""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec
import pytest

import midfold
from midfold.cache.health import Health, RequestHashes, Turn, fingerprint
from midfold.cache.prices import Prices, prices_for
from midfold.cache.schedule import (
    INSTRUCTION_TOKENS,
    Schedule,
    ScheduleFacts,
    Writer,
    break_even,
    cold_gain,
    pressure,
    schedule,
    summary_price,
)
from midfold.compaction.budget import Pressure
from midfold.compaction.receipt import RecallCost
from midfold.config.schema import Compression, Config, PromptCaching
from midfold.decide import Situation, decide
from midfold.model import local_summarizer
from midfold.models import ModelOverride
from midfold.testing import FakeClock
from midfold.transcript.tokens import Tally

ANTHROPIC = Prices(read=0.1, write=1.25, base=3.0, output=15.0, ttl_seconds=300)


@pytest.mark.parametrize(("read", "write", "calls"), [(0.1, 1.25, 6.9), (0.025, 1.25, 29.4), (0.5, 1.0, 0.6)])
def test_break_even_is_the_formula_of_the_design(read: float, write: float, calls: float) -> None:
    assert break_even(rewritten=60_000, removed=100_000, read=read, write=write) == pytest.approx(calls, abs=0.05)


def test_an_edit_that_removes_nothing_never_pays() -> None:
    assert break_even(rewritten=10, removed=0) == inf
    assert break_even(rewritten=0, removed=10, read=0.0, summary=5) == inf
    assert break_even(rewritten=0, removed=10) == 0
    assert cold_gain(removed=1000, summary=250) == 1000


def moment(**changed: Any) -> ScheduleFacts:
    usual: dict[str, Any] = {
        "pressure": Pressure.SOFT,
        "prompt_tokens": 100_000,
        "stable_tokens": 5_000,
        "landing_tokens": 25_000,
        "idle_seconds": 10.0,
        "calls_so_far": 50,
    }
    return ScheduleFacts(**{**usual, **changed})


@pytest.mark.parametrize(
    ("changed", "fold", "reason"),
    [
        ({"pressure": Pressure.HARD}, True, "hard"),
        ({"pressure": Pressure.NONE, "idle_seconds": 900.0}, False, "below"),
        ({}, False, "waiting"),
        ({"idle_seconds": 301.0}, True, "cold"),
        ({"idle_seconds": None}, True, "cold"),
        ({"idle_seconds": 301.0, "summary_cost": 200_000.0}, False, "waiting"),
        ({"upcoming_idle": 600.0}, True, "expiring"),
        ({"upcoming_idle": 60.0}, False, "waiting"),
        ({"switched": True}, True, "switch"),
        ({"carried_cost": 23_000.0}, True, "pays"),
        ({"carried_cost": 22_999.0}, False, "waiting"),
        ({"carried_cost": 23_000.0, "calls_so_far": 2}, False, "waiting"),
        ({"carried_cost": 23_000.0, "calls_so_far": 2, "expected_calls": 10.0}, True, "pays"),
        ({"carried_cost": 1e9, "landing_tokens": 100_000}, False, "waiting"),
    ],
)
def test_the_schedule(changed: dict[str, Any], fold: bool, reason: str) -> None:
    timing = schedule(moment(**changed), ANTHROPIC)
    assert (timing.fold, timing.reason) == (fold, reason)
    assert timing.told


def test_a_warm_fold_never_costs_more_than_a_twentieth_of_the_bill() -> None:
    price = 1.15 * 20_000
    for spent, fold in ((price / 0.05, False), (price / 0.04, True), (None, True)):
        timing = schedule(moment(carried_cost=1e6, spent=spent), ANTHROPIC)
        assert timing.fold is fold
    assert schedule(moment(idle_seconds=400.0, spent=1.0), ANTHROPIC).fold, "a cold fold costs nothing"


@pytest.mark.parametrize(
    ("tokens", "cold", "expected"),
    [
        (100_000, False, Pressure.HARD),
        (99_999, False, Pressure.SOFT),
        (40_000, False, Pressure.SOFT),
        (39_999, False, Pressure.NONE),
        (39_999, True, Pressure.SOFT),
        (30_000, True, Pressure.SOFT),
        (29_999, True, Pressure.NONE),
    ],
)
def test_cold_moments_are_used_from_a_fixed_size_on(tokens: int, cold: bool, expected: Pressure) -> None:
    assert pressure(tokens, 100_000, 0.4, cold=cold) is expected
    assert pressure(4_500, 10_000, 0.4, cold=True) is Pressure.SOFT, "in a small window the share counts"


@pytest.mark.parametrize(("tokens", "target"), [(90_000, 15_000), (40_000, 15_000), (36_000, 18_000), (19_000, 14_250)])
def test_far_below_the_threshold_a_fold_takes_half_at_most_and_a_quarter_at_least(tokens: int, target: int) -> None:
    assert Schedule(threshold_tokens=100_000, prices=ANTHROPIC).target(tokens) == target


def test_a_summary_is_priced_by_who_writes_it_and_what_it_reads() -> None:
    asked: dict[str, Any] = {"folded": 50_000, "prompt": 60_000, "written": 2_000, "prices": ANTHROPIC}
    fresh = summary_price(**asked)
    assert fresh == 50_000 + INSTRUCTION_TOKENS + 2_000 * 5
    assert summary_price(**asked, reused=True) == 6_000 + INSTRUCTION_TOKENS + 2_000 * 5
    cheap = Prices(base=0.3, output=1.5)
    assert summary_price(**asked, own=cheap) == pytest.approx(fresh / 10)
    dear = Schedule(threshold_tokens=100_000, prices=ANTHROPIC, writer=Writer())
    free = msgspec.structs.replace(dear, writer=None)
    long = Health(turns=90, prompt_tokens=4_000_000, saved_units=3_000_000.0, since_fold=90, since_tokens=4_000_000)
    last = Turn(kind="hit", at=0.0)
    known = msgspec.structs.replace(long, last=last)
    assert free.timing(prompt_tokens=60_000, health=known, now=10.0).reason == "pays"
    waits = dear.timing(prompt_tokens=60_000, health=known, now=10.0)
    assert (waits.reason, waits.summary_cost) == ("waiting", fresh + 10_000)


def test_the_numbers_behind_a_decision_are_told() -> None:
    timing = schedule(moment(), ANTHROPIC)
    assert (timing.rewritten, timing.removed, timing.break_even_calls) == (20_000, 75_000, 3.1)
    assert timing.saved_now == pytest.approx(0.1 * 75_000 - 1.15 * 20_000)


def test_tools_that_come_with_a_fold_count_as_written_and_so_does_what_stands_behind_them() -> None:
    """Tools come first in the prompt: if they change, nothing of the system prompt is read from the cache."""
    bare = moment()
    timing = schedule(moment(introduced_tokens=bare.stable_tokens + 1_000), ANTHROPIC)
    assert (timing.rewritten, timing.removed) == (20_000 + bare.stable_tokens + 1_000, 74_000)
    price = 1.15 * timing.rewritten
    for carried, fold in ((23_000.0, False), (price, True)):
        dear = moment(introduced_tokens=bare.stable_tokens + 1_000, carried_cost=carried)
        assert schedule(dear, ANTHROPIC).fold is fold
    known: Any = {"health": Health(turns=9, last=Turn(kind="hit", at=0.0)), "now": 10.0, "fixed_tokens": 5_000}
    usual = Schedule(threshold_tokens=100_000, prices=ANTHROPIC)
    rewritten = [
        usual.timing(prompt_tokens=60_000, introduced_tokens=tokens, **known).rewritten for tokens in (0, 5_400)
    ]
    assert rewritten[1] - rewritten[0] == 5_400


def test_what_looking_back_costs_is_decided_with_and_told() -> None:
    schedule_now = Schedule(threshold_tokens=100_000, prices=ANTHROPIC)
    health = Health(turns=9, last=Turn(kind="hit", at=0.0))
    base = Situation(
        prompt_tokens=60_000,
        threshold_tokens=100_000,
        schedule=schedule_now,
        health=health,
        now=10.0,
        fixed_tokens=5_000,
    )
    cost = RecallCost(introduced_tokens=5_400, rounds=2)
    plain, dear = decide(base), decide(msgspec.structs.replace(base, recall=cost))
    assert plain.timing is not None and dear.timing is not None
    assert dear.timing.rewritten - plain.timing.rewritten == 5_400
    assert (plain.recall, dear.recall) == (RecallCost(), cost)


def test_prices_come_from_the_table_and_from_the_configuration() -> None:
    known = prices_for("claude-sonnet-4-5")
    assert (known.read, known.write, known.base, known.ttl_seconds) == (0.1, 1.25, 3.0, 300)
    assert known.as_of
    assert prices_for("claude-sonnet-4-5", "1h").write == 2.0
    assert prices_for("gpt-4o").write == 1.0
    mine = prices_for("claude-sonnet-4-5", overrides={"claude*": ModelOverride(cache_read=0.5, input_price=1.0)})
    assert (mine.read, mine.base) == (0.5, 1.0)
    assert prices_for("nobody-knows-this").assumed


# Health


def usage(prompt: int, read: int, written: int) -> midfold.Usage:
    return midfold.Usage(prompt_tokens=prompt, cache_read_tokens=read, cache_write_tokens=written)


def seen(**changed: Any) -> RequestHashes:
    return RequestHashes(**{"model": "m", "tools": "t", "system": "s", "messages": Tally(1, 1, b"x"), **changed})


WARM = Health().observe(usage(10_000, 0, 10_000), seen(), at=0.0, prices=ANTHROPIC)


@pytest.mark.parametrize(
    ("changed", "read", "at", "continues", "kind"),
    [
        ({}, 10_000, 10.0, True, "hit"),
        ({}, 0, 10.0, True, "unexpected"),
        ({}, 0, 301.0, True, "expired"),
        ({"tools": "other"}, 0, 10.0, True, "tools_changed"),
        ({"system": "other"}, 3_000, 10.0, True, "system_changed"),
        ({"model": "other"}, 0, 10.0, True, "model_changed"),
        ({"compaction": 1}, 2_000, 10.0, False, "compacted"),
        ({}, 2_000, 10.0, False, "history_changed"),
    ],
)
def test_each_turn_is_classified(changed: Any, read: int, at: float, continues: bool, kind: str) -> None:
    after = WARM.observe(
        usage(12_000, read, 12_000 - read), seen(**changed), at=at, prices=ANTHROPIC, continues=continues
    )
    assert after.last is not None
    assert after.last.kind == kind


def test_the_first_turn_is_a_cold_start_or_uncached() -> None:
    assert WARM.last is not None and WARM.last.kind == "cold_start"
    nothing = Health().observe(usage(500, 0, 0), seen(), at=0.0, prices=ANTHROPIC)
    assert nothing.last is not None and nothing.last.kind == "uncached"


def test_money_is_net_of_writes() -> None:
    assert WARM.saved == pytest.approx(-0.25 * 10_000 * 3 / 1e6)
    after = WARM.observe(usage(12_000, 10_000, 2_000), seen(), at=5.0, prices=ANTHROPIC)
    assert after.saved_units == pytest.approx(-2_500 + 9_000 - 500)
    assert after.hit_rate == pytest.approx(10 / 22)
    assert after.carrying_cost(8_000, 0.1) == pytest.approx(0.1 * (22_000 - 16_000))


def test_health_is_plain_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(WARM), type=Health) == WARM


def test_markers_do_not_change_a_fingerprint() -> None:
    marked = [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}]
    assert fingerprint(marked) == fingerprint([{"type": "text", "text": "S"}]) != ""


# In a session


def session_of(**settings: Any) -> tuple[midfold.Session, FakeClock]:
    clock = FakeClock(1_000.0)
    config = Config(compression=Compression(threshold=0.85), prompt_caching=PromptCaching(**settings))
    sessions = midfold.open("memory:", config=config, clock=clock, summarizer=local_summarizer)
    return sessions.session("s", model="claude-sonnet-4-5", context_length=20_000), clock


def talk(session: midfold.Session, turns: int) -> None:
    for n in range(turns):
        session.append([{"role": "user", "content": f"Why {n}? " * 40}, {"role": "assistant", "content": "So. " * 60}])


def test_a_session_folds_early_when_its_cache_is_cold_and_the_receipt_says_why() -> None:
    session, clock = session_of(schedule="cheapest")
    talk(session, 30)
    session.observe({"input_tokens": 10, "cache_creation_input_tokens": 9_000, "cache_read_input_tokens": 0})
    clock.advance(60)
    waiting = session.compact()
    assert not waiting.changed
    assert waiting.receipt.timing is not None and waiting.receipt.timing.reason == "waiting"
    assert not session.should_compact()
    clock.advance(300)
    assert session.should_compact()
    folded = session.compact()
    assert folded.changed, folded.receipt.reason
    assert folded.receipt.timing is not None and folded.receipt.timing.reason == "cold"
    assert folded.receipt.reason.startswith("cold: nothing is cached")
    assert folded.receipt.new_tokens <= 0.85 * 20_000 * 0.25
    assert session.receipts()[0].receipt.timing == folded.receipt.timing


def test_without_a_schedule_nothing_changes_before_the_threshold() -> None:
    session, clock = session_of(schedule="threshold")
    talk(session, 30)
    session.observe({"input_tokens": 10, "cache_creation_input_tokens": 9_000, "cache_read_input_tokens": 0})
    clock.advance(900)
    assert session.decide().timing is None
    assert session.compact().receipt.timing is None
    assert not session.compact().changed


UNCACHED_USAGE = {"input_tokens": 14_000, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
CACHED_USAGE = {"input_tokens": 10, "cache_creation_input_tokens": 14_000, "cache_read_input_tokens": 0}


@pytest.mark.parametrize(
    ("model", "usage", "settings", "early"),
    [
        ("claude-sonnet-4-5", CACHED_USAGE, {}, True),
        ("claude-sonnet-4-5", UNCACHED_USAGE, {}, False),
        ("model-without-prices", CACHED_USAGE, {}, False),
        ("claude-sonnet-4-5", CACHED_USAGE, {"schedule": "threshold"}, False),
    ],
)
def test_default_schedule_needs_known_prices_and_a_provider_that_caches(
    model: str, usage: dict[str, int], settings: dict[str, Any], early: bool
) -> None:
    clock = FakeClock(1_000.0)
    config = Config(compression=Compression(threshold=0.85), prompt_caching=PromptCaching(**settings))
    with midfold.open("memory:", config=config, clock=clock, summarizer=local_summarizer) as sessions:
        session = sessions.session("s", model=model, context_length=20_000)
        talk(session, 40)
        session.observe(usage)
        clock.advance(20)
        assert not session.compact().changed, "the cache is warm, and the threshold is not reached"
        clock.advance(400)
        done = session.compact()
        assert done.changed is early
        assert not early or (done.receipt.timing is not None and done.receipt.timing.reason == "cold")


def test_the_limit_overrides_the_schedule() -> None:
    session, _ = session_of(schedule="cheapest")
    talk(session, 80)
    folded = session.compact()
    assert folded.changed
    assert folded.receipt.timing is not None and folded.receipt.timing.reason == "hard"


def test_a_session_keeps_the_health_of_its_cache_across_compactions() -> None:
    session, clock = session_of(schedule="cheapest")
    talk(session, 30)
    session.observe({"input_tokens": 10, "cache_creation_input_tokens": 9_000, "cache_read_input_tokens": 0})
    clock.advance(5)
    talk(session, 1)
    session.observe({"input_tokens": 10, "cache_creation_input_tokens": 300, "cache_read_input_tokens": 9_000})
    assert session.health.kinds == {"cold_start": 1, "hit": 1}
    clock.advance(400)
    assert session.compact().changed
    session.observe({"input_tokens": 10, "cache_creation_input_tokens": 3_000, "cache_read_input_tokens": 0})
    assert session.health.last is not None and session.health.last.kind == "compacted"
    assert session.health.turns == 3


# In a host


WARM_USAGE = {"input_tokens": 10, "cache_creation_input_tokens": 9_000, "cache_read_input_tokens": 0}


def scheduled_host(clock: FakeClock, **settings: Any) -> midfold.EngineHost:
    caching = PromptCaching(schedule="cheapest", **settings)
    config = Config(compression=Compression(threshold=0.85), prompt_caching=caching)
    return midfold.EngineHost(
        model="claude-sonnet-4-5", context_length=20_000, config=config, clock=clock, summarizer=local_summarizer
    )


def said(turns: int) -> list[dict[str, Any]]:
    return [
        message
        for n in range(turns)
        for message in (
            {"role": "user", "content": f"Why {n}? " * 40},
            {"role": "assistant", "content": "So. " * 60},
        )
    ]


def test_a_host_folds_at_a_cheap_moment_and_its_memory_survives_a_restart() -> None:
    clock = FakeClock(1_000.0)
    host = scheduled_host(clock)
    messages = said(30)
    host.append(messages)
    host.update_from_response(WARM_USAGE)
    clock.advance(60)
    assert not host.should_compress()
    assert host.compress(messages) is messages
    assert host.last is not None and host.last.timing is not None and host.last.timing.reason == "waiting"
    other = scheduled_host(clock)
    other.restore(host.export())
    other.append(messages)
    assert other.decide(upcoming_idle=600.0).timing.reason == "expiring"  # type: ignore[union-attr]
    clock.advance(300)
    assert other.should_compress()
    folded = other.step(messages)
    assert len(folded) < len(messages)
    assert other.last is not None and other.last.timing is not None and other.last.timing.reason == "cold"


def test_without_a_schedule_a_host_waits_for_its_threshold() -> None:
    clock = FakeClock(1_000.0)
    host = midfold.EngineHost(model="claude-sonnet-4-5", context_length=20_000, clock=clock)
    messages = said(10)
    host.append(messages)
    host.update_from_response({"input_tokens": 5_000})
    clock.advance(900)
    assert host.decide().timing is None
    assert not host.should_compress()
    assert host.compress(messages) is messages


def test_folds_that_come_to_nothing_stop_the_schedule() -> None:
    class Stubborn(midfold.ContextEngine):
        name = "stubborn"
        asked = 0

        def should_compress(self, request: Any) -> Any:
            return Pressure.NONE

        def compress(self, request: Any) -> Any:
            Stubborn.asked += 1
            from midfold.compaction.context import CompactionContext
            from midfold.compaction.finish import leave

            return leave(CompactionContext(request), "nothing can be done")
            yield

    clock = FakeClock(1_000.0)
    host = scheduled_host(clock)
    host.engine = Stubborn()
    messages = said(30)
    host.append(messages)
    host.update_from_response(WARM_USAGE)
    clock.advance(400)
    for _ in range(4):
        assert host.compress(messages) is messages
    assert host.state.ineffective == 2
    assert not host.should_compress()


def test_early_folds_can_be_summarised_for_free_and_the_threshold_by_the_model() -> None:
    asked: list[str] = []

    def model(ask: Any) -> str:
        asked.append(ask.fold)
        return "## Goal\nAnswer why.\n"

    clock = FakeClock(1_000.0)
    config = Config(
        compression=Compression(threshold=0.85),
        prompt_caching=PromptCaching(schedule="cheapest", schedule_summary="local"),
    )
    with midfold.open("memory:", config=config, clock=clock, summarizer=model) as sessions:
        session = sessions.session("s", model="claude-sonnet-4-5", context_length=20_000)
        talk(session, 30)
        session.observe(WARM_USAGE)
        clock.advance(400)
        early = session.compact()
        assert early.changed and not asked
        assert early.receipt.summary.source == "local"
        talk(session, 70)
        late = session.compact()
        assert late.changed and len(asked) == 1
        assert late.receipt.timing is not None and late.receipt.timing.reason == "hard"
        assert late.receipt.new_tokens <= 0.85 * 20_000 * 0.25, "also at the threshold it lands where the schedule aims"
