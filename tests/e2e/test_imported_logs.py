"""Imported sessions belong to the local user: no gateway client, with or without key, can see or use them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from midfold.cli.main import main
from midfold.config import Config
from midfold.config.schema import GatewaySettings, Key
from midfold.gateway.admission import hash_key, new_key
from midfold.models import ModelOverride
from midfold.session.sessions import Sessions, open_sessions
from midfold.testing.answers import anthropic_json
from midfold.testing.doubles import ScriptedProvider
from midfold.transcript.document import read
from midfold.transcript.message import plain
from support.attacks import behind_the_door
from support.gateway_soak import gateway
from support.gateways import call

RED = new_key()
KEYS = {"red": Key(hash=hash_key(RED))}
WORD = "Zanzibarbarossa"
WINDOW = 32_000
"""Window too large for the log to be folded, and small enough for its requests to be read."""


def log_lines() -> Iterator[dict[str, Any]]:
    last = None
    for number in range(120):
        role = "assistant" if number % 2 else "user"
        text = f"{WORD} step {number}. " + f"The file part_{number}.py was read and all is well. " * 12
        message: dict[str, Any] = {"role": role, "content": text}
        if role == "assistant":
            message |= {"id": f"m{number}", "model": "claude-opus-4-6", "stop_reason": "end_turn"}
        about = {"uuid": f"u{number}", "parentUuid": last, "sessionId": "s1", "cwd": "/srv/shop"}
        yield {"type": role, "message": message, **about}
        last = f"u{number}"


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Sessions]:
    """Return a store with an imported session that was folded."""
    url = f"sqlite:///{tmp_path}/sessions.db"
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(map(json.dumps, log_lines())))
    done = CliRunner().invoke(main, ["import", "claude-code", str(log), "--store", url])
    assert done.exit_code == 0, done.output
    with open_sessions(url) as opened:
        (info,) = opened.all()
        folded = opened.session(info.name, context_length=20_000).compact(force=True)
        assert folded.receipt.status == "compacted"
        yield opened


def settings(provider: ScriptedProvider, *, has_keys: bool) -> Config:
    return Config(
        gateway=GatewaySettings(upstream=provider.url, recall="on"),
        keys=KEYS if has_keys else {},
        models={"*": ModelOverride(context_window=WINDOW)},
    )


@pytest.mark.parametrize("has_keys", [True, False])
def test_no_request_is_given_what_was_imported(tmp_path: Path, sessions: Sessions, has_keys: bool) -> None:
    (info,) = sessions.all()
    history = [plain(message.wire) for message in read((tmp_path / "log.jsonl").read_bytes()).messages]
    said = [*history, {"role": "user", "content": "Go on."}]
    body = {"model": "claude-opus-4-6", "max_tokens": 9, "messages": said}
    key = {"x_midfold_key": RED} if has_keys else {}
    with (
        ScriptedProvider(then=anthropic_json("Yes.")) as provider,
        behind_the_door(settings(provider, has_keys=has_keys), sessions=sessions) as url,
    ):
        for name in ("", "s1", "claude-code-s1", info.name, info.name.rpartition("/")[2]):
            status, _, _ = call(url, "POST", "/v1/messages", body, x_midfold_session=name, **key)
            assert status == 200
    assert len(provider.requests) == 5
    for request in provider.requests:
        assert [message["content"] for message in plain_texts(request.body)] == [one["content"] for one in said]
    assert sessions.store.must(info.name).count == len(history), "and nothing is added to it"


def plain_texts(body: Any) -> list[dict[str, Any]]:
    """Return the messages as strings, without cache markers."""
    found = []
    for message in body["messages"]:
        content = message["content"]
        text = content if isinstance(content, str) else "".join(block["text"] for block in content)
        found.append({**message, "content": text})
    return found


@pytest.mark.parametrize("has_keys", [True, False])
def test_the_pages_of_a_key_show_nothing_of_it(tmp_path: Path, sessions: Sessions, has_keys: bool) -> None:
    (info,) = sessions.all()
    basic = base64.b64encode(f"me:{RED}".encode()).decode()
    config = tmp_path / "config.yaml"
    config.write_text(f'keys:\n  red:\n    hash: "{hash_key(RED)}"\n' if has_keys else "{}\n")
    process = gateway(config, "http://127.0.0.1:1", f"sqlite:///{tmp_path}/sessions.db", tmp_path / "gateway.log")
    place = info.name.replace("/", "!2F")

    def look(path: str) -> tuple[int, str]:
        status, _, answer = call(process.url, "GET", path, authorization=f"Basic {basic}")
        return status, answer.decode()

    try:
        for path in ("/sessions", "/api/sessions", f"/search?q={WORD}"):
            status, text = look(path)
            assert (status, "claude-code-s1" in text) == (200, not has_keys), path
        hits = json.loads(look(f"/api/search?q={WORD}")[1])["hits"]
        assert bool(hits) is not has_keys
        for path in (f"/sessions/{place}", f"/api/sessions/{place}", f"/api/sessions/{place}/turns"):
            assert look(path)[0] == (404 if has_keys else 200), path
    finally:
        process.stop()
