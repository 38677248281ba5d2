"""Released clients through `midfold run`, with enough work for four folds and two user messages (make clients).

Results are written to .bench; `tools/gen_clients_doc.py` generates the table of docs/reference/clients.md from
them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.peers import HOME
from support.real_clients import (
    ASKS,
    CLIENTS,
    CODEX_EXEC,
    DONE,
    FACT,
    RULE,
    ClientRun,
    RealClient,
    drive,
    resume_exported,
)

TRIGGER = 0.85
MOST_CACHED, LEAST_CACHED = 0.05, 0.88
by_name = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)


def check_end(client: RealClient, run: ClientRun) -> None:
    """Check that the client finished without refused requests, and that its model had the required facts."""
    assert set(run.exit_codes) == {0}, run.output[-3_000:]
    assert f"{DONE} It was number 2." in run.output
    assert run.refused == () and run.strangers == ()
    assert len(run.requests) == 2 * (client.steps + 1)
    assert ASKS[1] in run.last and RULE in run.last and FACT in run.last
    assert max(one.prompt for one in run.requests) <= client.window


def check_folds(client: RealClient, run: ClientRun, folder: Path) -> float:
    """Check for at least four folds, no more than necessary, and hardly any cache loss from them."""
    assert run.folds >= 4
    assert run.unfoldable <= TRIGGER * client.window / 2
    assert len(run.requests) >= 10 * run.folds
    cached = run.cached
    if cached < LEAST_CACHED:
        assert cached >= drive(client, folder / "alone", through=False).cached - MOST_CACHED
    return cached


def note(client: RealClient, run: ClientRun, kind: str, cached: float) -> None:
    row = {
        "client": client.name,
        "packages": client.packages,
        "kind": kind,
        "window": client.window,
        "requests": len(run.requests),
        "folds": run.folds,
        "recovered": run.overflows,
        "cached": round(cached, 3),
        "measure": client.measure,
        "largest": max(one.prompt for one in run.requests),
    }
    file = HOME / "clients" / f"{client.name}, {kind}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(row), encoding="utf-8")


@by_name
def test_a_client_comes_to_its_end_through_four_folds_and_still_knows_its_task(
    client: RealClient, tmp_path: Path
) -> None:
    run = drive(client, tmp_path / "through")
    check_end(client, run)
    assert run.overflows == 0
    note(client, run, "window known", check_folds(client, run, tmp_path))


@by_name
def test_with_a_window_that_nobody_knows_one_request_is_recovered_at_most(client: RealClient, tmp_path: Path) -> None:
    run = drive(client, tmp_path / "through", knows_window=False)
    check_end(client, run)
    assert run.overflows <= 1
    note(client, run, "window not known", check_folds(client, run, tmp_path))


@pytest.mark.parametrize("client", [client for client in CLIENTS if client.is_npm], ids=lambda client: client.name)
def test_a_client_that_compacts_by_itself_loses_nothing_either(client: RealClient, tmp_path: Path) -> None:
    run = drive(client, tmp_path / "through", compacts=True)
    check_end(client, run)
    assert run.overflows == 0
    note(client, run, "own compaction on", run.cached)


def test_claude_code_on_a_model_that_hears_the_system_in_the_middle_is_never_refused(tmp_path: Path) -> None:
    """It reports remaining tokens after every result, and its environment at the beginning."""
    client = next(client for client in CLIENTS if client.name == "Claude Code")
    older, newer = client.model, "claude-opus-4-8"
    commands = tuple(tuple(newer if word == older else word for word in line) for line in client.commands)
    client = client._replace(model=newer, commands=commands)
    run = drive(client, tmp_path / "through")
    check_end(client, run)
    assert run.overflows == 0
    assert check_folds(client, run, tmp_path) >= LEAST_CACHED
    told = [[one["content"] for one in served.body["messages"] if one["role"] == "system"] for served in run.requests]
    assert all("# Environment" in str(one[0]) for one in told)
    assert max(map(len, told)) > 50


THIRD = "Third ask: what is left to do?"
LEAVING = {
    "Claude Code": ("claude-code", 52_000, lambda name: ["-p", "--resume", name, THIRD, "--allowedTools", "Bash"]),
    "Codex": ("codex", 40_000, lambda name: [*CODEX_EXEC, "resume", name, THIRD]),
}


@pytest.mark.parametrize("name", LEAVING)
def test_a_client_goes_on_without_midfold_from_what_was_exported(name: str, tmp_path: Path) -> None:
    target, window, words = LEAVING[name]
    client = next(client for client in CLIENTS if client.name == name)._replace(window=window, steps=16)
    assert drive(client, tmp_path).folds >= 1
    run = resume_exported(client, tmp_path, target, words)
    assert (run.exit_codes, run.refused, run.strangers) == ((0,), (), ()), run.output[-3_000:]
    assert DONE in run.output and len(run.requests) == 2
    for text in (THIRD, ASKS[1], FACT, RULE, "CONTEXT COMPACTION"):
        assert text in run.last
    assert run.last.count(RULE) == 1


def test_the_page_has_every_client_in_the_version_that_is_tried() -> None:
    page = (HOME.parent / "docs" / "reference" / "clients.md").read_text(encoding="utf-8")
    for client in CLIENTS:
        packages = ", ".join(f"`{one}`" for one in client.packages)
        kinds = ["window known", "window not known", *(["own compaction on"] if client.is_npm else [])]
        assert [kind for kind in kinds if f"| {client.name} ({packages}) | {kind} |" in page] == kinds
