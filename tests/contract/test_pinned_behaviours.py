"""pitfalls.md, "Behaviours worth pinning down", and reports of other agents' users, where they concern compaction."""

from __future__ import annotations

import json
from typing import Any

import pytest

import midfold
from support import fixtures
from support.build import WINDOW, anthropic_work, folded, handoff_of, setting, work
from support.fixtures import assistant, call, system, user

SESSION = [system(), user("Port the parser."), assistant("I will."), *work(0)]


# Threshold and preflight


@pytest.mark.parametrize("reservation", [0, -5, 200_000, 300_000])
def test_an_impossible_output_reservation_is_ignored(reservation: int) -> None:
    report = midfold.compact(SESSION[:2], context_length=200_000, output_reservation=reservation).receipt
    assert report.effective_input_window == 200_000
    assert bool(report.notices) is (reservation != 0)


@pytest.mark.parametrize("reservation", ["many", True, float("nan"), float("inf"), [], None])
def test_an_output_reservation_that_is_no_number_is_ignored(reservation: Any) -> None:
    assert midfold.effective_input_window(200_000, reservation) == 200_000


def test_a_model_switch_rederives_everything() -> None:
    host = midfold.EngineHost(model="gpt-4o", context_length=None)
    host.append(SESSION)
    before = (host.budget, host.size)
    host.update_model("claude-opus-4-6", 1_000_000)
    assert host.budget.context_length == 1_000_000
    assert host.budget != before[0]
    assert host.size.tokens != before[1].tokens


def test_reasoning_tokens_are_not_prompt_tokens() -> None:
    usage = {
        "prompt_tokens": 9_000,
        "completion_tokens": 70_000,
        "completion_tokens_details": {"reasoning_tokens": 69_000},
    }
    host = midfold.EngineHost(context_length=100_000)
    host.append(SESSION[:30])
    host.update_from_response(usage)
    assert host.size.tokens == 9_000
    assert not host.should_compress()


def test_disabled_means_no_automatic_compaction_through_a_host() -> None:
    host = midfold.EngineHost(context_length=WINDOW, config=setting(enabled=False))
    host.append(SESSION)
    assert not host.should_compress()
    assert host.compress(SESSION) is SESSION
    host.update_from_error("413: prompt is too long: maximum context length is 20000 tokens")
    assert host.compress(SESSION) is SESSION
    assert host.compress(SESSION, force=True) is not SESSION


def test_disabled_means_no_automatic_compaction_through_compact() -> None:
    result = midfold.compact(SESSION, context_length=WINDOW, config=setting(enabled=False))
    assert result.messages is SESSION


def test_few_but_huge_messages_trigger() -> None:
    host = midfold.EngineHost(context_length=WINDOW)
    host.append([user("word " * 30_000)])
    assert host.should_compress()


def test_a_base64_image_is_not_a_quarter_of_a_million_tokens() -> None:
    url = "data:image/png;base64," + "iVBORw0K" * 125_000
    for kind in ({"type": "image_url", "image_url": {"url": url}}, {"type": "input_image", "image_url": url}):
        host = midfold.EngineHost(context_length=200_000)
        host.append([{"role": "user", "content": [kind]}])
        assert 500 < host.size.tokens < 5_000


def test_after_a_compaction_the_old_measurement_is_not_used_and_a_new_one_is() -> None:
    host = midfold.EngineHost(context_length=WINDOW)
    host.append(SESSION)
    host.update_from_response({"prompt_tokens": 60_000})
    view = host.compress(SESSION, current_tokens=60_000)
    assert view is not SESSION
    assert host.size.tokens < host.budget.threshold_tokens
    assert host.size.basis == "calibrated"
    host.update_from_response({"prompt_tokens": 7_777})
    assert host.size == (7_777, "reported")


@pytest.mark.parametrize("usage", [None, {}, {"usage": None}, {"prompt_tokens": 0}, {"input_tokens": None}])
def test_a_reply_without_usage_does_not_count_as_zero(usage: Any) -> None:
    host = midfold.EngineHost(context_length=WINDOW)
    host.append(SESSION)
    before = host.size
    host.update_from_response(usage)
    assert host.size == before
    assert host.should_compress()


# Pre-pass


