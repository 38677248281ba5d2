"""context-compression-and-caching.md: its statements on engines, budgets, the four phases and its example, as tests."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

import midfold
from midfold.compaction.budget import plan_budget
from midfold.compaction.handoff import MARKER, recognise
from midfold.compaction.local.digest import PLACEHOLDER, is_digest
from midfold.compaction.summary import template
from midfold.config import Config, load
from midfold.config.schema import Compression
from midfold.engines import Compressor, ContextEngine
from midfold.plugins import resolve_engine
from midfold.transcript.laws import violations
from midfold.transcript.repairs import STUB
from support import fixtures
from support.build import setting
from support.fixtures import assistant, call, system, user

DOCUMENTED_SUMMARY = """## Goal
Set up a FastAPI project with tests and error handling

## Progress

### Done
- Created project structure: main.py, tests/, requirements.txt
- 8/10 tests passing

### In Progress (historical)
- Fixing 2 failing tests (test_create_user, test_delete_user)

## Relevant Files
- main.py — FastAPI app with 5 endpoints

## Next Steps (historical)
- Fix failing test fixtures
- Add error handling"""


def work(count: int, words: int = 300) -> list[dict[str, Any]]:
    runs = (call(n, "terminal", {"command": f"make {n}"}, f"{n} " * words) for n in range(count))
    return [message for run in runs for message in run]


# Pluggable engines


class Recorder(ContextEngine):
    """Engine written only against the abstract class."""

    name = "recorder"

    def __init__(self) -> None:
        self.seen: list[int] = []

    def should_compress(self, request: Any) -> midfold.Pressure:
        return midfold.Pressure.HARD

    def compress(self, request: Any) -> Any:
        self.seen.append(len(request.messages))
        return (yield from Compressor().compress(request))


def test_the_engine_is_an_abstract_class_with_two_methods_and_optional_tools() -> None:
    assert ContextEngine.__abstractmethods__ == {"should_compress", "compress"}
    assert Recorder().tools() == ()


def test_another_engine_replaces_the_built_in_one() -> None:
    engine = Recorder()
    result = midfold.compact([user("Go."), *work(60)], context_length=16_000, engine=engine)
    assert engine.seen == [121]
    assert result.changed


def test_a_registered_engine_is_used_only_by_its_name(tmp_path: Path) -> None:
    unregister = midfold.register_context_engine(Recorder)
    try:
        assert type(resolve_engine(Config().context.engine, config_dir=tmp_path).engine) is Compressor
        assert type(resolve_engine("recorder", config_dir=tmp_path).engine) is Recorder
    finally:
        unregister()
    fallen = resolve_engine("recorder", config_dir=tmp_path)
    assert type(fallen.engine) is Compressor
    assert fallen.fell_back
    assert fallen.notices


def test_the_plugin_directory_comes_before_registered_engines_and_never_replaces_the_compressor(tmp_path: Path) -> None:
    source = (
        "from midfold.engines import Compressor\n"
        "class FromDirectory(Compressor):\n    name = {name!r}\n"
        "def register(context):\n    context.register_context_engine(FromDirectory)\n"
    )
    for name in ("recorder", "compressor"):
        folder = tmp_path / "plugins" / "context_engine" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(source.format(name=name), encoding="utf-8")
    unregister = midfold.register_context_engine(Recorder)
    try:
        found = resolve_engine("recorder", config_dir=tmp_path)
        assert type(found.engine).__name__ == "FromDirectory", found.notices
        assert type(resolve_engine("compressor", config_dir=tmp_path).engine) is Compressor
    finally:
        unregister()


def test_the_engine_tracks_token_usage_from_responses() -> None:
    host = midfold.EngineHost(context_length=100_000)
    host.append([user("Go."), *work(10)])
    assert host.size.basis == "estimated"
    host.update_from_response({"usage": {"prompt_tokens": 50_000, "completion_tokens": 9}})
    assert host.size == (50_000, "reported")
    assert host.should_compress()
    assert not midfold.EngineHost(context_length=100_000).should_compress()


# Configuration and computed values


def test_the_documented_configuration_is_read_with_the_documented_defaults(tmp_path: Path) -> None:
    text = """
