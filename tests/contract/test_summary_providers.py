"""Every provider failure over real connections, sync and async: its kind, and the retries."""

from __future__ import annotations

import time
from typing import Any

import pytest

from midfold.compaction.receipt import FAILURES, MAX_WAIT_SECONDS, cooldown, waiting_time
from midfold.model.failures import failure_of, retry_after
from midfold.testing import ScriptedProvider, refusing_url
from midfold.testing.answers import Answer, error, openai_json, raw, summary
from support.summaries import ASK, GOOD, KEY, START, WAYS, WIRES, make, troubles

CASES = [(wire, name) for wire in WIRES for name in troubles(wire)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("wire", "name"), CASES)
def test_a_failure_is_recognised_and_tried_again_as_the_table_says(way: str, wire: Any, name: str) -> None:
    """Neither the key nor any text of the response appears in the error."""
    trouble = troubles(wire)[name]
    with ScriptedProvider(then=trouble.answer) as provider:
        made = make(way, provider.endpoint(wire, key=KEY))
    assert made.failure.kind == trouble.kind
    assert len(provider.requests) == trouble.requests
    assert tuple(pause for pause in made.slept if pause) == pytest.approx(trouble.pauses)
    assert all(request.method == "POST" and KEY in str(request.headers) for request in provider.requests)
    shown = f"{made.failure} {made.failure!r} {made.failure.args}"
    assert KEY[-12:] not in shown
    assert "billing" not in shown


def test_every_failure_of_the_table_is_shown_here_or_comes_from_elsewhere() -> None:
    shown = {trouble.kind for wire in WIRES for trouble in troubles(wire).values()}
    assert set(FAILURES) - shown == {"no_provider", "network"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wire", WIRES)
def test_what_is_recognised_can_also_be_recovered_from(way: str, wire: str) -> None:
    """Every failure that is retried leads to a summary once it passes."""
    for name, trouble in troubles(wire).items():
        if trouble.requests > 1:
            with ScriptedProvider([trouble.answer], then=summary(wire, GOOD)) as provider:
                made = make(way, provider.endpoint(wire))
            assert made.text == GOOD, name
            assert made.answer is not None
            assert made.answer.calls == len(provider.requests)
            assert made.answer.calls == 2 or trouble.kind == "overflow", name


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wire", WIRES)
def test_nobody_listening_is_a_network_failure_tried_twice_more(way: str, wire: Any) -> None:
    with ScriptedProvider() as provider:
        endpoint = provider.endpoint(wire, base_url=refusing_url())
        made = make(way, endpoint)
    assert made.failure.kind == "network"
    assert made.slept == [1, 2]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("address", ["http://", "http://[::1", "nonsense", "http://127.0.0.1:99999", "ftp://127.0.0.1"])
def test_an_address_that_cannot_be_called_is_a_network_failure(way: str, address: str) -> None:
    with ScriptedProvider() as provider:
        assert make(way, provider.endpoint("openai", base_url=address)).failure.kind == "network"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("status", [200, 500])
def test_a_body_that_trickles_is_bounded_as_a_whole(way: str, status: int) -> None:
    """Each chunk arrives in time, but not all of them together."""
    body = raw(b" " * 200, "application/json", status).slow(0.05, 1)
    with ScriptedProvider(then=body) as provider:
        started = time.monotonic()
        made = make(way, provider.endpoint("openai", timeout=0.2), clock=time.time)
    assert made.failure.kind == ("timeout" if status == 200 else "unavailable")
    assert time.monotonic() - started < 3


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("status", [200, 500])
def test_headers_that_trickle_are_bounded_as_a_whole(way: str, status: int) -> None:
    """Each byte arrives in time, but all of them together would take a minute."""
    with ScriptedProvider(then=raw(b"{}", "application/json", status).slow_head(0.1)) as provider:
        started = time.monotonic()
        made = make(way, provider.endpoint("openai", timeout=0.4), clock=time.time)
    assert made.failure.kind == "timeout"
    assert len(provider.requests) == 1
    assert time.monotonic() - started < 3


@pytest.mark.parametrize("way", WAYS)
def test_headers_that_trickle_in_time_are_headers(way: str) -> None:
    with ScriptedProvider([summary("openai", GOOD).slow_head(0.001)]) as provider:
        assert make(way, provider.endpoint("openai", timeout=20)).text == GOOD


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_that_never_begins_is_a_timeout(way: str) -> None:
    with ScriptedProvider([openai_json(GOOD).slow(3)]) as provider:
        started = time.monotonic()
        made = make(way, provider.endpoint("openai", timeout=0.2), clock=time.time)
    assert made.failure.kind == "timeout"
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wire", WIRES)
def test_a_slow_answer_that_ends_in_time_is_an_answer(way: str, wire: Any) -> None:
    with ScriptedProvider([summary(wire, GOOD).slow(0.002)]) as provider:
        assert make(way, provider.endpoint(wire, timeout=10)).text == GOOD


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_an_answer_is_read_in_whatever_pieces_it_comes(way: str, wire: Any, stream: bool, size: int) -> None:
    with ScriptedProvider([summary(wire, GOOD, stream=stream).in_pieces(size)]) as provider:
        made = make(way, provider.endpoint(wire))
    assert made.text == GOOD
    assert made.answer is not None
    assert (made.answer.calls, made.answer.model, made.answer.source) == (1, "scripted", "model")


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "named", ["text/plain", "application/octet-stream", "application/json", "text/event-stream", ""]
)
def test_an_answer_is_read_by_what_it_is_not_by_what_a_proxy_calls_it(wire: Any, stream: bool, named: str) -> None:
    with ScriptedProvider([summary(wire, GOOD, stream=stream).with_type(named)]) as provider:
        assert make("now", provider.endpoint(wire)).text == GOOD


