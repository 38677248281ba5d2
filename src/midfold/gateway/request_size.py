"""A request, measured: its conversation, the checkpoint that fits it, and how large it is.

Rules of this file:
1. Reading, hashing and counting runs in a thread.
2. The size of a request is what a provider reported for its beginning, and an estimate of what is new. A report is
   bound to the chain of the messages it measured and to the checkpoint that stood for some of them; one that is far
   from the estimate measured something else, and is not believed. Without such a report, right after a fold, the
   estimate is corrected by what the conversation's last report was to its own.
3. What providers' caches did is kept in memory, for the newest conversations, where folds are scheduled. After a
   restart, or at another gateway, nothing is known: then a conversation is folded at its threshold, and cheap moments
   come later. Only requests that were looked at count, so a conversation is believed to have cost less than it has.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

from msgspec import Raw

from midfold.cache.health import Health, RequestHashes
from midfold.cache.markers import QUOTED_MARKERS
from midfold.cache.prices import prices_for
from midfold.compaction.assemble import with_note
from midfold.compaction.receipt import RecallCost
from midfold.compaction.request import Redactor
from midfold.config import Config
from midfold.errors import StoreError, TranscriptError
from midfold.gateway.client_compactions import SummaryLink
from midfold.gateway.exchange import Exchange, Owner
from midfold.gateway.limits import LEAST_MESSAGES, ModelLimits, Policy, is_scheduled, whose
from midfold.gateway.routes import label_in
from midfold.lru import LRU
from midfold.session.sessions import Sessions
from midfold.store.bodies import chain_of
from midfold.store.intake import redact_json
from midfold.store.sync import Checkpoint
from midfold.transcript import jsonio
from midfold.transcript.dialect import Dialect
from midfold.transcript.document import Document, read, tool_of, write
from midfold.transcript.message import Message, Transcript, Usage
from midfold.transcript.splice import replace_values
from midfold.transcript.tokens import HIGHEST_BELIEVED, LOWEST_BELIEVED, MOST_UNSEEN, Count, FixedSize, Meter

# A request as a conversation: what is hashed, what is counted, and how it is written back.
#
# Rules:
# 1. The chain of hashes is over the messages without a leading system prompt: clients put dates and lists into theirs,
#    and a conversation is the same one under another prompt.
# 2. Nor are cache markers part of it: clients move theirs with every request. They are taken out of the bytes, so that
#    a message has the hash it has without them, whoever wrote it.
# 3. Where originals are stored redacted, redacted messages are what is hashed: the history that the store has.
# 4. Nothing is read that is not asked for.


_MARKER = re.compile(b"(?:" + b"|".join(QUOTED_MARKERS) + rb")\s*+:\s*+(?:\{[^{}]*+\}|null)")
"""In a string its quotes would be escaped, so it is found without parsing."""
_COMMA = re.compile(rb"\s*+,\s*+")
OURS = "gw-"
"""What the names begin with that the gateway gives."""
IDENTIFYING = 4
"""So many messages tell one conversation from another: hygiene never acts on fewer."""


MOST_OF_WINDOW = 0.05
"""Of the trigger: what our tools may take where nobody asked for them."""


class ToolOffer(NamedTuple):
    """Definitions of the gateway's tools, without brackets, as they stand behind the client's."""

    kept: bytes = b""
    """Those the conversation has had before; they stay, byte for byte."""
    new: bytes = b""
    """Those its first fold brings along."""
    problem: str = ""
    """Why there are none, or not all, where a client would wonder."""

    def at(self, checkpoint: Checkpoint | None) -> bytes:
        """What a request has with this checkpoint."""
        return self.kept or (b"" if checkpoint is None else self.new)

    def within(self, limits: ModelLimits) -> ToolOffer:
        """The offer, less new tools that would crowd the conversation out of a small window."""
        if not self.new or limits.meter.tokens(offer_units(self.new, limits.meter)) <= MOST_OF_WINDOW * limits.trigger:
            return self
        return ToolOffer(problem="recall: its tools would take too much of so small a window")


def offer_units(definitions: bytes, meter: Meter) -> int:
    """The size of definitions without brackets; they are counted once."""
    return meter.raw_tool_units(definitions, lambda: map(tool_of, tool_values(definitions)))


def tool_values(definitions: bytes) -> list[Any]:
    """Definitions without brackets, as values."""
    values: list[Any] = jsonio.decode(b"[" + definitions + b"]")
    return values


class ClientHistory:
    """The messages of one request."""

    def __init__(self, document: Document, redactor: Redactor | None = None, whose: str = "") -> None:
        self.document, self.whose = document, whose
        self._redactor = redactor
        self.dialect = document.dialect
        messages = document.messages
        alone = self.dialect.system_key is None and bool(messages) and messages[0].role == "system"
        self.preamble: Message | None = messages[0] if alone else None
        """A system prompt that is the first message."""
        self.talk: Transcript = messages[1:] if alone else messages
        self._as_sent: ClientHistory | None = None
        self.offer = ToolOffer()
        self.recall = RecallCost()
        """What the hidden turns among the messages have cost."""
        self.link: SummaryLink | None = None
        """The sessions before the client's own compaction, where it opens with a summary of them."""
        self.is_silent = False
        """Whether the answers of its provider do not report usage."""

    def with_talk(self, talk: Transcript) -> ClientHistory:
        """The same request with other messages."""
        other = ClientHistory(self.document, self._redactor, self.whose)
        other.talk, other._as_sent, other.is_silent = talk, self, self.is_silent
        return other

    @property
    def raw_tools(self) -> bytes | None:
        """The client's own definitions without brackets; None where they are no list."""
        tools = self.document.body.get("tools") if self.document.body is not None else None
        raw = bytes(tools).strip() if isinstance(tools, Raw) else jsonio.encode(tools)
        if raw == b"null":
            return b""
        return raw[1:-1].rstrip() if raw.startswith(b"[") else None

    @property
    def as_sent(self) -> ClientHistory:
        """The conversation as the client knows it, without hidden turns."""
        return self._as_sent or self

    @cached_property
    def bare(self) -> Transcript:
        """The messages without cache markers: what identifies them, and what is stored."""
        if self._redactor is None and self._as_sent is None and all(map(self.document.lacks, QUOTED_MARKERS)):
            return self.talk
        return tuple(_bare(message, self.dialect, self._redactor) for message in self.talk)

    @cached_property
    def chains(self) -> list[bytes]:
        """The hash of each message and everything before it."""
        return list(chain_of(message.digest for message in self.bare))

    @cached_property
    def lengths(self) -> dict[bytes, int]:
        """How many messages a chain stands for."""
        return {chain: count for count, chain in enumerate(self.chains, 1)}

    @property
    def is_long_enough(self) -> bool:
        return len(self.talk) >= LEAST_MESSAGES

    @property
    def name(self) -> str:
        """A name that every request of the conversation has, and every branch of it."""
        return self.names[0]

    @property
    def identity(self) -> str:
        """What it is known by in memory. Labels that clients send are no part of it: others may send the same."""
        return f"{self.whose}/{self.name}"

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The name, then those it had while it had fewer messages than tell it from another."""
        opening = (_bare(message, self.dialect, self._redactor) for message in self.talk[:IDENTIFYING])
        chains = list(chain_of(message.digest for message in opening))
        return tuple(f"{OURS}{chain.hex()[:24]}" for chain in reversed(chains))

    @property
    def system(self) -> Message | None:
        """The system prompt, wherever it stands."""
        return self.preamble or self.document.system

    @property
    def prompt_digest(self) -> bytes:
        """What tells one system prompt from another, cache markers aside; empty without one."""
        return b"" if self.system is None else _bare(self.system, self.dialect, self._redactor).digest

    def view(self, checkpoint: Checkpoint | None) -> Transcript:
        """What the model sees of the messages, without a leading system prompt."""
        return self.talk if checkpoint is None else checkpoint.apply(self.talk, self.dialect)

    def fixed_size(self, meter: Meter, offered: bytes = b"") -> FixedSize:
        """What stands beside the messages: the system prompt, wherever it is, and tools, which seldom change."""
        alone = meter.fixed_size(self.system)
        tools = self.document.body.get("tools") if self.document.body is not None else None
        units = 0
        if tools is not None:
            data = bytes(tools) if isinstance(tools, Raw) else jsonio.encode(tools)
            units = meter.raw_tool_units(data, lambda: self.document.tools)
        if offered:
            units += offer_units(offered, meter)
        return alone._replace(units=alone.units + units)

    def body_with(self, view: Transcript, *, noted: bool, offered: bytes = b"") -> bytes:
        """The body with other messages, and our tools behind the client's; the bytes that came if nothing changed."""
        system = self.system
        changed = with_note(system) if noted and system is not None else system
        if self.preamble is not None and changed is not None:
            body = bytes(write(self.document, messages=(changed, *view)))
        else:
            body = bytes(write(self.document, messages=view, system=changed))
        if not offered:
            return body
        return replace_values(body, {"tools": b"[" + b",".join(filter(None, (self.raw_tools, offered))) + b"]"})


