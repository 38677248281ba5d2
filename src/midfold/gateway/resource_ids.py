"""Limit what clients can reach in a provider's account with the gateway's own key.

1. A client with its own credential may use every route: the account is its own.
2. With the gateway's key the routes of the table below are open, and files, batches, stored responses and conversations
   only to the owner that created them. `gateway.routes: all` opens the rest.
3. The error is the same for another owner's id and for an unknown id.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
import zlib
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import unquote

import msgspec

from midfold.errors import MidfoldError, NotOwner, RouteClosed, TooManyValues, TranscriptError
from midfold.gateway.encodings import incremental_decoder
from midfold.gateway.exchange import Exchange, Owner
from midfold.gateway.peek import structural_values
from midfold.gateway.routes import Raw, encoding_of
from midfold.gateway.upstream import Upstream, UpstreamAnswer
from midfold.lru import LRU
from midfold.store import SqlStore
from midfold.store.database import Tx
from midfold.transcript.sse import EventReader, StreamEvent

if TYPE_CHECKING:
    from midfold.session.sessions import Sessions


# Owners of provider ids: one row per id, under a hashed name.
#
# 1. The store contains neither ids nor owners, only the hash of both from `Owner.bind`.
# 2. An id belongs to an owner only if the provider returned it to them.
# 3. Without a store the newest ids are kept in memory until the gateway exits.


_log = logging.getLogger("midfold.gateway")

MAX_CACHED_IDS = 50_000
ROWS_PER_CLEANUP = 1_000
"""Rows added between deletions of expired rows."""


class IdPlace(NamedTuple):
    """Owner and provider of an id."""

    owner: Owner
    base: str

    def name(self, given: str) -> str:
        return self.owner.bind(b"belonging", self.base.encode(), given.encode("utf-8", "surrogatepass"))


class OwnedIds:
    """Registry of ids by owner; used on one event loop."""

    def __init__(self, store: SqlStore | None, clock: Callable[[], float] = time.time) -> None:
        self._database = None if store is None else store.database
        self._known: LRU[str, bool] = LRU(MAX_CACHED_IDS)
        self._clock = clock
        self._added = 0

    async def has(self, place: IdPlace, given: str) -> bool:
        """Return whether an id belongs to an owner. Raises StoreError if the store fails."""
        name = place.name(given)
        if self._known.get(name):
            return True
        if self._database is None or not await asyncio.to_thread(self._is_in_store, name):
            return False
        self._known.put(name, True)
        return True

    async def add(self, place: IdPlace, ids: list[str], days: int | None = None) -> None:
        """Record ids of an owner; with `days` they expire, as they do at the provider."""
        names = [place.name(given) for given in ids]
        for name in names:
            self._known.put(name, True)
        if self._database is None or not names:
            return
        ends = None if days is None else int(self._clock() * 1_000) + days * 86_400_000
        try:
            await asyncio.to_thread(self._store, names, ends)
        except MidfoldError as error:
            _log.warning("Provider ids were not stored: %s. They are forgotten at a restart.", type(error).__name__)

    def _is_in_store(self, name: str) -> bool:
        assert self._database is not None
        return bool(self._database.row("has_belonging", name=name))

    def _store(self, names: list[str], ends: int | None) -> None:
        assert self._database is not None
        tidying = self._added % ROWS_PER_CLEANUP == 0
        self._added += len(names)

        def write(tx: Tx) -> None:
            for name in names:
                tx.run("add_belonging", name=name, ends=ends)
            if tidying:
                tx.run("end_belongings", now=int(self._clock() * 1_000))

        self._database.write(write)


# Routes of a provider that are open to clients of the gateway's provider key.
#
# 1. A route that is not in the table is closed.
# 2. Paths are compared literally. Spellings that two programs could read differently (percent signs, dots, empty
#    segments, parameters) never match. Only slashes, colons and @ in a model's name may be encoded, as official clients
#    do: either way it is below `models/`.
# 3. Lists are closed: they show resources of other owners.


Made = Literal["", "thing", "batch", "upload", "response", "completion"]
"""Kind of resource whose ids an answer contains, if any."""


class Grant(NamedTuple):
    """Permission for a route: `id` must belong to the owner, `made` selects the ids in the answer to record."""

    id: str | None = None
    made: Made = ""
    is_form: bool = False
    """Whether the route accepts multipart forms, which are relayed unread."""


_SAFE = re.compile(r"(?:/(?!\.+(?:/|$))[A-Za-z0-9_.:@+=,~-]+)+")
_MODEL = re.compile(r"(?:/v1)?/models/")
_ENCODED = re.compile(r"%(?:2F|3A|40)", re.IGNORECASE)
_OPEN: dict[str, dict[str, Grant]] = {
    "POST": {
        **dict.fromkeys(("completions", "messages", "messages/count_tokens", "complete"), Grant()),
        **dict.fromkeys(("responses/compact", "responses/input_tokens", "embeddings", "moderations"), Grant()),
        **dict.fromkeys(("rerank", "images/generations", "audio/speech"), Grant()),
        **dict.fromkeys(("images/edits", "images/variations"), Grant(is_form=True)),
        **dict.fromkeys(("audio/transcriptions", "audio/translations"), Grant(is_form=True)),
        "chat/completions": Grant(made="completion"),
        "responses": Grant(made="response"),
        "files": Grant(made="thing", is_form=True),
        "batches": Grant(made="batch"),
        "messages/batches": Grant(made="thing"),
        "uploads": Grant(made="upload"),
        "conversations": Grant(made="thing"),
    },
    "GET": {"models": Grant()},
    "HEAD": {"models": Grant()},
}
_OWNED: dict[str, dict[str, Grant]] = {
    "POST": {
        **dict.fromkeys(("responses/ID/cancel", "messages/batches/ID/cancel", "uploads/ID/cancel"), Grant()),
        **dict.fromkeys(("conversations/ID", "conversations/ID/items", "chat/completions/ID"), Grant()),
        "batches/ID/cancel": Grant(made="batch"),
        "uploads/ID/parts": Grant(is_form=True),
        "uploads/ID/complete": Grant(made="upload"),
    },
    "GET": {
        **dict.fromkeys(("files/ID", "files/ID/content", "responses/ID", "responses/ID/input_items"), Grant()),
        **dict.fromkeys(("messages/batches/ID", "messages/batches/ID/results"), Grant()),
        **dict.fromkeys(("conversations/ID", "conversations/ID/items", "conversations/ID/items/ITEM"), Grant()),
        **dict.fromkeys(("chat/completions/ID", "chat/completions/ID/messages"), Grant()),
        "batches/ID": Grant(made="batch"),
    },
    "DELETE": {
        **dict.fromkeys(("files/ID", "responses/ID", "messages/batches/ID", "chat/completions/ID"), Grant()),
        **dict.fromkeys(("conversations/ID", "conversations/ID/items/ITEM"), Grant()),
    },
}
_DEEPEST_MODEL = 4
"""Maximum segments of `models/maker/name:variant`, plus one."""


def grant_for(method: str, raw_path: str) -> Grant | None:
    """Return the grant for a path; None if it is closed."""
    if method in ("GET", "HEAD") and "%" in raw_path and _MODEL.match(raw_path):
        raw_path = _ENCODED.sub(lambda found: unquote(found[0]), raw_path)
    if not _SAFE.fullmatch(raw_path):
        return None
    path = raw_path[4:] if raw_path.startswith("/v1/") else raw_path[1:]
    found = _OPEN.get(method, {}).get(path)
    return found or _nested_grant(method, path.split("/"))


def _nested_grant(method: str, parts: list[str]) -> Grant | None:
    if parts[0] == "models":
        return Grant() if method in ("GET", "HEAD") and len(parts) <= _DEEPEST_MODEL else None
    owned = _OWNED.get(method, {})
    if len(parts) == 4 and parts[0] == "conversations":
        parts = [*parts[:3], "ITEM"]
    for place in range(1, min(len(parts), 3)):
        found = owned.get("/".join([*parts[:place], "ID", *parts[place + 1 :]]))
        if found is not None:
            return found._replace(id=parts[place])
    return None


# Ids that a provider returns in an answer, read while it is relayed.
#
# 1. Bytes are relayed unchanged. A complete answer is held until its ids are stored; a stream is never held, and its
#    ids are stored before it ends.
# 2. Of an answer too large to read (with images) only an id at its beginning is recorded. Ids in an unreadable answer
#    are not recorded.


MAX_HELD_BYTES = 8_000_000
MAX_EVENTS = 8
_BEGINNING = re.compile(rb'\s*+\{\s*+"id"\s*+:\s*+"([A-Za-z0-9_.:-]{1,200})"')
Keep = Callable[[list[str]], Awaitable[None]]


class _Answer(msgspec.Struct, gc=False):
    id: Any = None
    output_file_id: Any = None
    error_file_id: Any = None
    file: Any = None
    response: Any = None


_decoder = msgspec.json.Decoder(_Answer)


def ids_in(found: Mapping[str, Any], made: Made) -> list[str]:
    """Return the ids in an answer or stream event."""
    named = [found.get("id")]
    if made == "batch":
        named += [found.get("output_file_id"), found.get("error_file_id")]
    inner = {"upload": found.get("file"), "response": found.get("response")}.get(made)
    if isinstance(inner, dict):
        named.append(inner.get("id"))
    return [one for one in named if isinstance(one, str) and one]


def _fields(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.structs.asdict(_decoder.decode(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


class IssuedIds:
    """Reader of the ids in one relayed answer; `keep` stores them."""

    def __init__(self, made: Made, *, is_stream: bool, encoding: str, keep: Keep) -> None:
        self._made, self._is_stream, self._keep = made, is_stream, keep
        self._inflate = incremental_decoder(encoding, MAX_HELD_BYTES + 1)
        self._plain = bytearray()
        self._events = EventReader()
        self._size = self._seen = 0
        self._is_known = False
        """Whether the search for ids is finished."""
        self._keeping: asyncio.Future[None] | None = None

    async def through(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the same bytes; the ids are stored before the last bytes are yielded."""
        held: list[bytes] = []
        async for chunk in chunks:
            if not self._is_known:
                self._read(chunk)
            held.append(chunk)
            if self._is_stream or self._is_known:
                for one in held:
                    yield one
                held.clear()
        if not self._is_known and not self._is_stream:
            self._note_ids(ids_in(_fields(bytes(self._plain)), self._made))
        await self.settle()
        for one in held:
            yield one

    def look(self, event: StreamEvent) -> None:
        """Inspect an event of a stream that is parsed elsewhere."""
        if self._is_known or not event.data:
            return
        self._seen += 1
        ids = ids_in(event.value or {}, self._made)
        if ids or self._seen >= MAX_EVENTS:
            self._note_ids(ids)

    async def settle(self) -> None:
        """Wait until the ids are stored."""
        if self._keeping is not None:
            await asyncio.shield(self._keeping)

    def _note_ids(self, ids: list[str]) -> None:
        self._is_known = True
        self._plain.clear()
        if ids:
            self._keeping = asyncio.ensure_future(self._keep(ids))

    def _read(self, chunk: bytes) -> None:
        try:
            plain = self._inflate(chunk)
        except zlib.error:
            self._note_ids([])
            return
        self._size += len(plain)
        if not self._is_stream:
            self._plain += plain
        if self._size > MAX_HELD_BYTES:
            found = _BEGINNING.match(self._plain)
            self._note_ids([found[1].decode()] if found else [])
        elif self._is_stream:
            for event in self._events.feed(plain):
                self.look(event)


