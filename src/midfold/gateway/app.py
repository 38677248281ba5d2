"""ASGI application of the gateway.

    admit -> read the body -> prepare (the only step that may change it) -> send -> relay -> account

1. An unchanged request is forwarded as the exact bytes received. Responses are streamed as they arrive.
2. A client that disconnects cancels its request, including the upstream call.
3. Upstream errors reach the client unchanged; gateway errors have the format of the client's provider.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from midfold.config import Config
from midfold.errors import MidfoldError, TranscriptError, UpstreamError
from midfold.gateway import overflows
from midfold.gateway.client_model_summaries import ClientModels
from midfold.gateway.compact_endpoint import answer_compaction, expand_compactions, has_compactions, is_compacted_here
from midfold.gateway.encodings import BodyTooLarge, decode_body, decode_request
from midfold.gateway.exchange import (
    JSON,
    ClientGone,
    Exchange,
    HeldBytes,
    Receive,
    RequestAccount,
    Scope,
    Send,
    TooLarge,
)
from midfold.gateway.peek import MAX_MODEL_CHARS, exceeds_limits, peek, peek_slowly
from midfold.gateway.prepare import CROWDED, LARGE, RequestPreparer
from midfold.gateway.recall_loop import RecallLoop
from midfold.gateway.request_size import MeasuredRequest, PreparedRequest
from midfold.gateway.resource_ids import RouteAccess
from midfold.gateway.routes import UNVERSIONED, encoding_of, route_of, to_client, to_upstream
from midfold.gateway.server import GatewayApplication, LateRoutes, place_of
from midfold.gateway.stored_responses import StoredResponses
from midfold.gateway.upstream import (
    Client,
    Upstream,
    UpstreamAnswer,
    Upstreams,
    UpstreamTarget,
    UsageTap,
)
from midfold.gateway.usage_events import Watcher, answered_request
from midfold.transcript.jsonio import NotJSON
from midfold.transcript.message import Usage

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from midfold.session.sessions import Sessions


# Requests that the gateway answers: token counts that the upstream does not support, and model lists.
#
# 1. The provider's token count is used if it offers one; otherwise the gateway estimates it and says so in a header.
# 2. The model lists of several upstreams are merged. A client's own key is sent only to the upstream that its requests
#    go to anyway.


NO_COUNT_STATUSES = frozenset((404, 405, 501))
"""Statuses of upstreams that have no token counting endpoint."""
NO_ROUTE_STATUSES = frozenset((404, 405))
"""Statuses of upstreams that do not have a route."""
MAX_MODEL_LIST_BYTES = 8_000_000
"""Maximum bytes of an upstream's model list."""
MODELS = ("/v1/models", "/models")
CONTENT_ENCODING = b"content-encoding"


async def answer_count(exchange: Exchange, preparer: RequestPreparer) -> None:
    """Answer a token count request that the upstream does not support with an estimate."""
    assert exchange.peek is not None
    if exchange.exceeds_limits:
        await exchange.refuse(413, f"the request has {CROWDED}")
        return
    limits = preparer.policy.limits_of(exchange)
    measured: MeasuredRequest | None = await preparer.in_thread(preparer.measurer.measure, exchange, limits)
    if measured is None:
        raise TranscriptError("the request has no messages to count")
    exchange.account.action, exchange.account.reason = "estimated", ""
    await exchange.answer(200, msgspec.json.encode({"input_tokens": measured.size.tokens}))


def is_model_list(exchange: Exchange, upstreams: Upstreams) -> bool:
    """Return whether the request lists models and several upstreams are configured."""
    return exchange.method == "GET" and exchange.path in MODELS and len(_listing_upstreams(upstreams)) > 1


def _listing_upstreams(upstreams: Upstreams) -> list[Upstream]:
    known = upstreams.all()
    return [upstream for upstream in known if upstream is upstreams.default or upstream.key is not None]


async def answer_model_list(exchange: Exchange, upstreams: Upstreams, client: Client) -> None:
    """Answer with the models of all upstreams, omitting those that fail."""

    async def one(upstream: Upstream) -> list[Any]:
        headers = to_upstream(exchange.headers, upstream.credential(None))
        try:
            answer = await client.send("GET", upstream, upstream.target("/v1/models"), headers, b"")
            return await asyncio.to_thread(_models_in, answer, await answer.read(MAX_MODEL_LIST_BYTES))
        except UpstreamError:
            return []

    found = await asyncio.gather(*map(one, _listing_upstreams(upstreams)))
    data = {item["id"]: item for items in found for item in items}
    exchange.account.action = "joined"
    await exchange.answer(200, msgspec.json.encode({"object": "list", "data": list(data.values())}), [JSON])


