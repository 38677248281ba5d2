"""Official clients through the gateway to a provider that enforces its rules, in sessions longer than its window."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from midfold.cli.demo_session import CodingSession
from midfold.testing.doubles import Request
from support.clients import anthropic_client, closing, openai_client
from support.coding_session import AnthropicMessages, OpenAIChat, OpenAIResponses, Wire, model
from support.gateways import WINDOW, running
from support.provider_replies import Turn
from support.rules_provider import RulesProvider

SMALL = 10_000
LONG = 300 if os.environ.get("MIDFOLD_SOAK") else 70


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    with closing():
        yield


def chat(url: str, **options: Any) -> Wire:
    return OpenAIChat(openai_client(url), "gpt-4o", **options)


def responses(url: str, **options: Any) -> Wire:
    return OpenAIResponses(openai_client(url), "gpt-4o", **options)


def messages(url: str, **options: Any) -> Wire:
    return AnthropicMessages(anthropic_client(url), "claude-opus-4-6", **options)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streaming"])
@pytest.mark.parametrize(("wire", "turns"), [(chat, 32), (responses, 18), (messages, 32)])
def test_a_session_longer_than_the_window_runs_to_the_end(wire: Callable[..., Wire], turns: int, stream: bool) -> None:
    window = SMALL if wire is not responses else 7_000
    with RulesProvider(model, window=window) as provider, running(provider.url, window=window) as gateway:
        session = CodingSession(wire(gateway.url, stream=stream), turns)
        session.run()
    assert (session.done, provider.rejected) == (turns, [])
    actions = [account.action for account in gateway.accounts]
    assert {"pruned", "compacted"} & set(actions) and "checkpoint" in actions
    assert gateway.sessions is not None
    assert max(served.prompt for served in provider.served) <= window


def test_the_same_session_without_the_gateway_fails() -> None:
    with RulesProvider(model, window=SMALL) as provider:
        session = CodingSession(chat(provider.url), 32)
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            session.run()
    assert 5 < session.done < 32


def test_a_long_coding_session_is_never_refused_and_reads_most_of_its_prompts_from_the_cache() -> None:
    with RulesProvider(model, window=WINDOW) as provider, running(provider.url) as gateway:
        session = CodingSession(messages(gateway.url, stream=True), LONG)
        session.run()
        assert gateway.sessions.check(deep=True) == []
    assert (session.done, provider.rejected) == (LONG, [])
    read, prompt = sum(bill.read for bill in provider.bills), sum(bill.prompt for bill in provider.bills)
    assert read / prompt > 0.8
    folds = [account for account in gateway.accounts if account.action in ("compacted", "pruned")]
    assert 1 <= len(folds) <= LONG / 12
    for account in folds:
        assert account.tokens_before and account.tokens_after
        assert account.tokens_after < account.tokens_before * 0.6


def test_usage_reaches_the_client_as_the_provider_counted_it() -> None:
    with RulesProvider(model, window=SMALL) as provider, running(provider.url, window=SMALL) as gateway:
        client = openai_client(gateway.url)
        answer = client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "hello " * 50}])
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == provider.served[0].prompt == provider.bills[0].prompt


def test_thinking_images_and_parallel_calls_pass_through_folds() -> None:
    thoughts = iter(range(1_000))

    def thinker(request: Request) -> Turn:
        number = next(thoughts)
        calls = tuple((f"t{number}_{n}", "read_file", {"path": f"f{number}_{n}"}) for n in range(3))
        return Turn("Reading.", calls, thinking=f"thought {number}")

    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    with RulesProvider(thinker, window=SMALL) as provider, running(provider.url, window=SMALL) as gateway:
        client = anthropic_client(gateway.url)
        history: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, picture]}]
        for turn in range(20):
            answer = client.messages.create(model="claude-opus-4-6", max_tokens=500, messages=history)
            history.append(
                {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]}
            )
            calls = [block for block in answer.content if block.type == "tool_use"]
            results: list[Any] = [
                {"type": "tool_result", "tool_use_id": call.id, "content": f"{turn} line of code\n" * 60}
                for call in calls
            ]
            more = [{"type": "text", "text": "And now?"}, picture] if turn % 7 == 6 else []
            history.append({"role": "user", "content": [*results, *more]})
    assert provider.rejected == []
    assert {"compacted", "pruned"} & {account.action for account in gateway.accounts}
