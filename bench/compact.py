"""Compaction of 1,000 to 50,000 messages, against Hermes 0.19's compress on the same lists, both models stubbed.

Hermes does not check the answer, and midfold does not either here (`compression.verify` off). The cost of the check
is
reported separately, twice: for an answer with only invented paths, each searched through the whole fold, and for
one of
the same length whose paths occur in the fold, as in nearly all real summaries.
"""

from __future__ import annotations

import gc
import json
import re
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from bench.peers import HERMES, ask
from bench.workload import best, messages, origin, report
from midfold import EngineHost, Meter, SummaryRequest, compact, read
from midfold.compaction.injection import identifiers
from midfold.config import Config
from midfold.config.schema import Compression
from midfold.model import Summarizer, local_summarizer

SMALL, COUNT, LARGE = 1_000, 10_000, 50_000
WINDOW = 200_000
RUNS = 3
SYSTEM = {"role": "system", "content": "You are a careful coding agent."}
SUMMARY = (
    "## Goal\nFinish the refactoring.\n\n## Progress\n### Done\n"
    + "\n".join(
        f"- step {number}: changed src/module_{number}.py and ran its tests, {number} passed" for number in range(120)
    )
    + "\n\n## Active State\nAll modules are changed, their tests pass, nothing is running.\n"
)
"""Summary as a model could have written it, with the state of the work, without which midfold sends another request."""
PEER = """
import gc, json, sys, time, tracemalloc, types
import agent.context_compressor as theirs
question = json.load(sys.stdin)
def reply(**_):
    message = types.SimpleNamespace(content=question["summary"])
    choice = types.SimpleNamespace(message=message, finish_reason="stop")
    return types.SimpleNamespace(choices=[choice], usage=None)
theirs.call_llm = reply
def engine():
    return theirs.ContextCompressor(
        model="gpt-4o", threshold_percent=0.5, config_context_length=question["window"], quiet_mode=True
    )
def run(messages, tokens):
    fastest, out = 1e9, None
    for _ in range(question["runs"]):
        compressor = engine()
        gc.collect()
        start = time.process_time()
        out = compressor.compress(messages, current_tokens=tokens)
        fastest = min(fastest, time.process_time() - start)
    return fastest, out
answer = {}
for count, tokens in question["sizes"]:
    messages = question["messages"][:count]
    seconds, out = run(messages, tokens)
    compressor = engine()
    tracemalloc.start()
    compressor.compress(messages, current_tokens=tokens)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    answer[str(count)] = {"seconds": seconds, "peak": peak, "out": out}
print(json.dumps(answer))
"""


def main() -> None:
    values = [SYSTEM, *messages(LARGE - 1)]
    source = {count: len(json.dumps(values[:count])) for count in (SMALL, COUNT)}
    print(
        f"  lists of dicts from {origin()}, {source[COUNT] / 1e6:.1f} MB for {COUNT:,} messages; window {WINDOW:,}; "
        f"CPU time, best of {RUNS} in turns; {HERMES} in an environment of its own"
    )
    tokens = {count: Meter().count(read(values[:count]).messages).tokens for count in (SMALL, COUNT, LARGE)}
    peer, ours = _in_turns(values, tokens)
    for count, goal in ((SMALL, 3), (COUNT, 5)):
        theirs = peer[str(count)]["seconds"]
        print(f"  {count:,} messages: Hermes {theirs * 1000:.0f} ms, midfold {ours[count] * 1000:.0f} ms")
        ratio = theirs / ours[count]
        report(f"compact {count:,} messages, against Hermes", f"{ratio:.1f}x faster", f">= {goal}x", met=ratio >= goal)
    for count in (SMALL, COUNT):
        local = _cpu(lambda count=count: _compact(values[:count], tokens[count], local_summarizer))  # type: ignore[misc]
        beside = peer[str(count)]["seconds"]
        print(f"  {count:,} messages, the local summary: {local * 1000:.0f} ms, {beside / local:.1f}x faster")
        _checked(values[:count], tokens[count], peer[str(count)]["seconds"])
    print(
        f"  of midfold's {ours[COUNT] * 1000:.0f} ms, writing the prompt for a model takes what is left over "
        f"{_cpu(lambda: _compact(values[:COUNT], tokens[COUNT], _no_prompt)) * 1000:.0f} ms"
    )
    ratio = ours[LARGE] / ours[COUNT]
    report(f"{LARGE:,} messages against {COUNT:,}", f"{ratio:.1f}x the time", "<= 6x", met=ratio <= 6)
    _memory(values[:COUNT], tokens[COUNT], source[COUNT], peer[str(COUNT)]["peak"])
    _deciding(values)
    _landing(values, tokens, peer)


def _checked(values: list[dict[str, Any]], tokens: int, theirs: float) -> None:
    """Measure the cost of checking an answer against the fold."""
    own = _with_paths_of(values)
    for what, summary in (("every path in it invented", SUMMARY), ("its paths the fold's own", own)):

        def stub(ask: SummaryRequest, summary: str = summary) -> str:
            ask.prompt()
            return summary

        ours = _cpu(lambda stub=stub: _compact(values, tokens, stub, Config()))  # type: ignore[misc]
        print(
            f"  {len(values):,} messages, the answer checked against the fold, {what}: {ours * 1000:.0f} ms, "
            f"{theirs / ours:.1f}x faster"
        )


