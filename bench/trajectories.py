"""Compaction of recorded runs to 15,250 tokens, against Hermes 0.19's trajectory_compressor, its model stubbed.

Hermes counts with a downloaded tokenizer, by default Kimi K2's: tiktoken inside a Python class. Here it uses plain
tiktoken with the o200k vocabulary, so that no network is needed and both sides count the same way, without the
overhead of a chat template.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.peers import HERMES, HOME, ask
from bench.sharegpt import convert
from bench.workload import ROOT, SHARED, report
from midfold import SummaryAnswer, SummaryRequest
from midfold.compaction.redact import redact
from midfold.lab.retention_score import retention_of
from midfold.lab.sharegpt import ShareGPT
from midfold.lab.trajectory_run import TrajectoryJob, compress_trajectories
from midfold.lab.trajectory_settings import FIRSTS, TrajectorySettings
from midfold.model import local_summarizer
from midfold.transcript.message import Message, Text, Transcript
from midfold.transcript.tokenizers import Tokenizer

RUNS = 6
TARGET, SUMMARY, LAST = 15_250, 750, 4
WITH = ("tiktoken", "splintr-rs")
MARKER = "[CONTEXT SUMMARY]:"
STUB = "The assistant read files, ran commands and looked at what came back. " * 50
ON = "bench.trajectories"
PEER = r"""
import asyncio, contextlib, hashlib, io, json, sys, time, types
from pathlib import Path
import splintr, tiktoken
import agent.auxiliary_client as auxiliary
import trajectory_compressor as theirs
question = json.load(sys.stdin)
vocabulary = splintr.Tokenizer.from_pretrained("o200k_base")
ranks = {bytes(vocabulary.decode_token_bytes(token)): token for token in range(199_998)}
letters, small = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
ending = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
pattern = "|".join([
    rf"[^\r\n\p{{L}}\p{{N}}]?[{letters}]*[{small}]+{ending}", rf"[^\r\n\p{{L}}\p{{N}}]?[{letters}]+[{small}]*{ending}",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+",
])
encoding = tiktoken.Encoding("o200k", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
class Tokenizer:
    def encode(self, text):
        return encoding.encode(text, disallowed_special=())
def tokenizer(self):
    self.tokenizer = Tokenizer()
def summarizer(self):
    self._llm_provider, self._use_call_llm = "stub", True
theirs.TrajectoryCompressor._init_tokenizer = tokenizer
theirs.TrajectoryCompressor._init_summarizer = summarizer
prompts = {}
async def call(messages, **_):
    prompt = messages[0]["content"]
    key = hashlib.sha256(prompt.encode("utf-8", "replace")).hexdigest()
    prompts[key] = prompt
    text = question["summaries"].get(key, question["stub"])
    return types.SimpleNamespace(choices=[types.SimpleNamespace(message=types.SimpleNamespace(content=text))])
auxiliary.async_call_llm = call
config = theirs.CompressionConfig(target_max_tokens=question["target"], summary_target_tokens=question["summary"])
compressor = theirs.TrajectoryCompressor(config)
Tokenizer().encode("warm")
start = time.process_time()
with contextlib.redirect_stdout(io.StringIO()):
    compressor.process_directory(Path(question["source"]), Path(question["target_folder"]))
seconds = time.process_time() - start
print(json.dumps({"seconds": seconds, "prompts": prompts if question["want_prompts"] else {}}))
"""


def stub(request: SummaryRequest) -> str:
    """Return a fixed answer, as on Hermes' side."""
    return STUB


def blind(request: SummaryRequest) -> SummaryAnswer:
    """Return midfold's summary of a conversation with an unknown future."""
    return local_summarizer(msgspec.structs.replace(request, dense=True))


class Output(NamedTuple):
    """Output of a compressor: the turns of each record, by id."""

    records: dict[str, list[dict[str, str]]]

    @classmethod
    def of(cls, folder: Path) -> Output:
        lines = (line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text("utf-8").splitlines())
        return cls({item["id"]: item["conversations"] for item in map(json.loads, lines)})


def main() -> None:
    HOME.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HOME) as name:
        work = Path(name)
        source = _inputs(work / "in")
        before = Output.of(source)
        size = sum(path.stat().st_size for path in source.iterdir())
        print(
            f"  {len(before.records)} trajectories, {size / 1e6:.1f} MB of ShareGPT from "
            f"{'shared/data' if SHARED.is_dir() else 'the shipped example, repeated'}; target {TARGET:,}, "
            f"summary {SUMMARY}, files to files on one core; CPU time, best of {RUNS} in turns; {HERMES} in an "
            "environment of its own"
        )
        times = _in_turns(source, work)
        outputs = _outputs(source, work)
        _rates(times, len(before.records), size)
        _kept(before, outputs)
        _retained(before, outputs)