def _bare(message: Message, dialect: type[Dialect], redactor: Redactor | None) -> Message:
    data = bytes(message.wire) if isinstance(message.wire, Raw) else b""
    marked = any(name in data for name in QUOTED_MARKERS)
    kept = without_markers(data) if marked else data
    if redactor is not None and data:
        kept = redact_json(kept, redactor)
    return message if kept is data else Message.over(Raw(kept), dialect.read)


def bare_of_markers(message: Message, dialect: type[Dialect]) -> Message:
    """A message without its cache markers."""
    return _bare(message, dialect, None)


def without_markers(data: bytes) -> bytes:
    """A message without its cache markers, and without the commas that stood between them and their neighbours.

    Every byte is looked at once: what stands between two markers is cut out once, and a comma is looked for on either
    side of a marker only.
    """
    kept: list[bytes] = []
    last = 0
    for marker in _MARKER.finditer(data):
        before, end = data[last : marker.start()], marker.end()
        bare = before.rstrip()
        if bare.endswith(b","):
            before = bare[:-1].rstrip()
        elif (comma := _COMMA.match(data, end)) is not None:
            end = comma.end()
        kept.append(before)
        last = end
    return b"".join((*kept, data[last:]))


# Checkpoints this process knows: the same prefix gets the same bytes.
#
# Rules:
# 1. What is in memory is not read from the store again. Only whether it still holds is asked, by its key: somebody may
#    have undone a compaction, or deleted a session, from anywhere.
# 2. A store that does not answer takes nothing away.


