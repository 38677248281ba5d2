"""Learning a model's window from overflow errors, and its limits."""

from __future__ import annotations

import pytest

from midfold.models import learn_limit
from support.timing import assert_in_proportion

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
    ("Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192", 8_192),
    ("input tokens 70000 exceeds limit 65536", 65_536),
    ("Input tokens (70,000) exceed the limit of 65,536 tokens.", 65_536),
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
    "maximum input length is 4,194,304 bytes",
    "max_input_size exceeded: maximum input size is 4194304 B",
    "maximum prompt length is 4096 KiB",
    "The maximum input length is 32000 characters",
    "maximum input length: 128k chars",
    "context window 2024-05-01",
    "context window 2024/05/01 is deprecated",
    "maximum context size is 2000 images",
    "Current length is 9000 characters while limit is 8192 characters",
    "input tokens 70000 exceeds limit 65536 tokens per minute",
    "input tokens 70000 exceeds limit 65536/min",
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
HOSTILE += ["current length is 1 while ", "input tokens 1 exceeds limit ", "context length 1 k", "1_111"]
HOSTILE += ["context limit: 1 + 1 > ", "max max_", " is of only limit", "\\\"'"]


@pytest.mark.parametrize("unit", HOSTILE)
def test_learning_is_linear_in_the_message_and_bounded(unit: str) -> None:
    text = unit * (4_096 // len(unit) + 1)
    assert_in_proportion(learn_limit, text[:1_024], (text[:2_048], 4), (text[:4_096], 8), quick=0.0002)
    assert_in_proportion(learn_limit, text[:4_096], (text * 1_000, 4), quick=0.0002)
