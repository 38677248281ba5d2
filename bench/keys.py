"""Share of answer strings that contexts made without a model keep, for 456 questions on 38 real sessions, by method.

For every question of `bench/probes`, an annotator who read the whole past listed the strings a context must contain
for
a careful reader to answer it. The share of these is not a measure of readers (they infer much, and models
paraphrase),
but it takes seconds and is deterministic.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from bench.workload import ROOT
from midfold.lab.reading import Probe, ViewMaker, load_probes, render, tokens
from midfold.transcript.document import read

PROBES, DATA = ROOT / "bench" / "probes", ROOT.parent / "shared" / "data"
SIZES = ((10, 2_000), (5, 600))
METHODS = ("midfold", "mask", "window")
_SPACE = re.compile(r"\s+")


def main() -> None:
    if not DATA.is_dir():
        print(f"  skipped: {DATA} is not there")
        return
    probes = load_probes(PROBES, DATA)
    for share, floor in SIZES:
        for method in METHODS:
            found: dict[str, list[float]] = defaultdict(list)
            for probe in probes:
                for kind, told in shares(probe, method, share, floor):
                    found[kind].append(told)
                    found["all"].append(told)
            row = ", ".join(f"{kind} {sum(told) / len(told):.3f}" for kind, told in sorted(found.items()))
            print(f"  {share} % of the past, at least {floor:,} tokens, {method}: {row}")


def shares(probe: Probe, method: str, share: float, floor: int) -> Iterator[tuple[str, float]]:
    """Yield for each question its kind, and the share of its answer strings that a context contains."""
    budget = max(int(tokens(read(probe.past).messages) * share / 100), floor)
    view = _folded(render(ViewMaker(probe, budget, _nobody).make(method)))
    for question in json.loads((PROBES / f"{probe.name}.json").read_text("utf-8"))["questions"]:
        needed: list[list[str]] = question["keys"]
        told = [any(_folded(text) in view for text in ways) for ways in needed]
        if told:
            yield question["kind"], sum(told) / len(told)


def _nobody(prompt: str, name: str) -> Any:
    raise AssertionError(f"{name}: no model is asked")


def _folded(text: str) -> str:
    return _SPACE.sub(" ", text.lower())