@pytest.mark.parametrize("way", WAYS)
def test_what_is_too_large_is_not_read_to_its_end(way: str) -> None:
    """Reading stops at the limit, and the server notices, so that an endless response does not fill the memory."""
    sent: list[int] = []

    class Counting(tuple):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            for piece in super().__iter__():
                sent.append(len(piece))
                yield piece

    endless = Answer(pieces=Counting([b" " * 65_536] * 1_600))
    with ScriptedProvider(then=endless) as provider:
        assert make(way, provider.endpoint("openai", timeout=20)).failure.kind == "malformed"
    assert sum(sent) < 2 * 60_000_000


@pytest.mark.parametrize("way", WAYS)
def test_a_redirect_is_not_followed_and_the_key_goes_nowhere_else(way: str) -> None:
    with ScriptedProvider(then=openai_json(GOOD)) as elsewhere:
        moved = raw(b"", "text/plain", 307).with_headers(location=f"{elsewhere.url}/v1/chat/completions")
        with ScriptedProvider(then=moved) as provider:
            assert make(way, provider.endpoint("openai", key=KEY)).failure.kind == "malformed"
    assert elsewhere.requests == []


@pytest.mark.parametrize("way", WAYS)
def test_failures_of_several_kinds_are_counted_each_on_their_own_and_end(way: str) -> None:
    script = [error(500), error(429), error(503), raw("", "text/plain"), error(500)]
    with ScriptedProvider(script) as provider:
        made = make(way, provider.endpoint("openai"))
    assert made.failure.kind == "unavailable"
    assert made.slept == [1, 5, 2, 0]


# Conversation's own model


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", sorted({t.kind for t in troubles("openai").values()}))
def test_the_conversations_own_model_is_asked_once_where_the_table_says_so(way: str, kind: str) -> None:
    trouble = next(t for t in troubles("openai").values() if t.kind == kind)
    with ScriptedProvider(then=trouble.answer) as aux, ScriptedProvider(then=summary("anthropic", GOOD)) as own:
        made = make(way, aux.endpoint("openai"), own.endpoint("anthropic", model="own"))
    if FAILURES[kind].main_model:  # type: ignore[index]
        assert made.text == GOOD
        assert made.answer is not None
        assert (made.answer.model, made.answer.recovered_from) == ("own", kind)
        assert len(own.requests) == 1
    else:
        assert made.failure.kind == kind
        assert own.requests == []


@pytest.mark.parametrize("way", WAYS)
def test_where_the_own_model_fails_too_its_failure_counts(way: str) -> None:
    with ScriptedProvider(then=error(404)) as aux, ScriptedProvider(then=error(401)) as own:
        assert make(way, aux.endpoint("openai"), own.endpoint("openai", model="own")).failure.kind == "auth"
    assert len(aux.requests) == len(own.requests) == 1


@pytest.mark.parametrize("way", WAYS)
def test_the_same_model_is_not_asked_twice_under_two_names(way: str) -> None:
    with ScriptedProvider(then=error(404)) as provider:
        made = make(way, provider.endpoint("openai"), provider.endpoint("openai", name="main"))
    assert made.failure.kind == "model_not_found"
    assert len(provider.requests) == 1


