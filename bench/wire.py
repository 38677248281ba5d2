"""Read and write 10,000 messages, against json.loads + copy.deepcopy + json.dumps of the same list."""

from __future__ import annotations

import copy
import json

from bench.workload import best, messages, origin, report
from midfold import Text, read, write

COUNT = 10_000


def main() -> None:
    source = json.dumps(messages(COUNT)).encode()
    print(f"  {COUNT:,} messages, {len(source) / 1e6:.1f} MB, from {origin()}; best of 5")
    peer = best(lambda: json.dumps(copy.deepcopy(json.loads(source))))
    print(f"  json.loads + copy.deepcopy + json.dumps: {peer * 1000:.0f} ms")

    untouched = best(lambda: write(read(source)))
    report("read + write, untouched", f"{peer / untouched:.1f}x faster", ">= 3x", met=peer / untouched >= 3)
    cut = best(lambda: _without_first(source))
    report(
        "read + write without the first message (all others spliced)",
        f"{peer / cut:.1f}x faster",
        ">= 2x",
        met=peer / cut >= 2,
    )
    changed = best(lambda: _with_one_change(source))
    report("read + write with one message changed", f"{peer / changed:.1f}x faster", ">= 2x", met=peer / changed >= 2)
    understood = best(lambda: _with_every_part(source))
    report(
        "read + every part of every message + write",
        f"{peer / understood:.1f}x faster",
        ">= 1x",
        met=understood <= peer,
    )

    large = json.dumps(messages(5 * COUNT)).encode()
    for label, work in (("read + write", _untouched), ("read + every part + write", _with_every_part)):
        ratio = best(lambda work=work: work(large), 3) / best(lambda work=work: work(source), 3)  # type: ignore[misc]
        report(f"{label}: 50,000 messages against 10,000", f"{ratio:.1f}x the time", "<= 6x", met=ratio <= 6)


def _untouched(source: bytes) -> object:
    return write(read(source))


def _without_first(source: bytes) -> object:
    document = read(source)
    return write(document, messages=document.messages[1:])


def _with_one_change(source: bytes) -> object:
    document = read(source)
    middle = len(document.messages) // 2
    changed = document.messages[middle].with_parts((Text("changed"),))
    return write(document, messages=(*document.messages[:middle], changed, *document.messages[middle + 1 :]))


def _with_every_part(source: bytes) -> object:
    document = read(source)
    for message in document.messages:
        message.parts  # noqa: B018
    return write(document)


if __name__ == "__main__":
    main()
