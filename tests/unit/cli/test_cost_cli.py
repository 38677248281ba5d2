"""`midfold cost`: cost of recorded sessions, compared with no cache, no folds, and midfold's folds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import midfold
from midfold.cli.main import main

LOGS = Path(__file__).resolve().parents[2] / "data/logs"
WORDS = " ".join(f"w{number}" for number in range(900))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["cost", *arguments])


def facts(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json").stdout)
    return found


def saved(path: Path, value: Any) -> str:
    path.write_text(json.dumps(value), encoding="utf-8")
    return str(path)


def answer(**usage: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "Yes.", "_meta": {"usage": usage, "ts": "2026-01-08T10:00:00Z"}}


def talk(*answers: dict[str, Any], model: str = "claude-sonnet-4-5") -> dict[str, Any]:
    messages = [message for given in answers for message in ({"role": "user", "content": "Go."}, given)]
    return {"model": model, "id": "one", "messages": messages}


def test_every_kind_of_token_has_its_price(tmp_path: Path) -> None:
    usage = {
        "input_tokens": 1_000_000,
        "cache_read_input_tokens": 2_000_000,
        "cache_creation_input_tokens": 4_000_000,
        "output_tokens": 100_000,
    }
    file = saved(tmp_path / "a.json", talk(answer(**usage)))
    total = facts(file)["total"]
    assert (total["requests"], total["prompt_tokens"], total["answer_tokens"]) == (1, 7_000_000, 100_000)
    assert total["prompts"] == pytest.approx(3 * (1 + 2 * 0.1 + 4 * 1.25))
    assert total["answers"] == pytest.approx(0.1 * 15)
    assert total["paid"] == pytest.approx(total["prompts"] + total["answers"])
    assert total["without_cache"] == pytest.approx(3 * 7)
    shown = run(file).stdout
    assert "as recorded       $18.60    $1.50  $20.10" in shown
    assert "without a cache   $21.00    $1.50  $22.50" in shown


@pytest.mark.parametrize(("short", "long", "times"), [(1_000_000, 0, 1.25), (0, 1_000_000, 2.0), (0, 0, 1.25)])
def test_what_is_written_for_an_hour_costs_what_that_costs(tmp_path: Path, short: int, long: int, times: float) -> None:
    kept = {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": long}
    given = answer(input_tokens=0, cache_creation_input_tokens=1_000_000, cache_creation=kept)
    file = saved(tmp_path / "a.json", talk(given))
    assert facts(file)["total"]["prompts"] == pytest.approx(3 * times)


def test_a_price_that_is_not_known_is_no_price_of_zero(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.json", talk(answer(input_tokens=1_000_000, output_tokens=1), model="nobody-knows-it"))
    shown = run(file)
    assert "no price known for nobody-knows-it" in shown.stderr
    assert "unknown" in shown.stdout and "$" not in shown.stdout
    assert facts(file)["total"]["paid"] is None
    assert facts(file, "--model", "claude-sonnet-4-5")["total"]["prompts"] == pytest.approx(3)


def codex(turns: int, window: int) -> list[dict[str, Any]]:
    """Return a log whose prompts grow until they would be folded."""
    made: list[dict[str, Any]] = [
        {"type": "session_meta", "payload": {"id": "long"}},
        {"type": "turn_context", "payload": {"model": "gpt-5"}},
    ]
    for number in range(turns):
        asked = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"{number} {WORDS}"}]}
        said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"{number}."}]}
        counted = {"input_tokens": 2_600 * (number + 1), "cached_input_tokens": 2_600 * number, "output_tokens": 3}
        usage = {"last_token_usage": counted, "model_context_window": window}
        stamp = f"2026-01-08T10:{number:02}:00Z"
        made += [
            {"type": "response_item", "timestamp": stamp, "payload": asked},
            {"type": "response_item", "timestamp": stamp, "payload": said},
            {"type": "event_msg", "timestamp": stamp, "payload": {"type": "token_count", "info": usage}},
        ]
    return made


def test_a_log_is_replayed_with_folds_in_its_own_window(tmp_path: Path) -> None:
    file = tmp_path / "rollout-long.jsonl"
    file.write_text("\n".join(map(json.dumps, codex(40, 64_000))), encoding="utf-8")
    found = facts(str(file))
    assert found["with_midfold"]["windows"] == [64_000]
    assert found["with_midfold"]["folds"] > 0
    assert 0 < found["with_midfold"]["prompts"] < found["total"]["prompts"]
    assert "in a window of 64,000" in run(str(file)).stdout
    assert facts(str(file), "--no-replay")["with_midfold"] is None


def test_where_nothing_would_be_folded_no_other_price_is_claimed() -> None:
    file = str(LOGS / "claude_code.jsonl")
    found = facts(file)
    assert (found["with_midfold"]["folds"], found["with_midfold"]["prompts"]) == (0, None)
    assert "no compaction in a window of" in run(file).stdout


def test_what_is_missing_for_a_comparison_is_said(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.json", talk(answer(input_tokens=10_000)))
    assert "unknown: the system prompt and tools" in run(file).stdout
    log = codex(12, 64_000)
    few = [line for place, line in enumerate(log) if line["type"] != "event_msg" or place < 12]
    kept = tmp_path / "rollout-few.jsonl"
    kept.write_text("\n".join(map(json.dumps, few)), encoding="utf-8")
    assert "unknown: the usage of 9 requests of long" in run(str(kept)).stdout


def keep_folded(folder: Path, monkeypatch: pytest.MonkeyPatch, *, reads: bool) -> None:
    """Store a session folded once; every prompt except the first and the one after the fold was cached."""
    url = f"sqlite:///{folder / 's.db'}"
    monkeypatch.setenv("MIDFOLD_CONFIG", saved(folder / "config.yaml", {"store": {"url": url}}))
    with midfold.open(url) as sessions:
        session = sessions.session("work", model="claude-sonnet-4-5", context_length=32_000)
        for number in range(30):
            session.append({"role": "user", "content": f"{number} {WORDS}"})
            if number == 20:
                assert session.compact(force=True).changed
            cached = {"cached_tokens": 0 if number in (0, 20) or not reads else session.size.tokens - 1_000}
            session.observe({"prompt_tokens": session.size.tokens, "prompt_tokens_details": cached})
            session.append({"role": "assistant", "content": "Yes."})


def test_a_stored_session_that_was_folded_is_compared_with_no_folds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_folded(tmp_path, monkeypatch, reads=False)
    found = facts("session:work")
    assert found["folds"]["without_folds"] > found["total"]["prompts"] > 0
    assert found["with_midfold"] is None
    assert "without compaction" in run("session:work").stdout


def test_the_miss_behind_a_fold_of_a_stored_session_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_folded(tmp_path, monkeypatch, reads=True)
    [health] = json.loads(CliRunner().invoke(main, ["cache", "health", "session:work", "--json"]).stdout)
    assert health["kinds"].get("compacted") == 1 and "unexpected" not in health["kinds"], health["kinds"]


def test_what_has_no_usage_is_refused(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.json", {"messages": [{"role": "user", "content": "Go."}]})
    assert "no reported usage found" in str(run(file).exception)


def test_a_stored_session_is_looked_for_where_the_settings_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "elsewhere"))
    config = tmp_path / "config.yaml"
    config.write_text(f"store: {{url: 'sqlite:///{tmp_path}/named.db'}}\n")
    with midfold.open(f"sqlite:///{tmp_path}/named.db") as sessions:
        sessions.session("work").append([{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}])
    for command in (
        ["inspect"],
        ["compact", "--preview"],
        ["cache", "plan"],
        ["artifacts"],
        ["replay", "--exams", "0"],
    ):
        done = CliRunner().invoke(main, [*command, "session:work", "--config", str(config)])
        assert done.exit_code == 0, (command, done.exception)
        lost = CliRunner().invoke(main, [*command, "session:work"])
        assert "nothing is stored yet" in str(lost.exception), command
    for words in (["cost"], ["cache", "health"]):
        told = str(CliRunner().invoke(main, [*words, "session:work", "--config", str(config)]).exception)
        assert told.startswith("session:work: no reported usage found")
    told = str(CliRunner().invoke(main, ["eval", "session:work", "--config", str(config)]).exception)
    assert "nothing is stored" not in told and "cut" in told
