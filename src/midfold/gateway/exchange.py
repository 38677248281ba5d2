"""One client request: read its body, write its response, notice a disconnect."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from hashlib import blake2b, sha256
from secrets import token_bytes
from typing import TYPE_CHECKING, Any

import msgspec

from midfold.compaction.omissions import Omission
from midfold.compaction.receipt import RecallCost
from midfold.errors import GatewayFull
from midfold.gateway.peek import Peek
from midfold.gateway.routes import CREDENTIALS, Raw, RequestOptions, Route, error_body, request_options
from midfold.transcript.document import Document
from midfold.transcript.message import Usage

if TYPE_CHECKING:
    from midfold.gateway.request_size import ClientHistory
    from midfold.gateway.stored_responses import ContinuedTurn
    from midfold.gateway.upstream import Upstream


# Owner of a request, and of everything that the gateway stores for it.
#
# 1. With gateway keys, the name of the key identifies the owner; without, the client's provider credential does. All
#    requests through `midfold run` have one owner, so that credentials may rotate.
# 2. Credentials are never stored. In memory they are hashed with a per-process secret. In the store, names are derived
#    from the credential (`bind`): only the same credential leads to a record, and the name does not reveal the owner.
# 3. Labels that a client sends (`x-midfold-session`, `metadata.user_id`, ...) do not affect ownership.


_SECRET = token_bytes(32)
SPACE_DIGITS = 16


class Owner:
    """Owner of requests. `name` is that of the gateway key, or empty if the gateway has no keys."""

    def __init__(self, name: str = "", credential: bytes = b"") -> None:
        self.name = name
        self._credential = b"" if name else credential
        self._id = ""

    @property
    def id(self) -> str:
        """Return the id of the owner in this process. Do not store it: it differs in every process."""
        if not self._id:
            self._id = blake2b(self._identity, key=_SECRET, digest_size=16).hexdigest()
        return self._id

    def bind(self, *parts: bytes) -> str:
        """Return a name for a record of this owner: the same in every process, and no other owner can derive it."""
        named = blake2b(key=sha256(self._identity).digest(), digest_size=20)
        for part in parts:
            named.update(len(part).to_bytes(8, "big") + part)
        return named.hexdigest()

    @property
    def space(self) -> str:
        """Return the prefix of this owner's session names; empty for requests without a credential."""
        return self.name or (f"client-{self.bind(b'sessions')[:SPACE_DIGITS]}" if self._credential else "")

    @property
    def _identity(self) -> bytes:
        return b"key\0" + self.name.encode() if self.name else b"credential\0" + self._credential


NO_OWNER = Owner()
"""Owner of requests without a credential."""


def owner_of(headers: Iterable[tuple[bytes, bytes]]) -> Owner:
    """Return the owner of the credential that a client sends to its provider."""
    shown = [name + b":" + value for name, value in headers if name in CREDENTIALS]
    return Owner(credential=b"\0".join(sorted(shown))) if shown else NO_OWNER


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
MAX_BUFFERED_BYTES = 1_000_000
GATEWAY_FULL = "the gateway has reached its memory limit for unfinished requests; try again"
JSON: Raw = (b"content-type", b"application/json")