MOST_BYTES = 24_000_000
MOST = 20_000


class Checkpoints:
    """By the chain of what they replace; the ones used last are kept. Threads may share it."""

    def __init__(self, sessions: Sessions | None) -> None:
        self._sessions = sessions
        self._known: LRU[tuple[str, bytes], Checkpoint] = LRU(MOST, most_bytes=MOST_BYTES, size=_size)

    def find_in_memory(self, conversation: ClientHistory, name: str) -> Checkpoint | None:
        """The longest one in memory that fits."""
        if not self._known:
            return None
        space, chains = space_of(name), conversation.chains
        for count in range(len(chains), 0, -1):
            key = (space, chains[count - 1])
            found = self._known.peek(key)
            if found is not None and found.count == count:
                self._known.get(key)
                return found
        return None

    def find_in_store(self, conversation: ClientHistory, name: str) -> Checkpoint | None:
        """The longest one in the store that fits; it is remembered."""
        if self._sessions is None:
            return None
        found = self._sessions.store.checkpoints.find(name, conversation.lengths)
        if found is not None:
            self.remember(found)
        return found

    def find_in_force(self, conversation: ClientHistory, name: str) -> Checkpoint | None:
        """The longest one in memory that fits and is in force."""
        while (found := self.find_in_memory(conversation, name)) is not None:
            if self._holds(found):
                return found
            self._known.forget(key_of(found), found)
        return None

    def _holds(self, checkpoint: Checkpoint) -> bool:
        try:
            return self._sessions is None or self._sessions.store.checkpoints.is_in_force(
                checkpoint.session, checkpoint.seq
            )
        except StoreError:
            return True

    def remember(self, checkpoint: Checkpoint) -> None:
        self._known.put(key_of(checkpoint), checkpoint)


