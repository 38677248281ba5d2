"""The sessions of one project, or of one key, as tools of the Model Context Protocol.

Rules of this file:
1. Nobody sees more than the sessions whose names begin as theirs do, whatever session, handle or word is asked for.
2. Searching and unfolding is `recall`'s, what is stored is the store's; here is only what a tool is called.
3. A file is read only inside the project's folder. A summary is made on this machine: no tool sends anything anywhere.
4. An error is an answer. The SDK (the extra `mcp`) is imported when a server is built, not before.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from midfold.errors import MidfoldError, MissingExtra, NotStored, TranscriptError
from midfold.fold.trail import Trail, render
from midfold.fold.trail.whole import trail_of
from midfold.recall import TOOLS, AnswerBounds, Recall, ToolAnswer
from midfold.service import Sessions
from midfold.store.protocol import SessionInfo
from midfold.store.stored_past import StoredPast
from midfold.transcript.document import Document, read
from midfold.transcript.tools import ToolSpec, arguments

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

SEARCH, UNFOLD, TIMELINE = TOOLS
MOST_SESSIONS = 10_000
MOST_LISTED = 30
MOST_FILE_BYTES = 64 * 1024 * 1024
TRAIL_ROOM = 3_000
"""Tokens of an artifact trail."""
INSTRUCTIONS = (
    "What earlier and compacted sessions of this project really said: search it before you guess, unfold a handle "
    "(mf-...) for the exact original, and ask for artifacts to see what was changed, run and tested."
)

_SESSION = {"session": {"type": "string", "description": "Only this session, as describe names it."}}
_SOURCE = {
    "transcript": {"description": "Messages as a list, or a request body, in OpenAI or Anthropic shape."},
    "file": {"type": "string", "description": "Instead: a transcript in the project's folder, by its path there."},
}
SPECS = (
    ToolSpec(
        "search",
        "Search the kept sessions from their beginnings, also what was compacted away. The best hits come first; no "
        "word is required, parts of names count. Each hit has handles for unfold. A pattern needs a session, or looks "
        "at the newest one.",
        arguments({**SEARCH.properties, **_SESSION}),
    ),
    ToolSpec("unfold", UNFOLD.description, arguments({**UNFOLD.properties, **_SESSION}, *UNFOLD.required)),
    ToolSpec(
        "describe",
        "Without arguments: the sessions there are. With a session: its size and its compactions. With a handle: what "
        "happened before and after that message, a line for each step.",
        arguments({**TIMELINE.properties, **_SESSION}),
    ),
    ToolSpec(
        "artifacts",
        "What an agent made: files it changed, what it did beside files, what still runs, the last tests. Of a session "
        "(the newest one if none is named), or of a transcript.",
        arguments({**_SESSION, **_SOURCE}),
    ),
    ToolSpec(
        "compact",
        "Fold the middle of a transcript. Answers with the messages to go on with and a receipt; the originals are "
        "kept, and search and unfold find them under the session that is named.",
        arguments(
            {
                **_SOURCE,
                "context_length": {"type": "integer", "description": "The window; default: the model's."},
                "target_tokens": {"type": "integer", "description": "Fold to about this many tokens."},
                "keep_last_exchanges": {"type": "integer", "description": "Keep the last so many exchanges."},
                "focus": {"type": "string", "description": "What the summary should give most room to."},
            }
        ),
    ),
    ToolSpec("stats", "Messages, tokens and compactions: of a session, or of all.", arguments(_SESSION)),
)


def project_prefix(folder: Path) -> str:
    """How the names of a project's sessions begin: no key of a gateway can be called so."""
    whole = folder.resolve()
    word = re.sub(r"[^A-Za-z0-9_.-]+", "-", whole.name)[:40] or "root"
    return f"project:{word}-{sha256(str(whole).encode('utf-8', 'surrogateescape')).hexdigest()[:10]}/"