@pytest.mark.parametrize("arguments", [None, 7, [], {"a": "x" * 9_000}, True, 1.5])
def test_arguments_that_are_no_strings_never_crash(arguments: Any) -> None:
    odd = call(900, "write_file", {}, "y " * 900)
    odd[0]["tool_calls"][0]["function"]["arguments"] = arguments
    for options in ({"force": True, "context_length": 200_000}, {}):
        messages = [*SESSION[:3], *odd, *work(0, 40)]
        result = midfold.compact(messages, **{"context_length": WINDOW, "config": setting(protect_last_n=4), **options})
        assert result.changed


def test_nested_unicode_arguments_stay_valid_json_through_a_compaction() -> None:
    given = {"edits": [{"old": "naïve 编辑 " * 300, "new": {"deep": ["😀" * 900, 1e-7, None]}}], "path": "src/编辑.py"}
    messages = [user("Go."), assistant("Yes.")]
    for number in range(40):
        messages += call(number, "edit", given, "ok")
    result = midfold.compact(
        messages, context_length=400_000, force=True, config=setting(protect_last_n=4, target_ratio=0.1)
    )
    assert result.receipt.status == "pruned"
    text = result.messages[2]["tool_calls"][0]["function"]["arguments"]
    value = json.loads(text)
    assert len(text) < len(json.dumps(given))
    assert value["path"] == "src/编辑.py"
    assert value["edits"][0]["new"]["deep"][1:] == [1e-7, None]


# Tail: progress