# References to provider resources in a request: files, stored responses, conversations, vector stores.
#
# 1. Most requests contain none and are only searched for a few words.
# 2. Keys are found in any escaping and case, and every duplicate counts: which one applies is up to the provider.
# 3. Tool inputs, schemas and metadata are data for the provider, not references.
# 4. Nothing here holds the GIL for long: a body is searched in pieces, and parsed only if it has few enough values.


REFERENCE_KEYS = (b'"file_id"', b'"file_ids"', b'"input_file_id"')
RESPONSES_REFERENCE_KEYS = (*REFERENCE_KEYS, b'"previous_response_id"', b'"conversation"', b'"vector_store_ids"')
"""Keys in quotes: inside a string the closing quote would be escaped."""
_ESCAPED_LETTER = re.compile(rb"\\u(?:00[4-7]|017f)")
LONG_S = "\u017f".encode()
"""The only non-ASCII letter that some parsers (Go's) match case-insensitively with an ASCII one."""
PIECE, OVERLAP = 1 << 20, 64
"""Bytes searched at once, and an overlap longer than any word."""
MAX_VALUES = 400_000
"""Maximum values in a body that is parsed."""
TOP_LEVEL_KEYS = frozenset(("previous_response_id", "conversation", "input_file_id"))
NESTED_KEYS = frozenset(("file_id", "file_ids", "vector_store_ids"))
OPAQUE_KEYS = frozenset(("input_schema", "parameters", "schema", "arguments", "metadata"))


