"""Startup messages about prompt caching, as users see them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from midfold.testing import ScriptedProvider
from midfold.testing.answers import turn

MIDFOLD = (sys.executable, "-m", "midfold")
ANTHROPIC = "💾 Prompt caching: ENABLED (Claude via Anthropic, 5m TTL)"


def environment(folder: Path, encoding: str = "utf-8") -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MIDFOLD_")}
    return {**kept, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "PYTHONIOENCODING": encoding}


def greeting(folder: Path, *options: str) -> str:
    """Return the startup output of `midfold serve`."""
    command = (*MIDFOLD, "serve", "--port", "18797", "--store", "memory:", *options)
    told: list[str] = []
    with subprocess.Popen(
        command, cwd=folder, env=environment(folder), stderr=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        assert process.stderr is not None
        ends = time.monotonic() + 60
        while time.monotonic() < ends and not any("BASE_URL" in line for line in told):
            told.append(process.stderr.readline())
        process.kill()
    return "".join(told)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--upstream", "https://api.anthropic.com"), ANTHROPIC),
        (("--upstream", "https://openrouter.ai/api"), "💾 Prompt caching: ENABLED (Claude via OpenRouter, 5m TTL)"),
        (
            ("--upstream", "https://api.openai.com"),
            "💾 Prompt caching: AUTOMATIC (OpenAI caches its models automatically)",
        ),
        (("--upstream", "http://127.0.0.1:9"), "💾 Prompt caching: ENABLED (Claude via 127.0.0.1:9, 5m TTL)"),
        (
            ("--upstream", "https://api.anthropic.com", "--mode", "passthrough"),
            "💾 Prompt caching: DISABLED (gateway.mode is passthrough)",
        ),
    ],
)
def test_serve_says_it_for_its_upstream(options: tuple[str, ...], line: str, tmp_path: Path) -> None:
    assert f"midfold: {line}\n" in greeting(tmp_path, *options)


@pytest.mark.parametrize("command", [("agent", "run", "Say hello."), ("chat",)], ids=["agent run", "chat"])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_chat_and_agent_say_it_for_whom_they_talk_to(command: tuple[str, ...], encoding: str, tmp_path: Path) -> None:
    with ScriptedProvider(then=lambda request: turn("anthropic", "Hello.")) as provider:
        (tmp_path / "midfold.yaml").write_text(
            f"providers:\n  anthropic: {{wire: anthropic, base_url: '{provider.url}', api_key_env: THEIR_KEY}}\n"
        )
        options = ("--provider", "anthropic", "--model", "claude-opus-4-6", "--store", "memory:")
        done = subprocess.run(
            (*MIDFOLD, *command, *options, "--config", "midfold.yaml"),
            cwd=tmp_path,
            env={**environment(tmp_path, encoding), "THEIR_KEY": "k"},
            input="",
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )
    told = done.stdout + done.stderr
    assert (ANTHROPIC if encoding == "utf-8" else ANTHROPIC.removeprefix("💾 ")) in told
    assert ("💾" in told) is (encoding == "utf-8")
