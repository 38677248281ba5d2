"""Fit the constants of `midfold.transcript.tokens`, or print its error by content type.

    python -m bench.fit_tokens            print the table of constants, to be pasted into the module
    python -m bench.fit_tokens --table    print the Markdown table of docs/reference/tokens.md, on the held half
    python -m bench.fit_tokens --speed    time the estimate on 10,000 real messages

The fit minimises the squared relative error over whole texts, with one weight per content type, every price
between 1 and `TOP_PRICE` units, and weak regularisation towards a default for pairs that hardly occur.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import unicodedata
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import splintr

from bench.corpora import Corpus, corpora
from midfold.transcript import tokens as estimate

ROOT = Path(__file__).resolve().parent.parent
FEATURES = 256 + len(estimate.BLOCKS)
LONGEST_FITTED = 8_000  # maximum characters of one text in the fit
TEXTS_PER_TYPE = 400
REAL_SHARE = 0.6
PULL = 1e-5
GUESS = 0.3  # tokens for a pair that never occurs
SWEEPS = 300
RARE = 200  # occurrences below which a Unicode block is also fitted on random characters

TOKENIZER = splintr.Tokenizer.from_pretrained("o200k_base")


def true_count(text: str) -> int:
    return len(TOKENIZER.encode_ordinary(text))


@dataclass(frozen=True, slots=True)
class Row:
    counts: dict[int, int]
    tokens: int
    weight: float


def row(text: str, weight: float) -> Row:
    """Return the counts of each priced feature in a text, and its true token count."""
    block_of = {hi: 256 + i for i, (_, lo, up, _) in enumerate(estimate.BLOCKS) for hi in range(lo, up + 1)}
    counts = Counter(estimate.pair_codes(text)[: len(text)])
    for hi, count in Counter(estimate.block_codes(text)).items():
        if hi:
            counts[block_of[hi]] += count
    return Row(dict(counts), true_count(text), weight)


def rows(found: Corpus) -> list[Row]:
    types = {name: texts for name, texts in found.items() if name != "real messages"}
    real = sum(name.startswith("real:") for name in types)
    made: list[Row] = []
    for name, texts in types.items():
        share = REAL_SHARE / real if name.startswith("real:") else (1 - REAL_SHARE) / (len(types) - real)
        chosen = [text[:LONGEST_FITTED] for text in texts if len(text) > 30]
        chosen = random.Random(name).sample(chosen, min(len(chosen), TEXTS_PER_TYPE))
        made += [row(text, share / len(chosen)) for text in chosen]
    return made + rare_blocks(made)


def rare_blocks(made: list[Row]) -> list[Row]:
    """Return random characters of the blocks that no content type covers, for an approximate price."""
    seen: Counter[int] = Counter()
    for one in made:
        seen.update(one.counts)
    rng = random.Random("blocks")
    extra: list[Row] = []
    for i, (_, first, last, _) in enumerate(estimate.BLOCKS):
        if seen[256 + i] < RARE:
            everything = map(chr, range(first << 8, (last << 8) + 256))
            assigned = [c for c in everything if unicodedata.category(c)[0] in "LMNPS" or "\ue000" <= c < "\uf900"]
            extra += [row("".join(rng.choices(assigned, k=200)), 1e-4) for _ in range(5)]
    return extra


def solve(made: list[Row]) -> list[int]:
    """Solve by coordinate descent on the normal equations, first in real numbers and then in whole units."""
    size = range(FEATURES)
    matrix = [[0.0] * FEATURES for _ in size]
    right = [0.0] * FEATURES
    for one in made:
        scale = one.weight / (one.tokens + 10) ** 2
        items = list(one.counts.items())
        for j, count in items:
            weighted = count * scale
            right[j] += weighted * one.tokens
            line = matrix[j]
            for k, other in items:
                line[k] += weighted * other
    for j in size:
        matrix[j][j] += PULL
        right[j] += PULL * GUESS
    prices = [GUESS] * FEATURES
    for whole in (False, True):
        if whole:
            prices = [round(price * estimate.UNIT) / estimate.UNIT for price in prices]
        for _ in range(SWEEPS):
            if not _sweep(matrix, right, prices, whole):
                break
    return [round(price * estimate.UNIT) for price in prices]


def _sweep(matrix: list[list[float]], right: list[float], prices: list[float], whole: bool) -> bool:
    changed = False
    for j, line in enumerate(matrix):
        rest = sum(map(float.__mul__, line, prices)) - line[j] * prices[j]
        units = min(max((right[j] - rest) / line[j] * estimate.UNIT, 1.0), estimate.TOP_PRICE)
        best = (round(units) if whole else units) / estimate.UNIT
        changed |= abs(best - prices[j]) > 1e-6
        prices[j] = best
    return changed


def print_constants(prices: list[int]) -> None:
    print("# one row for each class of the character before, one column for each class of the character itself")
    print("PAIRS: Final = (")
    for start in range(0, 256, 16):
        name = ascii(estimate.CLASSES[start // 16][:12])
        print("    (" + ", ".join(f"{price:3}" for price in prices[start : start + 16]) + f"),  # after {name}")
    print(")")
    print("# Unicode blocks by the upper byte of the UTF-16 unit: name, first, last, price on top of the pair")
    print("BLOCKS: Final = (")
    for (name, first, last, _), price in zip(estimate.BLOCKS, prices[256:], strict=True):
        print(f'    ("{name}", 0x{first:02X}, 0x{last:02X}, {price}),')
    print(")")


def print_table(found: Corpus) -> None:
    print("| content type | texts | tokens | estimate / true | median error | characters/4 / true |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, texts in sorted(found.items(), key=lambda item: (not item[0].startswith("real"), item[0])):
        true = [true_count(text) for text in texts]
        guessed = [estimate.estimate_text(text) for text in texts]
        error = median(abs(g - t) / t for g, t in zip(guessed, true, strict=True))
        naive = sum(map(len, texts)) / 4 / sum(true)
        ratio = sum(guessed) / sum(true)
        print(f"| {name} | {len(texts):,} | {sum(true):,} | {ratio:.3f} | {error:.1%} | {naive:.2f} |")
    texts = [text for text in found.get("real messages", ()) if len(text) > 200]
    if texts:
        true = [true_count(text) for text in texts]
        errors = sorted(abs(estimate.estimate_text(x) - t) / t for x, t in zip(texts, true, strict=True))
        naive_errors = sorted(abs(len(x) / 4 - t) / t for x, t in zip(texts, true, strict=True))
        print(f"\nReal messages over 200 characters ({len(texts):,}), error per message, estimate and characters/4:")
        for label, es in (("estimate", errors), ("characters/4", naive_errors)):
            print(f"{label}: median {median(es):.1%}, mean {mean(es):.1%}, p95 {es[int(len(es) * 0.95)]:.1%}")


def print_speed(found: Corpus) -> None:
    source = found.get("real messages") or [text for texts in found.values() for text in texts]
    texts = [source[i % len(source)] for i in range(10_000)]
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        for text in texts:
            estimate.estimate_text(text)
        best = min(best, time.perf_counter() - begin)
    print(f"{len(texts):,} texts, {sum(map(len, texts)):,} characters: {best * 1000:.1f} ms, best of 5")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args(arguments)
    data = options.data if options.data.is_dir() else None
    if options.table:
        print_table(corpora("held", data))
    if options.speed:
        print_speed(corpora("held", data))
    if not (options.table or options.speed):
        print_constants(solve(rows(corpora("fit", data))))


if __name__ == "__main__":
    main(sys.argv[1:])
