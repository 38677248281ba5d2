"""Measure precision and recall of artifact trails against labels written from the raw transcripts.

    .venv/bin/python tests/support/artifacts.py [-v]    figures per half; -v lists the differences of the tuning
    half

The labels are in tests/data/artifacts, one file per session of the reading probes (../shared/probes). Sessions at
odd
positions of the sorted names are the tuning half; the other half is held out and only reported.
"""

# ruff: noqa: T201

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import midfold
from midfold.compaction.tracking import follow
from midfold.types import Trail

ROOT = Path(__file__).resolve().parent.parent.parent
TRUTH = ROOT / "tests" / "data" / "artifacts"
SHARED = ROOT.parent / "shared"
KEPT = ("role", "content", "tool_calls", "tool_call_id", "name")
CHANGED = ("created", "changed", "deleted", "moved")
KINDS = ("files", "acts", "aside", "reads", "running", "checks")
"""`files` holds created, changed, deleted and moved files; `aside` holds scratch and reverted ones."""


class Score(NamedTuple):
    right: int
    told: int
    true: int
    wrong: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()

    def __add__(self, other: object) -> Score:
        assert isinstance(other, Score)
        return Score(
            self.right + other.right,
            self.told + other.told,
            self.true + other.true,
            self.wrong + other.wrong,
            self.missed + other.missed,
        )

    @property
    def precision(self) -> float:
        return self.right / self.told if self.told else 1.0

    @property
    def recall(self) -> float:
        return self.right / self.true if self.true else 1.0


def halves() -> tuple[list[str], list[str]]:
    names = sorted(path.stem for path in TRUTH.glob("*.json"))
    return names[0::2], names[1::2]


def past_of(session: str) -> midfold.types.Transcript:
    """Return the messages before the cut, without system messages."""
    probe = json.loads((SHARED / "probes" / "questions" / f"{session}.json").read_text(encoding="utf-8"))
    with (SHARED / "data" / probe["source"] / "conversations.jsonl").open(encoding="utf-8") as lines:
        line = next(line for number, line in enumerate(lines) if number == probe["line"])
    messages = json.loads(line)["messages"][: probe["cut"]]
    kept = [{key: one[key] for key in KEPT if key in one} for one in messages if one["role"] != "system"]
    return midfold.read(kept).messages


def score(session: str) -> dict[str, Score]:
    truth = json.loads((TRUTH / f"{session}.json").read_text(encoding="utf-8"))
    trail = follow(Trail(), past_of(session), midfold.redact)
    return {
        "files": _files(trail, truth, CHANGED),
        "aside": _files(trail, truth, ("scratch", "reverted")),
        "acts": _acts(trail, truth),
        "reads": _matched(_told(trail.reads, truth.get("reads_maybe", ())), truth["reads"], _same_path),
        "running": _matched([one.id for one in trail.running], [one["id"] for one in truth["running"]], _same_id),
        "checks": _matched(
            [(one.kind, one.command, one.ok) for one in trail.checks],
            [("script" if one.get("adhoc") else one["kind"], one["command"], one["ok"]) for one in truth["checks"]],
            _same_check,
        ),
    }


def _told(entries: Iterable[Any], maybe: Iterable[str]) -> list[str]:
    """Return paths, without those that the labels mark as neither required nor wrong."""
    neither = list(maybe)
    return [one.path for one in entries if not any(_same_path(one.path, path) for path in neither)]


def _files(trail: Trail, truth: dict[str, Any], states: tuple[str, ...]) -> Score:
    counted = set(_told(trail.files, truth.get("artefacts", ())))
    told = [(one.path, one.state) for one in trail.files if one.state in states and one.path in counted]
    real = ((path, "scratch" if one.get("throwaway") else one["state"]) for path, one in truth["files"].items())
    true = [(path, state) for path, state in real if state in states]
    return _matched(told, true, lambda mine, theirs: mine[1] == theirs[1] and _same_path(mine[0], theirs[0]))


def _acts(trail: Trail, truth: dict[str, Any]) -> Score:
    """Score acts; those marked minor in the labels are neither required nor wrong."""
    found = _matched(list(_acts_told(trail)), list(_acts_true(truth)), _same_act)
    minor = {str(true) for true, act in zip(_acts_true(truth), truth["acts"], strict=True) if act.get("minor")}
    missed = tuple(line for line in found.missed if line not in minor)
    return found._replace(missed=missed, true=found.true - len(found.missed) + len(missed))


class ActTold(NamedTuple):
    what: str
    text: str
    ok: bool
    message: int


def _acts_told(trail: Trail) -> Iterator[ActTold]:
    for act in trail.acts:
        yield ActTold(act.what, f"{act.text} {act.outcome}", act.ok, act.at)


def _acts_true(truth: dict[str, Any]) -> Iterator[ActTold]:
    for act in truth["acts"]:
        yield ActTold(act["what"], act["text"], act["ok"], act["message"])


def _same_act(mine: ActTold, theirs: ActTold) -> bool:
    if (mine.message, mine.ok) != (theirs.message, theirs.ok):
        return False
    words = {word for word in re.findall(r"[\w.-]{4,}", theirs.text.lower()) if word not in ("with", "from", "that")}
    return mine.what == theirs.what or bool(words & set(re.findall(r"[\w.-]{4,}", mine.text.lower())))


def _same_path(mine: str, theirs: str) -> bool:
    """Return whether one path equals or ends with the other; the name of the root is not compared."""
    mine, theirs = mine.removeprefix("./"), theirs.removeprefix("./")
    return mine == theirs or mine.endswith(f"/{theirs}") or theirs.endswith(f"/{mine}")


def _same_id(mine: str, theirs: str) -> bool:
    return mine in theirs or theirs in mine


def _same_check(mine: tuple[str, str, bool | None], theirs: tuple[str, str, bool | None]) -> bool:
    one, other = _words(mine[1]), _words(theirs[1])
    return mine[0] == theirs[0] and bool(mine[2]) == bool(theirs[2]) and (one in other or other in one)


def _words(command: str) -> str:
    return " ".join(re.sub(r"2>&1|[\"']", " ", command).split()).rstrip("…")


def _matched(told: Iterable[Any], true: list[Any], same: Any) -> Score:
    told = list(told)
    left = list(true)
    wrong = []
    for mine in told:
        found = next((one for one in left if mine == one), None) or next((one for one in left if same(mine, one)), None)
        if found is None:
            wrong.append(str(mine))
        else:
            left.remove(found)
    return Score(len(told) - len(wrong), len(told), len(true), tuple(wrong), tuple(map(str, left)))


def score_half(sessions: list[str]) -> dict[str, Score]:
    total = dict.fromkeys(KINDS, Score(0, 0, 0))
    for session in sessions:
        for kind, one in score(session).items():
            total[kind] = total[kind] + one
    return total


def main() -> None:
    tuning, other = halves()
    for name, sessions in (("tuning half", tuning), ("other half", other)):
        print(name)
        half = score_half(sessions)
        for kind, one in {**half, "all": sum(half.values(), Score(0, 0, 0))}.items():
            print(
                f"  {kind:8} precision {one.precision:.3f}  recall {one.recall:.3f}  {one.right}/{one.told}/{one.true}"
            )
    if "-v" in sys.argv:
        for session in tuning:
            print(f"== {session}")
            for kind, one in score(session).items():
                for line in one.wrong:
                    print(f"  {kind} wrong: {line}")
                for line in one.missed:
                    print(f"  {kind} missed: {line}")


if __name__ == "__main__":
    main()