class HeldBytes:
    """Thread-safe count of the bytes of all request bodies in memory, both received and decoded."""

    def __init__(self, limit: int) -> None:
        self.limit, self.total = limit, 0
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Add bytes; raise GatewayFull if they exceed the limit."""
        with self._lock:
            if self.total + size > self.limit:
                raise GatewayFull(GATEWAY_FULL)
            self.total += size

    def add(self, size: int) -> None:
        """Add bytes that have already arrived."""
        with self._lock:
            self.total += size

    def release(self, size: int) -> None:
        self.add(-size)


class TooLarge(Exception):
    """Body larger than the gateway accepts."""


class ClientGone(Exception):
    """Client that has disconnected."""


class RequestAccount(msgspec.Struct):
    """Metrics of a finished request, without headers, body or keys."""

    method: str
    path: str
    owner: str = ""
    route: str = "other"
    """Name from a small fixed set, unlike the path, which the client controls."""
    model: str | None = None
    upstream: str | None = None
    status: int = 0
    action: str = "relayed"
    reason: str = ""
    seconds: float = 0.0
    first_byte: float = 0.0
    sent: int = 0
    received: int = 0
    usage: Usage | None = None
    session: str | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    receipt: str | None = None
    hidden: RecallCost = RecallCost()
    """Cost of the hidden rounds in which the gateway ran its tools; not included in `usage`."""
    readiness: str = ""
    """Readiness of the summary if this request was folded: prepared, waited for, or made without a model."""
    omitted: tuple[Omission, ...] = ()
    """Derived texts that a fold of this request had to omit."""
    fold_wait: float = 0.0
    """Seconds that the request waited for a summary model."""
    fault: str = ""
    """Type of the internal or store error because of which the request was relayed without inspection."""


class Exchange:
    """Client request and its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, route: Route) -> None:
        self.scope, self.receive, self._send = scope, receive, send
        self.route = route
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.raw_path: str = (scope.get("raw_path") or self.path.encode()).decode("latin-1")
        """Path as the client wrote it."""
        self.headers: list[Raw] = scope["headers"]
        self.options: RequestOptions = request_options(self.headers)
        self.body = b""
        self.decoded = 0
        """Bytes decoded from a compressed body; `HeldBytes` includes them."""
        self.peek: Peek | None = None
        self.exceeds_limits = False
        """True if the body has too many messages or parts to be read."""
        self.document: Document | None = None
        """Parsed body, kept until it is sent."""
        self.upstream: Upstream | None = None
        self.conversation: ClientHistory | None = None
        """Parsed history of the request, if it was read."""
        self.owner: Owner = scope.get("state", {}).get("owner") or owner_of(self.headers)
        """Owner determined by the admission layer."""
        self.own_tools: frozenset[str] = frozenset()
        """Names of the tools that the gateway offered and runs."""
        self.turn: ContinuedTurn | None = None
        """Position in a conversation that the provider stores."""
        self.begun = False
        self.started = time.perf_counter()
        self.account = RequestAccount(self.method, self.path, owner=self.owner.name, route=route.name)

    @property
    def namespace(self) -> str:
        """Return the prefix of the owner's session names; the request cannot use sessions outside of it."""
        return self.owner.space

    @property
    def wire(self) -> str | None:
        """Return the client's protocol by path or headers. It determines only the format of our errors."""
        if self.route.wire is not None:
            return self.route.wire
        return "anthropic" if any(name == b"anthropic-version" for name, _ in self.headers) else None

    async def read(self, max_bytes: int) -> None:
        """Read the whole body."""
        message = await self.receive()
        pieces: list[bytes] = []
        size = 0
        while True:
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece = message.get("body", b"")
            size += len(piece)
            if size > max_bytes:
                raise TooLarge
            if not message.get("more_body", False):
                self.body = b"".join([*pieces, piece]) if pieces else piece
                break
            pieces.append(piece)
            message = await self.receive()
        self.account.received = len(self.body)

    @property
    def is_upload(self) -> bool:
        """Return whether the body is large or of unknown size and must not be buffered; mostly files."""
        if self.route.kind != "other":
            return False
        lengths = [value for name, value in self.headers if name == b"content-length"]
        chunked = any(name == b"transfer-encoding" for name, _ in self.headers)
        return chunked or any(value.isdigit() and int(value) > MAX_BUFFERED_BYTES for value in lengths)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece = message.get("body", b"")
            self.account.received += len(piece)
            if piece:
                yield piece
            if not message.get("more_body", False):
                return

    async def begin(self, status: int, headers: list[Raw]) -> None:
        """Send the status and the headers, including the `x-midfold-*` ones."""
        self.begun = True
        account = self.account
        account.status = status
        account.first_byte = time.perf_counter() - self.started
        sent = [*headers, (b"x-midfold-action", account.action.encode("latin-1", "replace"))]
        for name, value in (
            (b"x-midfold-reason", account.reason or None),
            (b"x-midfold-session", account.session),
            (b"x-midfold-tokens-before", account.tokens_before),
            (b"x-midfold-tokens-after", account.tokens_after),
            (b"x-midfold-receipt", account.receipt),
            (b"x-midfold-hidden-rounds", account.hidden.rounds or None),
            (b"x-midfold-hidden-tokens", account.hidden.prompt_tokens + account.hidden.output_tokens or None),
        ):
            if value is not None:
                sent.append((name, str(value).encode("latin-1", "replace")))
        await self._send({"type": "http.response.start", "status": status, "headers": sent})

    async def write(self, chunk: bytes, *, more: bool = True) -> None:
        self.account.sent += len(chunk)
        await self._send({"type": "http.response.body", "body": chunk, "more_body": more})

    async def answer(self, status: int, body: bytes, headers: list[Raw] | None = None) -> None:
        """Send a complete response."""
        length = (b"content-length", str(len(body)).encode())
        await self.begin(status, [*(headers if headers is not None else [JSON]), length])
        await self.write(body, more=False)

    async def refuse(self, status: int, message: str, code: str | None = None) -> None:
        """Answer with an error of the gateway."""
        self.account.action, self.account.reason = "refused", ""
        headers = [JSON, (b"retry-after", b"1")] if status == 503 else [JSON]
        await self.answer(status, error_body(self.wire, status, message, code), headers)

    def watch(self) -> Callable[[], None]:
        """Cancel the current task when the client disconnects; return a function that stops watching."""
        task = asyncio.current_task()
        assert task is not None

        async def wait() -> None:
            while (await self.receive())["type"] != "http.disconnect":
                pass
            task.cancel()

        watcher = asyncio.ensure_future(wait())

        def stop() -> None:
            watcher.cancel()

        return stop
