"""conversation-compression-spec.md, from budgets to media: each acceptance line and rule as a test of that name."""

from __future__ import annotations

import itertools
import json

import pytest

import midfold
from midfold.compaction.archive import handle_of
from midfold.compaction.budget import plan_budget
from midfold.compaction.local.digest import is_digest, shrink_arguments
from midfold.compaction.media import replace_historical_media
from midfold.transcript.message import Media
from midfold.transcript.tokens import media_units
from support import fixtures
from support.build import DIALOGUE, PRUNES, setting, tool_run, view
from support.fixtures import assistant, call, number_lines, system, user

"""Digests alone are enough for forty calls of six hundred tokens under these settings."""


# Threshold and token budgeting


def test_a_64k_model_with_a_64k_floor_has_a_threshold_below_64k() -> None:
    assert midfold.threshold_tokens(64_000, 0.5, 64_000) == 54_400
    assert plan_budget(64_000, minimum_context_floor=64_000).threshold_tokens == 54_400


def test_a_floor_below_the_window_raises_the_threshold() -> None:
    assert midfold.threshold_tokens(100_000, 0.5, 64_000) == 64_000


def test_an_output_reservation_reduces_the_input_budget() -> None:
    assert midfold.effective_input_window(200_000, 32_000) == 168_000
    reserved = midfold.compact(DIALOGUE, context_length=200_000, output_reservation=32_000).receipt
    assert (reserved.effective_input_window, reserved.threshold_tokens) == (168_000, 84_000)


@pytest.mark.parametrize("floor", [0, 4_000, 64_000, 1_000_000])
def test_every_window_has_a_threshold_inside_it_that_grows_with_the_window(floor: int) -> None:
    windows = [8_000, 16_000, 32_000, 64_000, 128_000, 200_000, 1_000_000, 2_000_000]
    budgets = [plan_budget(window, minimum_context_floor=floor) for window in windows]
    for budget in budgets:
        assert 0 < budget.threshold_tokens < budget.effective_input_window
        assert 0 < budget.tail_tokens < budget.threshold_tokens
    if not floor:
        for one, two in itertools.pairwise(budgets):
            assert one.threshold_tokens < two.threshold_tokens
            assert one.tail_tokens < two.tail_tokens
            assert one.summary_maximum <= two.summary_maximum


def test_a_small_window_with_a_floor_beyond_it_still_compacts() -> None:
    messages = [system(), user("Go."), *tool_run(0, 200, 30)]
    result = midfold.compact(messages, context_length=8_000, config=setting(minimum_context_floor=64_000))
    assert result.receipt.status in ("compacted", "pruned")
    assert result.receipt.new_tokens <= result.receipt.threshold_tokens


def test_the_report_distinguishes_estimates_from_reported_usage() -> None:
    estimated = midfold.compact(DIALOGUE, context_length=64_000).receipt
    reported = midfold.compact(DIALOGUE, context_length=64_000, usage={"prompt_tokens": 1_234}).receipt
    assert (estimated.token_basis, reported.token_basis) == ("estimated", "reported")
    assert reported.old_tokens == 1_234
    assert reported.estimated_prompt_tokens == estimated.estimated_prompt_tokens


def test_reports_carry_threshold_estimate_and_effective_window() -> None:
    report = midfold.compact(DIALOGUE, context_length=64_000).receipt.to_dict()
    assert report["threshold_tokens"] == 32_000
    assert report["effective_input_window"] == 64_000
    assert report["estimated_prompt_tokens"] > 0
    assert report["window_source"] == "given"


def test_system_prompt_and_tool_schemas_count() -> None:
    tool = {"name": "x", "description": number_lines("long {n}", 400), "input_schema": {}}
    bare = midfold.compact(DIALOGUE, context_length=64_000).receipt
    full = midfold.compact(DIALOGUE, context_length=64_000, system=number_lines("rule {n}", 400), tools=[tool]).receipt
    assert full.fixed_tokens > 1_500
    assert full.old_tokens == bare.old_tokens + full.fixed_tokens


# Deterministic tool-output pre-pass


def test_repeated_identical_reads_keep_only_the_newest_full_copy() -> None:
    fixture = fixtures.repeated_reads()
    body = max(fixtures.tool_results(fixture.messages), key=len)
    result = midfold.compact(
        fixture.messages, context_length=32_000, force=True, config=setting(protect_last_n=4, target_ratio=0.1)
    )
    whole = [text for text in fixtures.tool_results(result.messages) if text == body]
    references = [text for text in fixtures.tool_results(result.messages) if text.startswith("[Same tool output")]
    assert result.receipt.status == "pruned"
    assert len(whole) == 1
    assert len(references) == 14


def test_old_terminal_output_becomes_command_exit_code_and_line_count() -> None:
    output = json.dumps({"output": number_lines("line {n}", 54), "exit_code": 1})
    messages = [
        user("Go."),
        assistant("Yes."),
        *call(0, "terminal", {"command": "pytest -q"}, output),
        *tool_run(1, 40),
    ]
    result = midfold.compact(messages, **PRUNES)
    assert result.receipt.status == "pruned"
    line = next(fixtures.tool_results(result.messages))
    assert is_digest(line)
    assert all(piece in line for piece in ("pytest -q", "exit 1", "54 lines"))


def test_recent_tail_output_remains_exact() -> None:
    messages = [user("Go."), assistant("Yes."), *tool_run(0, 200)]
    result = midfold.compact(messages, context_length=60_000)
    assert result.receipt.status == "compacted"
    assert all(mine is theirs for mine, theirs in zip(result.messages[-20:], messages[-20:], strict=True))


