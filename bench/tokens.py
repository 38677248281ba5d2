"""Token estimates of 10,000 messages, against Hermes 0.19's estimate_messages_tokens_rough on the same list."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean, median

from bench.peers import HERMES, ask
from bench.workload import best, messages, origin, report
from midfold import Message, Meter, Text, ToolCall, ToolResult, read
from midfold.transcript.tokenizers import Tokenizer
from midfold.transcript.tokens import estimate_text
from midfold.types import Part, Thinking

COUNT = 10_000
SMALLEST = 50
PEER = """
import gc, json, sys, time
from agent.model_metadata import estimate_messages_tokens_rough as estimate
messages = json.load(sys.stdin)
fastest = 9.0
for _ in range(5):
    gc.collect()
    start = time.perf_counter()
    estimate(messages)
    fastest = min(fastest, time.perf_counter() - start)
print(json.dumps({"seconds": fastest, "each": [estimate([message]) for message in messages]}))
"""


def main() -> None:
    values = messages(COUNT)
    print(f"  {COUNT:,} messages as dicts from {origin()}; best of 5; {HERMES} in an environment of its own")
    peer = ask(HERMES, PEER, values)
    cold = best(lambda: Meter().count(read(values).messages))
    print(f"  Hermes {peer['seconds'] * 1000:.0f} ms, midfold cold {cold * 1000:.0f} ms (reading the dicts included)")
    ratio = cold / peer["seconds"]
    report("cold, against Hermes", f"{ratio:.2f}x the time", "<= 1.5x", met=ratio <= 1.5)

    document = read(values)
    meter = Meter()
    meter.count(document.messages)
    warm = best(lambda: meter.count(document.messages))
    ratio = peer["seconds"] / warm
    report("warm, against Hermes", f"{ratio:.0f}x faster", ">= 100x", met=ratio >= 100)

    large = messages(5 * COUNT)
    ratio = best(lambda: Meter().count(read(large).messages)) / best(lambda: Meter().count(read(values).messages))
    report("50,000 messages against 10,000, cold", f"{ratio:.1f}x the time", "<= 6x", met=ratio <= 6)
    _errors(document.messages, peer["each"])


def _errors(read_messages: tuple[Message, ...], theirs: list[int]) -> None:
    """Print the error per message against two references: o200k of its texts alone, and with the envelopes around
    them.

    Texts are compared with text estimates (Hermes uses characters / 4), messages with messages.
    """
    tokenizer = Tokenizer("o200k")
    texts = [text for message in read_messages for text in _texts(message)]
    rows = [(tokenizer.count(text), estimate_text(text), (len(text) + 3) // 4) for text in texts]
    _compare("texts", "characters / 4", rows)
    exact, estimated = Meter(tokenizer), Meter()
    counts = [(exact.units(message), estimated.units(message)) for message in read_messages]
    _compare("messages", "Hermes", [(true, ours, peer) for (true, ours), peer in zip(counts, theirs, strict=True)])


def _compare(what: str, peer: str, rows: list[tuple[int, int, int]]) -> None:
    rows = [row for row in rows if row[0] >= SMALLEST]
    print(f"  error against o200k over {len(rows):,} {what} of at least {SMALLEST} tokens:")
    means = []
    for name, index in (("midfold", 1), (peer, 2)):
        errors = sorted(abs(row[index] / row[0] - 1) for row in rows)
        total = sum(row[index] for row in rows) / sum(row[0] for row in rows)
        p95 = errors[int(len(errors) * 0.95)]
        means.append(mean(errors))
        print(f"    {name:14} mean {means[-1]:6.1%}  median {median(errors):6.1%}  p95 {p95:6.1%}  total {total:.3f}")
    ratio = means[0] / means[1]
    report(f"mean error per {what.removesuffix('s')}, against {peer}", f"{ratio:.2f}x", "<= 0.33x", met=ratio <= 1 / 3)


def _texts(message: Message) -> Iterator[str]:
    parts: list[Part] = list(message.parts)
    for part in parts:
        if isinstance(part, Text | Thinking):
            yield part.text
        elif isinstance(part, ToolCall):
            yield part.arguments
        elif isinstance(part, ToolResult):
            parts.extend(part.parts)


if __name__ == "__main__":
    main()