class Reference(NamedTuple):
    """Key and id of a reference."""

    key: str
    id: str


class _Object(list[tuple[str, Any]]):
    """JSON object with all its pairs, including duplicates."""


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    """Build an object from its pairs; a Python function, so that other threads can run between two objects."""
    return _Object((key.casefold(), held) for key, held in pairs)


def references_in(body: bytes, path: str) -> list[Reference]:
    """Return the ids a provider would look up. Raises TranscriptError or TooManyValues if the body cannot be read."""
    if not is_object(body):
        raise TranscriptError("the request is not a JSON object in UTF-8, so the ids in it cannot be checked")
    return references(body) if may_have_references(body, path) else []


def is_object(body: bytes) -> bool:
    """Return whether a body may be a JSON object; forms and other encodings would hide the keys."""
    head = body[:PIECE]
    return head.removeprefix(BOM_UTF8).lstrip()[:1] == b"{" and b"\0" not in head


def may_have_references(body: bytes, path: str) -> bool:
    """Return whether a body may contain references."""
    keys = (*(RESPONSES_REFERENCE_KEYS if "/responses" in path else REFERENCE_KEYS), LONG_S)
    return any(
        any(key in piece for key in keys) or (b"\\u" in piece and _ESCAPED_LETTER.search(piece) is not None)
        for piece in (body[start : start + PIECE + OVERLAP].lower() for start in range(0, len(body), PIECE))
    )