def test_each_digest_is_recorded_in_the_report_with_a_handle_that_unfolds() -> None:
    messages = [user("Go."), assistant("Yes."), *tool_run(0, 60)]
    result = midfold.compact(messages, **PRUNES)
    assert result.receipt.status == "pruned"
    changed = [n for n, (old, new) in enumerate(zip(messages, result.messages, strict=True)) if old is not new]
    assert [digest.message for digest in result.receipt.digests] == changed
    for digest in result.receipt.digests:
        assert result.archive.originals(digest.handle) == [messages[digest.message]]


def test_results_are_paired_with_their_calls_also_when_ids_are_used_again() -> None:
    same = [message | ({"tool_call_id": "x"} if message["role"] == "tool" else {}) for message in tool_run(0, 40)]
    for message in same:
        for made in message.get("tool_calls", []):
            made["id"] = "x"
    result = midfold.compact([user("Go."), *same], **PRUNES)
    digests = [text for text in fixtures.tool_results(result.messages) if is_digest(text)]
    assert digests
    assert all(f"make {number}`" in text for number, text in enumerate(digests))


def test_tool_arguments_remain_valid_json_after_shrinking() -> None:
    messages = [user("Go."), assistant("Yes.")]
    for number in range(30):
        given = {"path": f"src/m{number}.py", "content": number_lines("x = {n}", 400), "mode": 0o644, "force": True}
        messages += call(number, "write_file", given, "written")
    result = midfold.compact(
        messages, context_length=160_000, force=True, config=setting(protect_last_n=4, target_ratio=0.1)
    )
    assert result.receipt.status == "pruned"
    assert {digest.kind for digest in result.receipt.digests} == {"arguments"}
    for number, message in enumerate(result.messages[2:24:2]):
        given = json.loads(message["tool_calls"][0]["function"]["arguments"])
        assert given | {"content": ""} == {"path": f"src/m{number}.py", "content": "", "mode": 0o644, "force": True}


def test_sensitive_values_are_redacted_in_digests() -> None:
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" * 2
    messages = [user("Go."), assistant("Yes.")]
    messages += call(0, "terminal", {"command": f"curl -H 'Authorization: Bearer {secret}' x"}, "ok\n" * 200)
    messages += tool_run(1, 40)
    result = midfold.compact(messages, **PRUNES)
    line = next(fixtures.tool_results(result.messages))
    assert is_digest(line)
    assert secret not in line


def test_the_report_exposes_no_content() -> None:
    messages = [
        user("XYZZY ask"),
        assistant("XYZZY reply"),
        *tool_run(0, 5),
        *call(9, "t", {"a": "XYZZY"}, "XYZZY " * 90),
    ]
    for options in ({"force": True, "keep_last_exchanges": 1}, {"target_tokens": 300}, {}):
        result = midfold.compact(messages + tool_run(10, 40), context_length=25_000, **options)
        assert "XYZZY" not in json.dumps(result.receipt.to_dict())


# Provider-safe argument shrinking


def test_a_large_write_file_argument_stays_syntactically_valid_json() -> None:
    text = json.dumps({"path": "a/b.py", "content": "é" * 9_000, "n": [1, 2.5, None, True]}, ensure_ascii=False)
    value = json.loads(shrink_arguments(text, 200))
    assert value["path"] == "a/b.py"
    assert value["n"] == [1, 2.5, None, True]
    assert len(value["content"]) <= 200


def test_arguments_that_are_not_json_are_not_corrupted() -> None:
    text = '{"content": "' + "x" * 9_000
    assert shrink_arguments(text, 200) is text
    assert len(shrink_arguments(text, 200, clamp_raw=True)) <= 200


def test_unicode_is_preserved_without_needless_escapes() -> None:
    text = json.dumps({"content": "编辑" * 4_000, "title": "naïve 编辑"}, ensure_ascii=False)
    shrunk = shrink_arguments(text, 200)
    assert "\\u" not in shrunk
    assert json.loads(shrunk)["title"] == "naïve 编辑"


def test_only_string_leaves_shrink() -> None:
    value = {"k" * 400: [12345678901234567890, {"path": "/a/" + "b" * 300, "call_id": "c" * 300}], "text": "t " * 400}
    shrunk = midfold.shrink_json_string_leaves(value, 100)
    assert shrunk | {"text": value["text"]} == value
    assert len(shrunk["text"]) <= 100


# Media


def test_a_message_with_five_images_is_not_nearly_free() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    five = midfold.Meter().count(view([{"role": "user", "content": [image] * 5}])).tokens
    assert five >= 5 * media_units(Media("image", "AAAA"))
    assert five > 1_000


def test_old_screenshots_do_not_survive_and_the_newest_image_turn_does() -> None:
    fixture = fixtures.image_heavy_session()
    result = midfold.compact(fixture.messages, **fixture.settings)
    with_image = [message for message in result.messages if "image_url" in json.dumps(message)]
    assert with_image == [fixture.messages[-2]]
    assert with_image[0] is fixture.messages[-2]
    replaced = [digest for digest in result.receipt.digests if digest.kind == "media"]
    assert len(replaced) == 23
    assert result.archive.originals(replaced[0].handle) == [fixture.messages[replaced[0].message]]


def test_images_in_old_tool_results_are_replaced_as_well() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    shot = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "shot"}, image]}
    messages = view(
        [
            user("Go."),
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "browser", "input": {}}]},
            {"role": "user", "content": [shot]},
            {"role": "user", "content": [{"type": "text", "text": "And this?"}, image]},
        ]
    )
    after, _ = replace_historical_media(messages, handle_of)
    assert not any(isinstance(part, Media) for part in after[2].parts[0].parts)  # type: ignore[attr-defined]
    assert after[3] is messages[3]
