"""The summary turn: within its budget for any summarizer, in order, and without secrets."""

from __future__ import annotations

import json
from typing import Any

from midfold import SummaryAnswer, SummaryRequest
from midfold.errors import SummaryFailed
from midfold.lab.trajectory_settings import TrajectorySettings
from midfold.lab.trajectory_work import compress_record
from support.trajectories import Words, call, response, run_of, turn

SETTINGS = TrajectorySettings(target_tokens=1_500, summary_tokens=150, tokenizer="estimate")


def summary_of(turns: list[dict[str, str]], summarizer: Any = None, settings: TrajectorySettings = SETTINGS) -> str:
    result = compress_record(json.dumps({"conversations": turns}).encode(), settings, summarizer, Words())
    after = json.loads(result.data)["conversations"]
    return next(item["value"] for item in after if item["value"].startswith("[CONTEXT SUMMARY]:"))


def long_run() -> list[dict[str, str]]:
    return run_of(60)


def test_an_answer_longer_than_its_budget_is_cut_at_a_line() -> None:
    text = summary_of(long_run(), lambda ask: "\n".join(f"line {number} of the answer" for number in range(500)))
    assert len(text.split()) <= SETTINGS.summary_tokens
    assert text.splitlines()[-1].endswith("of the answer")


def test_frames_thoughts_and_credentials_of_an_answer_do_not_get_through() -> None:
    secret = "ghp_" + "a1B2" * 9
    answer = f"<think>hm</think>[CONTEXT SUMMARY]: The token is {secret}."
    text = summary_of(long_run(), lambda ask: answer)
    assert text.count("[CONTEXT SUMMARY]:") == 1
    assert "hm" not in text
    assert secret not in text


def test_a_model_is_shown_the_folded_turns_and_asked_for_the_room_there_is() -> None:
    asks: list[SummaryRequest] = []

    def keep(ask: SummaryRequest) -> SummaryAnswer:
        asks.append(ask)
        return SummaryAnswer(text="Some turns.", model="tiny", calls=3)

    turns = long_run()
    result = compress_record(json.dumps({"conversations": turns}).encode(), SETTINGS, keep, Words())
    assert result.metrics.fold is not None
    assert len(asks[0].messages) == result.metrics.fold[1] - result.metrics.fold[0]
    assert 0 < asks[0].budget_tokens <= SETTINGS.summary_tokens
    assert (result.metrics.summary_by, result.metrics.summary_calls) == ("tiny", 3)


def test_no_network_leaves_a_record_alone_and_other_failures_are_answered_locally() -> None:
    def failing(kind: Any) -> Any:
        def summarizer(ask: SummaryRequest) -> str:
            raise SummaryFailed(kind)

        return summarizer

    data = json.dumps({"conversations": long_run()}).encode()
    for kind, status in (("network", "failed"), ("auth", "failed"), ("timeout", "compressed"), ("other", "compressed")):
        result = compress_record(data, SETTINGS, failing(kind), Words())
        assert (result.metrics.status, result.metrics.summary_errors) == (status, 1)
        assert (result.data == data) == (status == "failed")


def test_asks_in_the_fold_are_told_in_order_and_without_their_secrets() -> None:
    turns = long_run()
    secret = "sk-" + "ant-api03-" + "Zz9" * 20
    turns[10:10] = [turn("human", f"First ask, with {secret} in it."), turn("gpt", "Yes.")]
    turns[20:20] = [turn("human", "Second ask."), turn("gpt", "Yes.")]
    text = summary_of(turns, settings=TrajectorySettings(target_tokens=1_500, summary_tokens=500, tokenizer="estimate"))
    assert text.index("First ask") < text.index("Second ask")
    assert secret[:12] not in text


def test_actions_are_told_with_their_outcome() -> None:
    turns = run_of(40)
    turns[-5:-5] = [
        turn("gpt", call("bash", command="make broken_target")),
        turn("tool", response('{"exit_code": 2, "output": "make: *** no rule"}')),
    ]
    text = summary_of(turns, settings=TrajectorySettings(target_tokens=600, summary_tokens=300, tokenizer="estimate"))
    assert "- ran `make broken_target` -> exit 2" in text.partition("Done:")[2]
