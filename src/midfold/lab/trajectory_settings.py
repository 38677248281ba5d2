"""Settings of trajectory compression. The same settings and input give the same output on any machine."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from midfold.errors import ConfigError, MissingExtra
from midfold.transcript.tokenizers import VOCABULARIES, Tokenizer
from midfold.transcript.tokens import ESTIMATE, TokenCounter

if TYPE_CHECKING:
    from midfold.config import Config

TurnKind = Literal["system", "human", "gpt", "tool", "other"]
"""Speaker of a turn, by ShareGPT's names."""

FIRSTS: tuple[TurnKind, ...] = ("system", "human", "gpt", "tool")
TOKENIZERS = ("auto", "estimate", *VOCABULARIES)


class TrajectorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Target, protected turns, token counter and summarizer."""

    target_tokens: int = 15_250
    summary_tokens: int = 750
    protect_last: int = 4
    protect_first: tuple[TurnKind, ...] = FIRSTS
    """Kinds of turns whose first turn is kept."""
    turn_tokens: int = 4
    """Tokens that a chat template adds to each turn."""
    tokenizer: str = "auto"
    """A vocabulary, `estimate`, or `auto`: o200k if installed, else the estimate."""
    summarizer: str = "local"
    """`local`, `model` (chosen by the configuration), a provider's name, or `package.module:function`."""
    model: str | None = None
    config: Config | None = None
    """Configuration for a summary model; it names the variables that hold keys, never a key."""
    calls: int = 8
    """Concurrent summary requests of one worker."""
    retention: bool = False
    batch_bytes: int = 4 << 20
    """Approximate bytes of a batch; batches are processed and saved as a whole."""

    def check(self) -> TrajectorySettings:
        """Resolve `auto`; raise if the settings cannot be used."""
        if self.summary_tokens + self.turn_tokens >= self.target_tokens:
            raise ConfigError(
                f"the summary ({self.summary_tokens:,} tokens) must be smaller than the target ({self.target_tokens:,})"
            )
        if self.tokenizer not in TOKENIZERS:
            raise ConfigError(f"unknown tokenizer {self.tokenizer!r}; allowed are {', '.join(TOKENIZERS)}")
        if self.tokenizer != "auto":
            token_counter(self.tokenizer)
            return self
        try:
            token_counter("o200k")
        except MissingExtra:
            return msgspec.structs.replace(self, tokenizer="estimate")
        return msgspec.structs.replace(self, tokenizer="o200k")

    def plain(self) -> dict[str, Any]:
        """Return the settings as plain values, without the configuration, whose URLs may hold credentials."""
        fields = msgspec.structs.asdict(self)
        del fields["config"]
        return fields | {"protect_first": list(self.protect_first)}

    @property
    def fingerprint(self) -> str:
        """A hash of everything that determines the output."""
        values = [*sorted(self.plain().items()), None if self.config is None else self.config.values()]
        return blake2b(msgspec.json.encode(values), digest_size=12).hexdigest()


def token_counter(name: str) -> TokenCounter:
    """Return the token counter for a name resolved by `check`."""
    return ESTIMATE if name == "estimate" else Tokenizer(name)
