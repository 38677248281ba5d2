"""What is believed about models: the table, how names find their rows, overrides, and what errors teach."""

from __future__ import annotations

import datetime
import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from midfold.models import DEFAULT, FIELDS, TABLE, Belief, Model, ModelOverride, canonical, learn_limit, look_up

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
        ("llama3:8b", "llama-3*"),
        ("mistral:7b", "mistral*"),
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


TEACHES = [
    ("This model's maximum context length is 128000 tokens. However, your messages resulted in 204308 tokens. "
     "Please reduce the length of the messages.", 128_000),
    ("This model's maximum context length is 8191 tokens, however you requested 10346 tokens (10346 in your "
     "prompt; 5 for the completion). Please reduce your prompt; or completion length.", 8_191),
    ("Error code: 400 - {'error': {'message': \"This model's maximum context length is 131072 tokens. However, you "
     "requested\n\n131134 tokens (122942 in the messages, 8192 in the completion).\", 'type': 'x'}}", 131_072),
    ("Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300123 tokens. Please "
     "reduce the length of the messages.", 272_000),
    ('{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 213462 tokens > '
     '200000 maximum"}}', 200_000),
    ("input length and `max_tokens` exceed context limit: 190000 + 21333 > 200000, decrease input length or "
     "`max_tokens` and try again", 200_000),
    ("max_tokens: 32768 > context_window: 200000 - input_tokens: 190000 = available_tokens: 10000", 200_000),
    ("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", 1_048_576),
    ('{"error":{"code":400,"message":"The input token count (1196265) exceeds the maximum number of tokens allowed '
     '(1048575).","status":"INVALID_ARGUMENT"}}', 1_048_575),
    ('{"error":{"message":"This model\'s maximum context length is 2048 tokens. However, your request has 8 input '
     "tokens plus 2045 'max_tokens'.\",\"param\":\"input_tokens, max_tokens\",\"code\":400}}", 2_048),
    ("'max_tokens' or 'max_completion_tokens' is too large: 8192. This model's maximum context length is 4096 tokens "
     "and your request has 100 input tokens (8192 > 4096 - 100).", 4_096),
    ("The decoder prompt (length 40000) is longer than the maximum model length of 32768. Make sure that "
     "`max_model_len` is no smaller than the number of text tokens.", 32_768),
    ("request (9000 tokens) exceeds the available context size (8192 tokens), try increasing it", 8_192),
    ('{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":'
     '"exceed_context_size_error","n_prompt_tokens":4362,"n_ctx":4096}}', 4_096),
    ("Trying to keep the first 111490 tokens when context the overflows. However, the model is loaded with context "
     "length of only 32768 tokens, which is not enough.", 32_768),
    ("This endpoint's maximum context length is 64000 tokens. However, you requested about 100000 tokens (90000 of "
     "text input, 353 of tool input, 9647 in the output).", 64_000),
    ("Input length 131,393 exceeds the maximum allowed input length of 131,040 tokens.", 131_040),
    ("exceeds the model's maximum context length of 65,536 tokens", 65_536),
    ("Input length (265330) exceeds model's maximum context length (262144).", 262_144),
    ('400 "This model\'s maximum prompt length is 131072 but the request contains 136973 tokens."', 131_072),
    ("Failed to start sampling: [input_too_large] Current message (1149677 tokens) exceeds budget (975424 tokens)",
     975_424),
    ("The model returned the following errors: prompt is too long: 213,462 tokens > 200,000 maximum", 200_000),
    ("400 Bad Request: Too many input tokens. Max input tokens: 8192, request input token count: 11530", 8_192),
    ("Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)", 262_144),
    ("Prompt contains 50000 tokens and 0 draft tokens, too large for model with 32768 maximum context length", 32_768),
    ("prompt token count of 200000 exceeds the limit of 128000", 128_000),
    ("The input (300000 tokens) is longer than the model's context length (262144 tokens).", 262_144),
    ("Prompt has 5000 tokens, but the configured context size is 4096 tokens", 4_096),
    ("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 30720]", 30_720),
    ("too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000", 4_081),
    ("The estimated number of input and maximum output tokens (10000) exceeded this model context window limit "
     "(8192).", 8_192),
    ("The prompt is too long: 140000, model maximum context length: 131071", 131_071),
    ("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 20 "
     "`max_new_tokens`", 4_096),
    ("This request exceeds the context window of 128k tokens", 128_000),
]  # fmt: skip