def _inputs(folder: Path) -> Path:
    folder.mkdir()
    if SHARED.is_dir():
        for path in sorted(SHARED.glob("*/conversations.jsonl")):
            conversations = map(json.loads, path.read_text("utf-8").splitlines())
            _write(folder / f"{path.parent.name}.jsonl", map(convert, conversations))
    else:
        example = json.loads((ROOT / "examples" / "coding-session.json").read_text("utf-8"))
        copies = ({**example, "id": f"copy-{number}"} for number in range(20))
        _write(folder / "example.jsonl", map(convert, copies))
    return folder


def _write(path: Path, records: Iterator[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), "utf-8")


def _hermes(source: Path, target: Path, summaries: dict[str, str] | None = None, *, prompts: bool = False) -> Any:
    shutil.rmtree(target, ignore_errors=True)
    question = {
        "source": str(source),
        "target_folder": str(target),
        "target": TARGET,
        "summary": SUMMARY,
        "stub": f"{MARKER} {STUB}",
        "summaries": summaries or {},
        "want_prompts": prompts,
    }
    return ask(HERMES, PEER, question, *WITH)


def _midfold(source: Path, target: Path, **changes: Any) -> float:
    shutil.rmtree(target, ignore_errors=True)
    settings = TrajectorySettings(
        target_tokens=TARGET, summary_tokens=SUMMARY, tokenizer="o200k", turn_tokens=0, calls=1
    )
    settings = msgspec.structs.replace(settings, **changes)
    start = time.process_time()
    compress_trajectories(TrajectoryJob(source=str(source), target=str(target), settings=settings, restart=True))
    return time.process_time() - start


WAYS: dict[str, dict[str, Any]] = {
    "midfold, summary stubbed": {"summarizer": f"{ON}:stub"},
    "midfold, local summary": {},
    "midfold, summary stubbed, tokens estimated": {"summarizer": f"{ON}:stub", "tokenizer": "estimate"},
    "midfold, local summary, tokens estimated": {"tokenizer": "estimate"},
}


def _in_turns(source: Path, work: Path) -> dict[str, float]:
    """Time both sides alternately, so that a temporary slowdown affects both; the best run counts."""
    times = dict.fromkeys(["Hermes, summary stubbed", *WAYS], float("inf"))
    for _ in range(RUNS):
        seconds = _hermes(source, work / "time")["seconds"]
        times["Hermes, summary stubbed"] = min(times["Hermes, summary stubbed"], seconds)
        for name, changes in WAYS.items():
            times[name] = min(times[name], _midfold(source, work / "time", **changes))
    return times


def _outputs(source: Path, work: Path) -> dict[str, Output]:
    prompts = _hermes(source, work / "hermes", prompts=True)["prompts"]
    _hermes(source, work / "hermes-local", {key: _answer(prompt) for key, prompt in prompts.items()})
    _midfold(source, work / "stub", summarizer=f"{ON}:stub")
    _midfold(source, work / "blind", summarizer=f"{ON}:blind")
    _midfold(source, work / "local")
    names = {
        "Hermes, summary stubbed": "hermes",
        "Hermes, its prompt summarised by midfold's rules": "hermes-local",
        "midfold, summary stubbed": "stub",
        "midfold, summary blind to later turns": "blind",
        "midfold, local summary": "local",
    }
    return {name: Output.of(work / folder) for name, folder in names.items()}


def _answer(prompt: str) -> str:
    """Return a summary of the text in Hermes' prompt, of the size it requests."""
    turns = prompt.partition("TURNS TO SUMMARIZE:")[2]
    messages = tuple(Message("assistant", (Text(turn),)) for turn in turns.split("\n\n[Turn "))
    fold = blake2b(prompt.encode("utf-8", "replace"), digest_size=6).hexdigest()
    request = SummaryRequest(messages=messages, budget_tokens=SUMMARY - 20, fold=fold, redact=redact, dense=True)
    return f"{MARKER} {local_summarizer(request).text}"