def key_of(checkpoint: Checkpoint) -> tuple[str, bytes]:
    return (space_of(checkpoint.session), checkpoint.chain)


def qualified_name(namespace: str, name: str) -> str:
    """A session's name inside a namespace."""
    return f"{namespace}/{name}" if namespace else name


def space_of(name: str) -> str:
    """The namespace of a session's name."""
    return name.rpartition("/")[0]


def _size(checkpoint: Checkpoint) -> int:
    return 200 + sum(len(stand.data or b"") + 80 for stand in checkpoint.parts)


MOST_REPORTS, MOST_CACHES = 20_000, 10_000
UNCONFIRMED_MARGIN = 0.15
"""Share by which an estimate is raised where answers never say how large their prompts were."""
LOWEST_RATIO, HIGHEST_RATIO = 0.5, 2.0

Key = tuple[bytes, bytes]
"""The chain of all messages, and that of the checkpoint; the latter is empty without one."""
LONGEST_NAME = 150
DIGITS = 16
"""Of the hash in a name that has a label."""


def is_usable(name: str) -> bool:
    """Whether a client may call its session so. Names we give ourselves, it may not: they follow from the messages."""
    return len(name) <= LONGEST_NAME and name.isprintable() and "/" not in name and not name.startswith(OURS)


def session_names(exchange: Exchange, conversation: ClientHistory) -> tuple[str, ...]:
    """What the session of a request is called: as its header says, else by its first messages; then what it was called
    while it had fewer of them. What a client calls its session towards its provider stands before the hash: one such
    session has many conversations, and others may say the same."""
    asked = exchange.options.session
    if asked is not None and is_usable(asked):
        return (qualified_name(exchange.namespace, asked),)
    label = exchange.options.label or label_in(conversation.document.setting("metadata"))
    names = [f"{OURS}{label}-{name.removeprefix(OURS)[:DIGITS]}" if label else name for name in conversation.names]
    return tuple(qualified_name(exchange.namespace, name) for name in names)


class PreparedRequest(NamedTuple):
    """A body to send, and what must be known when its usage is reported."""

    body: bytes
    key: Key | None = None
    estimated: int = 0
    measured: MeasuredRequest | None = None


class MeasuredRequest(NamedTuple):
    """A request that was looked at."""

    conversation: ClientHistory
    name: str
    limits: ModelLimits
    checkpoint: Checkpoint | None
    view: Transcript
    fixed: int
    """Tokens of the system prompt and tools."""
    estimated: int
    size: Count
    """As it is sent."""
    came: int
    """Tokens of the request as it came."""
    is_stored: bool = False
    """Whether the store was asked for the checkpoint, not only this process's memory."""
    tools: bytes = b""
    """The gateway's own that the request has."""

    @property
    def key(self) -> Key:
        return (self.conversation.chains[-1], _of(self.conversation, self.checkpoint))

    @property
    def identity(self) -> str:
        return f"{self.conversation.identity}/{self.name}"

    def prepare(self) -> PreparedRequest:
        noted = self.checkpoint is not None and self.checkpoint.noted
        body = self.conversation.body_with(self.view, noted=noted, offered=self.tools)
        return PreparedRequest(body, self.key, self.estimated, self)


