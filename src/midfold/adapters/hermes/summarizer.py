"""Summaries by the model Hermes is configured to compress with, in prompts that fit; by nobody's model where it fails.

Rules of this file:
1. The prompt is bounded. A fold that is larger is summarised piece by piece, each one updating the summary before it.
2. A failure has a kind, by the HTTP status or the type of the exception, never by wording that may change.
3. Reasoning that a model wrote into its answer is not part of the summary.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from midfold.errors import FailureKind, SummaryFailed
from midfold.fold.request import SummaryAnswer, SummaryAsk
from midfold.fold.summary import serialize_turns
from midfold.transcript.message import Transcript

Call = Callable[..., Any]

SMALLEST_PROMPT = 60_000
CHARACTERS_PER_TOKEN = 2
"""Of the window: a prompt of half the window's tokens at four characters each leaves room for the answer."""
_OPEN, _CLOSE = re.compile(r"<(think|thinking|reasoning)>", re.IGNORECASE | re.ASCII), "</{}>"
_BY_STATUS: dict[int, FailureKind] = {401: "auth", 402: "auth", 403: "auth", 408: "timeout", 429: "rate_limit"}


def hermes_call() -> Call | None:
    """Hermes' own way to ask its auxiliary models; None outside Hermes."""
    try:
        module = importlib.import_module("agent.auxiliary_client")
    except ImportError:
        return None
    call: Call | None = getattr(module, "call_llm", None)
    protection = getattr(module, "aux_interrupt_protection", None)
    if call is None or protection is None:
        return call

    def call_protected(**arguments: Any) -> Any:
        with protection():
            return call(**arguments)

    return call_protected


def summarize_with(call: Call, ask: SummaryAsk, runtime: Mapping[str, str], context_length: int) -> SummaryAnswer:
    """A summary by Hermes' compression model. Raises SummaryFailed."""
    limit = max(context_length * CHARACTERS_PER_TOKEN, SMALLEST_PROMPT)
    summary = ask.previous
    for piece in pieces(ask.messages, limit):
        part = msgspec.structs.replace(ask, messages=piece, previous=summary)
        summary = _ask(call, part.prompt(), runtime)
    return SummaryAnswer(text=summary, source="model")


def pieces(messages: Transcript, limit: int) -> Iterator[Transcript]:
    """The messages in runs whose text stays within the limit; at least one message each."""
    start, used = 0, 0
    for index, message in enumerate(messages):
        size = len(serialize_turns((message,), str))
        if used + size > limit and index > start:
            yield messages[start:index]
            start, used = index, 0
        used += size
    yield messages[start:]


def _ask(call: Call, prompt: str, runtime: Mapping[str, str]) -> str:
    try:
        response = call(task="compression", main_runtime=dict(runtime), messages=[{"role": "user", "content": prompt}])
    except Exception as error:
        # Whatever the provider's SDK raises: the conversation must not be lost, and the kind decides what follows.
        raise SummaryFailed(failure_kind(error)) from error
    text = without_reasoning(_content(response)).strip()
    if not text:
        raise SummaryFailed("malformed")
    return text


def _content(response: Any) -> str:
    with contextlib.suppress(AttributeError, IndexError, TypeError, KeyError):
        message = response.choices[0].message
        content = message.get("content") if isinstance(message, Mapping) else message.content
        return content if isinstance(content, str) else ""
    return ""


def without_reasoning(text: str) -> str:
    """The text less the blocks a reasoning model thought aloud in; one that is never closed goes to the end."""
    kept: list[str] = []
    position = 0
    lower = text.lower()
    while (opened := _OPEN.search(text, position)) is not None:
        kept.append(text[position : opened.start()])
        close = _CLOSE.format(opened.group(1).lower())
        end = lower.find(close, opened.end())
        if end < 0:
            return "".join(kept)
        position = end + len(close)
    return "".join([*kept, text[position:]])


def failure_kind(error: BaseException) -> FailureKind:
    """What kind of failure an exception is: by its status, else by the types it and its causes are made of."""
    seen: BaseException | None = error
    for _ in range(5):
        if seen is None:
            break
        kind = _kind(seen)
        if kind:
            return kind
        seen = seen.__cause__ or seen.__context__
    return "other"


def _kind(error: BaseException) -> FailureKind:
    status = getattr(error, "status_code", None) or getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        return _BY_STATUS.get(status, "network" if status in (502, 503, 504) else "other")
    names = " ".join(kind.__name__ for kind in type(error).__mro__)
    if isinstance(error, TimeoutError) or "Timeout" in names:
        return "timeout"
    if isinstance(error, OSError) or "Connection" in names or "Connect" in names:
        return "network"
    if "Authentication" in names or "PermissionDenied" in names:
        return "auth"
    return "no_provider" if type(error) is RuntimeError and "provider" in str(error).lower() else ""
