"""Known models as dated rows; `midfold.models` turns them into `Model`s and looks them up.

1. A row states only what its `source` says on the day `as_of`. A field that the source does not give is named in
   `assumed`; an unknown price is None.
2. A pattern is a literal, or literals and `*`. Names and patterns are compared in the canonical form of
   `models.canonical`: lower case, "4.5" and "4-5" alike. A `*` never continues a number or a version: "gpt-5*" is
   gpt-5 and gpt-5-mini, not gpt-5.1.
3. Prices are US dollars per million tokens at the standard tier, for the shortest prompts where the price grows with
   the prompt, at peak hours where it depends on the clock. Cache prices are multiples of the input price.
4. A prompt may be as long as the window minus the requested output, unless `INPUT_LIMITS` says otherwise.
5. A row whose source begins with "default" is a guess for a whole family and is not `known`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Row = tuple[str, int, int, float | None, float | None, float | None]
"""pattern, context window, maximum output, input price, output price, cache read multiplier"""


class Group(NamedTuple):
    """Rows that share everything except windows and prices."""

    rows: tuple[Row, ...]
    tokenizer: str
    as_of: str
    source: str
    factor: float = 1.0
    overhead: int = 15
    minimum: int | None = None
    write: float | None = None
    write_long: float | None = None
    assumed: tuple[str, ...] = ()


_MODELS_DEV = "models.dev catalogue"
_UNMEASURED = ("factor", "message_overhead")
_CHECKED = "2026-11-15"

INPUT_LIMITS = dict.fromkeys(
    (
        *("gpt-5*", "gpt-5-mini*", "gpt-5-nano*", "gpt-5.1*", "gpt-5.1-codex-mini*", "gpt-5.2*", "gpt-5.3-codex*"),
        *("gpt-5.4-mini*", "gpt-5.4-nano*"),
    ),
    272_000,
)
"""Largest prompt in tokens where it is less than the window: of the 400,000 of GPT-5, 128,000 are reserved for output
(OpenAI, Introducing GPT-5 for developers; its refusals name the same limit).
"""

_OPENAI = (
    Group((
        ("gpt-6.1-terra*", 1_050_000, 128_000, 1.0, 5.0, 0.05),
    ), tokenizer="o200k", minimum=1024, write=1.25, write_long=2.5,
       as_of="2026-10-26", source="OpenAI model and price pages", assumed=("tokenizer", *_UNMEASURED)),
    Group((
        ("gpt-6.1-sol*", 1_050_000, 128_000, 2.0, 10.0, 0.05),
        ("gpt-6-astra*", 1_050_000, 128_000, 10.0, 50.0, 0.1),
        ("gpt-6-sol*", 1_050_000, 128_000, 2.0, 10.0, 0.1),
        ("gpt-6-luna*", 1_050_000, 128_000, 0.1, 0.5, 0.1),
    ), tokenizer="o200k", minimum=1024, write=1.25,
       as_of="2026-10-26", source="OpenAI model and price pages", assumed=("tokenizer", *_UNMEASURED)),
    Group((
        ("gpt-5.6*", 1_050_000, 128_000, 4.0, 20.0, 0.1),
        ("gpt-5.6-terra*", 1_050_000, 128_000, 2.0, 12.0, 0.1),
        ("gpt-5.6-luna*", 1_050_000, 128_000, 0.2, 1.2, 0.1),
    ), tokenizer="o200k", minimum=1024, write=1.25,
       as_of="2026-10-26", source="OpenAI model pages; caching: midfold design notes"),
    Group((
        ("gpt-5.5*", 1_050_000, 128_000, 5.0, 30.0, 0.1),
        ("gpt-5.4*", 1_050_000, 128_000, 2.5, 15.0, 0.1),
        ("gpt-5.4-mini*", 400_000, 128_000, 0.75, 4.5, 0.1),
        ("gpt-5.4-nano*", 400_000, 128_000, 0.2, 1.25, 0.1),
        ("gpt-5.3-codex*", 400_000, 128_000, 1.75, 14.0, 0.1),
        ("gpt-5.3-codex-spark*", 128_000, 32_000, 1.75, 14.0, 0.1),
        ("gpt-5.3-chat*", 128_000, 16_384, 1.75, 14.0, 0.1),
        ("gpt-5.2*", 400_000, 128_000, 1.75, 14.0, 0.1),
        ("gpt-5.2-chat*", 128_000, 16_384, 1.75, 14.0, 0.1),
        ("gpt-5.1*", 400_000, 128_000, 1.25, 10.0, 0.1),
        ("gpt-5.1-chat*", 128_000, 16_384, 1.25, 10.0, 0.1),
        ("gpt-5.1-codex-mini*", 400_000, 128_000, 0.25, 2.0, 0.1),
        ("gpt-5*", 400_000, 128_000, 1.25, 10.0, 0.1),
        ("gpt-5-mini*", 400_000, 128_000, 0.25, 2.0, 0.1),
        ("gpt-5-nano*", 400_000, 128_000, 0.05, 0.4, 0.1),
        ("gpt-4.1*", 1_047_576, 32_768, 2.0, 8.0, 0.25),
        ("gpt-4.1-mini*", 1_047_576, 32_768, 0.4, 1.6, 0.25),
        ("gpt-4.1-nano*", 1_047_576, 32_768, 0.1, 0.4, 0.25),
        ("gpt-4o*", 128_000, 16_384, 2.5, 10.0, 0.5),
        ("gpt-4o-mini*", 128_000, 16_384, 0.15, 0.6, 0.5),
        ("o4-mini*", 200_000, 100_000, 1.1, 4.4, 0.25),
        ("o4-mini-deep-research*", 200_000, 100_000, 2.0, 8.0, 0.25),
        ("o3*", 200_000, 100_000, 2.0, 8.0, 0.25),
        ("o3-mini*", 200_000, 100_000, 1.1, 4.4, 0.5),
        ("o3-deep-research*", 200_000, 100_000, 10.0, 40.0, 0.25),
        ("o1*", 200_000, 100_000, 15.0, 60.0, 0.5),
        ("o1-mini*", 128_000, 65_536, 1.1, 4.4, 0.5),
        ("o1-preview*", 128_000, 32_768, 15.0, 60.0, 0.5),
    ), tokenizer="o200k", minimum=1024, write=1.0,
       as_of="2026-07-01", source=f"{_MODELS_DEV}; caching: midfold design notes"),
    Group((
        ("gpt-5.5-pro*", 1_050_000, 128_000, 30.0, 180.0, None),
        ("gpt-5.4-pro*", 1_050_000, 128_000, 30.0, 180.0, None),
        ("gpt-5.2-pro*", 400_000, 128_000, 21.0, 168.0, None),
        ("gpt-5-pro*", 400_000, 272_000, 15.0, 120.0, None),
        ("gpt-4o-2024-05-13", 128_000, 4_096, 5.0, 15.0, None),
        ("o3-pro*", 200_000, 100_000, 20.0, 80.0, None),
        ("o1-pro*", 200_000, 100_000, 150.0, 600.0, None),
    ), tokenizer="o200k", as_of="2026-07-01", source=_MODELS_DEV),
    Group((
        ("gpt-oss*", 131_072, 65_536, None, None, None),
    ), tokenizer="o200k", as_of="2026-07-01", source=f"{_MODELS_DEV}, as hosted by Groq", assumed=_UNMEASURED),
    Group((
        ("gpt-4-turbo*", 128_000, 4_096, 10.0, 30.0, None),
        ("gpt-4", 8_192, 8_192, 30.0, 60.0, None),
        ("gpt-4-0613", 8_192, 8_192, 30.0, 60.0, None),
        ("gpt-3.5-turbo*", 16_385, 4_096, 0.5, 1.5, None),
    ), tokenizer="cl100k", as_of="2026-07-01", source=_MODELS_DEV, assumed=_UNMEASURED),
    Group((
        ("gpt-4-32k*", 32_768, 4_096, 60.0, 120.0, None),
        ("gpt-4-0314", 8_192, 4_096, 30.0, 60.0, None),
        ("gpt-3.5-turbo-0613", 4_097, 4_096, 1.5, 2.0, None),
        ("gpt-3.5-turbo-0301", 4_097, 4_096, 1.5, 2.0, None),
    ), tokenizer="cl100k", as_of=_CHECKED, source="LiteLLM catalogue; retired names", assumed=_UNMEASURED),
    Group((
        ("gpt-5-chat*", 128_000, 16_384, 1.25, 10.0, 0.1),
    ), tokenizer="o200k", minimum=1024, as_of=_CHECKED,
       source="Vercel AI Gateway page; prices: OpenAI price page by way of third parties",
       assumed=("max_output", "cache_minimum", *_UNMEASURED)),
    Group((
        ("gpt-realtime-2*", 128_000, 32_000, 4.0, 24.0, 0.1),
        ("gpt-realtime-1.5*", 32_000, 4_096, 4.0, 16.0, 0.1),
        ("gpt-4o-mini-realtime*", 16_000, 4_096, 0.6, 2.4, 0.5),
    ), tokenizer="o200k", as_of=_CHECKED, source="OpenAI model pages, text prices",
       assumed=("tokenizer", *_UNMEASURED)),
    Group((
        ("gpt-realtime*", 32_000, 4_096, 4.0, 16.0, 0.1),
    ), tokenizer="o200k", as_of=_CHECKED, source="OpenAI cookbook; text prices by way of third parties",
       assumed=("max_output", "tokenizer", *_UNMEASURED)),
    Group((
        ("gpt-realtime-mini*", 32_000, 4_096, 0.6, 2.4, 0.1),
        ("gpt-4o-realtime*", 32_000, 4_096, 5.0, 20.0, 0.5),
    ), tokenizer="o200k", as_of=_CHECKED, source="OpenAI text prices by way of third parties",
       assumed=("context_window", "max_output", "tokenizer", *_UNMEASURED)),
)  # fmt: skip

_ANTHROPIC_PRICES = "Anthropic model and price pages"
_ANTHROPIC = (
    Group((
        ("claude-fable-5.1*", 1_000_000, 128_000, 10.0, 50.0, 0.025),
        ("claude-mythos-5.1*", 1_000_000, 128_000, 10.0, 50.0, 0.025),
        ("claude-fable-5*", 1_000_000, 128_000, 10.0, 50.0, 0.1),
        ("claude-mythos-5*", 1_000_000, 128_000, 10.0, 50.0, 0.1),
        ("claude-opus-5.5*", 1_000_000, 128_000, 4.0, 20.0, 0.05),
        ("claude-opus-5*", 1_000_000, 128_000, 5.0, 25.0, 0.1),
        ("claude-sonnet-5.5*", 1_000_000, 128_000, 2.0, 10.0, 0.05),
        ("claude-haiku-5.5*", 1_000_000, 128_000, 0.1, 0.5, 0.1),
    ), tokenizer="claude-4.7", factor=1.55, overhead=60, minimum=512, write=1.25, write_long=2.0,
       as_of="2026-10-10", source=f"{_ANTHROPIC_PRICES}; tokens and cache minimum: midfold design notes"),
    Group((
        ("claude-sonnet-5*", 1_000_000, 128_000, 2.0, 10.0, 0.1),
    ), tokenizer="claude-4.7", factor=1.55, overhead=60, minimum=1024, write=1.25, write_long=2.0,
       as_of="2026-10-10", source=f"{_ANTHROPIC_PRICES}; tokens: midfold design notes; cache minimum: dev.to"),
    Group((
        ("claude-opus-4.8*", 1_000_000, 128_000, 5.0, 25.0, 0.1),
    ), tokenizer="claude-4.7", factor=1.55, overhead=60, minimum=1024, write=1.25, write_long=2.0,
       as_of="2026-10-10", source=f"{_ANTHROPIC_PRICES}; cache minimum: dev.to", assumed=_UNMEASURED),
    Group((
        ("claude-opus-4.7*", 1_000_000, 128_000, 5.0, 25.0, 0.1),
    ), tokenizer="claude-4.7", factor=1.55, overhead=60, minimum=2048, write=1.25, write_long=2.0,
       as_of="2026-10-10", source=f"{_ANTHROPIC_PRICES}; cache minimum: midfold design notes", assumed=_UNMEASURED),
    Group((
        ("claude-opus-4.6*", 1_000_000, 128_000, 5.0, 25.0, 0.1),
        ("claude-opus-4.5*", 200_000, 64_000, 5.0, 25.0, 0.1),
        ("claude-haiku-4.5*", 200_000, 64_000, 1.0, 5.0, 0.1),
    ), tokenizer="claude", factor=1.11, overhead=38, minimum=4096, write=1.25, write_long=2.0,
       as_of="2026-07-01", source=f"{_MODELS_DEV}; tokens and cache: midfold design notes"),
    Group((
        ("claude-sonnet-4.6*", 1_000_000, 64_000, 3.0, 15.0, 0.1),
        ("claude-sonnet-4.5*", 200_000, 64_000, 3.0, 15.0, 0.1),
        ("claude-sonnet-4*", 200_000, 64_000, 3.0, 15.0, 0.1),
        ("claude-opus-4.1*", 200_000, 32_000, 15.0, 75.0, 0.1),
        ("claude-opus-4*", 200_000, 32_000, 15.0, 75.0, 0.1),
    ), tokenizer="claude", factor=1.11, overhead=38, minimum=1024, write=1.25, write_long=2.0,
       as_of="2026-07-01", source=f"{_MODELS_DEV}; tokens and cache: midfold design notes"),
    Group((
        ("claude-3.7-sonnet*", 200_000, 64_000, 3.0, 15.0, 0.1),
        ("claude-3.5-sonnet*", 200_000, 8_192, 3.0, 15.0, 0.1),
        ("claude-3-opus*", 200_000, 4_096, 15.0, 75.0, 0.1),
    ), tokenizer="claude", factor=1.11, overhead=38, minimum=1024, write=1.25, write_long=2.0,
       as_of="2026-07-01", source=f"{_MODELS_DEV}; cache minimum: Anthropic documentation", assumed=_UNMEASURED),
    Group((
        ("claude-3.5-haiku*", 200_000, 8_192, 0.8, 4.0, 0.1),
    ), tokenizer="claude", factor=1.11, overhead=38, minimum=2048, write=1.25, write_long=2.0,
       as_of="2026-10-10", source="Anthropic price page; cache minimum: midfold design notes",
       assumed=("context_window", "max_output", *_UNMEASURED)),
    Group((
        ("claude-3-haiku*", 200_000, 4_096, 0.25, 1.25, 0.12),
    ), tokenizer="claude", factor=1.11, overhead=38, minimum=2048, write=1.2,
       as_of="2026-07-01", source=f"{_MODELS_DEV}; cache minimum: Anthropic documentation", assumed=_UNMEASURED),
)  # fmt: skip

_GOOGLE = (
    Group((
        ("gemini-3.8-flash*", 1_048_576, 65_536, 0.75, 3.75, 0.1),
        ("gemini-3.6-flash*", 1_048_576, 65_536, 1.5, 7.5, 0.1),
        ("gemini-3.5-flash-lite*", 1_048_576, 65_536, 0.3, 2.5, 0.1),
    ), tokenizer="gemini", minimum=4096, write=1.0, as_of="2026-10-07",
       source="Google price page by way of third parties; caching: midfold design notes", assumed=_UNMEASURED),
    Group((
        ("gemini-3.5-flash*", 1_048_576, 65_536, 1.5, 9.0, 0.1),
        ("gemini-3.1-pro*", 1_048_576, 65_536, 2.0, 12.0, 0.1),
        ("gemini-3.1-flash-lite*", 1_048_576, 65_536, 0.25, 1.5, 0.1),
        ("gemini-3-pro*", 1_048_576, 65_536, 2.0, 12.0, 0.1),
        ("gemini-3-flash*", 1_048_576, 65_536, 0.5, 3.0, 0.1),
    ), tokenizer="gemini", minimum=4096, write=1.0,
       as_of="2026-07-01", source=f"{_MODELS_DEV}; caching: midfold design notes", assumed=_UNMEASURED),
    Group((
        ("gemini-2.5-pro*", 1_048_576, 65_536, 1.25, 10.0, 0.1),
        ("gemini-2.5-flash*", 1_048_576, 65_536, 0.3, 2.5, 0.1),
        ("gemini-2.5-flash-lite*", 1_048_576, 65_536, 0.1, 0.4, 0.1),
    ), tokenizer="gemini", minimum=2048, write=1.0,
       as_of="2026-07-01", source=f"{_MODELS_DEV}; caching: midfold design notes", assumed=_UNMEASURED),
    Group((
        ("gemini-2.0-flash*", 1_048_576, 8_192, 0.1, 0.4, 0.25),
        ("gemini-2.0-flash-lite*", 1_048_576, 8_192, 0.075, 0.3, None),
    ), tokenizer="gemini", as_of="2026-07-01", source=_MODELS_DEV, assumed=_UNMEASURED),
)  # fmt: skip

_DEEPSEEK = (
    Group((
        ("deepseek-flash*", 1_000_000, 384_000, 0.3, 1.2, 0.02),
        ("deepseek-v4-flash*", 1_000_000, 384_000, 0.3, 1.2, 0.02),
        ("deepseek-v4.1-flash*", 1_000_000, 384_000, 0.3, 1.2, 0.02),
        ("deepseek-v4-pro*", 1_000_000, 384_000, 1.32, 3.96, 0.033),
    ), tokenizer="deepseek", write=1.0, as_of="2026-10-27", source="DeepSeek price page, peak hours"),
    Group((
        ("deepseek-chat*", 1_000_000, 384_000, 0.14, 0.28, 0.02),
        ("deepseek-reasoner*", 1_000_000, 384_000, 0.14, 0.28, 0.02),
    ), tokenizer="deepseek", write=1.0, as_of="2026-07-01", source=f"{_MODELS_DEV}; retired names"),
)  # fmt: skip

_HOSTED = (
    Group((
        ("grok-4.7*", 500_000, 30_000, 2.0, 6.0, 0.25),
        ("grok-4.6*", 500_000, 30_000, 2.0, 6.0, 0.25),
        ("grok-4.5*", 500_000, 30_000, 2.0, 6.0, 0.15),
    ), tokenizer="grok", as_of="2026-09-01", source="xAI price page by way of third parties",
       assumed=("max_output", *_UNMEASURED)),
    Group((
        ("grok-4.3*", 1_000_000, 30_000, 1.25, 2.5, 0.16),
        ("grok-4.20*", 1_000_000, 30_000, 1.25, 2.5, 0.16),
        ("grok-build*", 256_000, 256_000, 1.0, 2.0, 0.2),
    ), tokenizer="grok", as_of="2026-07-01", source=_MODELS_DEV, assumed=_UNMEASURED),
    Group((
        ("grok-4*", 256_000, 30_000, 3.0, 15.0, None),
        ("grok-4-fast*", 2_000_000, 30_000, None, None, None),
        ("grok-code-fast*", 256_000, 30_000, 0.2, 1.5, None),
        ("grok-3*", 131_072, 30_000, None, None, None),
    ), tokenizer="grok", as_of="2026-07-15", source="hermes-agent 0.19 and OpenRouter pages",
       assumed=("max_output", *_UNMEASURED)),
    Group((
        ("kimi-k3.1-pro*", 1_048_576, 131_072, 2.0, 10.0, 0.1),
        ("kimi-k3.1-pro-highspeed*", 1_048_576, 131_072, 4.0, 20.0, 0.05),
        ("kimi-k3*", 1_048_576, 131_072, 3.0, 15.0, 0.1),
    ), tokenizer="kimi", as_of="2026-10-25", source="Moonshot prices by way of resellers", assumed=_UNMEASURED),
    Group((
        ("kimi-k2.7-code*", 262_144, 262_144, 0.95, 4.0, 0.2),
        ("kimi-k2.7-code-highspeed*", 262_144, 262_144, 1.9, 8.0, 0.2),
        ("kimi-k2.6*", 262_144, 262_144, 0.95, 4.0, 0.168),
        ("kimi-k2.5*", 262_144, 262_144, 0.6, 3.0, 0.167),
        ("kimi-k2-thinking*", 262_144, 262_144, 0.6, 2.5, 0.25),
        ("kimi-k2-0905*", 262_144, 262_144, 0.6, 2.5, 0.25),
        ("kimi-k2*", 131_072, 16_384, 0.6, 2.5, 0.25),
    ), tokenizer="kimi", as_of="2026-07-01", source=_MODELS_DEV, assumed=_UNMEASURED),
    Group((
        ("moonshot-v1-8k*", 8_192, 4_096, None, None, None),
        ("moonshot-v1-32k*", 32_768, 4_096, None, None, None),
        ("moonshot-v1-128k*", 131_072, 4_096, None, None, None),
    ), tokenizer="kimi", as_of="2026-05-18", source="Moonshot price page by way of a gateway's table",
       assumed=("max_output", "tokenizer", *_UNMEASURED)),
    Group((
        ("glm-5.2*", 1_000_000, 131_072, 1.4, 4.4, 0.186),
        ("glm-5.1*", 200_000, 131_072, 1.4, 4.4, 0.186),
        ("glm-5*", 204_800, 131_072, 1.0, 3.2, 0.2),
        ("glm-5-turbo*", 200_000, 131_072, 1.2, 4.0, 0.2),
        ("glm-4.7*", 204_800, 131_072, 0.6, 2.2, 0.183),
        ("glm-4.6*", 204_800, 131_072, 0.6, 2.2, 0.183),
        ("glm-4.6v*", 128_000, 32_768, 0.3, 0.9, None),
        ("glm-4.5*", 131_072, 98_304, 0.6, 2.2, 0.183),
        ("glm-4.5-air*", 131_072, 98_304, 0.2, 1.1, 0.15),
        ("glm-4.5v*", 64_000, 16_384, 0.6, 1.8, None),
    ), tokenizer="glm", as_of="2026-07-01", source=_MODELS_DEV, assumed=_UNMEASURED),
    Group((
        ("minimax-m3*", 1_000_000, 128_000, 0.3, 1.2, 0.2),
        ("minimax-m2.1*", 204_800, 131_072, 0.3, 1.2, None),
        ("minimax-m2*", 196_608, 128_000, 0.3, 1.2, None),
    ), tokenizer="minimax", as_of="2026-07-01", source=_MODELS_DEV, assumed=_UNMEASURED),
    Group((
        ("minimax-m2.7*", 204_800, 131_072, 0.3, 1.2, 0.2),
        ("minimax-m2.5*", 204_800, 131_072, 0.3, 1.2, 0.1),
    ), tokenizer="minimax", write=1.25, as_of="2026-07-01", source=_MODELS_DEV, assumed=_UNMEASURED),
)  # fmt: skip

_OPEN_WEIGHTS = (
    Group((
        ("qwen3.7-max*", 1_000_000, 65_536, 2.5, 7.5, 0.2),
        ("qwen3.7-plus*", 1_000_000, 65_536, 0.5, 3.0, 0.1),
        ("qwen3.6-plus*", 1_000_000, 65_536, 0.5, 3.0, 0.1),
        ("qwen3.6-max*", 262_144, 65_536, 1.3, 7.8, 0.1),
        ("qwen3.6-flash*", 1_000_000, 65_536, 0.1875, 1.125, None),
    ), tokenizer="qwen", write=1.25, as_of="2026-07-01", source=_MODELS_DEV, assumed=_UNMEASURED),
    Group((
        ("qwen3.5-plus*", 1_000_000, 65_536, 0.4, 2.4, None),
        ("qwen3.6*", 262_144, 65_536, None, None, None),
        ("qwen3.5*", 262_144, 65_536, None, None, None),
        ("qwen3-max*", 262_144, 65_536, 1.2, 6.0, None),
        ("qwen3-coder*", 262_144, 65_536, None, None, None),
        ("qwen3-coder-plus*", 1_000_000, 65_536, 1.0, 5.0, None),
        ("qwen3-coder-flash*", 1_000_000, 65_536, 0.3, 1.5, None),
        ("qwen3-next*", 131_072, 32_768, None, None, None),
        ("qwen3*", 131_072, 8_192, None, None, None),
        ("qwen2.5*", 131_072, 8_192, None, None, None),
        ("qwen-plus*", 1_000_000, 32_768, 0.4, 1.2, None),
        ("qwen-flash*", 1_000_000, 32_768, 0.05, 0.4, None),
        ("qwen-turbo*", 1_000_000, 16_384, 0.05, 0.2, None),
        ("qwen-max*", 32_768, 8_192, 1.6, 6.4, None),
    ), tokenizer="qwen", as_of="2026-07-01", source=_MODELS_DEV, assumed=_UNMEASURED),
    Group((
        ("llama-4*", 128_000, 4_096, None, None, None),
        ("llama-3.3*", 128_000, 4_096, None, None, None),
        ("llama-3.1*", 131_072, 4_096, None, None, None),
    ), tokenizer="llama", as_of="2026-07-01", source=f"{_MODELS_DEV}, as hosted", assumed=_UNMEASURED),
    Group((
        ("llama-3*", 8_192, 2_048, None, None, None),
        ("llama-2*", 4_096, 2_048, None, None, None),
    ), tokenizer="llama", as_of=_CHECKED, source="Hugging Face pages of the weights",
       assumed=("max_output", *_UNMEASURED)),
    Group((
        ("mistral-large*", 262_144, 262_144, 0.5, 1.5, None),
        ("mistral-large-2411", 131_072, 16_384, 2.0, 6.0, None),
        ("mistral-medium*", 262_144, 262_144, 0.4, 2.0, None),
        ("mistral-medium-2604", 262_144, 262_144, 1.5, 7.5, None),
        ("mistral-small*", 256_000, 256_000, 0.15, 0.6, None),
        ("mistral-small-2506", 128_000, 16_384, 0.1, 0.3, None),
        ("mistral-nemo*", 128_000, 128_000, 0.15, 0.15, None),
        ("devstral*", 262_144, 262_144, 0.4, 2.0, None),
        ("devstral-small*", 128_000, 128_000, 0.1, 0.3, None),
        ("codestral*", 256_000, 4_096, 0.3, 0.9, None),
        ("magistral-medium*", 128_000, 16_384, 2.0, 5.0, None),
        ("magistral-small*", 128_000, 128_000, 0.5, 1.5, None),
        ("open-mixtral-8x22b*", 64_000, 64_000, 2.0, 6.0, None),
        ("open-mixtral-8x7b*", 32_000, 32_000, 0.7, 0.7, None),
    ), tokenizer="mistral", as_of="2026-07-01", source=_MODELS_DEV, assumed=_UNMEASURED),
)  # fmt: skip

_GUESSED = ("context_window", "max_output", "tokenizer", "factor", "message_overhead", "cache_minimum")


def _family(pattern: str, window: int, output: int, tokenizer: str, **known: Any) -> Group:
    rows = ((pattern, window, output, None, None, None),)
    return Group(rows, tokenizer, _CHECKED, "default for the family", assumed=_GUESSED, **known)


_FAMILIES = (
    _family("gpt*", 128_000, 16_384, "o200k", minimum=1024),
    _family("gpt-35-turbo*", 16_385, 4_096, "cl100k"),
    _family("*realtime*", 32_000, 4_096, "o200k"),
    _family("chatgpt*", 128_000, 16_384, "o200k", minimum=1024),
    _family("codex*", 200_000, 100_000, "o200k", minimum=1024),
    _family("claude*", 200_000, 8_192, "claude-4.7", factor=1.55, overhead=60, minimum=4096),
    _family("gemini*", 1_048_576, 65_536, "gemini", minimum=4096),
    _family("deepseek*", 128_000, 8_192, "deepseek"),
    _family("grok*", 131_072, 8_192, "grok"),
    _family("kimi*", 262_144, 16_384, "kimi"),
    _family("qwen*", 131_072, 8_192, "qwen"),
    _family("qwq*", 131_072, 8_192, "qwen"),
    _family("llama*", 131_072, 4_096, "llama"),
    _family("mistral*", 32_000, 8_192, "mistral"),
    _family("mixtral*", 32_000, 8_192, "mistral"),
    _family("magistral*", 128_000, 8_192, "mistral"),
    _family("ministral*", 128_000, 8_192, "mistral"),
    _family("glm*", 128_000, 16_384, "glm"),
    _family("minimax*", 196_608, 128_000, "minimax"),
)

GROUPS: tuple[Group, ...] = (*_OPENAI, *_ANTHROPIC, *_GOOGLE, *_DEEPSEEK, *_HOSTED, *_OPEN_WEIGHTS, *_FAMILIES)