def _models_in(answer: UpstreamAnswer, body: bytes) -> list[Any]:
    try:
        value = msgspec.json.decode(decode_body(body, encoding_of(answer.headers), MAX_MODEL_LIST_BYTES))
    except msgspec.MsgspecError:
        return []
    items = value.get("data") if answer.status == 200 and isinstance(value, dict) else None
    return [item for item in items if isinstance(item, dict) and "id" in item] if isinstance(items, list) else []


_log = logging.getLogger("midfold.gateway")

Admit = Callable[[Exchange], "tuple[int, str] | None"]
"""Check of a request before its body is read; returns a status and a message to refuse it."""
Accountant = Callable[[RequestAccount], None]
"""Callback that gets the account of every finished request."""


class Gateway:
    """ASGI application for all routes that are forwarded to providers."""

    def __init__(
        self,
        config: Config,
        sessions: Sessions | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.config = config
        self.settings = config.gateway
        self.upstreams = Upstreams(config, os.environ if environment is None else environment)
        self.client = Client(connect_timeout=self.settings.connect_timeout, retries=self.settings.retries)
        self.sessions = sessions
        self.preparer = RequestPreparer(config, sessions)
        self.preparer.own_models = ClientModels(config, self.client)
        self.reach = RouteAccess(sessions, are_all_routes_open=self.settings.routes == "all")
        self.turns = StoredResponses(self.preparer, self.settings.keep_turns)
        self.recall = RecallLoop(self) if self.settings.recall != "off" and sessions is not None else None
        self.held = HeldBytes(self.settings.largest_total)
        self._has_only_versioned: dict[tuple[str, str], bool] = {}
        """True if an upstream has a route only under /v1, by base URL and path."""
        self.admit: list[Admit] = []
        self.accountants: list[Accountant] = []
        self.watchers: list[Watcher] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = route_of(scope["method"], scope["path"])
        exchange = Exchange(scope, receive, send, route)
        try:
            await self._serve(exchange)
        except ClientGone:
            exchange.account.action = "gone"
        except MidfoldError as error:
            await self._answer_error(exchange, error)
        except NotJSON as error:
            await self._answer_error(exchange, TranscriptError(f"the request is not JSON: {error}"))
        except Exception as error:  # noqa: BLE001 - our own fault; its text may quote messages, so log only its place
            await self._answer_fault(exchange, error)
        finally:
            self._close_account(exchange)

    async def _answer_fault(self, exchange: Exchange, error: Exception) -> None:
        """Log the place of an unexpected exception and answer with status 500."""
        exchange.account.action = "broken"
        _log.error("request failed: %s at %s", type(error).__name__, place_of(error))
        if not exchange.begun:
            await exchange.refuse(500, f"internal gateway error ({type(error).__name__})")

    async def _answer_error(self, exchange: Exchange, error: MidfoldError) -> None:
        """Answer with an error. A response that has begun is left incomplete, and the server closes the connection."""
        if exchange.begun:
            exchange.account.action = "broken"
            _log.warning("%s: %s", exchange.account.upstream, error)
        elif isinstance(error, UpstreamError):
            await exchange.refuse(504 if error.timed_out else error.status, str(error), "upstream_unreachable")
        else:
            await exchange.refuse(error.status, str(error))

    async def _serve(self, exchange: Exchange) -> None:
        for admitting in self.admit:
            refusal = admitting(exchange)
            if refusal is not None:
                await exchange.refuse(*refusal)
                return
        if exchange.is_upload and await self._upload(exchange):
            return
        try:
            await exchange.read(self.settings.largest_body)
            await self._serve_read(exchange)
        except (TooLarge, BodyTooLarge):
            await exchange.refuse(413, f"the request is larger than {self.settings.largest_body:,} bytes")
        finally:
            self.held.release(exchange.decoded)

    async def _serve_read(self, exchange: Exchange) -> None:
        route = exchange.route
        if route.dialect is not None and not exchange.options.bypass and self.settings.mode != "passthrough":
            await self._decode(exchange)
        if has_compactions(exchange):
            limits = (self.settings.largest_body, partial(self._hold, exchange))
            exchange.body = await self.preparer.in_thread(expand_compactions, exchange.body, *limits)
        if route.dialect is not None:
            await self._peek(exchange)
            if exchange.peek is not None and exchange.peek.is_overlong:
                await exchange.refuse(400, f"model: expected a name of at most {MAX_MODEL_CHARS} characters")
                return
        model = exchange.account.model = exchange.peek.name if exchange.peek else None
        upstream = exchange.upstream = self.upstreams.find(model, route.wire)
        if upstream is None or (route.wire and upstream.wire not in ("any", route.wire)):
            await exchange.refuse(404, f"no upstream is configured for the model {model!r} on this route")
            return
        exchange.account.upstream = upstream.place
        self._use_known_version(exchange, upstream)
        await self.reach.check(exchange)
        stop = exchange.watch()
        try:
            await self._forward(exchange)
        except asyncio.CancelledError:
            exchange.account.action = "cancelled"
            raise
        finally:
            stop()

    async def _decode(self, exchange: Exchange) -> None:
        """Remove the request's content encoding, so that the body can be read and compacted."""
        codings = [
            value.decode("latin-1").strip().lower() for name, value in exchange.headers if name == CONTENT_ENCODING
        ]
        if not codings:
            return
        limits = (self.settings.largest_body, partial(self._hold, exchange))
        exchange.body = await self.preparer.in_thread(decode_request, exchange.body, ", ".join(codings), *limits)
        exchange.headers = [pair for pair in exchange.headers if pair[0] != CONTENT_ENCODING]

    def _hold(self, exchange: Exchange, size: int) -> None:
        """Count bytes decoded for a request; raise GatewayFull if all requests together exceed the limit."""
        self.held.take(size)
        exchange.decoded += size

    async def _peek(self, exchange: Exchange) -> None:
        """Read the fields that routing and folding depend on; scan large bodies in a thread."""
        body = exchange.body
        if len(body) <= LARGE:
            exchange.peek = peek(body)
        else:
            exchange.exceeds_limits = await self.preparer.in_thread(exceeds_limits, body)
        if exchange.peek is None and body:
            exchange.peek = await self.preparer.in_thread(peek_slowly, body)

    async def _upload(self, exchange: Exchange) -> bool:
        """Stream an upload to its upstream without buffering it; return False if its body must be read instead."""
        upstream = exchange.upstream = self.upstreams.find(None, exchange.route.wire)
        if upstream is None:
            await exchange.refuse(404, "no upstream is configured for this route")
            return True
        if not self.reach.may_relay_unread(exchange, upstream):
            return False
        exchange.account.upstream = upstream.place
        await self.reach.check(exchange)
        length = [(name.decode(), value.decode()) for name, value in exchange.headers if name == b"content-length"]
        headers = [*to_upstream(exchange.headers, upstream.credential(exchange.route.wire)), *length]
        answer = await self.client.send(exchange.method, upstream, _target(exchange), headers, exchange.pieces())
        stop = exchange.watch()
        try:
            await self._relay(exchange, PreparedRequest(b""), self.reach.watch(exchange, answer))
        finally:
            stop()
        return True

    async def _forward(self, exchange: Exchange) -> None:
        if is_compacted_here(exchange, self.preparer):
            await answer_compaction(exchange, self.preparer)
            return
        if is_model_list(exchange, self.upstreams):
            await answer_model_list(exchange, self.upstreams, self.client)
            return
        await self.turns.read(exchange)
        if self.recall is not None:
            await self.recall.continue_from_last(exchange)
        prepared = await self.turns.fold(exchange) or await self.preparer.prepare(exchange)
        if self.recall is not None and self.recall.applies(exchange):
            await self.recall.relay(exchange, prepared)
        else:
            await self._send_and_relay(exchange, prepared)
        if exchange.route.kind == "generate":
            self.preparer.prepare_ahead(exchange, prepared)

    async def _send_and_relay(self, exchange: Exchange, prepared: PreparedRequest) -> None:
        prepared, answer = await self.fetch(exchange, prepared)
        if exchange.route.kind == "count" and answer.status in NO_COUNT_STATUSES and exchange.peek is not None:
            answer.close()
            await answer_count(exchange, self.preparer)
        elif self.recall is not None and self.recall.applies(exchange):
            await self.recall.relay(exchange, prepared, answer)
        else:
            await self._relay(exchange, prepared, answer)

    async def fetch(self, exchange: Exchange, prepared: PreparedRequest) -> tuple[PreparedRequest, UpstreamAnswer]:
        """Return the upstream's response from its first byte; if the request was too large, fold it and send it once
        more.
        """
        answer = await self.send(exchange, prepared.body)
        is_kept = self.turns.is_known(exchange)
        small = len(prepared.body) < overflows.SMALLEST and answer.status == 200
        if not is_kept and (small or exchange.route.kind != "generate" or not self.preparer.may_change(exchange)):
            return prepared, answer
        try:
            found = await overflows.find_overflow(answer)
            smaller = None if found is None else await self._recover(exchange, prepared, found, is_kept)
        except BaseException:  # also if the client disconnects: the connection must not stay open
            answer.close()
            raise
        if smaller is None:
            return prepared, answer
        answer.close()
        return smaller, await self.send(exchange, smaller.body)

    async def _recover(
        self, exchange: Exchange, prepared: PreparedRequest, found: overflows.Overflow, is_kept: bool
    ) -> PreparedRequest | None:
        if is_kept:
            return await self.turns.recover(exchange, found)
        return await self.preparer.recover(exchange, prepared, found)

    async def send(self, exchange: Exchange, body: bytes) -> UpstreamAnswer:
        """Send the request with this body to its upstream."""
        upstream = exchange.upstream
        assert upstream is not None
        sent = exchange.headers
        if exchange.own_tools and exchange.peek is not None and exchange.peek.is_streaming:
            # A compressed stream cannot be read before its end.
            sent = [*(pair for pair in sent if pair[0] != b"accept-encoding"), (b"accept-encoding", b"identity")]
        headers = to_upstream(sent, upstream.credential(exchange.route.wire))
        body = await self.preparer.mark(exchange, body)
        exchange.document = None
        answer = await self._send_versioned(exchange, upstream, headers, body)
        return self.reach.watch(exchange, answer)

    def _use_known_version(self, exchange: Exchange, upstream: Upstream) -> None:
        """Prefix the path with /v1 if the upstream is known to have the route only there."""
        if self._has_only_versioned.get((upstream.base + upstream.path, exchange.path)):
            exchange.raw_path = "/v1" + exchange.raw_path

    async def _send_versioned(
        self, exchange: Exchange, upstream: Upstream, headers: list[tuple[str, str]], body: bytes
    ) -> UpstreamAnswer:
        """Send to the client's path; if the upstream has no such route, to the same path under /v1.

        Some clients expect /v1 in the base URL and some do not, but they share one environment variable for it.
        """
        answer = await self.client.send(exchange.method, upstream, _target(exchange), headers, body)
        route = (upstream.base + upstream.path, exchange.path)
        is_versioned = exchange.raw_path.startswith("/v1/") or upstream.path.endswith("/v1")
        if is_versioned or exchange.path not in UNVERSIONED or route in self._has_only_versioned:
            return answer
        if answer.status in NO_ROUTE_STATUSES:
            answer.close()
            exchange.raw_path = "/v1" + exchange.raw_path
            answer = await self.client.send(exchange.method, upstream, _target(exchange), headers, body)
            if answer.status not in NO_ROUTE_STATUSES:
                self._has_only_versioned[route] = True
        else:
            self._has_only_versioned[route] = False
        return answer

    async def _relay(self, exchange: Exchange, prepared: PreparedRequest, answer: UpstreamAnswer) -> None:
        """Stream the response to the client while a tap reads its usage."""
        tap, is_whole = UsageTap(encoding_of(answer.headers)), False
        try:
            await exchange.begin(answer.status, to_client(answer.headers))
            left = answer.length if answer.length is not None else -1
            chunks = answer.chunks()
            if exchange.turn is not None and answer.status == 200:
                chunks = self.turns.through(exchange, answer, chunks)
            async for chunk in chunks:
                tap.feed(chunk)
                left -= len(chunk)
                await exchange.write(chunk, more=left != 0)
            is_whole = True
            if left != 0:
                await exchange.write(b"", more=False)
        finally:
            answer.close()
            if exchange.route.kind == "generate":
                usage = exchange.account.usage = await self._usage(tap)
                if answer.status == 200 and (is_whole or usage is not None):
                    self.preparer.observe(exchange, prepared, usage)

    async def _usage(self, tap: UsageTap) -> Usage | None:
        """Return the usage that a response reports. Finish reading even if the client disconnects meanwhile."""
        if not tap.is_heavy:
            return tap.usage()
        reading = asyncio.ensure_future(self.preparer.in_thread(tap.usage))
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            return await reading

    def _close_account(self, exchange: Exchange) -> None:
        account = exchange.account
        account.seconds = time.perf_counter() - exchange.started
        for accountant in self.accountants:
            accountant(account)
        answered = answered_request(exchange, self.preparer.policy) if self.watchers else None
        if answered is not None:
            for watcher in self.watchers:
                watcher(answered)

    async def close(self) -> None:
        if self.recall is not None:
            self.recall.close()
        await self.preparer.close()
        await self.client.close()


def _target(exchange: Exchange) -> UpstreamTarget:
    """Return the upstream target with path and query exactly as the client wrote them."""
    assert exchange.upstream is not None
    return exchange.upstream.target(exchange.raw_path, exchange.scope.get("query_string", b""))


def create_app(
    config: Config,
    *,
    sessions: Sessions | None = None,
    environment: Mapping[str, str] | None = None,
    extra_routes: Sequence[BaseRoute] = (),
    later: LateRoutes | None = None,
) -> GatewayApplication:
    """Return the ASGI application. `extra_routes` are Starlette routes; their first path segments are not forwarded.

    The routes of `later` are created on the first request for one of them.
    """
    return GatewayApplication(Gateway(config, sessions, environment), extra_routes, later)
