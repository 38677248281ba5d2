"""Request summaries from a scripted provider, synchronously or in the background, with every kind of failure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from midfold import SummaryAnswer, SummaryFailed, SummaryRequest, read
from midfold.compaction.redact import redact
from midfold.errors import FailureKind
from midfold.model.endpoint import Endpoint
from midfold.model.summarizer import ModelSummarizer
from midfold.testing import FakeClock
from midfold.testing.answers import (
    Answer,
    anthropic_stream,
    declined_answer,
    empty,
    error,
    events,
    huge,
    openai_stream,
    page,
    raw,
    redirect,
    summary,
    tool_call,
    value,
)
from midfold.testing.doubles import http_date
from midfold.testing.engines import long_conversation

WAYS = ("now", "later")
WIRES = ("openai", "anthropic")
KEY = "sk-" + "test" * 3 + "Zx9Qw8Er7Ty6Ui5Op4As3Df2Gh1Jk0Lz"
GOOD = (
    "## Goal\nFix the failing tests.\n\n## Progress\n### Done\n- src/part1.py was read; it fails because of line 7.\n"
    "- The other parts were read one after the other, each with its own tests, to see which of them fail and why; none "
    "of them was changed so far, and nothing was committed, pushed or installed on the way.\n\n"
    "## Active State\nThe tests of the first part fail, those of the other parts were not run yet. Nothing else is "
    "running, no file is open, and the working tree is clean.\n\n"
    "## Key Decisions\nThe first part is repaired before the others are looked at more closely, because the others "
    "rest on it; a workaround in the tests was considered and rejected, as it would hide what is wrong.\n\n"
    "## Next Steps\nRepair the first part at that line, run its tests, then run all tests and tell the user what they "
    "say.\n\n"
    "## Critical Context\nThe user wants the tests to pass and nothing else to change; what the tests expect is right, "
    "and the code has to follow them. Reading went from the first part to the last, in the order in which they are "
    "listed, and every part was read to its end before the next one was opened. The failure was seen in the first "
    "part alone: it looks at a value before that value is set, so the first call goes wrong and later calls are fine. "
    "Whether the other parts have the same mistake is not known yet; they look alike, but none of them was run. No "
    "other agent works here, there are no open questions to the user, and no answer of the user's is waited for."
)
START = 1_700_000_000.0


def ask_of(messages: list[Any], **changes: Any) -> SummaryRequest:
    known: dict[str, Any] = {"budget_tokens": 1_000, "fold": "0" * 12, "redact": redact}
    return SummaryRequest(messages=read(messages).messages, **{**known, **changes})


ASK = ask_of(long_conversation("openai-chat", 3)[1:])


class Made(NamedTuple):
    """Result of a summary request."""

    answer: SummaryAnswer | None
    failed: SummaryFailed | None
    slept: list[float]

    @property
    def text(self) -> str:
        assert self.answer is not None, f"failed: {self.failed and self.failed.kind}"
        return self.answer.text

    @property
    def failure(self) -> SummaryFailed:
        assert self.failed is not None, "a summary came where none should"
        return self.failed


def make(
    way: str,
    endpoint: Endpoint,
    main: Endpoint | None = None,
    *,
    ask: SummaryRequest = ASK,
    progress: Callable[[Any], None] | None = None,
    clock: Callable[[], float] | None = None,
) -> Made:
    """Make a summary, synchronously or in the background; pauses are recorded and take no time."""
    fake = FakeClock(START)
    summarizer = ModelSummarizer(
        endpoint, main, progress=progress, clock=clock or fake, sleep=fake.sleep, sleep_later=fake.sleep_async
    )
    try:
        answer = summarizer(ask) if way == "now" else asyncio.run(summarizer.later(ask))
        return Made(answer, None, fake.slept)
    except SummaryFailed as failed:
        return Made(None, failed, fake.slept)


class Trouble(NamedTuple):
    """Failing response: its failure kind, the number of attempts, and the pauses between them."""

    answer: Answer
    kind: FailureKind
    requests: int
    pauses: tuple[float, ...] = ()


def _stream(wire: str) -> Answer:
    return openai_stream(GOOD) if wire == "openai" else anthropic_stream(GOOD)


def _broken(wire: str) -> Answer:
    """Return a stream with an event that is not JSON."""
    whole = _stream(wire)
    return raw(whole.body.replace(b'{"', b'{"broken', 1)[:-40] + b"\n\ndata: {oops\n\n", whole.content_type)


def _error_event(wire: str, kind: str, message: str) -> Answer:
    first = _stream(wire).pieces[0]
    last = events([{"type": "error", "error": {"type": kind, "message": message}}], named=wire == "anthropic").body
    return raw(first + last, "text/event-stream")


QUOTA = "You exceeded your current quota, please check your plan and billing details."
CREDIT = "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing to purchase credits."
LIMIT = "Rate limit reached: 3 / min. Please try again in 20s. Visit https://example.com/account/billing to add a card."
TOO_LONG = "This model's maximum context length is 8192 tokens. However, your messages resulted in 12000 tokens."


@cache
def troubles(wire: str) -> dict[str, Trouble]:
    """Return all failing responses, by name."""
    stream = _stream(wire)
    plain = summary(wire, GOOD, stream=False)
    return {
        "a wrong key": Trouble(error(401, "Incorrect API key", "authentication_error"), "auth", 1),
        "no permission": Trouble(error(403, "not allowed", "permission_error"), "auth", 1),
        "payment required": Trouble(error(402, "pay first"), "auth", 1),
        "a quota used up": Trouble(error(429, QUOTA, code="insufficient_quota"), "auth", 1),
        "no credit, told as a bad request": Trouble(error(400, CREDIT, "invalid_request_error"), "auth", 1),
        "a quota used up, told in a stream": Trouble(_error_event(wire, "insufficient_quota", QUOTA), "auth", 1),
        "a rate limit": Trouble(error(429, LIMIT, "rate_limit_error"), "rate_limit", 2, (5,)),
        "a rate limit in seconds": Trouble(error(429, headers={"Retry-After": "7"}), "rate_limit", 2, (7,)),
        "a rate limit in ms": Trouble(error(429, headers={"retry-after-ms": "250"}), "rate_limit", 2, (0.25,)),
        "a rate limit until a date": Trouble(
            error(429, headers={"retry-after": http_date(START + 12)}), "rate_limit", 2, (12,)
        ),
        "a rate limit until a past date": Trouble(
            error(429, headers={"retry-after": http_date(START - 60)}), "rate_limit", 2, (5,)
        ),
        "a rate limit in words": Trouble(error(429, headers={"retry-after": "soon"}), "rate_limit", 2, (5,)),
        "a rate limit too long to wait": Trouble(error(429, headers={"retry-after": "120"}), "rate_limit", 1),
        "a rate limit in a stream": Trouble(_error_event(wire, "rate_limit_error", "slow down"), "rate_limit", 2, (5,)),
        "a server error": Trouble(error(500, "oops", "api_error"), "unavailable", 3, (1, 2)),
        "a bad gateway's page": Trouble(page(502), "unavailable", 3, (1, 2)),
        "unavailable for a while": Trouble(error(503, headers={"retry-after": "3"}), "unavailable", 3, (3, 3)),
        "overloaded": Trouble(error(529, "Overloaded", "overloaded_error"), "unavailable", 3, (1, 2)),
        "overloaded in a stream": Trouble(
            _error_event(wire, "overloaded_error", "Overloaded"), "unavailable", 3, (1, 2)
        ),
        "a gateway's timeout": Trouble(page(504), "timeout", 1),
        "an unknown model": Trouble(error(404, "model: scripted", "not_found_error"), "model_not_found", 1),
        "an unknown model as a bad request": Trouble(
            error(400, "The model `scripted` does not exist", code="model_not_found"), "model_not_found", 1
        ),
        "too long": Trouble(error(400, TOO_LONG, "invalid_request_error"), "overflow", 3),
        "too large": Trouble(error(413, "payload too large"), "overflow", 3),
        "a filtered prompt": Trouble(error(400, "blocked by content_filter", code="content_filter"), "filtered", 1),
        "a filtered answer": Trouble(declined_answer(wire), "filtered", 1),
        "a filtered answer as JSON": Trouble(declined_answer(wire, stream=False), "filtered", 1),
        "a refusal in words": Trouble(summary(wire, "I'm sorry, but I can't help with that."), "filtered", 1),
        "a page": Trouble(page(200), "malformed", 2),
        "a page that says it is JSON": Trouble(page(200).with_type("application/json"), "malformed", 2),
        "a page that says it is a stream": Trouble(page(200).with_type("text/event-stream"), "malformed", 2),
        "nothing": Trouble(empty(), "malformed", 2),
        "no content": Trouble(empty(204), "malformed", 2),
        "an empty stream": Trouble(empty(200, "text/event-stream"), "malformed", 2),
        "an empty text": Trouble(summary(wire, "  \n"), "malformed", 2),
        "a text that is no JSON": Trouble(raw("upstream connect error", "text/plain"), "malformed", 2),
        "a list": Trouble(value([1, 2]), "malformed", 2),
        "an object of nobody's": Trouble(value({"answer": "42"}), "malformed", 2),
        "JSON cut short": Trouble(plain.cut(0.6), "malformed", 2),
        "a tool call": Trouble(tool_call(wire), "malformed", 2),
        "a tool call as JSON": Trouble(tool_call(wire, stream=False), "malformed", 2),
        "a tool call in words": Trouble(summary(wire, '<tool_call>{"name": "sh"}</tool_call>'), "malformed", 2),
        "an error in words": Trouble(summary(wire, "Error: upstream timed out"), "malformed", 2),
        "a page as the text": Trouble(summary(wire, "<html><body>Sign in</body></html>"), "malformed", 2),
        "an event that is no JSON": Trouble(_broken(wire), "malformed", 2),
        "a stream without its end": Trouble(
            openai_stream(GOOD, None) if wire == "openai" else anthropic_stream(GOOD, None), "malformed", 2
        ),
        "a stream cut inside an event": Trouble(stream.cut(0.5), "malformed", 2),
        "a connection half closed": Trouble(stream.half_closed(0.5), "malformed", 2),
        "a connection half closed in JSON": Trouble(plain.half_closed(0.5), "malformed", 2),
        "a connection reset": Trouble(stream.reset(0.5), "malformed", 2),
        "a connection reset before the answer": Trouble(stream.reset(0), "malformed", 2),
        "a redirect": Trouble(redirect("http://127.0.0.1:9/elsewhere"), "malformed", 2),
        "more than anyone should read": Trouble(huge(), "malformed", 2),
        "longer than what it stands for": Trouble(summary(wire, "## Goal\n" + "many words " * 9_000), "ineffective", 2),
        "a bad request": Trouble(error(400, "unknown parameter: foo", "invalid_request_error"), "other", 1),
        "a teapot": Trouble(error(418), "other", 1),
    }
