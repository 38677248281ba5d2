"""How trajectories are compressed. The same settings and the same input give the same output, on any machine."""

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
"""Who speaks in a turn, by the names of ShareGPT."""

FIRSTS: tuple[TurnKind, ...] = ("system", "human", "gpt", "tool")
TOKENIZERS = ("auto", "estimate", *VOCABULARIES)


class TrajectorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The target, what stays, who counts and who summarises."""

    target_tokens: int = 15_250
    summary_tokens: int = 750
    protect_last: int = 4
    protect_first: tuple[TurnKind, ...] = FIRSTS
    """Of each of these kinds the first turn stays as it is."""
    turn_tokens: int = 4
    """What a chat template adds to each turn."""
    tokenizer: str = "auto"
    """A vocabulary, `estimate`, or `auto`: o200k where it is installed, else the estimate."""
    summarizer: str = "local"
    """`local`, `model` (whom the configuration chooses), a provider's name, or `package.module:function`."""
    model: str | None = None
    config: Config | None = None
    """For a summary model; it names the variables that hold keys, never a key."""
    calls: int = 8
    """Summary calls that one worker makes at a time."""
    retention: bool = False
    batch_bytes: int = 4 << 20
    """Records are worked on, and finished for good, in batches of about this size."""

    def check(self) -> TrajectorySettings:
        """The settings with `auto` decided, or an error that says what cannot be done."""
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
        """What the settings say, as plain values; addresses in a configuration may hold credentials and stay out."""
        fields = msgspec.structs.asdict(self)
        del fields["config"]
        return fields | {"protect_first": list(self.protect_first)}

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides what is written."""
        values = [*sorted(self.plain().items()), None if self.config is None else self.config.values()]
        return blake2b(msgspec.json.encode(values), digest_size=12).hexdigest()


def token_counter(name: str) -> TokenCounter:
    """Who counts; the name is one that `check` has decided on."""
    return ESTIMATE if name == "estimate" else Tokenizer(name)