TEACHES_NOTHING = [
    "",
    "Input is too long for requested model.",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "Please reduce the length of the messages or completion.",
    "the request exceeds the available context size, try increasing it",
    "invalid params, context window exceeds limit (2013)",
    "prompt too long; exceeded max context length by 1200 tokens",
    "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 342389.",
    "Rate limit reached for gpt-4o in organization org-x on tokens per min (TPM): Limit 30000, Used 29000, "
    "Requested 34238. Please try again in 12.5s.",
    "This request would exceed your organization's rate limit of 30,000 input tokens per minute.",
    "You exceeded your current quota. Quota exceeded for metric: generate_content_input_token_count, limit: 250000",
    "max_tokens must be <= 8192",
    "max_tokens exceeds the limit of 8192",
    "`max_tokens` must be less than or equal to `16384`, the maximum value for `max_tokens` is less than the "
    "`context_window` for this model",
    "max_tokens is too large: 200000. This model supports at most 16384 completion tokens.",
    "max_tokens: 65536 > 64000, which is the maximum allowed number of output tokens for claude-sonnet-4-5",
    "Range of max_tokens should be [1, 65536]",
    "max_tokens must be at least 1, got -186.",
    "messages.12.content.0.image.source.base64: image exceeds 5 MB maximum: 5316852 bytes > 5242880 bytes",
    "Request exceeds the maximum size",
    "This model's maximum context length is 3 tokens. However, your request has 8 input tokens.",
    "This model's maximum context length is 99999999999999999999 tokens.",
    "maximum context length is unknown",
    "x" * 4_096 + "This model's maximum context length is 128000 tokens.",
]


@pytest.mark.parametrize(("message", "limit"), TEACHES, ids=[message[:50] for message, _ in TEACHES])
def test_an_overflow_error_teaches_the_window(message: str, limit: int) -> None:
    assert learn_limit(message) == limit
    assert learn_limit(message.upper()) == limit


@pytest.mark.parametrize("message", TEACHES_NOTHING, ids=lambda message: message[:50] or "empty")
def test_other_errors_teach_nothing(message: str) -> None:
    assert learn_limit(message) is None


HOSTILE = ["maximum context length is ", "context length ((((((", "1,111", "9", "tokens > ", "input token count (1 "]
HOSTILE += ["context limit: 1 + 1 > ", "max max_", " is of only limit", "\\\"'"]


def best_time(run: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.parametrize("unit", HOSTILE)
def test_learning_is_linear_in_the_message_and_bounded(unit: str) -> None:
    text = unit * (4_096 // len(unit) + 1)
    small, middle, large, huge = (
        best_time(partial(learn_limit, piece)) for piece in (text[:1_024], text[:2_048], text[:4_096], text * 1_000)
    )
    assert middle <= 4 * small + 0.0005
    assert large <= 4 * middle + 0.0005
    assert huge <= 4 * large + 0.0005


@pytest.mark.parametrize("unit", [":a", "-v1:0", "a.", "/", "[1m]", "1.", "-20250929", "claude-opus-4-"])
def test_looking_up_a_hostile_name_is_linear(unit: str) -> None:
    overrides = {"*a*b*": ModelOverride(factor=2.0)}
    small, middle, large = (best_time(partial(look_up, unit * n, overrides)) for n in (2_000, 4_000, 8_000))
    assert middle <= 4 * small + 0.001
    assert large <= 4 * middle + 0.001


def test_the_module_reads_nothing_and_loads_quickly() -> None:
    script = (
        "import sys, time, midfold; before = set(sys.modules); start = time.process_time(); import midfold.models; "
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
