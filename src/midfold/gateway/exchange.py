"""One request and what becomes of it, from the client's side: its body read, its answer written, its end noticed."""

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


# Whose a request is: the owner of everything that the gateway keeps because of it.
#
# Rules:
# 1. The owner is the gateway's own key by its name; without keys it is whoever has the client's credential. `midfold
#    run` has one user, whoever holds its key: one owner, whose credentials may rotate.
# 2. A credential is written nowhere. In memory it is known by a hash under a secret of this process. In the store a
#    thing of an owner has a name that only the same credential leads to (`bind`), which names the thing, not the
#    owner.
# 3. What a client says about itself (`x-midfold-session`, `metadata.user_id`, ...) is a label and never enters here.


_SECRET = token_bytes(32)
SPACE_DIGITS = 16


class Owner:
    """`name` is the gateway key's; it is empty where the gateway has no keys."""

    def __init__(self, name: str = "", credential: bytes = b"") -> None:
        self.name = name
        self._credential = b"" if name else credential
        self._id = ""

    @property
    def id(self) -> str:
        """What tells owners apart in memory; another one in every process, and never to be written down."""
        if not self._id:
            self._id = blake2b(self._whole, key=_SECRET, digest_size=16).hexdigest()
        return self._id

    def bind(self, *parts: bytes) -> str:
        """A name for something of this owner, the same in every process, that no other owner arrives at."""
        named = blake2b(key=sha256(self._whole).digest(), digest_size=20)
        for part in parts:
            named.update(len(part).to_bytes(8, "big") + part)
        return named.hexdigest()

    @property
    def space(self) -> str:
        """Return what the names of this owner's sessions begin with; empty for requests without a credential."""
        return self.name or (f"client-{self.bind(b'sessions')[:SPACE_DIGITS]}" if self._credential else "")

    @property
    def _whole(self) -> bytes:
        return b"key\0" + self.name.encode() if self.name else b"credential\0" + self._credential


NOBODY = Owner()
"""Of requests without a credential."""


def owner_of(headers: Iterable[tuple[bytes, bytes]]) -> Owner:
    """Whoever has the credential that a client shows to its provider."""
    shown = [name + b":" + value for name, value in headers if name in CREDENTIALS]
    return Owner(credential=b"\0".join(sorted(shown))) if shown else NOBODY


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
LARGEST_KEPT = 1_000_000
FULL = "the gateway holds as many unfinished requests as it can; try again"
JSON: Raw = (b"content-type", b"application/json")


class HeldBytes:
    """Bytes of all request bodies in memory, as they came and as they were decoded. Threads may share it."""

    def __init__(self, limit: int) -> None:
        self.limit, self.total = limit, 0
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Add bytes; raise GatewayFull where they exceed the limit."""
        with self._lock:
            if self.total + size > self.limit:
                raise GatewayFull(FULL)
            self.total += size

    def add(self, size: int) -> None:
        """Add bytes that have arrived already."""
        with self._lock:
            self.total += size

    def release(self, size: int) -> None:
        self.add(-size)


class TooLarge(Exception):
    """The body is larger than the gateway takes."""


class ClientGone(Exception):
    """The client has gone away."""


class RequestAccount(msgspec.Struct):
    """What is known about a request when it is over; no header, no body, no key."""

    method: str
    path: str
    owner: str = ""
    route: str = "other"
    """One of a few names; a path is the client's."""
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
    """The rounds before the client's own in which the gateway ran its tools; they are not in `usage`."""
    readiness: str = ""
    """Of a fold that was made now: whether its summary was prepared, waited for, or made without a model."""
    omitted: tuple[Omission, ...] = ()
    """Derived texts that a fold made now had to do without."""
    fold_wait: float = 0.0
    """Seconds that the request waited for a summary model."""
    fault: str = ""
    """The kind of error because of which the request was not looked at; one of ours, or of the store's."""


