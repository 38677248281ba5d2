"""`midfold replay`, end to end on a small recording: real folds, real prices, no network."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from midfold.cli.main import main
from midfold.errors import ConfigError
from midfold.lab.replay_policies import load_policy

WORDS = "The build of module {n} failed in src/part_{n}/main_{n}.py at line {n}71, see build_{n}.log. "


def recording(turns: int = 60, gap: int = 30, pause: int = 0) -> dict[str, Any]:
    """Return an agent that reads one large file per turn, with a long pause in the middle."""
    messages: list[dict[str, Any]] = [_message({"role": "user", "content": "Please fix the build. " * 20}, 0)]
    for n in range(turns):
        at = n * gap + (pause if n > turns // 2 else 0)
        function = {"name": "read_file", "arguments": json.dumps({"path": f"src/part_{n - 3}/main_{n - 3}.py"})}
        call = {"id": f"c{n}", "type": "function", "function": function}
        messages.append(_message({"role": "assistant", "content": f"I look at {n}.", "tool_calls": [call]}, at))
        messages.append(_message({"role": "tool", "tool_call_id": f"c{n}", "content": WORDS.format(n=n) * 20}, at + 2))
    return {"id": "one", "source": "test", "messages": messages}


def _message(message: dict[str, Any], at: int) -> dict[str, Any]:
    stamp = f"2026-01-08T{10 + at // 3600:02}:{at // 60 % 60:02}:{at % 60:02}Z"
    return {**message, "_meta": {"ts": stamp}}


def run(path: Path, value: dict[str, Any], *arguments: str) -> Result:
    path.write_text(json.dumps(value), encoding="utf-8")
    done = CliRunner().invoke(main, ["replay", str(path), "--windows", "32k", "--workers", "1", *arguments])
    assert done.exit_code == 0, done.output or done.exception
    return done


def totals(done: Result) -> dict[str, dict[str, Any]]:
    return {total["policy"]: total for total in json.loads(done.stdout)["totals"]}


def test_the_built_in_policies_are_compared(tmp_path: Path) -> None:
    found = totals(run(tmp_path / "a.json", recording(), "--json"))
    assert list(found) == ["documented", "no compaction", "prune every turn", "threshold", "scheduled", "default"]
    never, documented, scheduled = (found[name] for name in ("no compaction", "documented", "scheduled"))
    assert never["folds"] == 0
    assert never["overflows"] == 1
    assert never["retention"] >= max(documented["retention"], scheduled["retention"])
    assert documented["folds"] > 0
    assert documented["overflows"] == scheduled["overflows"] == 0
    assert scheduled["cost"] < documented["cost"]
    assert found["prune every turn"]["written"] > documented["written"]
    for total in found.values():
        assert total["read"] + total["written"] <= total["sent"]
        assert total["money"] == pytest.approx(total["cost"] * 3.0 / 1e6)


def test_a_pause_makes_the_cache_cold_and_the_scheduler_uses_it(tmp_path: Path) -> None:
    found = totals(run(tmp_path / "a.json", recording(turns=30, pause=900), "--policy", "scheduled", "--json"))
    assert found["scheduled"]["reasons"].get("cold") == 1
    quick = totals(run(tmp_path / "a.json", recording(turns=30), "--policy", "scheduled", "--json"))
    assert "cold" not in quick["scheduled"]["reasons"]


def test_policies_from_files_and_a_chart(tmp_path: Path) -> None:
    one, two = tmp_path / "early.yaml", tmp_path / "late.yaml"
    one.write_text("fold: threshold\nthreshold: 0.3\n", encoding="utf-8")
    two.write_text("fold: threshold\nthreshold: 0.6\nprune: off\n", encoding="utf-8")
    plot = tmp_path / "out.svg"
    done = run(tmp_path / "a.json", recording(), "--policy", str(one), str(two), "--plot", str(plot), "--exams", "0")
    assert "early" in done.output
    assert "late: more than 5 % above" in done.output
    labels = "".join(ET.fromstring(plot.read_text(encoding="utf-8")).itertext())
    assert "32k window" in labels


def test_a_bad_policy_is_told(tmp_path: Path) -> None:
    for text, told in (("fold: sometimes\n", "fold"), ("thresold: 1\n", "thresold"), ("- a\n", "mapping")):
        path = tmp_path / "bad.yaml"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=told):
            load_policy(str(path))
    with pytest.raises(ConfigError, match="scheduled"):
        load_policy("nowhere")
