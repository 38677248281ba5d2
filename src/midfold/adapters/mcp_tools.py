"""Tools over the sessions of one project or gateway key, served by `midfold mcp` (Model Context Protocol).

1. Access is limited to sessions whose names start with the caller's prefix, whatever session, handle or query is given.
2. `Sessions.recall` searches and unfolds, the store reads sessions; this module only defines the tools.
3. Files are read only inside the project's directory. Summaries are made locally; no tool sends data anywhere.
4. Errors are returned as tool results.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import midfold
from midfold import Document, MidfoldError, Session, Sessions, ToolSpec, TranscriptError, artifacts_text
from midfold.errors import NotStored
from midfold.types import Recall, SessionInfo, ToolAnswer

SEARCH, UNFOLD, TIMELINE = Recall.tools
MOST_SESSIONS = 10_000
MOST_LISTED = 30
MOST_FILE_BYTES = 64 * 1024 * 1024
MOST_TOKENS = 1_000_000_000

_SESSION = {"session": {"type": "string", "description": "Only this session, as describe names it."}}
_SOURCE = {
    "transcript": {"description": "Messages as a list, or a request body, in OpenAI or Anthropic shape."},
    "file": {"type": "string", "description": "Instead: a transcript in the project's folder, by its path there."},
}
_SIZES = {
    "context_length": {"type": "integer", "description": "The window; default: the model's."},
    "target_tokens": {"type": "integer", "description": "Fold to about this many tokens."},
    "keep_last_exchanges": {"type": "integer", "description": "Keep the last so many exchanges."},
}
_FOCUS = {"focus": {"type": "string", "description": "What the summary should give most room to."}}


def _spec(name: str, description: str, properties: Mapping[str, Any], required: tuple[str, ...] = ()) -> ToolSpec:
    return ToolSpec(name, description, {"type": "object", "properties": properties, "required": list(required)})


SPECS = (
    _spec(
        "search",
        "Search the kept sessions from their beginnings, also what was compacted away. The best hits come first; no "
        "word is required, parts of names count. Each hit has handles for unfold. A pattern needs a session, or looks "
        "at the newest one.",
        {**SEARCH.properties, **_SESSION},
    ),
    _spec("unfold", UNFOLD.description, {**UNFOLD.properties, **_SESSION}, UNFOLD.required),
    _spec(
        "describe",
        "Without arguments: the sessions there are. With a session: its size and its compactions. With a handle: what "
        "happened before and after that message, a line for each step.",
        {**TIMELINE.properties, **_SESSION},
    ),
    _spec(
        "artifacts",
        "What an agent made: files it changed, what it did beside files, what still runs, the last tests. Of a session "
        "(the newest one if none is named), or of a transcript.",
        {**_SESSION, **_SOURCE},
    ),
    _spec(
        "compact",
        "Fold the middle of a transcript. Answers with the messages to go on with and a receipt; the originals are "
        "kept, and search and unfold find them under the session that is named.",
        {**_SOURCE, **_SIZES, **_FOCUS},
    ),
    _spec("stats", "Messages, tokens and compactions: of a session, or of all.", _SESSION),
)


class SessionTools:
    """Tools over the sessions whose names start with `under`; without a `folder` no file is read."""

    def __init__(self, sessions: Sessions, under: str, folder: Path | None = None) -> None:
        self.sessions, self.under = sessions, under
        self._folder = None if folder is None else folder.resolve()

    def run(self, name: str, given: Mapping[str, Any] | None) -> ToolAnswer:
        """Run a call."""
        names = [spec.name for spec in SPECS]
        if name not in names:
            return ToolAnswer(f"there is no tool {name[:80]!r}; there are {', '.join(names)}", is_error=True)
        action: Callable[[Mapping[str, Any]], ToolAnswer | str] = getattr(self, f"_{name}")
        try:
            answer = action(given or {})
        except MidfoldError as error:
            return ToolAnswer(str(error), is_error=True)
        return ToolAnswer(answer) if isinstance(answer, str) else answer

    # Session lookup

    def _infos(self, given: Mapping[str, Any]) -> list[SessionInfo]:
        """Return the named session, or all visible sessions, newest first."""
        return [self._info(given)] if given.get("session") else self.sessions.all(MOST_SESSIONS, under=self.under)

    def _info(self, given: Mapping[str, Any]) -> SessionInfo:
        """Return the named session, or the newest one."""
        asked, infos = str(given.get("session") or "").removeprefix(self.under), self._infos({})
        if not infos:
            raise NotStored("no session is kept here yet")
        names = [info.name.removeprefix(self.under) for info in infos]
        matching = [names.index(asked)] if asked in names else [at for at, one in enumerate(names) if asked in one]
        if len(matching) == 1 or not asked:
            return infos[matching[0]]
        problem = "several sessions have" if matching else "there is no session"
        raise NotStored(f"{problem} {asked[:80]!r}; describe names {len(infos)}")

    def _session(self, info: SessionInfo) -> Session:
        return self.sessions.session(info.name)

    def _recall_at(self, given: Mapping[str, Any]) -> Recall:
        """Return the recall of the session that has the handle."""
        handle = str(given.get("handle") or "").strip("[]()`'\" \n")
        named = self._info(given).name if given.get("session") else None
        return self.sessions.recall(named or self.sessions.find_handle(handle, under=self.under), under=self.under)

    # Tools

    def _search(self, given: Mapping[str, Any]) -> ToolAnswer:
        is_one = given.get("session") or given.get("pattern")
        name = self._info(given).name if is_one else None
        return self.sessions.recall(name, under=self.under).run(SEARCH.name, given)

    def _unfold(self, given: Mapping[str, Any]) -> ToolAnswer:
        return self._recall_at(given).run(UNFOLD.name, given)

    def _describe(self, given: Mapping[str, Any]) -> ToolAnswer | str:
        if given.get("handle"):
            return self._recall_at(given).run(TIMELINE.name, given)
        infos = self._infos(given)
        lines = [self._line(info) for info in infos[:MOST_LISTED]]
        lines += [f"and {len(infos) - MOST_LISTED} older ones"] * (len(infos) > MOST_LISTED)
        for record in self._session(infos[0]).receipts() if given.get("session") else ():
            receipt, undone = record.receipt, ", undone" if record.undone is not None else ""
            sizes = f"{receipt.old_tokens:,} -> {receipt.new_tokens:,} tokens"
            lines.append(f"compaction {record.seq}: {receipt.status}, {sizes}, fold {receipt.fold}{undone}")
        return "\n".join(lines) or "no session is kept here yet"

    def _line(self, info: SessionInfo) -> str:
        name, title = info.name.removeprefix(self.under), self.sessions.title(info)
        return f"{name}: {info.count:,} messages, {info.compactions} compactions; {title}"

    def _artifacts(self, given: Mapping[str, Any]) -> str:
        if given.get("transcript") or given.get("file"):
            return artifacts_text(self._document(given).messages)
        return artifacts_text(self._session(self._info(given)).history().transcript)

    def _document(self, given: Mapping[str, Any]) -> Document:
        if given.get("transcript"):
            return midfold.read(given["transcript"], name="the transcript")
        if not given.get("file"):
            raise TranscriptError("a transcript, or a file, is needed")
        if self._folder is None:
            raise TranscriptError("no files are read here: give the transcript itself")
        asked = str(given["file"])
        called = asked[:200]
        try:
            path = (self._folder / asked).resolve()
            if not path.is_relative_to(self._folder) or not path.is_file():
                raise TranscriptError(f"{called} is no file in the folder of this project")
            if path.stat().st_size > MOST_FILE_BYTES:
                raise TranscriptError(f"{called} has more than {MOST_FILE_BYTES:,} bytes")
            data = path.read_bytes()
        except (OSError, ValueError) as error:  # an invalid file name, or an unreadable file
            raise TranscriptError(f"cannot read {called!a}: {getattr(error, 'strerror', error)}") from None
        return midfold.read(data, name=called)

    def _compact(self, given: Mapping[str, Any]) -> str:
        document, owner = self._document(given), self.under.removesuffix("/")
        length, target, last = (_positive(given, name) for name in _SIZES)
        name = f"compact-{uuid4().hex[:12]}"
        session = self.sessions.session(self.under + name, model=document.model, context_length=length, owner=owner)
        session.sync(document)
        focus = str(given.get("focus") or "") or None
        done = session.compact(force=True, target_tokens=target, keep_last_exchanges=last, focus=focus)
        head = json.dumps({"session": name, "receipt": done.receipt.to_dict()})
        return f'{head[:-1]},"messages":{done.session.view().json().decode("utf-8", "replace")}}}'

    def _stats(self, given: Mapping[str, Any]) -> str:
        infos = self._infos(given)
        records = [record for info in infos if info.compactions for record in self._session(info).receipts()]
        receipts = [record.receipt for record in records if not record.undone]
        facts: dict[str, Any] = {
            "sessions": len(infos),
            "messages": sum(info.count for info in infos),
            "compactions": len(receipts),
            "tokens_folded_away": sum(receipt.old_tokens - receipt.new_tokens for receipt in receipts),
        }
        if given.get("session"):
            session = self._session(infos[0])
            size, health = session.size, session.health
            facts |= {"view_messages": len(session.view()), "view_tokens": size.tokens, "token_basis": size.basis}
            facts |= {"turns": health.turns, "cache_hit_rate": round(health.hit_rate, 4)}
        return json.dumps(facts)


def _positive(given: Mapping[str, Any], name: str) -> int | None:
    value = given.get(name)
    if value is None or (type(value) is int and 0 < value <= MOST_TOKENS):
        return value
    raise TranscriptError(f"{name}: expected a number from 1 to {MOST_TOKENS:,}")
