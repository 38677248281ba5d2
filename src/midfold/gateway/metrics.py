"""Counters, gauges and histograms in Prometheus' text format.

Labels are few and their values known beforehand: none is made of what a client sent.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = tuple[str, ...]


class Counter:
    """A number that only grows, by the values of its labels."""

    kind = "counter"

    def __init__(self, name: str, told: str, *labels: str) -> None:
        self.name, self.told, self.labels = name, told, labels
        self._values: dict[Labels, float] = {}

    def add(self, *values: str, by: float = 1.0) -> None:
        self._values[values] = self._values.get(values, 0.0) + by

    def value(self, *values: str) -> float:
        return self._values.get(values, 0.0)

    def values(self) -> dict[Labels, float]:
        return dict(self._values)

    def lines(self) -> Iterator[str]:
        for values in sorted(self._values):
            yield f"{self.name}{_labels(self.labels, values)} {_number(self._values[values])}"


class Gauge:
    """A number that is asked for when the page is made."""

    kind = "gauge"

    def __init__(self, name: str, told: str, read: Callable[[], float]) -> None:
        self.name, self.told, self._read = name, told, read

    def lines(self) -> Iterator[str]:
        yield f"{self.name} {_number(self._read())}"


class Histogram:
    """How often a measure fell below each bound."""

    kind = "histogram"

    def __init__(self, name: str, told: str, *labels: str, bounds: Sequence[float] = SECONDS) -> None:
        self.name, self.told, self.labels, self.bounds = name, told, labels, tuple(bounds)
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def observe(self, measured: float, *values: str) -> None:
        counts = self._counts.setdefault(values, [0] * (len(self.bounds) + 1))
        counts[bisect_left(self.bounds, measured)] += 1
        self._sums[values] = self._sums.get(values, 0.0) + measured

    def lines(self) -> Iterator[str]:
        for values in sorted(self._counts):
            below = 0
            for bound, count in zip((*self.bounds, None), self._counts[values], strict=True):
                below += count
                edge = "+Inf" if bound is None else _number(bound)
                yield f"{self.name}_bucket{_labels((*self.labels, 'le'), (*values, edge))} {below}"
            shown = _labels(self.labels, values)
            yield f"{self.name}_sum{shown} {_number(self._sums[values])}"
            yield f"{self.name}_count{shown} {below}"


Measure = Counter | Gauge | Histogram


def page(measures: Sequence[Measure]) -> str:
    """Every measure with its help and its type."""
    lines: list[str] = []
    for measure in measures:
        lines += [f"# HELP {measure.name} {_escaped(measure.told)}", f"# TYPE {measure.name} {measure.kind}"]
        lines += measure.lines()
    return "\n".join(lines) + "\n"


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    if not names:
        return ""
    pairs = (f'{name}="{_escaped(value, quoted=True)}"' for name, value in zip(names, values, strict=True))
    return "{" + ",".join(pairs) + "}"


def _escaped(text: str, *, quoted: bool = False) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return escaped.replace('"', '\\"') if quoted else escaped


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
