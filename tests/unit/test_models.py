"""Known models: the table, name lookup, and overrides."""

from __future__ import annotations

import datetime
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from midfold.compaction.request import CompactionState
from midfold.models import DEFAULT, FIELDS, TABLE, Belief, Model, ModelOverride, canonical, look_up
from midfold.session.setup import Setup
from midfold.transcript.document import read
from support.timing import assert_in_proportion

ROOT = Path(__file__).resolve().parents[2]
ROW = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.pattern)


@ROW
def test_every_row_is_reached_by_the_name_it_is_made_for(row: Model) -> None:
    assert look_up(row.pattern.replace("*", "")).model.pattern == row.pattern


@ROW
def test_every_row_is_sane(row: Model) -> None:
    assert 0 < row.max_output <= row.context_window
    assert 0.5 <= row.factor <= 3
    assert 0 <= row.message_overhead <= 200
    assert row.cache_minimum is None or 0 < row.cache_minimum < row.context_window
    assert row.tokenizer == row.tokenizer.lower().strip() != ""
    assert row.source
    assert set(row.assumed) <= set(FIELDS)
    assert (row.input_price is None) == (row.output_price is None)
    if row.input_price is not None and row.output_price is not None:
        assert 0 < row.input_price <= row.output_price
    assert row.cache_read is None or 0 < row.cache_read < 1
    assert row.cache_write_5m is None or 1 <= row.cache_write_5m <= 2
    assert row.cache_write_1h is None or (row.cache_write_5m or 0) <= row.cache_write_1h <= 4
    assert "2026-01-01" <= datetime.date.fromisoformat(row.as_of).isoformat() <= DEFAULT.as_of


