"""The compaction decision: every rule of `midfold.decide`, from a situation alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import midfold
from midfold.api import compact
from midfold.cache.health import Health, Turn
from midfold.cache.prices import Prices
from midfold.cache.schedule import Schedule
from midfold.compaction.budget import Pressure, plan_budget
from midfold.decide import Decision, Situation, calls_to_replace, decide, is_relieved
from support import data

PRICES = Prices(base=3.0, read=0.1, write=1.25, ttl_seconds=300.0)
SCHEDULE = Schedule(threshold_tokens=100, prices=PRICES, least_tokens=10)
COLD = Health(turns=3, last=Turn(kind="hit", at=0.0))


def decided(tokens: int, **situation: Any) -> Decision:
    return decide(Situation(prompt_tokens=tokens, threshold_tokens=100, **situation))


@pytest.mark.parametrize(
    ("tokens", "fold", "pressure"),
    [(79, False, Pressure.NONE), (80, False, Pressure.SOFT), (99, False, Pressure.SOFT), (100, True, Pressure.HARD)],
)
def test_by_size_it_is_urgent_from_the_threshold_on(tokens: int, fold: bool, pressure: Pressure) -> None:
    made = decided(tokens)
    assert (made.fold, made.pressure, made.forced, made.asked) == (fold, pressure, False, False)
    assert fold or made.reason == f"{tokens} tokens are below the threshold of 100"


def test_the_engine_goes_before_the_size() -> None:
    assert decided(5, pressure=Pressure.HARD).fold
    made = decided(500, pressure=Pressure.NONE)
    assert (made.fold, made.pressure) == (False, Pressure.NONE)
    assert made.reason == "the engine did not request a compaction at 500 tokens; the threshold is 100"


@pytest.mark.parametrize("stopped", [{"enabled": False}, {"strikes": 9}, {"failure": "auth", "pause": 50.0}])
def test_who_asks_is_obeyed_whatever_else_holds(stopped: dict[str, Any]) -> None:
    assert not decided(500, **stopped).fold
    made = decided(5, asked=True, **stopped)
    assert (made.fold, made.forced, made.asked, made.pause) == (True, True, True, 0.0)
    assert decided(5, asked=True, empty=True).reason == "the conversation is empty"


def test_strikes_stop_automatic_folds_and_what_would_prepare_them() -> None:
    assert decided(100, strikes=1).fold
    made = decided(100, strikes=2)
    assert (made.fold, made.pressure) == (False, Pressure.NONE)
    assert made.reason.startswith("the last 2 compactions did not help")
    assert decided(90, strikes=2).pressure is Pressure.NONE


def test_where_folds_are_scheduled_two_strikes_stop_the_early_ones_and_four_all() -> None:
    cold = {"schedule": SCHEDULE, "health": COLD, "now": 1_000.0}
    early = decided(60, **cold)
    assert (early.fold, early.forced, early.pressure) == (True, True, Pressure.NONE)
    assert early.timing is not None and early.timing.reason == "cold"
    assert early.landing_tokens == SCHEDULE.target(60) == 15
    assert not decided(60, strikes=2, **cold).fold
    assert decided(100, strikes=3, **cold).fold
    assert not decided(100, strikes=4, **cold).fold
    warm = decided(60, schedule=SCHEDULE, health=COLD, now=1.0)
    assert not warm.fold and warm.timing is not None and warm.timing.reason == "waiting"


AUTOMATIC = Schedule.automatic_for(plan_budget(200_000), PRICES)
CACHED = Health(turns=3, prompt_tokens=90_000, written=30_000, last=Turn(kind="hit", at=0.0))


def automatic(tokens: int, health: Health, now: float = 1_000.0) -> Decision:
    situation = Situation(
        prompt_tokens=tokens, threshold_tokens=100_000, schedule=AUTOMATIC, health=health, now=now, fixed_tokens=5_000
    )
    return decide(situation)


def test_automatic_schedule_needs_a_provider_that_reports_cached_tokens() -> None:
    early = automatic(60_000, CACHED)
    assert early.fold and early.timing is not None and early.timing.reason == "cold"
    unseen = automatic(60_000, COLD)
    assert (unseen.fold, unseen.timing, unseen.reason) == (False, None, decide_at(60_000).reason)
    assert automatic(100_000, COLD) == decide_at(100_000)


def decide_at(tokens: int) -> Decision:
    return decide(Situation(prompt_tokens=tokens, threshold_tokens=100_000, now=1_000.0, fixed_tokens=5_000))


@pytest.mark.parametrize("tokens", [100_000, 150_000])
def test_documented_threshold_is_the_latest_moment_of_the_automatic_schedule(tokens: int) -> None:
    warm = automatic(tokens, CACHED, now=1.0)
    assert warm.fold and warm.timing is not None and warm.timing.reason == "hard"
    assert not automatic(99_999, CACHED, now=1.0).fold, "warm, and not urgent"


def test_automatic_schedule_lands_at_the_size_of_tail_and_summary() -> None:
    made = automatic(100_000, CACHED)
    assert made.landing_tokens == 5_000 + int(95_000 * 0.3), "20 % tail and 10 % summary, beside the fixed tokens"
    small = Schedule.automatic_for(plan_budget(32_000), PRICES)
    assert small.target(16_000) == int(16_000 * 0.7), "small windows keep a larger share"
    assert small.target(16_000, fixed_tokens=16_500) == 16_000, "never above the threshold"
    wide = Schedule.automatic_for(plan_budget(200_000, target_ratio=0.8), PRICES)
    assert wide.target(100_000) == 90_000, "a larger tail is kept"


def test_early_folds_may_be_left_to_no_model_and_then_no_pause_matters() -> None:
    cold = {"schedule": SCHEDULE, "health": COLD, "now": 1_000.0, "local_early": True}
    paused = {"failure": "auth", "pause": 50.0}
    early = decided(60, **cold, **paused)
    assert (early.fold, early.local, early.pause) == (True, True, 0.0)
    assert not decided(100, **cold).local, "the threshold is the model's"
    assert not decided(100, **cold, **paused).fold


@pytest.mark.parametrize(("failure", "lossy", "fold"), [("auth", True, False), ("timeout", True, True)])
def test_a_pause_asks_no_model(failure: Any, lossy: bool, fold: bool) -> None:
    made = decided(100, failure=failure, pause=12.0, lossy_fallback=lossy)
    assert (made.fold, made.pause, made.failure) == (fold, 12.0, failure)
    if not fold:
        assert made.reason.startswith(
            f"summary model not called: 12 s of the cooldown after a failure ({failure}) are left"
        )
    assert not decided(100, failure=failure, pause=12.0, lossy_fallback=False).fold
    assert decided(100, failure=failure, pause=0.0).pause == 0.0


def test_too_many_messages_are_urgent_and_force_an_engine_that_goes_by_size() -> None:
    made = decided(5, crowded=True)
    assert (made.fold, made.forced, made.asked) == (True, True, False)
    assert not decided(5, crowded=True, strikes=2).fold


def test_a_fold_ahead_of_time_is_made_as_if_it_were_time() -> None:
    made = decided(85, ahead=True, schedule=SCHEDULE)
    assert (made.fold, made.forced, made.timing, made.landing_tokens) == (True, True, None, SCHEDULE.target(85))
    assert not decided(85, ahead=True, strikes=4).fold
    assert not decided(85, ahead=True, failure="auth", pause=3.0).fold


def test_a_prompt_that_is_small_again_forgives_strikes() -> None:
    assert is_relieved(89, 100, None) and not is_relieved(90, 100, None)
    assert not is_relieved(50, 100, SCHEDULE) and is_relieved(39, 100, SCHEDULE)
    assert is_relieved(85_000, 100_000, AUTOMATIC, COLD) and not is_relieved(85_000, 100_000, AUTOMATIC, CACHED)


def test_strikes_stop_folds_until_there_is_something_new_to_fold() -> None:
    struck = Situation(prompt_tokens=50_000, threshold_tokens=50_000, strikes=2, struck_tokens=49_000)
    assert not decide(struck).fold
    assert "at 56,500 tokens" in decide(struck).reason
    assert not decide(msgspec.structs.replace(struck, prompt_tokens=56_499)).fold
    assert decide(msgspec.structs.replace(struck, prompt_tokens=56_500)).fold
    unknown = msgspec.structs.replace(struck, struck_tokens=0, prompt_tokens=500_000)
    assert not decide(unknown).fold


def test_folds_that_hardly_helped_do_not_let_a_real_conversation_outgrow_its_window() -> None:
    messages = list(data.conversations("claude_code_entire"))[6]["messages"][:152]
    view: list[Any] = []
    state = None
    for message in messages:
        view.append(message)
        done = compact(view, context_length=23_616, state=state)
        view, state = list(done.messages), done.state
    assert done.receipt.new_tokens < done.receipt.threshold_tokens


def roomy(**changes: Any) -> Situation:
    given = {"prompt_tokens": 60_000, "threshold_tokens": 50_000, "leaves_room": True, "fixed_tokens": 10_000}
    return Situation(**(given | {"usual_tokens": 30_000, "growth_tokens": 10_000} | changes))


def test_a_fold_that_leaves_room_by_itself_is_as_usual() -> None:
    decision = decide(roomy(growth_tokens=20_000))
    assert (decision.fold, decision.landing_tokens, decision.notice) == (True, None, "")


def test_a_fold_that_would_soon_be_followed_by_another_is_made_deeper() -> None:
    assert decide(roomy(growth_tokens=20_001)).landing_tokens == 29_999
    assert decide(roomy(growth_tokens=20_001, leaves_room=False)).landing_tokens is None
    deepest = decide(roomy(growth_tokens=45_000))
    assert deepest.landing_tokens == 10_000 + 12_000
    assert "10,000 tokens are fixed" in deepest.notice and "45,000" in deepest.notice and "50,000" in deepest.notice


def test_where_what_is_fixed_leaves_no_room_there_is_no_fold_unless_somebody_asks() -> None:
    decision = decide(roomy(fixed_tokens=45_001))
    assert (decision.fold, decision.reason) == (False, decision.notice) and "45,001" in decision.notice
    assert decide(roomy(fixed_tokens=45_000)).fold
    assert decide(roomy(fixed_tokens=45_001, crowded=True)).fold
    assert decide(roomy(fixed_tokens=45_001, asked=True)).fold
    assert decide(roomy(fixed_tokens=45_001, leaves_room=False)).fold


def test_another_fold_takes_the_place_of_one_that_stands_only_where_calls_pay_for_it() -> None:
    prices = Prices(read=0.1, write=1.25, ttl_seconds=300.0)
    sizes = {"size_tokens": 10_000, "new_tokens": 8_000, "fixed_tokens": 3_000}
    warm = calls_to_replace(**sizes, idle=10.0, prices=prices)
    assert warm == pytest.approx((1.25 - 0.1) * 5_000 / (0.1 * 2_000))
    assert calls_to_replace(**sizes, idle=300.0, prices=prices) == 0.0, "everything is written anyway"
    for new in (10_000, 11_000):
        assert calls_to_replace(**{**sizes, "new_tokens": new}, idle=300.0, prices=prices) is None


def test_a_fold_that_is_made_ahead_leaves_room_for_what_comes_before_it_is_used() -> None:
    now = Situation(
        prompt_tokens=8_000,
        threshold_tokens=10_000,
        leaves_room=True,
        usual_tokens=6_500,
        growth_tokens=2_500,
        ahead=True,
    )
    assert now.deep_landing == 5_500
    assert msgspec.structs.replace(now, ahead=False).deep_landing is None, "it is not time"
    assert msgspec.structs.replace(now, prompt_tokens=10_000, ahead=False).deep_landing is None, "there is room"


def test_what_nobody_asked_for_does_not_say_so() -> None:
    assert decided(85, ahead=True).reason == "prepared ahead at 85 tokens, near the threshold of 100"
    assert decided(5, crowded=True).reason == "the limit on the number of messages was reached"
    assert decided(105, crowded=True).reason == ""
    with midfold.open("memory:") as sessions:
        session = sessions.session("s", context_length=16_000)
        session.append(
            [{"role": role, "content": "Some words. " * 70} for _ in range(24) for role in ("user", "assistant")]
        )
        make = session.prepare()
        assert make is not None
        done = session.compact(ahead=make())
    assert done.changed
    assert done.receipt.reason == f"{done.receipt.old_tokens:,} tokens reached the threshold of 8,000"


def test_what_a_provider_refused_is_folded_at_once_and_keeps_the_pause() -> None:
    made = decided(5, asked=True, overflowed=True, failure="auth", pause=7.0)
    assert (made.fold, made.forced, made.failure, made.pause) == (True, True, "auth", 7.0)
    assert decided(5, asked=True, failure="auth", pause=7.0).pause == 0.0
    assert decided(5, asked=True, overflowed=True).pause == 0.0
