"""Links from a conversation that its client has compacted to the stored sessions before it.

1. Most clients ask their model for a summary within the conversation that it replaces. The gateway sees the
   response and keeps keyed digests of some of its lines with the session. A later conversation of the same owner
   that opens with that summary, in the format of a known client, continues the session.
2. A client that summarizes elsewhere (Cline 3) keeps the newest messages after its summary. They are recognised by
   their digests, which are held in memory only; the resulting link is stored.
3. Digests are keyed by owner, so no other owner can match them. The summary itself is not stored.
4. A linked conversation keeps its recall tools byte for byte, and they search all of its sessions.
5. A link is deleted with its session.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b

import msgspec

from midfold.errors import MidfoldError, NotStored
from midfold.gateway.exchange import Owner
from midfold.lru import LRU
from midfold.recall import Candidate, Positions, SearchSource
from midfold.recall.words import Term
from midfold.store import SqlStore
from midfold.transcript import jsonio
from midfold.transcript.message import CALL, RESULT, Message, Transcript
from midfold.transcript.replies import ModelAnswer

SUMMARY_MARKS = (
    "This session is being continued from a previous conversation",  # Claude Code, Cline
    "Another language model started to solve this problem",  # Codex
    "Context summary:\n",  # Cline 3
    "Earlier context was compacted.",  # Cline 3 without a model
    "[COMPACTED HISTORY]",  # Continue, terminal, up to 1.4
    "Previous conversation summary:",  # Continue, editor, in its system prompt
    "What did we do so far?",  # opencode
    "<state_snapshot>",  # Gemini CLI, Qwen Code
)
"""Texts with which clients introduce their own summaries."""
_MARK_BYTES = tuple(mark.strip().encode() for mark in SUMMARY_MARKS)
_FIRST_ROLE = re.compile(rb'"role"\s*:\s*"(?:(assistant)|user)"')
_SUMMARY_REQUEST = re.compile(r"summar|compact|compress|condens|hand-?off|continuing our conversation", re.I)
_SUMMARY_TOOLS = re.compile(r"summar|condens|compact", re.I)
MAX_OPENING_MESSAGES = 60
"""Maximum messages at the start of a conversation that are searched for a client's summary; Codex puts the user's
messages before it.
"""
MAX_OPENING_BYTES = 400_000
MAX_REQUEST_CHARS = 20_000
"""Characters at either end of a message in which a request for a summary is looked for."""
MIN_LINE_CHARS = 30
MAX_LINES_READ = 2_000
LINES_PER_THIRD = 4
"""Lines kept of each third of a summary: clients omit parts of the response."""
DRAFT_ENDS = ("</analysis>", "</thinking>")
MIN_MATCHING_SHARE = 0.25
"""Minimum share of the kept lines that must match."""
NEWEST_MESSAGES = 6
"""Messages at the end of a folded request whose digests are remembered."""
MAX_LINKED_SESSIONS = 8
MAX_LINKS = 20_000


class LinkedSession(msgspec.Struct, frozen=True):
    """Stored session up to a compaction and a message count."""

    session: str
    seq: int
    count: int


class SummaryLink(msgspec.Struct, frozen=True):
    """Sessions that a client's summary covers, oldest first, and the recall tools that were offered in them."""

    sessions: tuple[LinkedSession, ...]
    tools: str
    lines: int = 0
    """Number of summary lines stored for this link."""

    @classmethod
    def after(cls, before: SummaryLink | None, own: LinkedSession, tools: str) -> SummaryLink:
        """Return the link to a session and to the sessions that it continues."""
        others = () if before is None else before.sessions
        sessions = (*(one for one in others if one.session != own.session), own)
        return cls(sessions[-MAX_LINKED_SESSIONS:], tools)


def may_continue(body: bytes) -> bool:
    """Return whether a request may open with a client's own summary."""
    if any(body.find(mark, 0, MAX_OPENING_BYTES) >= 0 for mark in _MARK_BYTES):
        return True
    first = _FIRST_ROLE.search(body, 0, MAX_OPENING_BYTES)
    return first is not None and first[1] is not None


def may_request_summary(talk: Transcript) -> bool:
    """Return whether the newest message may ask the model for a summary."""
    text = talk[-1].text if talk else ""
    ends = (text,) if len(text) <= 2 * MAX_REQUEST_CHARS else (text[:MAX_REQUEST_CHARS], text[-MAX_REQUEST_CHARS:])
    return any(_SUMMARY_REQUEST.search(end) is not None for end in ends)


def summary_in(turn: ModelAnswer) -> str:
    """Return the text of a response and the text arguments of its summary tool calls."""
    texts = [turn.text]
    for call in turn.calls:
        if _SUMMARY_TOOLS.search(call.name):
            try:
                given = jsonio.decode(call.arguments)
            except jsonio.NotJSON:
                continue
            texts += [one for one in given.values() if isinstance(one, str)] if isinstance(given, Mapping) else []
    return "\n".join(filter(None, texts))


def opening_summary(system: Message | None, talk: Transcript) -> str:
    """Return the text at the start of a conversation that may be a client's summary."""
    first = [*([system] if system is not None else []), *talk[:MAX_OPENING_MESSAGES]]
    marked = [place for place, one in enumerate(first) if any(mark in one.text for mark in SUMMARY_MARKS)]
    if not marked and talk and talk[0].role == "assistant":
        return talk[0].text  # Continue, terminal
    # opencode's summary is the response to this question.
    return "\n".join(one.text for place in marked for one in first[place : place + 2])


def _lines(text: str) -> list[str]:
    lines = (" ".join(line.split()).strip(" .") for line in text.splitlines()[:MAX_LINES_READ])
    return list(dict.fromkeys(line for line in lines if len(line) >= MIN_LINE_CHARS))


