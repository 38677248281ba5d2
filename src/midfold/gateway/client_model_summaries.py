"""Summaries by the conversation's own model, with the credential of one of its requests.

1. This module is used only if `auxiliary.compression.provider` is `main`.
2. A summary request goes to the same upstream and path as the client's request, with the same headers.
3. One object holds the headers, for one summary. It drops them when the summary is done or timed out; they never
   appear in texts, records or errors.
4. Subscription tokens are used only if the settings allow it.
5. The prefix that the provider has cached is sent again if that is cheaper than sending the messages as text. Only
   the upstream, model and credential that have received these bytes get them.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from midfold.api import believe
from midfold.cache import plan_document
from midfold.cache.markers import mark
from midfold.cache.prices import prices_for
from midfold.compaction.request import SummaryAnswer, SummaryRequest
from midfold.config import Config
from midfold.errors import ModelFailed, SummaryFailed, UpstreamError
from midfold.gateway.encodings import BodyTooLarge, decode_body
from midfold.gateway.exchange import Exchange
from midfold.gateway.request_size import MeasuredRequest, bare_of_markers
from midfold.gateway.routes import CREDENTIALS, Raw, betas, encoding_of, to_upstream
from midfold.gateway.upstream import Client, Upstream, UpstreamTarget
from midfold.model.endpoint import Endpoint, Wire
from midfold.model.failures import failure_in, failure_of
from midfold.model.summarizer import ModelSummarizer
from midfold.model.summary_call import SummaryCall
from midfold.transcript import jsonio
from midfold.transcript.document import read, with_instruction
from midfold.transcript.message import Transcript, Usage
from midfold.transcript.replies import ModelAnswer, read_answer

MAX_RESPONSE_BYTES = 8_000_000
"""Maximum bytes of a response."""
WIRES: Mapping[str, Wire] = {"openai-chat": "openai", "openai-responses": "responses", "anthropic": "anthropic"}
SINGLE_USE_HEADERS = frozenset(
    (
        b"accept",
        b"accept-encoding",
        b"content-type",
        b"idempotency-key",
        b"x-client-request-id",
        b"x-codex-turn-metadata",
    )
)
"""Headers that apply to the original request only."""
_SUBSCRIPTION = re.compile(rb"sk-ant-oat|eyJ[A-Za-z0-9_-]{8}|ya29\.|gh[ou]_")
"""Prefixes of account tokens: Claude, ChatGPT and other JSON web tokens, Google, GitHub."""
OWN_HEADERS = (("content-type", "application/json"), ("accept-encoding", "identity"))
MIN_CACHED_SHARE = 0.5
"""Minimum cached share of a prompt to assume that its prefix is cached."""


def is_subscription(headers: list[Raw]) -> bool:
    """Return whether the client authenticates with a subscription token instead of an API key."""
    if any(name == b"chatgpt-account-id" for name, _ in headers) or any(
        beta.startswith("oauth-") for beta in betas(headers)
    ):
        return True
    shown = [value for name, value in headers if name in CREDENTIALS]
    return any(_SUBSCRIPTION.match(value[7:] if value[:7].lower() == b"bearer " else value) for value in shown)


class ClientModels:
    """Factory of summarizers that use the conversation's own model."""

    def __init__(self, config: Config, client: Client, clock: Callable[[], float] = time.time) -> None:
        self.config, self._client, self._clock = config, client, clock
        self.task = config.auxiliary.compression
        self.is_on = self.task.provider == "main"

    def may_use_credential(self, exchange: Exchange) -> bool:
        """Return whether the credential of a request may be used for a summary."""
        upstream = exchange.upstream
        if upstream is None or exchange.route.dialect is None:
            return False
        return upstream.key is not None or self.task.subscriptions or not is_subscription(exchange.headers)

    def summarizer(self, exchange: Exchange, measured: MeasuredRequest) -> ClientModelSummarizer:
        """Return a summarizer for one summary with the credential of this request."""
        upstream, dialect = exchange.upstream, exchange.route.dialect
        assert upstream is not None
        model = measured.conversation.document.model or ""
        endpoint = self._endpoint(upstream, WIRES[dialect or ""], model, measured.limits.window)
        sent = (pair for pair in exchange.headers if pair[0] not in SINGLE_USE_HEADERS)
        headers = [*to_upstream(sent, upstream.credential(exchange.route.wire)), *OWN_HEADERS]
        path = exchange.raw_path.removesuffix("/compact") if exchange.route.kind == "compact" else exchange.raw_path
        target = upstream.target(path, exchange.scope.get("query_string", b""))
        return ClientModelSummarizer(endpoint, self._client, upstream, target, headers, self._clock)

    def _endpoint(self, upstream: Upstream, wire: Wire, model: str, window: int) -> Endpoint:
        task, name = self.task, self.task.model or model
        belief = believe(name, self.config)
        return Endpoint(
            name="main",
            wire=wire,
            base_url=upstream.base,
            model=name,
            context_length=task.context_length or (window if name == model else belief.model.context_window),
            max_output=belief.model.max_output if belief.known else None,
            timeout=task.timeout,
            extra_body=jsonio.decode(task.extra_body) if task.extra_body else {},
            reasoning_effort=task.reasoning_effort,
            reuse_prefix=task.reuse_prefix is not False and name == model,
        )

    def price_of_cached(self, measured: MeasuredRequest, usage: Usage | None) -> float:
        """Return the price of a token of the request just answered, if it is sent again, relative to a new token."""
        model = measured.conversation.document.model
        prices = prices_for(model, self.config.prompt_caching.cache_ttl, self.config.models)
        known = 0 if usage is None else usage.cache_read_tokens + usage.cache_write_tokens
        is_cached = usage is not None and known >= MIN_CACHED_SHARE * usage.prompt_tokens
        return prices.read if is_cached else max(prices.write, 1.0)