def references(body: bytes) -> list[Reference]:
    """Return all references in a JSON object."""
    if structural_values(body, MAX_VALUES) >= MAX_VALUES:
        raise TooManyValues
    try:
        value = json.loads(body.decode("utf-8-sig"), object_pairs_hook=_object)
    except (ValueError, RecursionError):
        raise TranscriptError("the request is not JSON in UTF-8, so the ids in it cannot be checked") from None
    if not isinstance(value, _Object):
        return []
    top = [Reference(key, one) for key, held in value if key in TOP_LEVEL_KEYS for one in _ids(held)]
    return [*top, *_nested_references(value)]


def _nested_references(whole: Any) -> Iterator[Reference]:
    waiting = [whole]
    while waiting:
        value = waiting.pop()
        if not isinstance(value, _Object):
            waiting += [one for one in value if isinstance(one, list)]
            continue
        is_call = value is not whole and _is_call(value)
        for key, held in value:
            if key in NESTED_KEYS:
                yield from (Reference(key, one) for one in _ids(held))
            elif key == "variables" and isinstance(held, _Object):
                waiting += [one for _, one in held if isinstance(one, list)]  # variable names are chosen by the client
            elif isinstance(held, list) and key not in OPAQUE_KEYS and not (is_call and key == "input"):
                waiting.append(held)


def _is_call(value: _Object) -> bool:
    """Return whether this is a tool call; its input was written by the model."""
    kinds = [held for key, held in value if key == "type"]
    return bool(kinds) and all(isinstance(kind, str) and kind.endswith("tool_use") for kind in kinds)


def _ids(value: Any) -> list[str]:
    """Return the id, the ids in a list, or the id of an object."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, _Object):
        return [held for key, held in value if key == "id" and isinstance(held, str)]
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


OPENS = "`gateway.routes: all` opens the whole account"
STORED_DAYS = 35
"""Days that ids of responses and completions are kept; providers keep them for 30."""
MAX_INLINE_BYTES = 65_536
"""Maximum bytes of a request parsed on the event loop; larger ones are parsed in a thread."""
ACCOUNT_HEADERS = frozenset((b"openai-organization", b"openai-project", b"x-goog-user-project"))
"""Headers that select an organization or project of the key's account."""


