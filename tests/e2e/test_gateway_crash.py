"""A gateway that is killed while it folds: the next one waits for its lease to run out, and folds."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from midfold.testing.answers import openai_json, summary
from midfold.testing.doubles import ScriptedProvider
from support.fixtures import assistant, number_lines, user
from support.gateways import call

SUMMARY = (
    "## Goal\nTell a story.\n\n## Progress\n### Done\n- most of it was told\n"
    + "".join(
        f"- the sentences of part {number} of the story that has no end were told, no tool in it\n"
        for number in range(25)
    )
    + "\n## Active State\n- the story goes on\n\n## Next Steps\n- the end"
)


def story(turns: int = 60) -> list[dict[str, Any]]:
    said = number_lines("sentence {n} of a story that has no end, and no tool in it", 20)
    talk = [turn for n in range(turns) for turn in (assistant(f"{n}: {said}"), user(f"{n}? {said}"))]
    return [user("Tell me a story."), *talk]


@contextmanager
def serving(config: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "midfold", "serve", "--config", str(config), "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "SUMMARY_KEY": "k"})
    try:
        ends = time.monotonic() + 60
        while time.monotonic() < ends:
            try:
                call(f"http://127.0.0.1:{port}", "GET", "/healthz")
                break
            except ConnectionError:
                time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_fold_that_died_with_its_gateway_is_made_by_the_next_one(tmp_path: Path) -> None:
    good = summary("openai", SUMMARY)
    with ScriptedProvider(then=openai_json("fine")) as provider, ScriptedProvider([good.slow(60)], then=good) as writer:
        settings = {
            "gateway": {"upstream": provider.url},
            "store": {"url": f"sqlite:///{tmp_path}/g.db", "lease_seconds": 2},
            "auxiliary": {"compression": {"base_url": f"{writer.url}/v1", "model": "s", "api_key_env": "SUMMARY_KEY"}},
            "models": {"*": {"context_window": 16_000}},
        }
        config = tmp_path / "config.yaml"
        config.write_text(json.dumps(settings))
        body = {"model": "gpt-4o", "messages": story()}
        port = free_port()
        with serving(config, port) as process:
            url = f"http://127.0.0.1:{port}"
            lost = threading.Thread(target=_ignored, args=(url, body), daemon=True)
            lost.start()
            ends = time.monotonic() + 30
            while not writer.requests and time.monotonic() < ends:
                time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
            lost.join(10)
        assert provider.requests == []
        port = free_port()
        with serving(config, port):
            status, head, _ = call(f"http://127.0.0.1:{port}", "POST", "/v1/chat/completions", body)
    assert (status, head["x-midfold-action"]) == (200, "compacted")
    assert "most of it was told" in provider.requests[0].text


def _ignored(url: str, body: Any) -> None:
    try:
        call(url, "POST", "/v1/chat/completions", body)
    except OSError:
        return
