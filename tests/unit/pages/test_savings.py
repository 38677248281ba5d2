"""Savings of folds, compared with values calculated by hand."""

from __future__ import annotations

import msgspec
import pytest

from midfold.cache.health import Health, RequestHashes
from midfold.cache.prices import Prices
from midfold.compaction.receipt import Receipt, SummaryFacts
from midfold.compaction.request import CompactionState
from midfold.models import DEFAULT, Model
from midfold.pages.savings import (
    PriceList,
    Retrieval,
    cache_use,
    cache_use_of_health,
    causes,
    causes_of_health,
    compare,
    explain_turns,
    sum_cache_use,
    sum_causes,
    sum_savings,
)
from midfold.store.protocol import CompactionRecord
from midfold.store.usage import ReportedTurn
from midfold.transcript.message import Usage

PRICED = msgspec.structs.replace(
    DEFAULT, input_price=10.0, output_price=50.0, cache_read=0.1, cache_write_5m=1.25, cache_write_1h=2.0
)
WINDOW = 100_000


def known(name: str | None) -> Model:
    return DEFAULT if name == "unpriced" else PRICED


def prompts(name: str | None, ttl: float = 300.0) -> Prices | None:
    return None if name == "unpriced" else Prices(read=0.1, write=1.25, base=10.0, ttl_seconds=ttl)


PRICES = PriceList(prompts, known)


def turn(
    number: int, prompt: int, *, compaction: int = 0, read: int = 0, written: int = 0, at: int = 0, model: str = "m"
) -> ReportedTurn:
    usage = Usage(prompt_tokens=prompt, cache_read_tokens=read, cache_write_tokens=written)
    at = at or number * 10_000
    return ReportedTurn(id=number, at=at, count=number * 2, compaction=compaction, model=model, usage=usage)


def fold(seq: int, old: int, new: int, *, base: int = 0, source: str = "local", tokens: int = 0) -> CompactionRecord:
    receipt = Receipt(
        status="compacted",
        reason="",
        old_messages=10,
        new_messages=5,
        old_tokens=old,
        new_tokens=new,
        token_basis="reported",
        estimated_prompt_tokens=old,
        threshold_tokens=50_000,
        effective_input_window=WINDOW,
        context_length=WINDOW,
        window_source="given",
        landing_tokens=25_000,
        fixed_tokens=0,
        compaction_count=seq,
        summary=msgspec.convert({"source": source, "tokens": tokens}, SummaryFacts),
    )
    state = CompactionState()
    return CompactionRecord(
        seq=seq, base=base, upto=4, at=0, fence=1, noted=False, undone=None, child=None, receipt=receipt, state=state
    )


def dollars(tokens: float) -> float:
    return tokens * 10 / 1_000_000


def test_without_folds_nothing_is_saved_and_nothing_is_lost() -> None:
    turns = [turn(1, 1_000, written=1_000), turn(2, 3_000, read=1_000, written=2_000)]
    saved = compare(turns, [], PRICES, window=WINDOW).saved
    assert saved.tokens_not_sent == 0
    assert saved.net == 0
    assert saved.paid == pytest.approx(dollars(1_000 * 1.25 + 1_000 * 0.1 + 2_000 * 1.25))


def test_a_fold_saves_what_it_took_out_of_every_later_request() -> None:
    turns = [turn(1, 40_000), turn(2, 15_000, compaction=1), turn(3, 16_000, compaction=1)]
    found = compare(turns, [fold(1, 42_000, 12_000)], PRICES, window=WINDOW)
    assert found.without == (40_000, 45_000, 46_000)
    assert found.saved.tokens_not_sent == 60_000
    assert found.saved.net == pytest.approx(dollars(60_000))


def test_folds_add_up_along_the_chain_they_were_made_in() -> None:
    records = [fold(1, 40_000, 10_000), fold(2, 42_000, 12_000, base=1), fold(3, 50_000, 45_000)]
    found = compare([turn(1, 13_000, compaction=2), turn(2, 46_000, compaction=3)], records, PRICES, window=WINDOW)
    assert found.without == (73_000, 51_000)


def test_a_request_that_would_not_fit_counts_as_one_that_just_fits() -> None:
    found = compare([turn(1, 20_000, compaction=1)], [fold(1, 200_000, 10_000)], PRICES, window=WINDOW)
    assert found.without == (WINDOW,)


def test_what_was_unfolded_again_is_not_saved() -> None:
    turns = [turn(1, 15_000, compaction=1), turn(5, 18_000, compaction=1)]
    back = [Retrieval(position=4, tokens=3_000)]
    found = compare(turns, [fold(1, 40_000, 10_000)], PRICES, window=WINDOW, retrieved=back)
    assert found.without == (45_000, 45_000)
    assert found.saved.tokens_retrieved == 3_000


def test_the_cache_that_a_fold_broke_is_paid_for() -> None:
    """Without the fold the second prompt would have been read from the cache; with it, it was written again."""
    turns = [turn(1, 40_000, written=40_000), turn(2, 12_000, compaction=1, written=12_000)]
    saved = compare(turns, [fold(1, 42_000, 12_000)], PRICES, window=WINDOW).saved
    imagined = 40_000 * 0.1 + 2_000 * 1.25
    assert saved.without_folds == pytest.approx(dollars(40_000 * 1.25 + imagined))
    assert saved.net == pytest.approx(dollars(imagined - 12_000 * 1.25))
    assert saved.net is not None
    assert saved.net < 0