def test_no_two_rows_have_the_same_pattern() -> None:
    patterns = [canonical(row.pattern) for row in TABLE]
    assert len(patterns) == len(set(patterns))


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("gpt-4o", "gpt-4o*"),
        ("GPT-4o-2024-08-06", "gpt-4o*"),
        ("gpt-4o-2024-05-13", "gpt-4o-2024-05-13"),
        ("openai/gpt-4.1-mini", "gpt-4.1-mini*"),
        ("azure/gpt-4.1", "gpt-4.1*"),
        ("openai:gpt-5", "gpt-5*"),
        ("gpt-5-2025-08-07", "gpt-5*"),
        ("gpt-5-codex", "gpt-5*"),
        ("gpt-5.1-codex-max", "gpt-5.1*"),
        ("gpt-5.1-codex-mini", "gpt-5.1-codex-mini*"),
        ("gpt-5.6-sol", "gpt-5.6*"),
        ("gpt-5.6-luna", "gpt-5.6-luna*"),
        ("openai.gpt-oss-120b-1:0", "gpt-oss*"),
        ("o3-mini-2025-01-31", "o3-mini*"),
        ("o1-2024-12-17", "o1*"),
        ("o1-mini-2024-09-12", "o1-mini*"),
        ("gpt-5-chat-latest", "gpt-5-chat*"),
        ("gpt-4-32k-0613", "gpt-4-32k*"),
        ("gpt-realtime-2025-08-28", "gpt-realtime*"),
        ("moonshot-v1-32k-vision-preview", "moonshot-v1-32k*"),
        ("meta.llama2-13b-chat-v1", "llama-2*"),
        ("llama3:8b", "llama-3*"),
        ("Meta-Llama-3-8B-Instruct", "llama-3*"),
        ("claude-4-sonnet", "claude-sonnet-4*"),
        ("claude-4.5-sonnet", "claude-sonnet-4.5*"),
        ("claude-4-opus-20250514", "claude-opus-4*"),
        ("claude-sonnet-3.7", "claude-3.7-sonnet*"),
        ("databricks-claude-sonnet-4-5", "claude-sonnet-4.5*"),
        ("databricks/databricks-claude-3-7-sonnet", "claude-3.7-sonnet*"),
        ("my-team-claude-4-opus", "claude-opus-4*"),
        ("Qwen3-14B-Claude-4.5-Opus-Distill", "qwen3*"),
        ("claude-3-5-sonnet-20241022", "claude-3.5-sonnet*"),
        ("openrouter/anthropic/claude-3.5-sonnet:beta", "claude-3.5-sonnet*"),
        ("anthropic/claude-3.7-sonnet:thinking", "claude-3.7-sonnet*"),
        ("claude-3-7-sonnet-latest", "claude-3.7-sonnet*"),
        ("claude-opus-4-20250514", "claude-opus-4*"),
        ("claude-opus-4-0", "claude-opus-4*"),
        ("claude-opus-4-1@20250805", "claude-opus-4.1*"),
        ("anthropic/claude-opus-4.8", "claude-opus-4.8*"),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4.5*"),
        ("bedrock/us-gov.anthropic.claude-sonnet-4-20250514-v1:0", "claude-sonnet-4*"),
        ("arn:aws:bedrock:eu-west-1:12:inference-profile/eu.anthropic.claude-haiku-4-5-v1:0", "claude-haiku-4.5*"),
        ("publishers/anthropic/models/claude-opus-5@default", "claude-opus-5*"),
        ("claude-opus-5-5", "claude-opus-5.5*"),
        ("claude-sonnet-5", "claude-sonnet-5*"),
        ("models/gemini-2.5-pro-preview-05-06", "gemini-2.5-pro*"),
        ("google/gemini-3-flash-preview", "gemini-3-flash*"),
        ("deepseek/deepseek-v4-pro", "deepseek-v4-pro*"),
        ("x-ai/grok-4-fast:free", "grok-4-fast*"),
        ("grok-4-0709", "grok-4*"),
        ("grok-4.20-0309-reasoning", "grok-4.20*"),
        ("moonshotai/Kimi-K2.5", "kimi-k2.5*"),
        ("accounts/fireworks/models/kimi-k2p5", "kimi-k2.5*"),
        ("kimi-k2-0711-preview", "kimi-k2*"),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", "qwen3-coder*"),
        ("qwen3:8b", "qwen3*"),
        ("qwen3.5:27b", "qwen3.5*"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.3*"),
        ("accounts/fireworks/models/llama-v3p1-70b-instruct", "llama-3.1*"),
        ("llama3.1:8b", "llama-3.1*"),
        ("mistral-large-latest", "mistral-large*"),
        ("mistral-large-2411", "mistral-large-2411"),
        ("zai-org/GLM-4.6", "glm-4.6*"),
        ("glm-4.5v", "glm-4.5v*"),
        ("MiniMaxAI/MiniMax-M2.5", "minimax-m2.5*"),
    ],
)
def test_a_name_as_providers_write_it_finds_its_row(name: str, pattern: str) -> None:
    belief = look_up(name)
    assert belief.model.pattern == pattern
    assert belief.known
    assert f'"{pattern}"' in belief.why
    assert belief.model.as_of in belief.why
    assert belief.fields["context_window"] == "table"


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("gpt-5.7", "gpt*"),
        ("gpt-50", "gpt*"),
        ("gpt-4-1106-preview", "gpt*"),
        ("claude-opus-4-9", "claude*"),
        ("claude-opus-5-12", "claude*"),
        ("gemini-3.9-pro", "gemini*"),
        ("grok-9", "grok*"),
        ("mistral:7b", "mistral*"),
        ("gpt-6-realtime", "*realtime*"),
        ("qwen-claude-4.5-opus-distill", "qwen*"),
        ("gpt-35-turbo", "gpt-35-turbo*"),
    ],
)
def test_a_newer_sibling_gets_the_guess_for_its_family_not_the_row_of_its_elder(name: str, pattern: str) -> None:
    belief = look_up(name)
    assert belief.model.pattern == pattern
    assert not belief.known
    assert set(belief.fields.values()) == {"default"}
    assert "default for its family" in belief.why


@pytest.mark.parametrize("name", ["my-own-model", "", "   ", None, "///", ":::", "*", "[1", "é", "\ud800", "0"])
def test_an_unknown_name_gets_the_stated_default(name: str | None) -> None:
    belief = look_up(name)
    assert belief.model == DEFAULT
    assert (belief.model.context_window, belief.model.max_output) == (128_000, 8_192)
    assert not belief.known
    assert set(belief.fields.values()) == {"default"}
    assert "stated default" in belief.why