def _with_paths_of(values: list[dict[str, Any]]) -> str:
    """Return the summary with invented paths replaced by paths from all over the messages."""
    texts = [value["content"] for value in values if isinstance(value.get("content"), str)]
    found = [item.text for text in texts for item in identifiers(text[:500]) if item.kind == "path"]
    paths = iter(found[:: max(len(found) // 120, 1)])
    return re.sub(r"src/module_\d+\.py", lambda match: next(paths, match.group()), SUMMARY)


def _in_turns(values: list[dict[str, Any]], tokens: dict[int, int]) -> tuple[Any, dict[int, float]]:
    """Time both sides alternately, so that a temporary slowdown affects both; the best run after a warm-up counts."""
    question = {
        "messages": values[:COUNT],
        "sizes": [(count, tokens[count]) for count in (SMALL, COUNT)],
        "summary": SUMMARY,
        "window": WINDOW,
        "runs": 2,
    }
    peer: dict[str, Any] = {}
    ours = dict.fromkeys(tokens, float("inf"))
    for _ in range(RUNS):
        for count, measured in ask(HERMES, PEER, question).items():
            if measured["seconds"] < peer.get(count, measured | {"seconds": float("inf")})["seconds"]:
                peer[count] = measured
        for count in tokens:
            ours[count] = min(ours[count], _cpu(lambda count=count: _compact(values[:count], tokens[count]), 1))  # type: ignore[misc]
    return peer, ours


def _stub(ask: SummaryRequest) -> str:
    """Render the whole prompt and return a fixed answer, as on Hermes' side."""
    ask.prompt()
    return SUMMARY


def _no_prompt(ask: SummaryRequest) -> str:
    return SUMMARY


UNVERIFIED = Config(compression=Compression(verify=False))


def _compact(
    values: list[dict[str, Any]], tokens: int, summarizer: Summarizer | None = _stub, config: Config = UNVERIFIED
) -> Any:
    usage = {"prompt_tokens": tokens, "completion_tokens": 0}
    done = compact(values, context_length=WINDOW, usage=usage, summarizer=summarizer, config=config)
    if done.receipt.summary.failure:
        raise SystemExit(f"the stubbed summary was not accepted: {done.receipt.summary.failure}")
    return done.messages


def _cpu(work: Callable[[], object], runs: int = RUNS) -> float:
    return best(work, runs, time.process_time)


def _memory(values: list[dict[str, Any]], tokens: int, size: int, theirs: int) -> None:
    gc.collect()
    tracemalloc.start()
    result = _compact(values, tokens)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del result
    print(f"  peak extra memory: midfold {peak / 1e6:.0f} MB, Hermes {theirs / 1e6:.0f} MB, input {size / 1e6:.0f} MB")
    report("peak extra memory against the input's JSON", f"{peak / size:.1f}x", "<= 2x", met=peak <= 2 * size)


def _deciding(values: list[dict[str, Any]]) -> None:
    """Time one appended message and the decision whether to compact."""
    added = [{"role": "user", "content": f"and now number {number}, please"} for number in range(1_000)]
    times: dict[int, float] = {}
    for count in (SMALL, LARGE):
        host = EngineHost(context_length=WINDOW)
        host.append(values[:count])
        host.update_from_response({"prompt_tokens": 50_000, "completion_tokens": 10})

        def turns(host: EngineHost = host) -> None:
            for message in added:
                host.append([message])
                host.should_compress()

        times[count] = _cpu(turns, 5) / len(added)
    ratio = times[LARGE] / times[SMALL]
    print(
        f"  deciding after one message: {times[SMALL] * 1e6:.0f} us at {SMALL:,}, {times[LARGE] * 1e6:.0f} at {LARGE:,}"
    )
    report(f"deciding at {LARGE:,} messages against {SMALL:,}", f"{ratio:.2f}x the time", "<= 2x", met=ratio <= 2)


def _landing(values: list[dict[str, Any]], tokens: dict[int, int], peer: Any) -> None:
    """Compare the resulting sizes, counted by one meter."""
    for count in (SMALL, COUNT):
        ours = _compact(values[:count], tokens[count])
        ours_tokens = Meter().count(read(ours).messages).tokens
        theirs = peer[str(count)]["out"]
        their_tokens = Meter().count(read(theirs).messages).tokens
        print(
            f"  {count:,} messages, {tokens[count]:,} tokens, land at: midfold {ours_tokens:,} in {len(ours)}, "
            f"Hermes {their_tokens:,} in {len(theirs)}"
        )
        threshold = WINDOW // 2
        label = f"midfold's landing of {count:,} messages against the threshold"
        report(label, f"{ours_tokens / threshold:.2f}x", "<= 0.5x", met=ours_tokens <= threshold // 2)


if __name__ == "__main__":
    main()