class ClientModelSummarizer(ModelSummarizer):
    """Summarizer for one summary on the gateway's event loop. `forget` drops its credential."""

    def __init__(
        self,
        endpoint: Endpoint,
        client: Client,
        upstream: Upstream,
        target: UpstreamTarget,
        headers: list[tuple[str, str]],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(endpoint, clock=clock)
        self._client, self._upstream, self._target, self._headers = client, upstream, target, headers

    def __call__(self, request: SummaryRequest) -> SummaryAnswer:
        raise SummaryFailed("no_provider", "this summarizer supports asynchronous calls only")

    def forget(self) -> None:
        self._headers = []

    async def _send_async(self, call: SummaryCall) -> ModelAnswer:
        place, data = self._upstream.place, await asyncio.to_thread(call.request)
        try:
            async with asyncio.timeout(call.endpoint.timeout):
                answer = await self._client.send("POST", self._upstream, self._target, self._headers, data)
                data = await answer.read(MAX_RESPONSE_BYTES)
            data = await asyncio.to_thread(decode_body, data, encoding_of(answer.headers), MAX_RESPONSE_BYTES)
        except TimeoutError:
            raise ModelFailed("timeout", f"{place} did not finish in time") from None
        except UpstreamError as error:
            raise ModelFailed("timeout" if error.timed_out else "network", f"{place} did not answer") from None
        except BodyTooLarge:
            raise ModelFailed("malformed", f"the response is larger than {MAX_RESPONSE_BYTES:,} bytes") from None
        if answer.status != 200:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in answer.headers}
            raise failure_of(answer.status, headers, data, place, self._clock())
        return await asyncio.to_thread(_read, call.endpoint.dialect, data)


def _read(dialect: str, data: bytes) -> ModelAnswer:
    answer = read_answer(dialect, data)
    if answer.error:
        raise failure_in(answer.error)
    if answer.problem:
        raise ModelFailed("malformed", answer.problem)
    return answer


class SentPrefix:
    """Builder of a request from the prefix that the provider has just received, with an instruction appended."""

    def __init__(self, measured: MeasuredRequest, config: Config) -> None:
        self._measured, self._config = measured, config

    def __call__(self, messages: Transcript, instruction: str, wire: str) -> Mapping[str, Any] | None:
        measured = self._measured
        conversation, view = measured.conversation, measured.view[: len(messages)]
        if WIRES[conversation.dialect.name] != wire:
            return None
        if wire == "anthropic":
            view = tuple(bare_of_markers(message, conversation.dialect) for message in view)
        noted = measured.checkpoint is not None and measured.checkpoint.noted
        body = conversation.body_with(view, noted=noted, offered=measured.tools)
        value: dict[str, Any] = jsonio.decode(self._mark(body) if wire == "anthropic" else body)
        field = "input" if wire == "responses" else "messages"
        value[field] = with_instruction(value[field], instruction, conversation.dialect.name)
        return {**value, **_free_choice(value, wire)}

    def _mark(self, body: bytes) -> bytes:
        """Return the body with cache markers at its end; the client's markers are at the end of the longer request."""
        document, caching = read(body, dialect="anthropic"), self._config.prompt_caching
        hints = plan_document(
            document, provider="anthropic", ttl=caching.cache_ttl, strategy="system_and_3", setting="on"
        )
        return bytes(mark(document, hints)) if hints else body


def _free_choice(body: Mapping[str, Any], wire: str) -> dict[str, Any]:
    """Return a `tool_choice` that allows a text response if the request forces a tool call."""
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, Mapping) else choice
    if choice is None or kind in ("auto", "none"):
        return {}
    return {"tool_choice": {"type": "none"} if wire == "anthropic" else "none"}
