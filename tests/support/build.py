"""Conversations and shortcuts shared by the contract tests."""

from __future__ import annotations

from typing import Any

import midfold
from midfold.compaction.handoff import recognise
from midfold.config import Config
from midfold.config.schema import Compression
from midfold.errors import FailureKind, SummaryFailed
from midfold.transcript.message import Message
from support.fixtures import assistant, call, system, user

WINDOW = 25_000


SECRET = "sk-ant-api03-" + "Zx9Qw8Er7Ty6Ui5Op4As3Df2Gh1Jk0Lz" * 2


def setting(**compression: Any) -> Config:
    return Config(compression=Compression(**compression))


def work(start: int, count: int = 120, words: int = 300) -> list[dict[str, Any]]:
    runs = (call(n, "terminal", {"command": f"make {n}"}, f"{n} " * words) for n in range(start, start + count))
    return [message for run in runs for message in run]


def tool_run(start: int, count: int, words: int = 300) -> list[dict[str, Any]]:
    runs = (call(n, "terminal", {"command": f"make {n}"}, f"{n} " * words) for n in range(start, start + count))
    return [message for run in runs for message in run]


PRUNES: dict[str, Any] = {
    "context_length": 64_000,
    "force": True,
    "config": Config(compression=Compression(protect_last_n=4)),
}


DIALOGUE = [turn for n in range(8) for turn in (user(f"Question {n}?"), assistant(f"Answer {n}."))]


def folded(messages: Any, **options: Any) -> midfold.Compaction:
    result = midfold.compact(messages, **{"context_length": WINDOW, **options})
    assert result.receipt.status == "compacted", result.receipt.reason
    return result


def view(messages: Any) -> tuple[Message, ...]:
    return midfold.read(messages).messages


def handoffs(messages: Any) -> list[str]:
    found = [message for message in midfold.read(messages).messages if (known := recognise(message))]
    return [message.text for message in found if (known := recognise(message)) and known.kind == "fold"]


def handoff_of(messages: Any) -> str:
    found = [(message, recognise(message)) for message in midfold.read(messages).messages]
    (text,) = [message.text for message, known in found if known and known.kind == "fold"]
    return text


def failing(kind: FailureKind) -> Any:
    def summarize(ask: midfold.SummaryRequest) -> str:
        raise SummaryFailed(kind)

    return summarize


def anthropic_work(count: int) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for n in range(count):
        out.append(
            {"role": "assistant", "content": [{"type": "tool_use", "id": f"t{n}", "name": "sh", "input": {"n": n}}]}
        )
        out.append(
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"t{n}", "content": f"{n} " * 300}]}
        )
    return out


def responses_work(count: int) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for n in range(count):
        made = {"type": "function_call", "id": f"fc_{n}", "call_id": f"call_{n}", "name": "sh", "arguments": "{}"}
        out += [
            made,
            {"type": "function_call_output", "id": f"fo_{n}", "call_id": f"call_{n}", "output": f"{n} " * 300},
        ]
    return out


def item(role: str, text: str) -> dict[str, Any]:
    kind = "input_text" if role == "user" else "output_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


class Asked:
    """Summarizer that answers from a script and records its requests."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asks: list[midfold.SummaryRequest] = []

    def __call__(self, ask: midfold.SummaryRequest) -> Any:
        self.asks.append(ask)
        return self.answers[min(len(self.asks), len(self.answers)) - 1]


PORTING = [system(), user("Port the parser to Rust."), assistant("I will."), *work(0)]


def ported(messages: list[Any] = PORTING, **options: Any) -> midfold.Compaction:
    return folded(messages, **options)