@pytest.mark.parametrize("window", [8_000, 16_000])
def test_twenty_bulky_outputs_do_not_block_progress(window: int) -> None:
    messages = [system(), user("Go."), *work(0, 100, window // 11)]
    result = midfold.compact(messages, context_length=window)
    assert result.receipt.new_tokens <= result.receipt.threshold_tokens


def test_progress_is_made_or_the_noop_says_why() -> None:
    for count in range(12):
        for options in ({"force": True}, {"target_tokens": 50}, {"keep_last_exchanges": 1}, {}):
            messages = [user("A short ask."), assistant("A short answer.")] * count
            result = midfold.compact(messages, context_length=2_000, **options)
            assert result.receipt.reason
            if result.changed:
                assert result.receipt.new_tokens < result.receipt.old_tokens
            else:
                assert result.messages is messages


def test_a_long_session_lands_below_the_threshold() -> None:
    fixture = fixtures.long_tool_heavy_conversation()
    report = midfold.compact(fixture.messages, **fixture.settings).receipt
    assert report.landing_tokens == report.threshold_tokens
    assert report.new_tokens < report.threshold_tokens


def test_after_a_manual_compaction_no_automatic_one_follows() -> None:
    host = midfold.EngineHost(context_length=WINDOW)
    view = host.compress(SESSION, force=True)
    assert not host.should_compress()
    assert host.compress(view) is view


# Anchors


def test_a_completed_pair_is_not_split() -> None:
    for after in range(1, 30, 4):
        messages = [*SESSION, user("THE ASK"), assistant("THE ANSWER"), *work(500, after)]
        result = folded(messages, config=setting(protect_last_n=2 * after + 1))
        contents = [message.get("content") for message in result.messages]
        assert contents.index("THE ANSWER") == contents.index("THE ASK") + 1


@pytest.mark.parametrize(
    "notice",
    [
        "<system-reminder>\nThe file src/a.py was changed by a linter.\n</system-reminder>",
        "<task-notification>Background command 'make' finished with exit code 0</task-notification>",
    ],
)
def test_background_notices_are_not_human_turns(notice: str) -> None:
    messages = [
        system(),
        user("hello"),
        assistant("hi"),
        user("THE ASK"),
        *work(0, 60),
        user(notice),
        *work(100, 10, 10),
    ]
    result = folded(messages, context_length=16_000, config=setting(protect_last_n=4))
    assert any(message.get("content") == "THE ASK" for message in result.messages)


# Summary


def test_thinking_is_left_out_of_what_a_summariser_sees() -> None:
    thought = {"type": "thinking", "thinking": "PRIVATE THOUGHT", "signature": "c2ln"}
    messages = [user("Go."), *anthropic_work(120)]
    messages[11]["content"].insert(0, thought)
    prompts: list[str] = []

    def summarize(ask: midfold.SummaryRequest) -> str:
        prompts.append(ask.prompt())
        return "## Goal\nx"

    folded(messages, summarizer=summarize)
    assert "PRIVATE THOUGHT" not in prompts[0]
    assert "PRIVATE THOUGHT" not in handoff_of(folded(messages).messages)


def test_thinking_in_an_answer_is_left_out_of_the_summary() -> None:
    result = folded(SESSION, summarizer=lambda ask: "<think>PRIVATE THOUGHT</think>\n## Goal\nPort it.")
    assert "PRIVATE THOUGHT" not in handoff_of(result.messages)


def test_headings_survive_two_rounds_of_the_fallback() -> None:
    first = folded(
        SESSION,
        summarizer=lambda ask: "## Goal\nPort it.\n\n## Key Decisions\n- CBOR.\n\n## Progress\n### Done\n- lexer",
    )
    second = folded([*first.messages, user("More."), *work(500)], state=first.state)
    third = folded([*second.messages, user("More."), *work(900)], state=second.state)
    text = handoff_of(third.messages)
    for piece in ("## Goal\nPort it.", "## Key Decisions\n- CBOR.", "### Done\n"):
        assert piece in text
    assert text.count("## Goal") == text.count("## Key Decisions") == 1


def test_a_plan_survives_the_fold() -> None:
    todos = [
        {"content": "write the lexer", "status": "completed"},
        {"content": "write the parser", "status": "pending"},
    ]
    plan = call(900, "TodoWrite", {"todos": todos}, "Todos have been modified")
    text = handoff_of(folded([*SESSION[:3], *work(0, 5), *plan, *work(10)]).messages)
    assert "write the parser" in text


def test_a_single_ask_is_not_repeated_three_times_in_the_fallback() -> None:
    ask = "Rename the module frobnicator to widgetizer."
    messages = [system(), user("Hello."), assistant("Hi."), user(ask), assistant("Yes."), *work(0), user("Now?")]
    assert 1 <= handoff_of(folded([*messages, assistant("Done.")]).messages).count(ask) <= 2


def test_code_and_environment_look_ups_are_not_mangled_by_redaction() -> None:
    code = 'token = os.environ["API_TOKEN"]; password = getpass(); key: str = config.api_key'
    text = handoff_of(folded([*SESSION[:3], user(f"Use {code}"), assistant("Yes."), *work(0), user("Now?")]).messages)
    assert code in text


@pytest.mark.parametrize("role", ["system", "developer"])
def test_instructions_in_the_middle_are_not_forgotten(role: str) -> None:
    rule = {"role": role, "content": "Never delete files outside of /tmp/build."}
    result = folded([*SESSION[:3], *work(0, 5), rule, *work(10), user("Go on."), assistant("Yes.")])
    assert "Never delete files outside of /tmp/build." in json.dumps(result.messages)


@pytest.mark.parametrize("place", ["middle", "last"])
def test_a_genuine_handoff_pasted_from_another_session_is_the_users_text(place: str) -> None:
    other = folded(SESSION, summarizer=lambda ask: "## Goal\nThe goal of another session.")
    pasted = handoff_of(other.messages)
    asked: list[str] = []

    def summarize(ask: midfold.SummaryRequest) -> str:
        asked.append(ask.previous)
        return "## Goal\nMine."

    turn = [user(pasted), assistant("What about it?")] if place == "middle" else [user(pasted)]
    before, after = (work(20), work(480)) if place == "middle" else (work(500), [])
    mine = folded([system(), user("Go."), *before, *turn, *after], summarizer=summarize)
    assert asked == [""]
    assert any(message.get("content") == pasted for message in mine.messages)


def test_a_pasted_handoff_is_not_taken_for_the_one_the_state_knows() -> None:
    other = folded(SESSION, summarizer=lambda ask: "## Goal\nThe goal of another session.")
    first = folded([system(), user("Go."), *work(500)], summarizer=lambda ask: "## Goal\nMine.")
    asked: list[str] = []

    def summarize(ask: midfold.SummaryRequest) -> str:
        asked.append(ask.previous)
        return "## Goal\nStill mine."

    again = [*first.messages[:3], user(handoff_of(other.messages)), *first.messages[3:], *work(500)]
    folded(again, summarizer=summarize, state=first.state)
    assert asked == ["## Goal\nMine."]


def test_a_conversation_that_begins_with_a_handoff_continues_the_session_it_tells_of() -> None:
    """The view equals that session's view verbatim, so it cannot be distinguished and continues the session."""
    other = folded(SESSION, summarizer=lambda ask: "## Goal\nThe goal of another session.")
    asked: list[str] = []

    def summarize(ask: midfold.SummaryRequest) -> str:
        asked.append(ask.previous)
        return "## Goal\nMine."

    folded([system(), user(handoff_of(other.messages)), assistant("Yes."), *work(500)], summarizer=summarize)
    assert asked == ["## Goal\nThe goal of another session."]