def _of(conversation: ClientHistory, checkpoint: Checkpoint | None) -> bytes:
    """What tells the view of one checkpoint from that of another, of the same messages too, and owners from others."""
    whose = conversation.whose.encode()
    return whose if checkpoint is None else whose + checkpoint.chain + f"{checkpoint.session}#{checkpoint.seq}".encode()


class PromptReport(NamedTuple):
    """Tokens of one prompt."""

    reported: int
    estimated: int

    @property
    def ratio(self) -> float:
        return min(max(self.reported / max(self.estimated, 1), LOWEST_RATIO), HIGHEST_RATIO)


class PromptReports:
    """The newest reports, and how they compared with the estimates of their conversations."""

    def __init__(self) -> None:
        self._known: LRU[Key, PromptReport] = LRU(MOST_REPORTS)
        self._ratios: LRU[str, float] = LRU(MOST_REPORTS)
        self._silent: LRU[tuple[str, bool], bool] = LRU(MOST_REPORTS)

    def note_answer(self, exchange: Exchange, *, has_usage: bool) -> None:
        """Note whether answers to requests of this kind report their usage."""
        if exchange.peek is not None:
            self._silent.put((whose(exchange).name, exchange.peek.is_streaming), not has_usage)

    def is_silent(self, exchange: Exchange) -> bool:
        """Return whether the last answer to a request of this owner, upstream and model reported no usage."""
        if not self._silent or exchange.peek is None or exchange.route.kind != "generate":
            return False
        return bool(self._silent.get((whose(exchange).name, exchange.peek.is_streaming)))

    def observe(self, key: Key, reported: int, estimated: int, conversation: str = "") -> None:
        if not LOWEST_BELIEVED * estimated <= reported <= HIGHEST_BELIEVED * estimated + MOST_UNSEEN:
            return
        report = PromptReport(reported, estimated)
        self._known.put(key, report)
        self._ratios.put(conversation, report.ratio)

    def size(
        self, chains: list[bytes], checkpoint: bytes, estimated: int, conversation: str = "", *, is_silent: bool = False
    ) -> Count:
        """How large a request is whose own estimate is this; raised where `is_silent` says that none is confirmed."""
        for chain in reversed(chains):
            report = self._known.peek((chain, checkpoint))
            if report is not None:
                if chain == chains[-1] and estimated == report.estimated:
                    return Count(report.reported, "reported")
                return Count(report.reported + round((estimated - report.estimated) * report.ratio), "calibrated")
        ratio = self._ratios.get(conversation) if conversation else None
        if ratio is not None:
            return Count(round(estimated * ratio), "calibrated")
        return Count(round(estimated * (1 + UNCONFIRMED_MARGIN)) if is_silent else estimated, "estimated")


class CacheHealths:
    """The health of the caches of conversations, by their names."""

    def __init__(self, config: Config, clock: Callable[[], float]) -> None:
        self.config, self.clock = config, clock
        self._is_on = is_scheduled(config)
        self._health: LRU[str, Health] = LRU(MOST_CACHES)

    def observe(self, name: str, model: str | None, compaction: int, usage: Usage) -> None:
        """What a provider reported for a request of this conversation."""
        if not self._is_on:
            return
        known = self._health.get(name) or Health()
        prices = prices_for(model, self.config.prompt_caching.cache_ttl, self.config.models)
        seen = RequestHashes(model=model or "", compaction=compaction)
        self._health.put(name, known.observe(usage, seen, at=self.clock(), prices=prices))

    def health(self, name: str) -> Health | None:
        """What is known of this conversation; None where nothing is scheduled, or nothing is known."""
        return self._health.get(name) if self._is_on else None


