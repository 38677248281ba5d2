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
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from midfold.errors import SummaryFailed
from midfold.fold.request import SummaryAnswer, SummaryAsk
from midfold.fold.summary import serialize_turns
from midfold.model.refusals import failure_of_error
from midfold.transcript.message import Transcript

Call = Callable[..., Any]

SMALLEST_PROMPT = 60_000
CHARACTERS_PER_TOKEN = 2
"""Of the window: a prompt of half the window's tokens at four characters each leaves room for the answer."""
_OPEN, _CLOSE = re.compile(r"<(think|thinking|reasoning)>", re.IGNORECASE | re.ASCII), "</{}>"


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
        raise failure_of_call(error) from error
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


def failure_of_call(error: Exception) -> SummaryFailed:
    """How a call of Hermes' failed; it says in words alone that it has nobody to ask."""
    if type(error) is RuntimeError and "provider" in str(error).lower() and error.__cause__ is None:
        return SummaryFailed("no_provider")
    failed = failure_of_error(error, time.time())
    return SummaryFailed(failed.kind, retry_after=failed.retry_after)