class Exchange:
    """A request of a client."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, route: Route) -> None:
        self.scope, self.receive, self._send = scope, receive, send
        self.route = route
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.raw_path: str = (scope.get("raw_path") or self.path.encode()).decode("latin-1")
        """As the client wrote it."""
        self.headers: list[Raw] = scope["headers"]
        self.options: RequestOptions = request_options(self.headers)
        self.body = b""
        self.decoded = 0
        """Bytes that were made of what came compressed; they are counted in `HeldBytes`."""
        self.peek: Peek | None = None
        self.is_crowded = False
        """Whether the body has more in it than anybody looks at."""
        self.document: Document | None = None
        """The body as somebody has read it, until it is sent."""
        self.upstream: Upstream | None = None
        self.conversation: ClientHistory | None = None
        """The request as it was read, where it was."""
        self.owner: Owner = scope.get("state", {}).get("owner") or owner_of(self.headers)
        """As the door has found."""
        self.own_tools: frozenset[str] = frozenset()
        """Names of the tools that the gateway offered, and runs itself."""
        self.turn: ContinuedTurn | None = None
        """Which turn it is of something that its provider keeps."""
        self.begun = False
        self.started = time.perf_counter()
        self.account = RequestAccount(self.method, self.path, owner=self.owner.name, route=route.name)

    @property
    def namespace(self) -> str:
        """Return what the names of the owner's sessions begin with; no session outside of it is used."""
        return self.owner.space

    @property
    def wire(self) -> str | None:
        """Whose protocol the client speaks, as its path or its headers tell: for the shape of our errors alone."""
        if self.route.wire is not None:
            return self.route.wire
        return "anthropic" if any(name == b"anthropic-version" for name, _ in self.headers) else None

    async def read(self, most: int) -> None:
        """The whole body; most bodies come in one piece."""
        message = await self.receive()
        pieces: list[bytes] = []
        size = 0
        while True:
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece = message.get("body", b"")
            size += len(piece)
            if size > most:
                raise TooLarge
            if not message.get("more_body", False):
                self.body = b"".join([*pieces, piece]) if pieces else piece
                break
            pieces.append(piece)
            message = await self.receive()
        self.account.received = len(self.body)

    @property
    def is_upload(self) -> bool:
        """Whether the body is too large, or of too unknown a size, to be kept: files, for the most part."""
        if self.route.kind != "other":
            return False
        lengths = [value for name, value in self.headers if name == b"content-length"]
        chunked = any(name == b"transfer-encoding" for name, _ in self.headers)
        return chunked or any(value.isdigit() and int(value) > LARGEST_KEPT for value in lengths)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""
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
        """Status and headers, with those that tell what was done."""
        self.begun = True
        account = self.account
        account.status = status
        account.first_byte = time.perf_counter() - self.started
        told = [*headers, (b"x-midfold-action", account.action.encode("latin-1", "replace"))]
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
                told.append((name, str(value).encode("latin-1", "replace")))
        await self._send({"type": "http.response.start", "status": status, "headers": told})

    async def write(self, chunk: bytes, *, more: bool = True) -> None:
        self.account.sent += len(chunk)
        await self._send({"type": "http.response.body", "body": chunk, "more_body": more})

    async def answer(self, status: int, body: bytes, headers: list[Raw] | None = None) -> None:
        """A whole answer."""
        length = (b"content-length", str(len(body)).encode())
        await self.begin(status, [*(headers if headers is not None else [JSON]), length])
        await self.write(body, more=False)

    async def refuse(self, status: int, message: str, code: str | None = None) -> None:
        """Answer with an error of the gateway's own."""
        self.account.action, self.account.reason = "refused", ""
        headers = [JSON, (b"retry-after", b"1")] if status == 503 else [JSON]
        await self.answer(status, error_body(self.wire, status, message, code), headers)

    def watch(self) -> Callable[[], None]:
        """Cancels the current task when the client goes away; call the result to stop watching."""
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