@pytest.mark.parametrize(
    ("name", "window", "output"),
    [
        ("o1-mini", 128_000, 65_536),
        ("o1-preview", 128_000, 32_768),
        ("o1", 200_000, 100_000),
        ("o1-pro", 200_000, 100_000),
        ("gpt-5-chat-latest", 128_000, 16_384),
        ("gpt-4o-realtime-preview-2024-12-17", 32_000, 4_096),
        ("gpt-4o-mini-realtime-preview", 16_000, 4_096),
        ("gpt-realtime-2", 128_000, 32_000),
        ("new-realtime-model", 32_000, 4_096),
        ("gpt-4", 8_192, 8_192),
        ("gpt-4-32k", 32_768, 4_096),
        ("gpt-4-turbo-preview", 128_000, 4_096),
        ("gpt-3.5-turbo", 16_385, 4_096),
        ("moonshot-v1-8k", 8_192, 4_096),
        ("moonshot-v1-32k", 32_768, 4_096),
        ("moonshot-v1-128k", 131_072, 4_096),
        ("llama-2-70b-chat", 4_096, 2_048),
        ("llama-3-70b-instruct", 8_192, 2_048),
        ("llama-3.2-1b-instruct", 131_072, 4_096),
    ],
)
def test_small_windows_are_not_taken_for_those_of_a_bigger_sibling(name: str, window: int, output: int) -> None:
    model = look_up(name).model
    assert (model.context_window, model.max_output) == (window, output)


def test_an_override_reaches_a_name_in_any_of_its_spellings() -> None:
    overrides = {"claude-sonnet-4.5": ModelOverride(context_window=777)}
    for name in ("claude-4-5-sonnet", "databricks-claude-sonnet-4-5", "databricks-claude-4.5-sonnet"):
        assert look_up(name, overrides).model.context_window == 777


def test_the_measured_factors_and_overheads_are_in_the_table() -> None:
    measured = {
        "gpt-4o": (1.0, 15),
        "deepseek-chat": (1.0, 15),
        "claude-opus-4-6": (1.11, 38),
        "claude-opus-5": (1.55, 60),
    }
    for name, (factor, overhead) in measured.items():
        belief = look_up(name)
        assert (belief.model.factor, belief.model.message_overhead) == (factor, overhead)
        assert belief.fields["factor"] == "table"


def test_a_guess_inside_a_known_row_is_marked() -> None:
    belief = look_up("gemini-2.5-pro")
    assert belief.known
    assert (belief.fields["context_window"], belief.fields["factor"]) == ("table", "default")


@pytest.mark.parametrize("name", ["claude-sonnet-4-5[1m]", "anthropic/claude-sonnet-4.5[1M]"])
def test_the_1m_suffix_asks_for_the_long_window(name: str) -> None:
    belief = look_up(name)
    assert belief.model.pattern == "claude-sonnet-4.5*"
    assert belief.model.context_window == 1_000_000
    assert "[1m]" in belief.why


def test_the_1m_suffix_does_not_shrink_a_longer_window() -> None:
    assert look_up("gpt-5.5[1m]").model.context_window == 1_050_000


def test_an_override_sets_its_fields_and_no_other() -> None:
    plain = look_up("gpt-4o").model
    belief = look_up("gpt-4o", {"gpt-4o": ModelOverride(context_window=64_000, factor=1.2, cache_write=1.5)})
    assert (belief.model.context_window, belief.model.factor, belief.model.cache_write_5m) == (64_000, 1.2, 1.5)
    assert belief.model.max_output == plain.max_output
    changed = {field for field, origin in belief.fields.items() if origin == "config"}
    assert changed == {"context_window", "factor", "cache_write_5m"}
    assert '"gpt-4o") sets context_window, factor, cache_write_5m' in belief.why


def test_overrides_pile_up_and_the_most_specific_wins() -> None:
    overrides = {
        "claude-opus-4.5": ModelOverride(context_window=3_000),
        "*": ModelOverride(context_window=1_000, max_output=10),
        "claude-*": ModelOverride(context_window=2_000, factor=2.0),
        "gpt-*": ModelOverride(context_window=9_000),
    }
    model = look_up("us.anthropic.claude-opus-4-5-20251101-v1:0", overrides).model
    assert (model.context_window, model.factor, model.max_output) == (3_000, 2.0, 10)
    assert look_up("x", overrides).model.context_window == 1_000


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("claude-opus-4*", "claude-opus-4-5", True),
        ("gpt-4.1*", "gpt-4-1106-preview", False),
        ("my-proxy/*", "my-proxy/llama-70b", True),
        ("My_Model", "my-model", True),
        ("*-8b*", "llama-3.1-8b-instruct", True),
        ("*-8b", "llama-3.1-8b-instruct", False),
        ("a*b*c", "a-b-b-c", True),
        ("ab*b", "ab", False),
        ("", "gpt-4o", False),
    ],
)
def test_override_patterns_are_globs_over_the_canonical_name(pattern: str, name: str, matches: bool) -> None:
    belief = look_up(name, {pattern: ModelOverride(context_window=777)})
    assert (belief.model.context_window == 777) is matches