def _characteristic_lines(text: str) -> list[str]:
    """Return the longest lines of each third of a summary, without the draft that some clients have the model write
    first.
    """
    for end in DRAFT_ENDS:
        text = text.rpartition(end)[2] or text
    lines = _lines(text)
    step = max(-(-len(lines) // 3), 1)
    thirds = (lines[start : start + step] for start in range(0, len(lines), step))
    return [line for third in thirds for line in sorted(third, key=len, reverse=True)[:LINES_PER_THIRD]]


class ClientSummaries:
    """Thread-safe links by owner and summary line, in memory and in the store."""

    def __init__(self, store: SqlStore) -> None:
        self._turns = store.hidden_turns
        self._known: LRU[tuple[str, str], SummaryLink] = LRU(MAX_LINKS)
        self._found: LRU[tuple[str, bytes], SummaryLink] = LRU(MAX_LINKS)
        self._newest: LRU[tuple[str, bytes], SummaryLink] = LRU(MAX_LINKS)

    def remember(self, owner: Owner, summary: str, link: SummaryLink) -> list[str]:
        """Remember a link in memory; return the names to store it under."""
        names = [self._name(owner, line) for line in _characteristic_lines(summary)]
        known = msgspec.structs.replace(link, lines=len(names))
        for name in names:
            self._known.put((owner.id, name), known)
        return names

    def keep(self, owner: Owner, names: Sequence[str], link: SummaryLink) -> None:
        """Store a link under these names; it is deleted with its newest session."""
        data = jsonio.encode(msgspec.structs.replace(link, lines=len(names)))
        for name in names:
            self._turns.keep(self._place(owner), name, data, session=link.sessions[-1].session)

    def note_newest(self, owner: Owner, talk: Transcript, link: SummaryLink) -> None:
        """Remember the newest messages of a folded conversation, which its client may keep after a summary."""
        for message in talk[-NEWEST_MESSAGES:]:
            if message.kinds & (CALL | RESULT):
                self._newest.put((owner.id, message.digest), link)

    def find(self, owner: Owner, system: Message | None, talk: Transcript) -> SummaryLink | None:
        """Return the link of a conversation that opens with a client's summary, else None."""
        text = opening_summary(system, talk)
        if not text:
            return None
        key = (owner.id, blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest())
        found = self._found.get(key)
        if found is None:
            found = self._look_up(owner, [self._name(owner, line) for line in _lines(text)])
            if found is None and (found := self._find_by_newest(owner, talk)) is not None:
                with suppress(MidfoldError):
                    self.keep(owner, self.remember(owner, text, found), found)
            if found is not None:
                self._found.put(key, found)
        return found

    def _find_by_newest(self, owner: Owner, talk: Transcript) -> SummaryLink | None:
        kept = (self._newest.get((owner.id, one.digest)) for one in reversed(talk[:MAX_OPENING_MESSAGES]))
        return next(filter(None, kept), None)

    def _look_up(self, owner: Owner, names: Sequence[str]) -> SummaryLink | None:
        hits = Counter(self._all(owner, names))
        fitting = [link for link, count in hits.most_common() if count >= MIN_MATCHING_SHARE * link.lines]
        return fitting[0] if fitting else None

    def _all(self, owner: Owner, names: Sequence[str]) -> Iterator[SummaryLink]:
        known = {name: link for name in names if (link := self._known.get((owner.id, name))) is not None}
        yield from known.values()
        missing, place = [name for name in names if name not in known], self._place(owner)
        try:
            stored = [key.chain for key in self._turns.find(place, missing)] if missing else []
            for data in self._turns.read(place, stored).values() if stored else ():
                yield msgspec.json.decode(data, type=SummaryLink)
        except MidfoldError:
            return

    @staticmethod
    def _place(owner: Owner) -> str:
        return owner.bind(b"client summaries")

    @staticmethod
    def _name(owner: Owner, line: str) -> str:
        return owner.bind(b"line of a client summary", line.encode("utf-8", "surrogatepass"))


class LinkedSources:
    """Search source over several sessions, oldest first."""

    def __init__(self, pasts: Mapping[str, SearchSource]) -> None:
        self._pasts = dict(pasts)

    def size(self) -> int:
        return sum(past.size() for past in self._pasts.values())

    def newest(self) -> tuple[str, int]:
        return list(self._pasts.values())[-1].newest()

    def places(self, terms: Sequence[Term]) -> list[Mapping[str, Sequence[int]]]:
        joined: list[dict[str, Sequence[int]]] = [{} for _ in terms]
        for past in self._pasts.values():
            for own, found in zip(joined, past.places(terms), strict=True):
                own.update(found)
        return list(joined)

    def words(self, beginning: str) -> set[str]:
        return {word for past in self._pasts.values() for word in past.words(beginning)}

    def messages(self, wanted: Positions) -> list[Candidate]:
        return [
            found
            for name, past in self._pasts.items()
            if wanted.get(name)
            for found in past.messages({name: wanted[name]})
        ]

    def unfold(self, handle: str) -> Transcript:
        return self._holder(handle).unfold(handle)

    def place_of(self, handle: str) -> tuple[str, int]:
        return self._holder(handle).place_of(handle)

    def _holder(self, handle: str) -> SearchSource:
        """Return the newest source that has a handle. Raises NotStored."""
        for past in reversed(self._pasts.values()):
            with suppress(NotStored):
                past.unfold(handle)
                return past
        raise NotStored(f"there is no handle {handle}")

    def shorten(self, found: Sequence[Candidate]) -> list[str]:
        return [self._pasts[one.session].shorten([one])[0] for one in found]