def _rates(times: dict[str, float], count: int, size: int) -> None:
    theirs = times["Hermes, summary stubbed"]
    for name, seconds in times.items():
        each = f"{seconds / count * 1e6 / 3600:.1f} core-hours per million like these"
        print(f"  {name:44} {count / seconds:7.0f} trajectories/s, {size / seconds / 1e6:5.1f} MB/s, {each}")
    for name in WAYS:
        ratio = theirs / times[name]
        if "stubbed" in name:
            report(f"{name}, against Hermes", f"{ratio:.1f}x faster", ">= 10x", met=ratio >= 10)
        else:
            print(f"  {name}, against Hermes without a summary: {ratio:.1f}x faster")


def _kept(before: Output, outputs: dict[str, Output]) -> None:
    """Count unchanged protected turns, and records above the target, by one count of the values alone."""
    count = Tokenizer("o200k").count
    over = {
        name: sum(sum(count(turn["value"]) for turn in turns) > TARGET for turns in output.records.values())
        for name, output in outputs.items()
    }
    same = {
        name: sum(_is_protected(before.records[key], turns) for key, turns in output.records.items())
        for name, output in outputs.items()
    }
    for name in outputs:
        print(
            f"  {name:52} over the limit {over[name]:3}, protected turns identical in {same[name]:3} of "
            f"{len(before.records)}"
        )
    ours, theirs = over["midfold, local summary"], over["Hermes, summary stubbed"]
    report("records still over the limit, midfold against Hermes", f"{ours} : {theirs}", "fewer", met=ours < theirs)
    whole = same["midfold, local summary"] == len(before.records)
    report("records whose protected turns are identical", f"{same['midfold, local summary']}", "all", met=whole)


def _is_protected(old: list[dict[str, str]], new: list[dict[str, str]]) -> bool:
    firsts = [next((turn for turn in old if turn["from"] == kind), None) for kind in FIRSTS]
    return old[-LAST:] == new[-LAST:] and all(turn in new for turn in firsts if turn is not None)


def _retained(before: Output, outputs: dict[str, Output]) -> None:
    """Measure how much each output keeps of what the turns after all folds use, with the same test per record."""
    marks: dict[str, list[float]] = {name: [] for name in outputs}
    for key, turns in before.records.items():
        rests = [_rest(output.records[key]) for output in outputs.values()]
        if any(rest is None for rest in rests):
            continue
        rest = min(rest for rest in rests if rest is not None)
        cut = len(turns) - rest
        past, future = _messages(turns[:cut]), _messages(turns[cut:])
        for name, output in outputs.items():
            after = output.records[key]
            mark = retention_of(past, _messages(after[: len(after) - rest]), future)
            if mark is not None:
                marks[name].append(mark)
    means = {name: sum(found) / max(len(found), 1) for name, found in marks.items()}
    for name, mean in means.items():
        print(f"  {name:52} retention {mean:.3f} over {len(marks[name])} folded records")
    ours, theirs = means["midfold, summary stubbed"], means["Hermes, summary stubbed"]
    report("midfold, summary stubbed: against Hermes' stub", f"{ours:.3f}", f"> {theirs:.3f}", met=ours > theirs)
    theirs = max(mean for name, mean in means.items() if name.startswith("Hermes"))
    for name in ("midfold, summary blind to later turns", "midfold, local summary"):
        report(
            f"{name}: retention against Hermes' better one",
            f"{means[name]:.3f}",
            f"> {theirs:.3f}",
            met=means[name] > theirs,
        )


def _rest(turns: list[dict[str, str]]) -> int | None:
    """Return the number of turns after the summary, or None if there is no summary."""
    places = [place for place, turn in enumerate(turns) if turn["value"].startswith(MARKER)]
    return len(turns) - 1 - places[-1] if places else None


def _messages(turns: list[dict[str, str]]) -> Transcript:
    return tuple(Message.over(turn, ShareGPT.read) for turn in turns)


if __name__ == "__main__":
    main()
