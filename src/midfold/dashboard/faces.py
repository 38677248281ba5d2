"""Everything there is to see, once: a page, its JSON under `/api`, and its line in the OpenAPI description."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from midfold.dashboard import facts
from midfold.dashboard.asked import Asked, Param
from midfold.dashboard.folded import AFTER, FATES, Folds
from midfold.dashboard.reader import Reader
from midfold.store.bodies import ROLES

KEY = Param("key", "path", "the session: `key` of a list, which is its name unless that has unusual characters")
SEQ = Param("seq", "path", "the number of the compaction, from 1 on", number=True)
POSITION = Param("position", "path", "the place of the message in the history, from 0 on", number=True)
HANDLE = Param("handle", "path", "a handle (mf-...) of a receipt, a line or a hit, or the beginning of one")
START = Param("start", "query", "the first entry of the page, from 0 on", number=True)
PAGE = Param("page", "query", "the page, from 0 on", number=True)
SHOWN = Param("show", "query", "only messages with this fate, or those there were afterwards", choices=(*FATES, AFTER))
QUERY = Param("q", "query", 'words that must all occur; "in quotes" literally, begin* as a beginning')
NAME = Param("q", "query", "a part of the names of sessions")
SESSION = Param("session", "query", "only in the session of this name")
ROLE = Param("role", "query", "only messages of this role", choices=tuple(ROLES))

Make = Callable[[Reader, Folds, Asked], facts.Facts]


class Face(NamedTuple):
    """One thing to see."""

    name: str
    path: str
    template: str
    """Empty if it has no page of its own: it is on another one."""
    summary: str
    answers: type[facts.Facts]
    make: Make
    params: tuple[Param, ...] = ()

    @property
    def api_path(self) -> str:
        return "/api/overview" if self.path == "/" else f"/api{self.path}"


FACES = (
    Face(
        "overview",
        "/",
        "overview.html",
        "All sessions at a glance: how full they are, what was saved, what deserves a look.",
        facts.Overview,
        lambda reader, folds, asked: reader.overview(asked.sees),
    ),
    Face(
        "sessions",
        "/sessions",
        "sessions.html",
        "Sessions, those used last first.",
        facts.SessionList,
        lambda reader, folds, asked: reader.sessions_like(asked.text("q"), asked.number("page"), asked.sees),
        (NAME, PAGE),
    ),
    Face(
        "session",
        "/sessions/{key}",
        "session.html",
        "One session: how it grew and was folded, where its tokens go, a page of its messages.",
        facts.SessionPage,
        lambda reader, folds, asked: reader.session(asked.name, asked.number_if_given("start"), asked.sees),
        (KEY, START),
    ),
    Face(
        "messages",
        "/sessions/{key}/messages",
        "",
        "A page of the history, folded or not; the newest messages if no start is given.",
        facts.Lines,
        lambda reader, folds, asked: reader.messages(asked.name, asked.number_if_given("start"), asked.sees),
        (KEY, START),
    ),
    Face(
        "turns",
        "/sessions/{key}/turns",
        "",
        "Every request whose usage was reported.",
        facts.TurnList,
        lambda reader, folds, asked: reader.turns(asked.name, asked.sees),
        (KEY,),
    ),
    Face(
        "compactions",
        "/sessions/{key}/compactions",
        "",
        "The compactions of a session, undone ones too.",
        facts.CompactionList,
        lambda reader, folds, asked: reader.compactions(asked.name, asked.sees),
        (KEY,),
    ),
    Face(
        "compaction",
        "/sessions/{key}/compactions/{seq}",
        "compaction.html",
        "One compaction, before and after: what was folded, changed and kept.",
        facts.CompactionPage,
        lambda reader, folds, asked: folds.compaction(
            asked.name, asked.number("seq"), asked.number("start"), asked.text("show"), asked.sees
        ),
        (KEY, SEQ, START, SHOWN),
    ),
    Face(
        "receipt",
        "/sessions/{key}/compactions/{seq}/receipt",
        "receipt.html",
        "The receipt of a compaction: every decision and its reason.",
        facts.ReceiptPage,
        lambda reader, folds, asked: folds.receipt(asked.name, asked.number("seq"), asked.sees),
        (KEY, SEQ),
    ),
    Face(
        "message",
        "/sessions/{key}/messages/{position}",
        "originals.html",
        "One message of the history, whole and redacted.",
        facts.Originals,
        lambda reader, folds, asked: folds.message(asked.name, asked.number("position"), asked.sees),
        (KEY, POSITION),
    ),
    Face(
        "unfold",
        "/sessions/{key}/unfold/{handle}",
        "originals.html",
        "The originals behind a handle, redacted.",
        facts.Originals,
        lambda reader, folds, asked: folds.unfold(asked.name, asked.text("handle"), asked.number("start"), asked.sees),
        (KEY, HANDLE, START),
    ),
    Face(
        "search",
        "/search",
        "search.html",
        "Messages that have all the words, folded or not, the best first; else the nearest.",
        facts.Search,
        lambda reader, folds, asked: reader.search(
            asked.text("q"), asked.sees, session=asked.text("session"), role=asked.text("role")
        ),
        (QUERY, SESSION, ROLE),
    ),
    Face(
        "cache",
        "/cache",
        "cache.html",
        "How well the providers' prompt caches work.",
        facts.CachePage,
        lambda reader, folds, asked: reader.cache(asked.sees),
    ),
)

RAW = Face(
    "raw",
    "/sessions/{key}/unfold/{handle}/raw",
    "",
    "The originals behind a handle as a JSON array, byte for byte and not redacted.",
    facts.Facts,
    lambda reader, folds, asked: facts.Facts(),
    (KEY, HANDLE),
)
