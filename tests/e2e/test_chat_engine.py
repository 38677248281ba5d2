"""`midfold chat` over real HTTP with a plugin engine that decides when to fold."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from midfold.testing import Request, ScriptedProvider
from midfold.testing.answers import Answer, turn
from support.engine_plugins import install
from support.terminal import CTRL_D, Terminal

SAID = [f"Question number {number}, please." for number in range(6)]
LONG = "This part of the answer is fine. " * 150
ENGINE = """
import msgspec
from midfold import Compressor, Pressure


class Counting(Compressor):
    name = "counting"
    reads_messages = True

    def should_compress(self, request):
        return Pressure.HARD if len(request.messages) >= {least} else Pressure.NONE

    def compress(self, request):
        return super().compress(msgspec.structs.replace(request, force=True))


engine = Counting
"""


def chat(folder: Path, provider: ScriptedProvider, least: int, *, window: int) -> list[str]:
    """Return the output of a conversation of six questions: the greeting, then each turn."""
    config = install(folder, "counting", ENGINE.format(least=least))
    with config.open("a") as file:
        file.write("compression: {protect_last_n: 2}\n")
        file.write(
            f"providers:\n  anthropic: {{wire: anthropic, base_url: '{provider.url}', api_key_env: THEIR_KEY}}\n"
        )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MIDFOLD_")}
    surroundings = {**kept, "HOME": str(folder), "TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONUTF8": "1"}
    options = ("--provider", "anthropic", "--model", "claude-opus-4-6", "--context-length", str(window), "--local")
    command = (sys.executable, "-m", "midfold", "chat", *options, "--store", "memory:", "--config", str(config))
    with Terminal(command, folder=folder, environment={**surroundings, "THEIR_KEY": "k"}) as terminal:
        shown = [terminal.wait_for("> ")]
        for said in SAID:
            terminal.type(said)
            shown.append(terminal.wait_for("compaction") + terminal.wait_for("> "))
        terminal.press(CTRL_D)
        assert terminal.ended() == 0
    return shown


def texts(message: dict[str, Any]) -> list[str]:
    content = message["content"]
    return [content] if isinstance(content, str) else [part["text"] for part in content if part["type"] == "text"]


@pytest.mark.parametrize(
    ("least", "window", "folds"),
    [pytest.param(7, 200_000, True, id="long before the threshold"), pytest.param(99, 8_000, False, id="never")],
)
def test_the_engine_decides_in_chat_and_the_model_is_told_nothing_but_the_summary(
    least: int, window: int, folds: bool, tmp_path: Path
) -> None:
    def answer(request: Request) -> Answer:
        return turn("anthropic", LONG, prompt_tokens=len(request.raw) // 4)

    with ScriptedProvider(then=answer) as provider:
        shown = chat(tmp_path, provider, least, window=window)
    assert "💾 Prompt caching: ENABLED (Claude via Anthropic, 5m TTL)" in shown[0]
    assert ("revert with /undo" in shown[4]) is folds
    assert not any("revert with /undo" in turn for turn in shown[:4])
    assert len(provider.requests) == len(SAID)
    for number, request in enumerate(provider.requests):
        users = [text for message in request.body["messages"] if message["role"] == "user" for text in texts(message)]
        others = [text for text in users if text not in SAID]
        assert users[-1] == SAID[number]
        assert [text.partition("]")[0] for text in others] == ["[CONTEXT COMPACTION"] * (folds and number >= 3)
