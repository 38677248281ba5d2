"""How far a client reaches into a provider's account with the gateway's own key.

Rules of this file:
1. A client that brings its own credential is relayed everything: the account is its own.
2. With the gateway's key the routes of `table` are open, and of files, batches, stored responses and conversations
   those that the same owner made. `gateway.routes: all` opens the rest.
3. Another's id and one that does not exist are the same: neither is told apart by the answer.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from midfold.errors import MidfoldError, TranscriptError
from midfold.gateway.belongings import Belongings, Place
from midfold.gateway.client import Answer
from midfold.gateway.exchange import Exchange
from midfold.gateway.headers import Raw, encoding_of
from midfold.gateway.issued import Issued
from midfold.gateway.references import references_in
from midfold.gateway.table import Grant, granted
from midfold.gateway.upstreams import Upstream

if TYPE_CHECKING:
    from midfold.service import Sessions

OPENS = "`gateway.routes: all` opens the whole account"
STORED_DAYS = 35
"""Responses and completions are kept by their providers for 30."""
LARGEST_AT_ONCE = 65_536
"""Bytes of a request that are read for references where it is; a larger one is read in a thread."""
PARTS_OF_ACCOUNT = frozenset((b"openai-organization", b"openai-project", b"x-goog-user-project"))
"""Headers that choose whose money is spent, and whose things are meant, among all that a key opens."""


class Closed(MidfoldError):
    """This route of the provider is closed to clients of the gateway."""

    status = 403


class NotTheirs(MidfoldError):
    """There is no such thing that was made under this key of the gateway."""

    status = 404


class Reach:
    """What is open to whom."""

    def __init__(self, sessions: Sessions | None, *, is_everything_open: bool) -> None:
        self._is_everything_open = is_everything_open
        store = None if sessions is None else sessions.store
        self._belongings = Belongings(store) if sessions is None else Belongings(store, sessions.clock)

    def is_bounded(self, upstream: Upstream) -> bool:
        return upstream.key is not None and not self._is_everything_open

    def passes_by(self, exchange: Exchange, upstream: Upstream) -> bool:
        """Whether a large body may be sent on unread: with the gateway's key, a form on a route that takes files."""
        if not self.is_bounded(upstream):
            return True
        grant = granted(exchange.method, exchange.raw_path)
        return grant is not None and grant.is_form and _is_form(exchange.headers)

    async def check(self, exchange: Exchange) -> None:
        """Raises Closed or NotTheirs; a request whose body has been read, or passes by."""
        assert exchange.upstream is not None
        if not self.is_bounded(exchange.upstream):
            return
        grant = granted(exchange.method, exchange.raw_path)
        if grant is None:
            told = "generation, counting, models, embeddings, and what the same key has made are open"
            raise Closed(f"this route is closed to clients that use the gateway's provider key: {told}; {OPENS}")
        exchange.headers = [pair for pair in exchange.headers if pair[0] not in PARTS_OF_ACCOUNT]
        place = Place(exchange.owner, exchange.upstream.base)
        if grant.id is not None and not await self._belongings.has(place, grant.id):
            raise NotTheirs(f"no {grant.id} was made under this key of the gateway; {OPENS}")
        if exchange.body and not (grant.is_form and _is_form(exchange.headers)):
            await self._check_body(exchange, place)

    async def _check_body(self, exchange: Exchange, place: Place) -> None:
        if any(name == b"content-encoding" for name, _ in exchange.headers):
            raise TranscriptError(f"a compressed request cannot be checked for ids of others: send it plain; {OPENS}")
        body, path = exchange.body, exchange.raw_path
        at_once = len(body) <= LARGEST_AT_ONCE
        found = references_in(body, path) if at_once else await asyncio.to_thread(references_in, body, path)
        for key, given in dict.fromkeys(found):
            if not await self._belongings.has(place, given):
                raise NotTheirs(f"{key}: there is no such id that was made under this key of the gateway; {OPENS}")

    def watched(self, exchange: Exchange, answer: Answer) -> Answer:
        """The answer; ids that it gives out are the owner's when it is over."""
        upstream = exchange.upstream
        assert upstream is not None
        if not self.is_bounded(upstream) or not 200 <= answer.status < 300:
            return answer
        grant = granted(exchange.method, exchange.raw_path)
        if grant is None or not grant.made or not _is_stored(grant, exchange.body):
            return answer
        days = STORED_DAYS if grant.made in ("response", "completion") else None
        keep = partial(self._belongings.add, Place(exchange.owner, upstream.base), days=days)
        encoding = encoding_of(answer.headers)
        answer.issued = Issued(grant.made, is_stream=answer.is_stream, encoding=encoding, keep=keep)
        return answer


class _Storing(msgspec.Struct, gc=False):
    store: Any = None


_storing = msgspec.json.Decoder(_Storing)


def _is_stored(grant: Grant, body: bytes) -> bool:
    """Whether the provider keeps what it answers: responses unless told not to, completions only if asked to."""
    if grant.made not in ("response", "completion"):
        return True
    asked = None
    if b'"store"' in body:
        try:
            asked = _storing.decode(body).store
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            asked = None
    return asked is True or (grant.made == "response" and asked is not False)


def _is_form(headers: list[Raw]) -> bool:
    kinds = [value for name, value in headers if name == b"content-type"]
    return bool(kinds) and all(kind.lower().startswith(b"multipart/form-data") for kind in kinds)
