"""Streams without usage (AutoGen, LlamaIndex): unconfirmed sizes are handled with a margin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from midfold.testing import answers
from midfold.testing.doubles import Request, ScriptedProvider
from support import provider_replies
from support.clients import closing, openai_client
from support.fixtures import number_lines
from support.gateways import running
from support.provider_replies import Turn
from support.provider_rules import prompt_tokens

WINDOW = 32_768
DENSER = 1.2
"""Ratio of the provider's token counts to those of the tests."""
STEPS = 90


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    with closing():
        yield


class CountingProvider:
    """Chat provider with a denser tokenizer, which reports usage of streams only on request."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, request: Request) -> answers.Answer:
        size = round(prompt_tokens("chat", request.body) * DENSER)
        self.sizes.append(size)
        if size > WINDOW:
            return answers.error(400, f"This model's maximum context length is {WINDOW} tokens.", "too_long")
        usage = {"prompt_tokens": size, "completion_tokens": 5, "total_tokens": size + 5}
        number, stream = len(self.sizes), bool(request.body.get("stream"))
        answer = provider_replies.chat(Turn("Fine."), number, "gpt-4o", usage, stream)
        wants = (request.body.get("stream_options") or {}).get("include_usage")
        if not stream or wants:
            return answer
        pieces = [piece for piece in answer.pieces if b'"usage"' not in piece]
        return msgspec.structs.replace(answer, pieces=tuple(pieces))


def run(**options: Any) -> tuple[CountingProvider, int]:
    """Run a session of many small steps; return the provider and the number of folds."""
    counting = CountingProvider()
    talk: list[Any] = [{"role": "user", "content": "Look into every module. Never touch legacy/."}]
    with ScriptedProvider(then=counting) as provider, running(provider.url, window=WINDOW, recall="off") as gateway:
        client = openai_client(gateway.url)
        for number in range(STEPS):
            made: Any = client.chat.completions.create(model="gpt-4o", messages=talk, **options)
            if options.get("stream"):
                chunks = list(made)
                text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
                has_usage = any(chunk.usage for chunk in chunks)
                assert has_usage is ("stream_options" in options), "the client gets what it asked for"
            else:
                text = made.choices[0].message.content
            assert text == "Fine."
            output = number_lines(f"line {{n}} of module {number} is fine and nothing is wrong with it", 40)
            talk += [{"role": "assistant", "content": text}, {"role": "user", "content": f"Output:\n{output}"}]
        folds = len({account.receipt for account in gateway.accounts} - {None})
    return counting, folds


@pytest.mark.parametrize(
    "options",
    [{"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}, {}],
    ids=["no usage", "usage in the stream", "whole"],
)
def test_no_prompt_comes_near_the_window(options: dict[str, Any]) -> None:
    counting, folds = run(**options)
    assert folds >= 2
    assert max(counting.sizes) <= 0.9 * WINDOW
    assert max(counting.sizes) >= 0.7 * WINDOW, "the window is used"