# Keys


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("key", [KEY + "\n", "ключ", KEY + "…", "two\r\nlines: here"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(way: str, key: str) -> None:
    with ScriptedProvider(then=openai_json(GOOD)) as provider:
        failed = make(way, provider.endpoint("openai", key=key)).failure
    assert failed.kind == "auth"
    assert key.strip() not in f"{failed} {failed!r}"
    assert provider.requests == []


# Error messages of providers

WORDS: list[tuple[int, str, str]] = [
    (
        400,
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 130000",
        "overflow",
    ),
    (400, "prompt is too long: 208310 tokens > 200000 maximum", "overflow"),
    (400, "input length and `max_tokens` exceed context limit: 180000 + 32000 > 200000", "overflow"),
    (400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", "overflow"),
    (400, "the request exceeds the available context size. try increasing the context size", "overflow"),
    (400, "Input is too long for requested model.", "overflow"),
    (400, "Prompt contains 40000 tokens, too large for model with 32768 maximum context length", "overflow"),
    (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193", "overflow"),
    (400, "This model's maximum prompt length is 131072 but the request contains 537812 tokens.", "overflow"),
    (413, "Request too large for model on tokens per minute (TPM): Limit 6000, Requested 9000", "overflow"),
    (429, "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 40000. Reduce it.", "overflow"),
    (
        429,
        "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29000, Requested 5000.",
        "rate_limit",
    ),
    (429, "Number of request tokens has exceeded your per-minute rate limit", "rate_limit"),
    (429, "You exceeded your current quota, please check your plan and billing details.", "auth"),
    (400, "Billing hard limit has been reached (billing_hard_limit_reached)", "auth"),
    (402, "This request requires more credits, or fewer max_tokens.", "auth"),
    (404, "The model `gpt-9` does not exist or you do not have access to it.", "model_not_found"),
    (400, "gpt-9 is not a valid model ID", "model_not_found"),
    (404, "No endpoints found for foo/bar.", "model_not_found"),
    (400, "Unsupported parameter: 'max_tokens' is not supported with this model.", "other"),
    (400, "Unsupported value: 'temperature' does not support 0.2 with this model.", "other"),
    (400, "The response was filtered due to the prompt triggering content management policy", "filtered"),
    (403, "Your request was flagged by moderation", "filtered"),
    (400, "Output blocked by content filtering policy", "filtered"),
    (408, "request timeout", "timeout"),
    (524, "a timeout occurred", "timeout"),
    (520, "web server is returning an unknown error", "unavailable"),
    (409, "conflict", "other"),
]


@pytest.mark.parametrize(("status", "words", "kind"), WORDS)
def test_the_words_of_providers_are_understood(status: int, words: str, kind: str) -> None:
    failed = failure_of(status, {}, error(status, words).body, "somewhere")
    assert failed.kind == kind
    assert words[:20] not in str(failed)


def test_an_overflow_that_names_its_limit_is_remembered() -> None:
    assert failure_of(400, {}, b"maximum context length is 8192 tokens", "x").limit == 8_192
    assert failure_of(400, {}, b"prompt is too long", "x").limit == 0


# Waiting


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after": "-4"}, 0),
        ({"retry-after": "9" * 400}, 86_400),
        ({"retry-after": "Wed, 21 Oct 1015 07:28:00 GMT"}, 0),
        ({"retry-after": "nan"}, 0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "nan"}, 0),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9),
        ({}, 0),
    ],
)
def test_the_time_a_provider_names_is_understood_or_ignored(headers: dict[str, str], seconds: float) -> None:
    assert retry_after(headers, START) == seconds


def test_waiting_and_cooling_are_bounded_and_honour_the_provider() -> None:
    for kind, row in FAILURES.items():
        waits = [waiting_time(kind, attempt) for attempt in range(5)]
        assert waits[row.retries :] == [None] * (5 - row.retries)
        assert all(wait is not None and wait <= MAX_WAIT_SECONDS for wait in waits[: row.retries])
        assert cooldown(kind, 5_000) == 5_000
        assert cooldown(kind) == row.cooldown
        assert row.retry_class != "permanent" or row.retries == 0
    assert waiting_time("rate_limit", 0, MAX_WAIT_SECONDS + 1) is None
    assert ASK.messages


@pytest.mark.parametrize(
    ("status", "words"), [(401, "the key is missing"), (404, "no such model"), (529, "overloaded")]
)
def test_a_refusal_says_what_it_means(status: int, words: str) -> None:
    told = str(failure_of(status, {}, b"", "api.example.com"))
    assert told.startswith(f"api.example.com answered {status}: ") and words in told