def test_an_override_of_an_unknown_model_leaves_it_unknown_but_says_who_set_what() -> None:
    belief = look_up("mine", {"mine": ModelOverride(context_window=4_000)})
    assert not belief.known
    assert (belief.model.context_window, belief.model.max_output) == (4_000, 4_000)
    assert belief.fields["context_window"] == "config"


def test_the_answer_does_not_depend_on_the_order_of_the_overrides() -> None:
    overrides = {"a*": ModelOverride(factor=1.1), "*a": ModelOverride(factor=1.2), "*a*": ModelOverride(factor=1.3)}
    backwards = dict(reversed(overrides.items()))
    assert look_up("a", overrides).model == look_up("a", backwards).model


def test_a_learned_limit_corrects_the_window_and_only_the_last_one_counts() -> None:
    belief = look_up("claude-opus-5").corrected(200_000)
    again = belief.corrected(50_000)
    assert isinstance(again, Belief)
    assert (again.model.context_window, again.model.max_output) == (50_000, 50_000)
    assert again.fields["context_window"] == "learned"
    assert again.why.count("provider's error") == 1
    assert look_up("claude-opus-5").model.context_window == 1_000_000


def test_a_window_below_one_token_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 token"):
        look_up("gpt-4o").corrected(0)


HOSTILE = [":a", "-v1:0", "a.", "/", "[1m]", "1.", "-20250929", "claude-opus-4-", "claude-4-opus-", "x-"]


@pytest.mark.parametrize("unit", HOSTILE)
def test_looking_up_a_hostile_name_is_linear(unit: str) -> None:
    overrides = {"*a*b*": ModelOverride(factor=2.0)}
    names = (unit * count for count in (2_000, 4_000, 8_000))
    small, middle, large = names
    assert_in_proportion(lambda name: look_up(name, overrides), small, (middle, 4), (large, 8), quick=0.0005)


def test_the_module_reads_nothing_and_loads_quickly() -> None:
    script = (
        "import sys, time, midfold.transcript.tokens; before = set(sys.modules); start = time.process_time(); "
        "import midfold.models; "
        "print(time.process_time() - start, *{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    results = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(3)
    ]
    assert all({*loaded} <= {"midfold", *sys.stdlib_module_names} for _, *loaded in results)
    assert min(float(taken) for taken, *_ in results) < 0.05


def test_the_reference_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("gen_models_doc", ROOT / "tools" / "gen_models_doc.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    page = generator.PAGE.read_text(encoding="utf-8")
    assert page == generator.render(page), "run python tools/gen_models_doc.py"


def test_a_prompt_may_be_limited_below_the_window() -> None:
    model = look_up("gpt-5-mini").model
    assert (model.context_window, model.max_input, model.kept_for_output) == (400_000, 272_000, 128_000)
    assert look_up("gpt-4o").model.kept_for_output == 0
    given = look_up("gpt-5-mini", {"gpt-5*": ModelOverride(context_window=1_000_000)}).model
    assert (given.max_input, given.kept_for_output) == (None, 0), "the table's limit is one of the table's window"
    own = look_up("gpt-5-mini", {"*": ModelOverride(context_window=100_000, max_input=60_000)}).model
    assert own.kept_for_output == 40_000


def test_the_threshold_of_a_conversation_respects_the_limit_of_its_prompts() -> None:
    assert Setup(model="gpt-5-mini").budget.effective_input_window == 272_000
    assert Setup(model="gpt-5-mini").request(read([]), CompactionState()).budget.effective_input_window == 272_000
    assert Setup(model="gpt-5-mini", context_length=400_000).budget.effective_input_window == 400_000