def test_a_fold_at_a_moment_when_the_cache_was_cold_anyway_is_all_gain() -> None:
    turns = [turn(1, 40_000, written=40_000), turn(2, 12_000, compaction=1, written=12_000, at=10_000_000)]
    saved = compare(turns, [fold(1, 42_000, 12_000)], PRICES, window=WINDOW).saved
    assert saved.net == pytest.approx(dollars(30_000 * 1.25))


def test_summaries_by_a_model_cost_what_they_read_and_wrote() -> None:
    turns = [turn(1, 12_000, compaction=1)]
    records = [fold(1, 42_000, 12_000, source="model", tokens=1_000)]
    saved = compare(turns, records, PRICES, window=WINDOW).saved
    assert saved.summaries == pytest.approx((31_000 * 10 + 1_000 * 50) / 1_000_000)
    assert saved.net == pytest.approx(dollars(30_000) - saved.summaries)


def test_a_price_that_is_not_known_makes_money_unknown_and_leaves_tokens() -> None:
    turns = [turn(1, 40_000), turn(2, 12_000, compaction=1, model="unpriced")]
    saved = compare(turns, [fold(1, 42_000, 12_000)], PRICES, window=WINDOW).saved
    assert (saved.net, saved.paid, saved.without_folds) == (None, None, None)
    assert saved.tokens_not_sent == 30_000


def test_sums_leave_out_the_money_that_is_not_known() -> None:
    priced = compare([turn(1, 12_000, compaction=1)], [fold(1, 42_000, 12_000)], PRICES, window=WINDOW).saved
    unknown = compare([turn(1, 5, model="unpriced")], [], PRICES, window=WINDOW).saved
    both = sum_savings([priced, unknown])
    assert both.net == priced.net
    assert both.tokens_sent == 12_005
    assert sum_savings([]).net is None


def test_the_cache_saves_reads_and_costs_writes() -> None:
    use = cache_use([turn(1, 10_000, written=10_000), turn(2, 11_000, read=10_000, written=1_000)], PRICES)
    assert use.hit_rate == pytest.approx(10_000 / 21_000, abs=1e-4)
    assert use.net == pytest.approx(dollars(21_000 - 11_000 * 1.25 - 10_000 * 0.1))
    assert cache_use([turn(1, 10_000, written=10_000)], PRICES).net == pytest.approx(-dollars(2_500))
    assert sum_cache_use([use, use]).requests == 4
    assert cache_use([], PRICES).hit_rate is None


def test_each_request_is_told_why_it_was_read_from_the_cache_or_not() -> None:
    turns = [
        turn(1, 20_000, written=20_000),
        turn(2, 22_000, read=20_000, written=2_000),
        turn(3, 12_000, compaction=1, written=12_000),
        turn(4, 13_000, compaction=1, read=12_000, written=1_000),
        turn(5, 14_000, compaction=1, written=14_000, at=9_000_000),
        turn(6, 15_000, compaction=1, read=1_000, written=14_000, at=9_010_000),
        turn(7, 15_000, compaction=1, written=15_000, at=9_020_000, model="other"),
    ]
    assert [why.cause for why in explain_turns(turns, PRICES)] == [
        "cold_start", "hit", "compacted", "hit", "expired", "unexpected", "model_changed",
    ]  # fmt: skip
    found = {one.cause: one for one in causes(turns, PRICES)}
    assert (found["hit"].requests, found["hit"].tokens, found["hit"].cost) == (2, 0, 0)
    assert found["unexpected"].tokens == 13_000
    assert found["unexpected"].cost == pytest.approx(dollars(13_000 * (1.25 - 0.1)))
    both = sum_causes([causes(turns, PRICES), causes(turns[:2], PRICES)])
    assert {one.cause: one.requests for one in both} == {
        "hit": 3, "cold_start": 2, "compacted": 1, "expired": 1, "model_changed": 1, "unexpected": 1,
    }  # fmt: skip


def test_whoever_saw_the_prompt_knows_better_why_it_missed() -> None:
    saw = msgspec.structs.replace(turn(2, 22_000, written=22_000), kind="tools_changed")
    assert [why.cause for why in explain_turns([turn(1, 20_000, written=20_000), saw], PRICES)] == [
        "cold_start",
        "tools_changed",
    ]


def test_a_price_that_is_not_known_makes_the_cost_of_misses_unknown() -> None:
    turns = [turn(1, 20_000, written=20_000), turn(2, 21_000, written=21_000, model="unpriced")]
    assert causes(turns, PRICES)[-1].cost is None


def test_a_provider_that_says_nothing_about_a_cache_has_no_misses() -> None:
    assert causes([turn(1, 20_000), turn(2, 21_000)], PRICES) == ()
    assert causes_of_health(Health()) == ()


def test_a_session_that_kept_no_turns_has_its_sums() -> None:
    turns = [turn(1, 10_000, written=10_000), turn(2, 11_000, read=10_000, written=1_000)]
    prices, health = prompts("m"), Health()
    assert prices is not None
    for one in turns:
        health = health.observe(one.usage, RequestHashes(), at=one.at / 1000, prices=prices)
    summed, exact = cache_use_of_health(health, prices), cache_use(turns, PRICES)
    assert msgspec.structs.astuple(summed) == pytest.approx(msgspec.structs.astuple(exact))
    assert [(one.cause, one.requests) for one in causes_of_health(health)] == [("hit", 1), ("cold_start", 1)]
    assert cache_use_of_health(health, None).net is None
