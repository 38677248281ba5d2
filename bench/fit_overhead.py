"""Measure the tokens providers bill per message beyond the meter's count, from usage recorded in real sessions.

    python -m bench.fit_overhead [--data DIR]

For each two consecutive requests of a session, the growth of the reported prompt is compared with the units of the
messages between them. With the table's factor f fixed, the overhead is the median of (growth - f * units) /
messages.
Growth across a recorded compaction is excluded.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from midfold import Message, Meter, read
from midfold.models import look_up
from midfold.types import read_usage

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
METER = Meter()
SMALLEST, LARGEST = 200, 20_000


class Growth(NamedTuple):
    units: int
    messages: int
    tokens: int


def growths(messages: tuple[Message, ...], values: list[dict[str, Any]]) -> Iterator[Growth]:
    last: tuple[int, int] | None = None
    for index, value in enumerate(values):
        meta = value.get("_meta") or {}
        if meta.get("compact_summary") or meta.get("compact_boundary"):
            last = None
        usage = read_usage(meta.get("usage"))
        if usage is None:
            continue
        if last is not None and usage.prompt_tokens > last[1]:
            between = messages[last[0] : index]
            units = sum(METER.units(message) for message in between)
            if SMALLEST < units < LARGEST:
                yield Growth(units, len(between), usage.prompt_tokens - last[1])
        last = (index, usage.prompt_tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    found: dict[tuple[str, str], list[Growth]] = defaultdict(list)
    for path in sorted(parser.parse_args().data.glob("*/conversations.jsonl")):
        for line in path.read_bytes().splitlines():
            document = read(line)
            key = (path.parent.name, document.model or "")
            found[key].extend(growths(document.messages, json.loads(line)["messages"]))
    print(f"{'source':22} {'model':26} {'steps':>6} {'factor':>7} {'overhead':>9} {'then off by (median)':>21}")
    for (source, model), steps in found.items():
        if len(steps) < 30:
            continue
        factor = look_up(model).model.factor
        overhead = median((step.tokens - factor * step.units) / step.messages for step in steps)
        errors = [(factor * s.units + overhead * s.messages) / s.tokens - 1 for s in steps]
        off = median(abs(error) for error in errors)
        print(f"{source:22} {model:26} {len(steps):6} {factor:7.2f} {overhead:9.1f} {off:21.1%}")


if __name__ == "__main__":
    main()