class SessionTools:
    """The tools over the sessions whose names begin with `under`; without a `folder` no file is read."""

    def __init__(self, sessions: Sessions, under: str, folder: Path | None = None) -> None:
        self.sessions, self.store, self.under = sessions, sessions.store, under
        self._folder = None if folder is None else folder.resolve()

    def run(self, name: str, given: Mapping[str, Any] | None) -> ToolAnswer:
        """Runs a call."""
        actions: dict[str, Callable[[Mapping[str, Any]], ToolAnswer]] = {
            "search": self._search,
            "unfold": self._unfold,
            "describe": self._describe,
            "artifacts": self._artifacts,
            "compact": self._compact,
            "stats": self._stats,
        }
        action = actions.get(name)
        if action is None:
            return ToolAnswer(f"there is no tool {name[:80]!r}; there are {', '.join(actions)}", is_error=True)
        try:
            return action(given or {})
        except MidfoldError as error:
            return ToolAnswer(str(error), is_error=True)

    # Which session

    def _infos(self) -> list[SessionInfo]:
        """Those that may be seen, the newest first."""
        return [info for info in self.sessions.all(MOST_SESSIONS) if info.name.startswith(self.under)]

    def _info(self, given: Mapping[str, Any]) -> SessionInfo:
        """The session that is meant; the newest one if none is named."""
        asked, infos = str(given.get("session") or "").removeprefix(self.under), self._infos()
        if not infos:
            raise NotStored("no session is kept here yet")
        if not asked:
            return infos[0]
        names = [info.name.removeprefix(self.under) for info in infos]
        matching = [names.index(asked)] if asked in names else [at for at, one in enumerate(names) if asked in one]
        if len(matching) == 1:
            return infos[matching[0]]
        problem = "several sessions have" if matching else "there is no session"
        raise NotStored(f"{problem} {asked[:80]!r}; describe names {len(infos)}")

    def _with_handle(self, given: Mapping[str, Any]) -> str:
        """The session that has a handle."""
        if given.get("session"):
            return self._info(given).name
        handle = str(given.get("handle") or "").strip("[]()`'\" \n")
        for info in self._infos():
            try:
                self.store.unfold(info.name, handle)
            except NotStored:
                continue
            return info.name
        raise NotStored(f"there is no handle {handle[:80]!r}")

    def _recall(self, name: str | None) -> Recall:
        past = StoredPast(self.store, name, sees=lambda one: one.startswith(self.under))
        return Recall(past, self.sessions.redactor, bounds=self._bounds(name))

    def _bounds(self, name: str | None) -> AnswerBounds:
        """Who asks is nearly always the client whose sessions these are: its window is the one that it folded for."""
        asked = name or next((info.name for info in self._infos()), None)
        if asked is None:
            return AnswerBounds()
        folds = self.store.records(asked)
        threshold = folds[-1].receipt.threshold_tokens if folds else 0
        return AnswerBounds.of(threshold or self.sessions.session(asked).setup.budget.threshold_tokens)

    # The tools

    def _search(self, given: Mapping[str, Any]) -> ToolAnswer:
        is_one = given.get("session") or given.get("pattern")
        return self._recall(self._info(given).name if is_one else None).run(SEARCH.name, given)

    def _unfold(self, given: Mapping[str, Any]) -> ToolAnswer:
        return self._recall(self._with_handle(given)).run(UNFOLD.name, given)

    def _describe(self, given: Mapping[str, Any]) -> ToolAnswer:
        if given.get("handle"):
            return self._recall(self._with_handle(given)).run(TIMELINE.name, given)
        infos = [self._info(given)] if given.get("session") else self._infos()
        lines = [self._line(info) for info in infos[:MOST_LISTED]]
        lines += [f"and {len(infos) - MOST_LISTED} older ones"] * (len(infos) > MOST_LISTED)
        if given.get("session"):
            for record in self.store.records(infos[0].name):
                receipt, undone = record.receipt, ", undone" if record.undone is not None else ""
                sizes = f"{receipt.old_tokens:,} -> {receipt.new_tokens:,} tokens"
                lines.append(f"compaction {record.seq}: {receipt.status}, {sizes}, fold {receipt.fold}{undone}")
        return ToolAnswer("\n".join(lines) or "no session is kept here yet")

    def _line(self, info: SessionInfo) -> str:
        name, title = info.name.removeprefix(self.under), self.sessions.title(info)
        return f"{name}: {info.count:,} messages, {info.compactions} compactions; {title}"

    def _artifacts(self, given: Mapping[str, Any]) -> ToolAnswer:
        if given.get("transcript") or given.get("file"):
            return ToolAnswer(trail_text(trail_of(self._document(given).messages), TRAIL_ROOM))
        history = self.store.history(self._info(given))
        return ToolAnswer(trail_text(trail_of(tuple(row.message for row in history)), TRAIL_ROOM))

    def _document(self, given: Mapping[str, Any]) -> Document:
        if given.get("transcript"):
            return read(given["transcript"], name="the transcript")
        if not given.get("file"):
            raise TranscriptError("a transcript, or a file, is needed")
        if self._folder is None:
            raise TranscriptError("no files are read here: give the transcript itself")
        asked = str(given["file"])
        path = (self._folder / asked).resolve()
        if not path.is_relative_to(self._folder) or not path.is_file():
            raise TranscriptError(f"{asked[:200]} is no file in the folder of this project")
        if path.stat().st_size > MOST_FILE_BYTES:
            raise TranscriptError(f"{asked[:200]} has more than {MOST_FILE_BYTES:,} bytes")
        try:
            return read(path.read_bytes(), name=asked[:200])
        except OSError as error:
            raise TranscriptError(f"cannot read {asked[:200]}: {error.strerror}") from None

    def _compact(self, given: Mapping[str, Any]) -> ToolAnswer:
        document = self._document(given)
        name = f"{self.under}compact-{uuid4().hex[:12]}"
        length = _positive(given, "context_length")
        owner = self.under.removesuffix("/")
        session = self.sessions.session(name, model=document.model, context_length=length, owner=owner)
        session.sync(document)
        done = session.compact(
            force=True,
            target_tokens=_positive(given, "target_tokens"),
            keep_last_exchanges=_positive(given, "keep_last_exchanges"),
            focus=str(given.get("focus") or "") or None,
        )
        head = msgspec.json.encode({"session": name.removeprefix(self.under), "receipt": done.receipt.to_dict()})
        messages = done.session.view().json()
        return ToolAnswer(f'{head.decode()[:-1]},"messages":{messages.decode("utf-8", "replace")}}}')

    def _stats(self, given: Mapping[str, Any]) -> ToolAnswer:
        infos = [self._info(given)] if given.get("session") else self._infos()
        receipts = [record.receipt for info in infos for record in self.store.records(info.name) if not record.undone]
        facts: dict[str, Any] = {
            "sessions": len(infos),
            "messages": sum(info.count for info in infos),
            "compactions": len(receipts),
            "tokens_folded_away": sum(receipt.old_tokens - receipt.new_tokens for receipt in receipts),
        }
        if given.get("session"):
            session = self.sessions.session(infos[0].name)
            size, health = session.size, session.health
            facts |= {"view_messages": len(session.view()), "view_tokens": size.tokens, "token_basis": size.basis}
            facts |= {"turns": health.turns, "cache_hit_rate": round(health.hit_rate, 4)}
        return ToolAnswer(msgspec.json.encode(facts).decode())


