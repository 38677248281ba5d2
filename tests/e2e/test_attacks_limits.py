"""Effects of one client on the gateway's belief about a model's window, and for which clients.

The provider repeats a client's text in its errors, as many do. Two clients have separate credentials.
"""

from __future__ import annotations

from typing import Any

import pytest

import midfold
from midfold.compaction.request import SummaryRequest
from midfold.errors import SummaryFailed
from midfold.gateway.limits import LASTS, LearnedLimits, LimitKey, is_provider_refusal, named_limit
from midfold.testing.answers import error, value
from midfold.testing.doubles import Request, ScriptedProvider
from support.fixtures import assistant, system, user
from support.gateways import running

CHAT = "/v1/chat/completions"
CLAIM = "maximum context length is 9000 tokens"
HONEST = "This model's maximum context length is 16000 tokens. However, your messages resulted in 30000 tokens."
EVE, BOB = {"authorization": "Bearer eve"}, {"authorization": "Bearer bob"}


def talk(*more: Any, size: int = 12_000) -> dict[str, Any]:
    """Return a conversation of about 13,000 tokens: far below the window, above a false limit of 9,000."""
    turns = [turn for n in range(12) for turn in (user(f"Q{n} " + "word " * (size // 12)), assistant(f"A{n}."))]
    return {"model": "gpt-4o", "messages": [system(), *turns, user("And now?"), *more]}


def fine(tokens: int) -> Any:
    choice = {"index": 0, "message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}
    return value({"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage})


class Echo:
    """Provider that refuses one request with the given text."""

    def __init__(self, told: str, tokens: int = 13_000) -> None:
        self.told, self.tokens = told, tokens
        self.refusing = True

    def __call__(self, request: Request) -> Any:
        if self.refusing:
            self.refusing = False
            return error(400, self.told)
        return fine(self.tokens)


@pytest.mark.parametrize(
    ("said", "echo"),
    [
        (CLAIM, f"The context length was exceeded by: '{CLAIM}'"),
        ("Maximum  CONTEXT\nlength is 9000 tokens", f"context_length_exceeded near {CLAIM}"),
        (
            '{"maximum": "context length is 9000 tokens"}',
            'context limit: {\\"maximum\\": \\"context length is 9000\\"}',
        ),
    ],
)
def test_a_limit_in_a_clients_own_words_teaches_nothing(said: str, echo: str) -> None:
    provider = Echo(echo)
    with ScriptedProvider(then=provider) as upstream, running(upstream.url, window=128_000) as gateway:
        gateway.post(CHAT, talk(user(said)), **EVE)
        for who in (EVE, BOB):
            assert gateway.post(CHAT, talk(assistant("Yes."), user("On.")), **who)[1]["x-midfold-action"] == "relayed"


def test_a_limit_that_is_learned_holds_for_the_key_that_met_it_alone() -> None:
    provider = Echo(HONEST)
    with ScriptedProvider(then=provider) as upstream, running(upstream.url, window=128_000) as gateway:
        large = talk(size=30_000)
        assert gateway.post(CHAT, large, **EVE)[1]["x-midfold-action"] == "recovered"
        other = talk(assistant("Yes."), user("Other."), size=20_000)
        assert gateway.post(CHAT, other, **EVE)[1]["x-midfold-action"] == "compacted"
        assert gateway.post(CHAT, talk(user("Third."), size=20_000), **BOB)[1]["x-midfold-action"] == "relayed"
        third = {**talk(user("Fourth."), size=20_000), "model": "gpt-4o-mini"}
        assert gateway.post(CHAT, third, **EVE)[1]["x-midfold-action"] == "relayed", "another model"


def test_a_limit_below_what_was_answered_is_not_believed() -> None:
    provider = Echo(HONEST, tokens=20_000)
    provider.refusing = False
    with ScriptedProvider(then=provider) as upstream, running(upstream.url, window=128_000) as gateway:
        gateway.post(CHAT, talk(size=20_000), **EVE)
        gateway.account(0)
        provider.refusing = True
        gateway.post(CHAT, talk(user("More."), size=30_000), **EVE)
        again = talk(assistant("Yes."), user("Other."), size=20_000)
        assert gateway.post(CHAT, again, **EVE)[1]["x-midfold-action"] == "relayed"


def test_what_was_learned_ends_and_a_larger_answer_ends_it_at_once() -> None:
    now = [100.0]
    learned, whose = LearnedLimits(clock=lambda: now[0]), LimitKey("me")
    assert learned.learn(whose, 16_000)
    assert (learned.window(whose), learned.window(LimitKey("you"))) == (16_000, 0)
    now[0] += LASTS / 1_000 - 1
    assert learned.window(whose) == 16_000
    now[0] += 1
    assert learned.window(whose) == 0
    learned.learn(whose, 16_000)
    learned.note_answer(whose, 15_999)
    assert learned.window(whose) == 16_000
    learned.note_answer(whose, 16_000)
    assert learned.window(whose) == 0
    assert not learned.learn(whose, 16_000)
    assert learned.learn(whose, 16_001)


def test_a_size_that_was_refused_is_an_upper_bound_and_one_that_was_answered_a_lower_one() -> None:
    learned, whose = LearnedLimits(clock=lambda: 100.0), LimitKey("me")
    assert learned.refuse(whose, 100_000)
    assert learned.window(whose) == 60_000, "well below what was refused"
    learned.note_answer(whose, 55_000, 4_000)
    assert learned.window(whose) == 60_000
    learned.note_answer(whose, 70_000, 4_000)
    assert learned.window(whose) == 74_000
    learned.note_answer(whose, 70_000, 40_000)
    assert learned.window(whose) == 74_000, "the answer may not count"
    assert learned.refuse(whose, 72_000)
    assert learned.window(whose) == 70_000
    assert not learned.refuse(whose, 50_000), "70,000 were answered"
    learned.note_answer(whose, 72_000)
    assert learned.window(whose) == 0


@pytest.mark.parametrize(
    ("told", "is_own"),
    [
        (b'{"error":{"message":"invalid tool","code":"context_length_exceeded"}}', True),
        (b'{"error":{"message":"Your input exceeds the context window of this model."}}', True),
        (b'{"error":{"message":"invalid value: \'a context window\'","code":{}}}', False),
        (b'"too large"', False),
    ],
)
def test_a_refusal_without_a_limit_is_believed_in_the_providers_own_words(told: bytes, is_own: bool) -> None:
    request = b'{"model":"m","messages":[{"role":"user","content":"Say: a Context_Window!"}]}'
    assert is_provider_refusal(told, request) is is_own


@pytest.mark.parametrize(
    ("told", "limit"),
    [
        (b'{"error":{"message":"maximum context length is 9000 tokens"}}', 9_000),
        (b'{"type":"error","error":{"type":"x","message":"prompt is too long: 9 tokens > 9000 maximum"}}', 9_000),
        (b'[{"error":{"code":400,"message":"maximum context length is 9000"}}]', 9_000),
        (b'{"error":{"message":"exceeds the available context size","n_prompt_tokens":4362,"n_ctx":4096}}', 4_096),
        (b'{"object":"error","message":"maximum context length is 9000 tokens"}', 9_000),
        (b'{"detail":"maximum context length is 9000 tokens"}', 9_000),
        (b"maximum context length is 9000 tokens", 0),
        (b"<html>maximum context length is 9000 tokens</html>", 0),
        (b'{"error":{"message":"no","param":"maximum context length is 9000"}}', 0),
        (b'{"error":{"message":"no","metadata":{"raw":"maximum context length is 9000"}}}', 0),
        (b'{"choices":[{"message":"maximum context length is 9000 tokens"}]}', 0),
        (b"[]", 0),
        (b"", 0),
    ],
)
def test_only_the_shapes_of_providers_teach(told: bytes, limit: int) -> None:
    assert named_limit(told, b'{"messages":[]}') == limit


@pytest.mark.parametrize(
    "request_",
    [b'{"messages":[{"maximum context length is 9000 tokens":1}]}', b'{"messages":[', b"", b"\xff{}"],
    ids=["a key", "cut off", "empty", "no UTF-8"],
)
def test_a_phrase_teaches_nothing_where_the_client_may_have_written_it(request_: bytes) -> None:
    assert named_limit(b'{"error":{"message":"maximum context length is 9000 tokens"}}', request_) == 0


def test_a_phrase_of_the_client_does_not_hide_one_of_the_provider() -> None:
    told = b'{"error":{"message":"you said: maximum context length is 9000. Ours: maximum context length is 16000"}}'
    request = b'{"messages":[{"role":"user","content":"maxi\\u006dum context\\tlength is 9000!"}]}'
    assert named_limit(told, request) == 16_000


@pytest.mark.parametrize(
    "request_body",
    [
        b'{"maximum context length is 9000 tokens": 1}',
        b'{"metadata": {"x": [{"maximum context length is 9000 tokens": null}]}}',
        b'{"user": "' + b"x" * 200_000 + b"maximum context length" + b" " * 200_000 + b'is 9000 tokens"}',
        b'{"messages": ["' + b"y " * 65_520 + b'maximum context length is 9000 tokens"]}',
        b'{"messages": ["\\ud83d maximum context length is 9000 tokens"]}',
        b'{"messages": [',
    ],
)
def test_wherever_a_client_says_it_and_whatever_cannot_be_read_teaches_nothing(request_body: bytes) -> None:
    assert named_limit(b'{"error":{"message":"unknown: maximum context length is 9000 tokens"}}', request_body) == 0


def test_an_error_that_names_many_limits_teaches_nothing() -> None:
    claims = ". ".join(f"maximum context length is {9_000 + n}" for n in range(40))
    told = f'{{"error":{{"message":"{claims}. Ours: maximum context length is 16000"}}}}'.encode()
    assert named_limit(told, f'{{"messages":["{claims}"]}}'.encode()) == 0


def test_a_fold_that_fails_for_one_client_keeps_no_other_with_the_same_label_waiting() -> None:
    asked: list[str] = []

    def summarize(ask: SummaryRequest) -> str:
        asked.append("asked")
        raise SummaryFailed("timeout", "too slow")

    def long(word: str) -> dict[str, Any]:
        turns = [turn for n in range(20) for turn in (user(f"{word}{n} " + "word " * 1_000), assistant(f"A{n}."))]
        return {"model": "gpt-4o", "messages": [system(), *turns, user("And now?")]}

    sessions = midfold.open("memory:", summarizer=summarize)
    with ScriptedProvider(then=lambda request: fine(9)) as upstream:
        compression = {"lossy_fallback": False}
        with running(upstream.url, window=20_000, sessions=sessions, compression=compression) as gateway:
            reasons = [
                gateway.post(CHAT, long(word), x_midfold_session="label", **who)[1]["x-midfold-reason"]
                for word, who in (("eve", EVE), ("eve", EVE), ("bob", BOB))
            ]
    assert reasons[1] == "a fold failed a moment ago"
    assert reasons[2].startswith("not folded: ")
