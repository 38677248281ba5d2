"""Create official clients and close them after the test; an unclosed client leaves its sockets to the garbage
collector.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import anthropic
import openai

_open = ExitStack()


def openai_client(url: str) -> openai.OpenAI:
    return _open.enter_context(openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0))


def anthropic_client(url: str) -> anthropic.Anthropic:
    return _open.enter_context(anthropic.Anthropic(base_url=url, api_key="k", max_retries=0))


@contextmanager
def closing() -> Iterator[None]:
    """Close every client created inside the block."""
    try:
        yield
    finally:
        _open.pop_all().close()
