"""Search source in memory, over an archive or a whole conversation. Text written by midfold itself is not searched."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import islice, takewhile

from midfold.compaction.archive import MIN_HANDLE_DIGITS, PREFIX, framed_handles, handle_of, short_handles
from midfold.compaction.handoff import recognise
from midfold.compaction.local.digest import is_digest
from midfold.errors import NotStored
from midfold.recall.excerpts import Redact
from midfold.recall.ranking import Positions
from midfold.recall.recall_tools import NOTHING_FOLDED, UNBOUNDED, AnswerBounds, Recall
from midfold.recall.units import Candidate, original
from midfold.recall.words import Term, search_tokens
from midfold.transcript.message import Message, ToolResult, Transcript


class InMemorySource:
    """Originals by handle. A message counts at its last position; a digest counts as its original."""

    def __init__(self, archive: Mapping[str, Transcript]) -> None:
        self._archive = archive

    @cached_property
    def _candidates(self) -> list[Candidate]:
        last: dict[bytes, Message] = {}
        for messages in self._archive.values():
            for message in (whole for one in messages for whole in self._originals(one)):
                last.pop(message.digest, None)
                last[message.digest] = message
        return [Candidate("", place, one.role, 0, digest, one) for place, (digest, one) in enumerate(last.items())]

    def _originals(self, message: Message) -> Transcript:
        if recognise(message) is not None:
            return ()
        results = [part for part in message.parts if isinstance(part, ToolResult)]
        if not results or len(results) < len(message.parts) or not all(is_digest(part.text) for part in results):
            return (message,)
        handles = framed_handles(part.text for part in results)
        return tuple(one for handle in sorted(handles) for one in self._archive.get(handle, ()))

    @cached_property
    def _index(self) -> dict[str, list[int]]:
        index: dict[str, list[int]] = {}
        for one in self._candidates:
            for token in search_tokens(original(one.message)):
                index.setdefault(token, []).append(one.position)
        return index

    @cached_property
    def _tokens(self) -> list[str]:
        return sorted(self._index)

    def size(self) -> int:
        return len(self._candidates)

    def newest(self) -> tuple[str, int]:
        return "", len(self._candidates)

    def places(self, terms: Sequence[Term]) -> list[Mapping[str, Sequence[int]]]:
        return [{"": found} if (found := self._places(term)) else {} for term in terms]

    def _places(self, term: Term) -> list[int]:
        if not term.prefix:
            return self._index.get(term.text, [])
        return sorted({place for word in self.words(term.text) for place in self._index[word]})

    def words(self, beginning: str) -> list[str]:
        start = bisect_left(self._tokens, beginning)
        return list(takewhile(lambda word: word.startswith(beginning), islice(self._tokens, start, None)))

    def messages(self, wanted: Positions) -> list[Candidate]:
        return [self._candidates[place] for place in sorted(wanted.get("", ())) if 0 <= place < len(self._candidates)]

    @cached_property
    def _short(self) -> list[str]:
        return short_handles(handle_of(one.message) for one in self._candidates)

    def shorten(self, found: Sequence[Candidate]) -> list[str]:
        return [self._short[one.position] for one in found]

    def unfold(self, handle: str) -> Transcript:
        """Return the originals of a handle; of a handle prefix, the first match."""
        exact = self._archive.get(handle)
        if exact is not None:
            return exact
        if len(handle) >= len(PREFIX) + MIN_HANDLE_DIGITS:
            for one in self._candidates:
                if handle_of(one.message).startswith(handle):
                    return (one.message,)
        found = next((one for name, one in self._archive.items() if name.startswith(handle)), None)
        if found is None or len(handle) < len(PREFIX) + MIN_HANDLE_DIGITS:
            raise NotStored(f"there is no handle {handle[:80]}")
        return found

    def place_of(self, handle: str) -> tuple[str, int]:
        digests = {message.digest for message in self.unfold(handle)}
        return "", next((one.position for one in self._candidates if one.digest in digests), 0)

    def recall(
        self, redact: Redact, bounds: AnswerBounds = UNBOUNDED, clock: Callable[[], float] = lambda: 0.0
    ) -> Recall:
        """Return the tools over these originals."""
        return Recall(self, redact, bounds=bounds, nothing=NOTHING_FOLDED, clock=clock)