class RouteAccess:
    """Access control for routes and ids under the gateway's provider key."""

    def __init__(self, sessions: Sessions | None, *, are_all_routes_open: bool) -> None:
        self._is_everything_open = are_all_routes_open
        store = None if sessions is None else sessions.store
        self._owned_ids = OwnedIds(store) if sessions is None else OwnedIds(store, sessions.clock)

    def is_bounded(self, upstream: Upstream) -> bool:
        return upstream.key is not None and not self._is_everything_open

    def may_relay_unread(self, exchange: Exchange, upstream: Upstream) -> bool:
        """Return whether a large body may be relayed unread: with the gateway's key, only a form with files."""
        if not self.is_bounded(upstream):
            return True
        grant = grant_for(exchange.method, exchange.raw_path)
        return grant is not None and grant.is_form and _is_form(exchange.headers)

    async def check(self, exchange: Exchange) -> None:
        """Check a request whose body was read or is relayed unread. Raises RouteClosed or NotOwner."""
        assert exchange.upstream is not None
        if not self.is_bounded(exchange.upstream):
            return
        grant = grant_for(exchange.method, exchange.raw_path)
        if grant is None:
            open_routes = "only generation, counting, models, embeddings and resources made with the same key are open"
            raise RouteClosed(
                f"this route is closed to clients that use the gateway's provider key: {open_routes}; {OPENS}"
            )
        exchange.headers = [pair for pair in exchange.headers if pair[0] not in ACCOUNT_HEADERS]
        place = IdPlace(exchange.owner, exchange.upstream.base)
        if grant.id is not None and not await self._owned_ids.has(place, grant.id):
            raise NotOwner(f"{grant.id} was not made with this gateway key; {OPENS}")
        if exchange.body and not (grant.is_form and _is_form(exchange.headers)):
            await self._check_body(exchange, place)

    async def _check_body(self, exchange: Exchange, place: IdPlace) -> None:
        if any(name == b"content-encoding" for name, _ in exchange.headers):
            raise TranscriptError(f"a compressed request cannot be checked for ids: send it uncompressed; {OPENS}")
        body, path = exchange.body, exchange.raw_path
        at_once = len(body) <= MAX_INLINE_BYTES
        found = references_in(body, path) if at_once else await asyncio.to_thread(references_in, body, path)
        for key, given in dict.fromkeys(found):
            if not await self._owned_ids.has(place, given):
                raise NotOwner(f"{key}: the id was not made with this gateway key; {OPENS}")

    def watch(self, exchange: Exchange, answer: UpstreamAnswer) -> UpstreamAnswer:
        """Record the ids in an answer as the owner's while it is relayed."""
        upstream = exchange.upstream
        assert upstream is not None
        if not self.is_bounded(upstream) or not 200 <= answer.status < 300:
            return answer
        grant = grant_for(exchange.method, exchange.raw_path)
        if grant is None or not grant.made or not _is_stored(grant, exchange.body):
            return answer
        days = STORED_DAYS if grant.made in ("response", "completion") else None
        keep = partial(self._owned_ids.add, IdPlace(exchange.owner, upstream.base), days=days)
        encoding = encoding_of(answer.headers)
        answer.issued = IssuedIds(grant.made, is_stream=answer.is_stream, encoding=encoding, keep=keep)
        return answer


class _StoreField(msgspec.Struct, gc=False):
    store: Any = None


_storing = msgspec.json.Decoder(_StoreField)


def _is_stored(grant: Grant, body: bytes) -> bool:
    """Return whether the provider stores the answer: responses by default, completions only on request."""
    if grant.made not in ("response", "completion"):
        return True
    store = None
    if b'"store"' in body:
        try:
            store = _storing.decode(body).store
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            store = None
    return store is True or (grant.made == "response" and store is not False)


def _is_form(headers: list[Raw]) -> bool:
    kinds = [value for name, value in headers if name == b"content-type"]
    return bool(kinds) and all(kind.lower().startswith(b"multipart/form-data") for kind in kinds)
