"""Every error midfold raises on purpose.

    MidfoldError
    ├── ConfigError             a setting is unknown, of the wrong type or out of range
    ├── TranscriptError         what was given is not a conversation midfold can read
    │   └── MalformedTranscript strict mode found problems; `.problems` lists them with their paths
    ├── MissingExtra            an optional package is needed for what was asked
    ├── PluginError             a context engine could not be found or loaded
    ├── StoreError              a store could not do what was asked; what it holds is as it was
    │   ├── StoreUnavailable    it cannot be reached, written, or is full; the next call may work
    │   ├── SchemaError         the database is not midfold's, or of another version
    │   ├── StoreDamaged        what it holds is not what was written; nothing of it is given out
    │   ├── NotStored           there is no such session, compaction or handle
    │   ├── StoreConflict       what is there contradicts what was given
    │   └── LeaseLost           a compaction came too late: its lease is expired, released or taken over
    ├── ModelRequestFailed      what was asked of a model did not come; `.kind` says how
    │   ├── ModelFailed         it could not answer
    │   └── SummaryFailed       a summarizer gives up; the kind decides what happens to the fold
    ├── ToolRefused             a tool of the agent was asked for something it does not do
    ├── UpstreamError           a provider behind the gateway could not be reached, or did not answer in time
    ├── Misdirected             a request would not have gone to the configured upstream; it was not sent
    ├── RouteClosed             a route of the provider is closed to clients of the gateway
    ├── NotOwner                what a request names was not made under this key of the gateway
    ├── TooManyValues           a request has too many values to be checked for whose ids they are
    ├── GatewayFull             the gateway holds as much as it can; the next try may work
    └── UnreadableEncoding      a request's body is compressed in a way that cannot be read here

The message defaults to the class's docstring. `status` is the HTTP status a server answers with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, get_args

FailureKind = Literal[
    "",
    "no_provider",
    "auth",
    "network",
    "timeout",
    "rate_limit",
    "unavailable",
    "model_not_found",
    "overflow",
    "malformed",
    "filtered",
    "ineffective",
    "other",
]
"""Ways in which a summary can fail; compaction/receipt.py says what each one leads to."""
_FAILURE_KINDS = frozenset(get_args(FailureKind)) - {""}


class MidfoldError(Exception):
    """Something midfold was asked to do could not be done."""

    status: ClassVar[int] = 500

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class ConfigError(MidfoldError):
    """The configuration is not valid."""

    status = 500


class TranscriptError(MidfoldError):
    """This is not a conversation midfold can read."""

    status = 400


class MalformedTranscript(TranscriptError):
    """The conversation has problems, and strict reading was asked for."""

    def __init__(self, problems: Sequence[Any]) -> None:
        self.problems = tuple(problems)
        shown = "; ".join(str(problem) for problem in self.problems[:3])
        more = f"; and {len(self.problems) - 3} more" if len(self.problems) > 3 else ""
        super().__init__(f"{len(self.problems)} problem(s) in the conversation: {shown}{more}")


class MissingExtra(MidfoldError):
    """An optional package is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional package: pip install 'midfold[{extra}]'")


class PluginError(MidfoldError):
    """A context engine could not be loaded."""


class StoreError(MidfoldError):
    """The store could not do what was asked; what it holds is as it was."""


class StoreUnavailable(StoreError):
    """The store cannot be reached or written; the next call may work."""

    status = 503


class SchemaError(StoreError):
    """The database is not one this version of midfold can use."""


class StoreDamaged(StoreError):
    """Stored data that differs from what was written."""

    NEXT = "midfold store check --deep says what is affected; restore the database from a backup"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(f"{message or type(self).__doc__}: the database is damaged. {self.NEXT}")


class NotStored(StoreError):
    """There is no such thing in the store."""

    status = 404


class StoreConflict(StoreError):
    """Stored data that contradicts the given data."""

    status = 409


class LeaseLost(StoreError):
    """The lease of this compaction is no longer held; nothing was committed."""

    status = 409


class ModelRequestFailed(MidfoldError):
    """Failure of a model request."""

    status = 502

    def __init__(
        self, kind: FailureKind = "other", message: str | None = None, *, retry_after: float = 0.0, limit: int = 0
    ) -> None:
        if kind not in _FAILURE_KINDS:
            kind, message = "other", message or str(kind)
        self.kind: FailureKind = kind
        self.retry_after = retry_after
        """Seconds the provider asked to wait."""
        self.limit = limit
        """Context size in tokens that an overflow error named."""
        super().__init__(message)


class ModelFailed(ModelRequestFailed):
    """The model did not answer."""


class ToolRefused(MidfoldError):
    """A tool was asked for something it does not do; the text is for the model."""

    status = 400


class UpstreamError(MidfoldError):
    """The provider could not be reached."""

    status = 502

    def __init__(self, message: str | None = None, *, timed_out: bool = False) -> None:
        self.timed_out = timed_out
        super().__init__(message)


class Misdirected(MidfoldError):
    """The request would not have gone to the configured upstream; it was not sent."""

    status = 400


class RouteClosed(MidfoldError):
    """This route of the provider is closed to clients of the gateway."""

    status = 403


class NotOwner(MidfoldError):
    """There is no such thing that was made under this key of the gateway."""

    status = 404


class TooManyValues(MidfoldError):
    """The request refers to ids of the provider, and has too many values to be checked for whose they are."""

    status = 413


class GatewayFull(MidfoldError):
    """The gateway holds as many unfinished requests as it can; try again."""

    status = 503


class UnreadableEncoding(MidfoldError):
    """The body is compressed in a way that cannot be read here."""

    status = 415

    @classmethod
    def lacking(cls, encoding: str) -> UnreadableEncoding:
        """Return the error for a package that is not installed."""
        return cls(f"a body with content-encoding {encoding} needs a package: pip install 'midfold[compressed]'")


class SummaryFailed(ModelRequestFailed):
    """No summary could be made."""

    calls = 0
    """Calls made before giving up."""