class RequestMeasurer:
    """Measures requests."""

    def __init__(self, policy: Policy, checkpoints: Checkpoints, caches: CacheHealths) -> None:
        self.policy, self.checkpoints, self.caches = policy, checkpoints, caches
        self.reports = PromptReports()
        self.put_back: Callable[[Owner, ClientHistory], ClientHistory] | None = None
        """Puts turns back that the client has never seen, and notes which tools of ours it has."""
        self.reads_everything = False
        """Whether small requests are read, too."""
        self.may_continue: Callable[[bytes], bool] = lambda body: False
        """Says whether a request may continue a session that its client has compacted; such ones are read, too."""

    def measure(self, exchange: Exchange, limits: ModelLimits) -> MeasuredRequest | None:
        """Reads, hashes and counts a request; in a thread."""
        try:
            document = exchange.document = read(exchange.body, dialect=exchange.route.dialect, name="the request")
        except TranscriptError:
            return None
        conversation = ClientHistory(document, self.policy.redactor, exchange.owner.id)
        if not conversation.talk:
            return None
        conversation.is_silent = self.reports.is_silent(exchange)
        if self.put_back is not None and (exchange.turn is None or not exchange.turn.asked):
            conversation = self.put_back(exchange.owner, conversation)
            conversation.offer = conversation.offer.within(limits)
        return self.look_up(conversation, self.name(exchange, conversation), limits)

    def observe_unread(self, exchange: Exchange, limits: ModelLimits, usage: Usage) -> None:
        """Read a request that was sent as it came, and note what the provider reported for it; in a thread."""
        try:
            document = read(exchange.body, dialect=exchange.route.dialect, name="the request")
        except TranscriptError:
            return
        conversation = ClientHistory(document, self.policy.redactor, exchange.owner.id)
        if conversation.talk:
            measured = self.measure_with(None, conversation, self.name(exchange, conversation), limits)
            self.observe(PreparedRequest(exchange.body, measured.key, measured.estimated, measured), usage)

    def look_up(
        self, conversation: ClientHistory, name: str, limits: ModelLimits, *, fresh: bool = False
    ) -> MeasuredRequest:
        """With the checkpoint that fits; `fresh` looks into the store even where memory has one."""
        known = None if fresh else self.checkpoints.find_in_force(conversation, name)
        found = self.checkpoints.find_in_store(conversation, name) if known is None else known
        return self.measure_with(found, conversation, name, limits)._replace(is_stored=known is None)

    def measure_with(
        self, checkpoint: Checkpoint | None, conversation: ClientHistory, name: str, limits: ModelLimits
    ) -> MeasuredRequest:
        """The view that a checkpoint gives, and its size."""
        view = conversation.view(checkpoint)
        tools = conversation.offer.at(checkpoint)
        fixed = conversation.fixed_size(limits.meter, tools)
        estimated = limits.meter.count(view, fixed).tokens
        known_as = "" if checkpoint is None else conversation.identity
        size = self.reports.size(
            conversation.chains, _of(conversation, checkpoint), estimated, known_as, is_silent=conversation.is_silent
        )
        scale = size.tokens / max(estimated, 1)
        beside = int(limits.meter.tokens(*fixed) * scale)
        came = size.tokens
        if checkpoint is not None:
            came = int(limits.meter.count(conversation.talk, fixed).tokens * scale)
        return MeasuredRequest(
            conversation, name, limits.beside(beside), checkpoint, view, beside, estimated, size, came, tools=tools
        )

    def name(self, exchange: Exchange, conversation: ClientHistory) -> str:
        return session_names(exchange, conversation)[0]

    def health(self, measured: MeasuredRequest) -> Health | None:
        """What is known of the provider's cache; None where nothing is."""
        return self.caches.health(measured.identity)

    def observe(self, prepared: PreparedRequest, usage: Usage) -> None:
        """What the provider counted for a request that was looked at."""
        if prepared.key is not None:
            whose = prepared.measured.conversation.identity if prepared.measured is not None else ""
            self.reports.observe(prepared.key, usage.prompt_tokens, prepared.estimated, whose)
        measured = prepared.measured
        if measured is not None:
            seq = 0 if measured.checkpoint is None else measured.checkpoint.seq
            self.caches.observe(measured.identity, measured.conversation.document.model, seq, usage)