compression:
  enabled: true
  threshold: 0.50
  target_ratio: 0.20
  protect_last_n: 20
auxiliary:
  compression:
    model: null
    provider: auto
    base_url: null
"""
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    loaded = load(path)
    config = getattr(loaded, "config", loaded)
    assert config.compression == Compression()
    assert config.auxiliary == Config().auxiliary


def test_the_computed_values_for_a_200k_model_are_the_documented_ones() -> None:
    budget = plan_budget(200_000)
    assert budget.context_length == 200_000
    assert budget.threshold_tokens == 100_000
    assert budget.tail_tokens == 20_000
    assert budget.summary_maximum == 10_000


@pytest.mark.parametrize(
    ("window", "content", "expected"),
    [
        (200_000, 1_000, 2_000),
        (200_000, 10_000, 2_000),
        (200_000, 30_000, 6_000),
        (200_000, 90_000, 10_000),
        (1_000_000, 900_000, 12_000),
        (20_000, 1_000, 2_000),
        (10_000, 1_000, 1_000),
    ],
)
def test_the_summary_budget_is_a_fifth_of_the_content_between_2000_and_the_maximum(
    window: int, content: int, expected: int
) -> None:
    assert plan_budget(window).summary_tokens(content) == expected


def test_compression_triggers_at_or_above_the_threshold() -> None:
    messages = [user("Go."), *work(60)]
    for tokens, changed in ((99_999, False), (100_000, True), (100_001, True)):
        result = midfold.compact(messages, context_length=200_000, usage={"prompt_tokens": tokens})
        assert (result.receipt.old_tokens >= result.receipt.threshold_tokens) is changed
        assert (result.receipt.status != "unchanged" or "below the threshold" not in result.receipt.reason) is changed


def test_target_ratio_controls_the_tail_and_protect_last_n_is_a_minimum() -> None:
    messages = [user("Go."), *work(240)]
    small = midfold.compact(messages, context_length=80_000, config=setting(target_ratio=0.05, protect_last_n=4))
    large = midfold.compact(messages, context_length=80_000, config=setting(target_ratio=0.3, protect_last_n=4))
    many = midfold.compact(messages, context_length=80_000, config=setting(target_ratio=0.05, protect_last_n=20))
    starts = [result.boundary.end for result in (small, large, many) if result.boundary]
    assert starts[1] < starts[0]
    assert len(messages) - starts[2] >= 20


# Phase 1: old tool results


def test_phase_1_the_placeholder_replaces_old_results_when_asked_for() -> None:
    messages = [user("Go."), assistant("Yes."), *work(40)]
    config = setting(protect_last_n=4, prune="placeholder")
    result = midfold.compact(messages, context_length=64_000, force=True, config=config)
    assert result.receipt.status == "pruned"
    texts = list(fixtures.tool_results(result.messages))
    assert texts[0] == PLACEHOLDER == "[Old tool output cleared to save context space]"
    assert texts[-1] == messages[-1]["content"]


def test_phase_1_makes_no_model_call_and_informative_digests_by_default() -> None:
    def never(ask: midfold.SummaryRequest) -> str:
        raise AssertionError("a summary was asked for")

    messages = [user("Go."), assistant("Yes."), *work(40)]
    config = setting(protect_last_n=4)
    result = midfold.compact(messages, context_length=64_000, force=True, config=config, summarizer=never)
    assert result.receipt.status == "pruned"
    assert is_digest(next(fixtures.tool_results(result.messages)))


# Phase 2: boundaries


def test_phase_2_head_is_system_and_first_exchange_and_groups_stay_whole() -> None:
    messages = [system(), user("Go."), assistant("Yes."), *work(400, 100)]
    result = midfold.compact(messages, context_length=64_000)
    assert result.receipt.status == "compacted"
    assert result.boundary is not None
    assert result.boundary.start == 3
    assert messages[result.boundary.end]["role"] == "assistant"
    assert len(messages) - result.boundary.end >= 20


# Phase 3: the summary


def test_phase_3_the_template_has_the_documented_headings_in_their_order() -> None:
    documented = [
        "## Goal", "## Constraints & Preferences", "## Progress", "### Done", "### In Progress", "### Blocked",
        "## Key Decisions", "## Relevant Files", "## Next Steps", "## Critical Context",
    ]  # fmt: skip
    shown = template()
    positions = [shown.index(heading) for heading in documented]
    assert positions == sorted(positions)


def test_phase_3_a_failed_summary_never_drops_turns_without_a_summary() -> None:
    def too_small(ask: midfold.SummaryRequest) -> str:
        raise RuntimeError("context_length_exceeded")

    messages = [user("Remember the number 48713."), assistant("Yes."), *work(120)]
    result = midfold.compact(messages, context_length=16_000, summarizer=too_small)
    assert result.receipt.status == "compacted"
    assert result.receipt.summary.source == "local"
    assert result.archive.originals(result.receipt.fold)


# Phase 4: assembly


def test_phase_4_the_note_is_appended_to_the_system_prompt_on_the_first_compaction_only() -> None:
    messages = [system("You are a helpful assistant..."), user("Go."), assistant("Yes."), *work(120)]
    first = midfold.compact(messages, context_length=16_000)
    prompt = first.messages[0]["content"]
    assert prompt.startswith(
        "You are a helpful assistant...\n\n[Note: Some earlier conversation turns have been compacted"
    )
    second = midfold.compact([*first.messages, user("More."), *work(120)], context_length=16_000, state=first.state)
    assert second.receipt.compaction_count == 2
    assert second.messages[0] is first.messages[0]


def test_phase_4_the_note_is_a_block_of_its_own_where_the_dialect_has_blocks() -> None:
    blocks = [{"type": "text", "text": "You are careful.", "cache_control": {"type": "ephemeral"}}]
    talk = [turn for n in range(300) for turn in (user(f"Q{n} " + "why " * 40), assistant("Because. " * 20))]
    body = {"model": "claude-opus-4-6", "max_tokens": 1_000, "system": blocks, "messages": talk}
    result = midfold.compact(body, context_length=16_000)
    assert result.messages["system"][0] == blocks[0]
    assert [block["type"] for block in result.messages["system"]] == ["text", "text"]
    assert "cache_control" not in result.messages["system"][1]
    assert result.messages["max_tokens"] == 1_000


@pytest.mark.parametrize("head", [["user"], ["user", "assistant"], []])
@pytest.mark.parametrize("tail", ["user", "assistant"])
def test_phase_4_the_summary_role_avoids_same_role_neighbours(head: list[str], tail: str) -> None:
    opening = [{"role": role, "content": f"head {n}"} for n, role in enumerate(head)]
    middle = work(60)
    end = [user("last ask"), assistant("last answer")] if tail == "user" else [assistant("last answer")]
    messages = [system(), *opening, *middle, *end]
    result = midfold.compact(messages, context_length=8_000, config=setting(protect_last_n=len(end)))
    roles = [message["role"] for message in result.messages]
    assert not any(one == two and one in ("user", "assistant") for one, two in itertools.pairwise(roles))
    assert roles[1] == "user"


def test_phase_4_orphans_are_removed_or_stubbed() -> None:
    orphan = {"role": "tool", "tool_call_id": "gone", "content": "?"}
    open_call = call(500, "terminal", {"command": "sleep"}, "")[0]
    messages = [user("Go."), assistant("Yes."), *work(120), orphan, open_call, user("Stop."), assistant("Stopped.")]
    result = midfold.compact(messages, context_length=16_000)
    texts = list(fixtures.tool_results(result.messages))
    assert "?" not in texts
    assert texts[-1] == STUB
    assert violations(midfold.read(result.messages).messages) == ()
    assert len(result.receipt.repairs) >= 2


# Iterative re-compression


def test_recompression_asks_for_an_update_with_the_previous_summary() -> None:
    prompts: list[str] = []

    def summarize(ask: midfold.SummaryRequest) -> str:
        prompts.append(ask.prompt())
        return f"## Goal\nSummary {len(prompts)}"

    messages = [user("Go."), assistant("Yes."), *work(120)]
    first = midfold.compact(messages, context_length=24_000, summarizer=summarize)
    grown = [*first.messages, user("More."), *work(120)]
    second = midfold.compact(grown, context_length=24_000, summarizer=summarize, state=first.state)
    assert "Update the summary" not in prompts[0]
    assert "Update the summary" in prompts[1]
    assert "<previous-summary>\n## Goal\nSummary 1\n</previous-summary>" in prompts[1]
    assert second.state.summary.endswith("[1] Go.\n\n## Goal\nSummary 2")


# The example


def test_the_example_has_45_messages_and_about_95k_tokens() -> None:
    messages = fixtures.fastapi_example().messages
    assert len(messages) == 45
    tokens = midfold.compact(messages, context_length=400_000).receipt.old_tokens
    assert 90_000 <= tokens <= 100_000
    assert [messages[index]["role"] for index in (0, 1, 2, 3, 38, 39, 40, 44)] == [
        "system", "user", "assistant", "tool", "assistant", "tool", "user", "user",
    ]  # fmt: skip
    assert messages[40]["content"] == "Fix the failing tests"


def test_the_example_becomes_25_messages_and_about_45k_tokens() -> None:
    fixture = fixtures.fastapi_example()
    config = setting(prune="off")
    result = midfold.compact(
        fixture.messages, **fixture.settings, config=config, summarizer=lambda ask: DOCUMENTED_SUMMARY
    )
    assert (result.receipt.summary.source, result.receipt.summary.failure) == ("model", "")
    assert result.state.cooldown_until == 0
    assert len(result.messages) == 25
    assert 40_000 <= result.receipt.new_tokens <= 46_000


def test_the_example_folded_up_to_the_failing_tests_is_the_documented_list() -> None:
    fixture = fixtures.fastapi_example()
    result = midfold.compact(fixture.messages, keep_last_exchanges=2, summarizer=lambda ask: DOCUMENTED_SUMMARY)
    after = result.messages
    assert [message["role"] for message in after] == [
        "system", "user", "assistant", "user", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip
    assert after[0]["content"].startswith("You are a helpful assistant...\n\n[Note: Some earlier conversation turns")
    assert after[1]["content"] == "Help me set up a FastAPI project"
    assert after[2]["content"].startswith(f"{MARKER} Earlier turns were compacted")
    written = after[2]["content"].split("\n")
    assert all(line in written for line in DOCUMENTED_SUMMARY.split("\n")), "with what calls and results tell beside it"
    assert all(mine is theirs for mine, theirs in zip(after[3:], fixture.messages[40:], strict=True))


def test_the_example_lands_by_digests_alone_at_the_defaults() -> None:
    fixture = fixtures.fastapi_example()
    result = midfold.compact(fixture.messages, **fixture.settings)
    assert result.receipt.status == "pruned"
    assert len(result.messages) == 45
    assert result.receipt.new_tokens <= result.receipt.landing_tokens


# Caching and pressure


def test_after_compression_the_system_prompt_prefix_survives() -> None:
    messages = [system(), user("Go."), assistant("Yes."), *work(120)]
    first = midfold.compact(messages, context_length=16_000)
    second = midfold.compact([*first.messages, user("More."), *work(120)], context_length=16_000, state=first.state)
    assert json.dumps(second.messages[0]) == json.dumps(first.messages[0])
    assert first.messages[0]["content"].startswith(messages[0]["content"])


def test_no_pressure_warnings_are_injected() -> None:
    messages = [system(), user("Go."), *work(20)]
    size = midfold.compact(messages, context_length=400_000).receipt.old_tokens
    host = midfold.EngineHost(context_length=round(size * 2.2))
    host.append(messages)
    assert host.pressure() is midfold.Pressure.SOFT
    assert host.compress(messages) is messages
    folded = midfold.compact([*messages, *work(120)], context_length=16_000).messages
    generated = [message for message in midfold.read(folded).messages if recognise(message)]
    assert len(generated) <= 2