def _positive(given: Mapping[str, Any], name: str) -> int | None:
    value = given.get(name)
    if value is None or (type(value) is int and value > 0):
        return value
    raise TranscriptError(f"{name}: expected a number above 0")


def trail_text(trail: Trail, room: int) -> str:
    """A trail as lines under the headings of a handoff, for at most `room` tokens."""
    sections: Iterable[tuple[str, list[str]]] = render(trail, room).items()
    text = "\n\n".join("\n".join([f"## {name}", *lines]) for name, lines in sections if lines)
    return text or f"{trail.messages:,} messages, and no call in them made, did, checked or read anything that is known"


def build_server(tools_for: Callable[[Any], SessionTools]) -> Server[Any]:
    """An MCP server; `tools_for` says which tools answer a request (of HTTP; over stdio it is None)."""
    try:
        from mcp.server.lowlevel import Server
        from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool
    except ModuleNotFoundError:
        raise MissingExtra("midfold mcp", "mcp") from None
    from midfold import __version__

    async def list_tools(context: Any, asked: Any) -> ListToolsResult:
        schemas = {spec.name: dict(spec.parameters) for spec in SPECS}
        return ListToolsResult(
            tools=[
                Tool(name=spec.name, description=spec.description, input_schema=schemas[spec.name]) for spec in SPECS
            ]
        )

    async def call_tool(context: Any, asked: Any) -> CallToolResult:
        answer = await asyncio.to_thread(tools_for(context.request).run, asked.name, asked.arguments)
        return CallToolResult(content=[TextContent(type="text", text=answer.text)], is_error=answer.is_error)

    return Server(
        "midfold",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def serve_stdio(server: Server[Any]) -> None:
    """Answers on standard input and output until the client closes them."""
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())
