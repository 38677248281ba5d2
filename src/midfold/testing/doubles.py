"""Doubles for what midfold reaches out to: a summarizer that follows a script, a clock that only tests move."""

from __future__ import annotations

from collections.abc import Iterable

from midfold.fold.request import SummaryAnswer, SummaryAsk

Line = str | SummaryAnswer | BaseException


class ScriptEnded(BaseException):
    """A ScriptedSummarizer was asked once more than its script has answers.

    No Exception, on purpose: drivers take any Exception for a failing model, and a mistake in a test is not that.
    """


class ScriptedSummarizer:
    """Answers from a list, in order: texts and answers are returned, exceptions raised. Every ask is recorded.

    summarizer = ScriptedSummarizer(["first summary", SummaryFailed("network")])
    compact(messages, summarizer=summarizer)
    summarizer.asks[0].prompt()
    """

    def __init__(self, script: Iterable[Line] = ()) -> None:
        self._script = list(script)
        self.asks: list[SummaryAsk] = []

    @property
    def left(self) -> int:
        """How many answers nobody has asked for yet."""
        return max(len(self._script) - len(self.asks), 0)

    def __call__(self, ask: SummaryAsk) -> str | SummaryAnswer:
        self.asks.append(ask)
        if len(self.asks) > len(self._script):
            raise ScriptEnded(f"asked {len(self.asks)} times, the script has {len(self._script)} answers")
        line = self._script[len(self.asks) - 1]
        if isinstance(line, BaseException):
            raise line
        return line

    async def later(self, ask: SummaryAsk) -> str | SummaryAnswer:
        """The same, to be awaited: `await host.compress_async(messages)`."""
        return self(ask)


class FakeClock:
    """Seconds that pass only when told to. Call it like `time.monotonic` or `time.time`; `sleep` does not wait."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> float:
        """Lets time pass; it never goes back."""
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds}")
        self.now += seconds
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)
