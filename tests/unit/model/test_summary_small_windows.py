"""Findings with a small model (`make e2e-model`): windows that barely fit the request, and broken streams."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import midfold
from midfold.compaction.request import SummaryAnswer, SummaryRequest
from midfold.compaction.summary import MAX_CHUNKS, chunks
from midfold.errors import FailureKind, ModelFailed, SummaryFailed
from midfold.model.endpoint import Endpoint
from midfold.model.summarizer import (
    CONTINUE,
    CUT_NOTE,
    SYSTEM,
    ModelSummarizer,
    SummaryCall,
    SummaryProgress,
    run,
    summarise,
)
from midfold.transcript.replies import ModelAnswer
from midfold.transcript.tokens import estimate_text
from support.fixtures import assistant, call, user

ENDPOINT = Endpoint(name="test", wire="openai", base_url="http://127.0.0.1:1/v1", model="small")
GOOD = (
    "## Goal\nPort the parser.\n\n## Progress\n### Done\n"
    + "\n".join(f"- wrote part {number} of the lexer and ran its tests" for number in range(24))
    + "\n\n## Next Steps\n- write the grammar"
)


class Model:
    """Model with a window: requests that do not fit overflow, and answers stop at its end."""

    def __init__(self, window: int, text: str = GOOD, *, endless: bool = False, names_limit: bool = True) -> None:
        self.window = window
        self.text = text
        self.endless = endless
        self.names_limit = names_limit
        self.calls: list[SummaryCall] = []

    def __call__(self, call: SummaryCall) -> ModelAnswer:
        self.calls.append(call)
        if size(call) + call.max_tokens > self.window:
            raise ModelFailed("overflow", limit=self.window if self.names_limit else 0)
        if self.endless:
            return ModelAnswer(text="the work went on and on\n" * (call.max_tokens // 7), finish="length")
        return ModelAnswer(text=self.text)

    @property
    def read(self) -> str:
        return "\n".join(text for call in self.calls for _, text in call.messages)


def size(call: SummaryCall) -> int:
    return sum(estimate_text(text) + 4 for _, text in call.messages) + estimate_text(SYSTEM)


def fold(count: int, words: int = 120) -> list[dict[str, Any]]:
    runs = [call(n, "terminal", {"command": f"make target-{n}"}, f"built {n} " * words) for n in range(count)]
    asked = [[user(f"Please look at part {n}."), assistant(f"Looked at {n}.")] for n in range(count)]
    return [message for pair in zip(asked, runs, strict=True) for turns in pair for message in turns]


def ask(messages: list[dict[str, Any]], **changes: Any) -> SummaryRequest:
    fields: dict[str, Any] = {"budget_tokens": 1_600, "fold": "0" * 12, "redact": lambda text: text}
    return SummaryRequest(messages=midfold.read(messages).messages, **{**fields, **changes})


def summary(asked: SummaryRequest, model: Any, window: int, **options: Any) -> SummaryAnswer:
    endpoint = Endpoint(**{**_fields(ENDPOINT), "context_length": window})
    return run(summarise(asked, endpoint, **options), model, lambda seconds: None)


def _fields(endpoint: Endpoint) -> dict[str, Any]:
    return {name: getattr(endpoint, name) for name in endpoint.__struct_fields__}


@pytest.mark.parametrize("window", [2_048, 3_000, 4_096, 8_192])
@pytest.mark.parametrize("count", [24, 60, 400])
@pytest.mark.parametrize("endless", [False, True])
def test_no_call_is_larger_than_the_window_however_much_the_model_writes(
    window: int, count: int, endless: bool
) -> None:
    model = Model(window, endless=endless)
    answer = summary(ask(fold(count)), model, window)
    assert all(size(call) + call.max_tokens <= window for call in model.calls)
    assert len(model.calls) <= 3 * (2 * MAX_CHUNKS + 1)
    assert answer.calls == len(model.calls)
    assert answer.text.endswith(CUT_NOTE) is endless


def test_parts_that_do_not_fit_one_call_are_merged_with_their_neighbours_first() -> None:
    steps: list[SummaryProgress] = []
    steps_done = "\n".join(f"- finished step {n} of the port" for n in range(30))
    part = f"## Goal\nPort it.\n\n## Progress\n### Done\n{steps_done}\n\n## Next Steps\n- go on"
    model = Model(2_048, part)
    summary(ask(fold(60)), model, 2_048, progress=steps.append)
    merges = [call.messages[0][1] for call in model.calls if "[PART 1 of " in call.messages[0][1]]
    assert len(merges) > 1
    assert steps[-1].done == steps[-1].total
    assert [step.done for step in steps] == list(range(len(steps)))


@pytest.mark.parametrize("length", [300, 3_000, 6_000])
def test_a_previous_summary_that_does_not_fit_beside_the_turns_is_merged_whole(length: int) -> None:
    previous = "\n".join(f"- fact number {n}" for n in range(length // 15))
    model = Model(2_048)
    answer = summary(ask(fold(20), previous=previous), model, 2_048)
    assert answer.text == GOOD
    assert all(line in model.read for line in previous.splitlines())


def test_a_previous_summary_far_larger_than_the_window_is_an_overflow_before_anything_is_sent() -> None:
    model = Model(2_048)
    with pytest.raises(SummaryFailed) as caught:
        summary(ask(fold(20), previous="- an older fact of the session\n" * 2_000), model, 2_048)
    assert caught.value.kind == "overflow"
    assert model.calls == []


@pytest.mark.parametrize("names_limit", [True, False])
def test_a_window_smaller_than_was_said_is_found_out_and_used(names_limit: bool) -> None:
    model = Model(2_048, names_limit=names_limit)
    answer = summary(ask(fold(40)), model, 8_192 if names_limit else 4_096)
    assert answer.text == GOOD
    assert size(model.calls[-1]) + model.calls[-1].max_tokens <= 2_048


def test_a_continuation_that_overflows_keeps_what_was_written() -> None:
    def model(call: SummaryCall) -> ModelAnswer:
        if call.messages[-1][1] == CONTINUE:
            raise ModelFailed("overflow", limit=2_048)
        return ModelAnswer(text=f"{GOOD}\n- and then", finish="length")

    answer = summary(ask(fold(3, 20)), model, 8_192)
    assert answer.text == f"{GOOD}\n{CUT_NOTE}"
    assert "the summary was cut by the model's output limit" in answer.notes


def test_after_a_broken_answer_the_call_is_made_without_a_stream() -> None:
    calls: list[SummaryCall] = []

    def model(call: SummaryCall) -> ModelAnswer:
        calls.append(call)
        if call.stream:
            raise ModelFailed("malformed")
        return ModelAnswer(text=GOOD)

    assert summary(ask(fold(3, 20)), model, 32_000).text == GOOD
    assert [json.loads(call.request())["stream"] for call in calls] == [True, False]


def test_a_fold_of_too_many_messages_fills_all_its_pieces_and_keeps_its_newest_turns() -> None:
    messages = midfold.read(fold(400)).messages
    pieces = chunks(messages, lambda text: text, 2_000)
    assert 4 <= len(pieces) <= MAX_CHUNKS
    assert all(len(piece) <= 2_000 for piece in pieces)
    assert "part 399" in pieces[-1]
    assert "older messages are not shown" in "".join(pieces)


def test_calls_are_counted_when_they_come_to_nothing() -> None:
    def unreachable(call: SummaryCall) -> ModelAnswer:
        raise ModelFailed("network" if call.endpoint.model == "small" else "auth")

    def absent(call: SummaryCall) -> ModelAnswer:
        if call.endpoint.model == "small":
            raise ModelFailed("model_not_found")
        return ModelAnswer(text=GOOD)

    with pytest.raises(SummaryFailed) as caught:
        summary(ask(fold(3, 20)), unreachable, 32_000)
    assert caught.value.calls == 3
    main = Endpoint(**{**_fields(ENDPOINT), "model": "main"})
    assert summary(ask(fold(3, 20)), absent, 32_000, main=main).calls == 2


@pytest.mark.parametrize(("kind", "status"), [("network", "aborted"), ("model_not_found", "compacted")])
def test_the_receipt_counts_calls_that_came_to_nothing(kind: FailureKind, status: str) -> None:
    def failing(ask: SummaryRequest) -> str:
        failed = SummaryFailed(kind)
        failed.calls = 3
        raise failed

    receipt = midfold.compact(fold(30), context_length=8_000, summarizer=failing).receipt
    assert (receipt.status, receipt.summary.failure, receipt.summary.calls) == (status, kind, 3)


class _Broken(BaseHTTPRequestHandler):
    """Server that aborts streams without an error, and reports the error only in whole responses."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if body["stream"]:
            self._answer(200, "text/event-stream", b"")
            self.close_connection = True
            return
        error = {"message": "This model's maximum context length is 2048 tokens", "code": "context_length_exceeded"}
        self._answer(400, "application/json", json.dumps({"error": error}).encode())

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        return


@contextmanager
def broken_server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Broken)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_an_overflow_behind_a_silent_stream_is_told_as_an_overflow_every_time() -> None:
    with broken_server() as url:
        summarizer = ModelSummarizer(Endpoint(**{**_fields(ENDPOINT), "base_url": url}))
        for _ in range(10):
            with pytest.raises(SummaryFailed) as caught:
                summarizer(ask(fold(3, 20), budget_tokens=400))
            assert caught.value.kind == "overflow"
