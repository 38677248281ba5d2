"""Scripted model that does the long task step by step, knowing only the text of its context.

Rules:
1. Quotes for a note are looked up in the context by name. There is no other memory.
2. A fact that has left the context is first looked up with a tool that searches the conversation, if the request
   offers
   one: once, by its name or path. That counts as a recall, whether or not it succeeds.
3. A fact that is still missing is read again from its file; that counts as a re-read.
4. The policy knows nothing about summaries, handles or ledgers: a fact counts if any line of the context has it in
   full. A line that ends in an ellipsis is incomplete. Backticks around code are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec

from bench.task_work import Fact, Module, Repository
from midfold.errors import ModelFailed
from midfold.model.endpoint import Endpoint
from midfold.transcript import jsonio
from midfold.transcript.message import ToolCall
from midfold.transcript.replies import ModelAnswer
from midfold.transcript.tokenizers import Tokenizer

SIGNATURE = "Checked against the source for release 4711."
FIRST = (
    f'You are documenting this source tree. Every note must end with the line: "{SIGNATURE}" '
    "Write one note per module under notes/: what it is, and what it rests on, quoted exactly. "
)
_SIGNED = re.compile(r'must end with the line: "([^"\n]+)"')
PER_MESSAGE = 4
Step = tuple[str, dict[str, Any]] | str
Needs = Literal["findings", "definitions"]
"""Source of the quotes in later notes: earlier command output, or the files themselves."""


class _Request(msgspec.Struct):
    messages: list[msgspec.Raw]
    tools: msgspec.Raw = msgspec.Raw(b"[]")


class Tally(NamedTuple):
    """Counts of one task."""

    calls: int
    rereads: int
    needed: int
    unknown: int
    unsigned: int
    requests: int
    prompt_tokens: int
    recalls: int
    helpful: int
    """Recalls after which the fact was in the context."""
    recalled_tokens: int


class Seen:
    """Message as text with its size and lookup results, cached because most of a context was seen before."""

    def __init__(self, text: str, tokens: int) -> None:
        self.text, self.tokens = text, tokens
        self._quotes: dict[Any, str] = {}

    def quote(self, key: Fact | str, name: str, pattern: Callable[[], re.Pattern[str]]) -> str:
        if key not in self._quotes:
            found = map(_without_marks, pattern().finditer(self.text) if name in self.text else ())
            self._quotes[key] = next((one for one in found if not one.endswith("…")), "")
        return self._quotes[key]


def _without_marks(found: re.Match[str]) -> str:
    """Return the match up to the backticks that end the code around it."""
    marks = ""
    for run in re.findall("`+", found.string[found.string.rfind("\n", 0, found.start()) + 1 : found.start()]):
        marks = "" if run == marks else marks or run
    code = re.split(f"(?<!`){marks}(?!`)", found[0], maxsplit=1)[0] if marks else found[0]
    return code.strip()


class Policy:
    """Policy for the work on a repository; use it as an agent's model."""

    def __init__(
        self, repository: Repository, window: int, needs: Needs = "findings", *, may_recall: bool = True
    ) -> None:
        self.endpoint = Endpoint(name="policy", wire="openai", base_url="http://policy.invalid", model="policy")
        self.heard = ""
        self.repository, self.window, self.needs, self.may_recall = repository, window, needs, may_recall
        self.context: list[Seen] = []
        self.calls = self.rereads = self.needed = self.unknown = self.unsigned = 0
        self.requests = self.prompt_tokens = 0
        self.recalls = self.helpful = self.recalled_tokens = 0
        self._offered = ""
        self._read_once: set[str] = set()
        self._measured_once: set[str] = set()
        self._tokenizer = Tokenizer("o200k")
        self._known_texts: dict[bytes, Seen] = {}
        self._steps: Iterator[Step] = iter(())

    def begin(self, package: str, modules: list[Module]) -> str:
        """Return the next user message, and plan the work for it."""
        self._steps = self._package(package, modules)
        return f"{FIRST if not self.requests else ''}Now write the notes for the package {package}."

    @property
    def tally(self) -> Tally:
        return Tally(
            calls=self.calls,
            rereads=self.rereads,
            needed=self.needed,
            unknown=self.unknown,
            unsigned=self.unsigned,
            requests=self.requests,
            prompt_tokens=self.prompt_tokens,
            recalls=self.recalls,
            helpful=self.helpful,
            recalled_tokens=self.recalled_tokens,
        )

    # Model interface

    def ask(self, body: bytes, hear: Any, again: Any) -> ModelAnswer:
        request = msgspec.json.decode(body, type=_Request)
        read = [self._read(bytes(message)) for message in request.messages]
        size = sum(seen.tokens for seen in read) + self._read(bytes(request.tools)).tokens
        if size > self.window:
            raise ModelFailed("overflow", f"{size} tokens", limit=self.window)
        self.requests += 1
        self.prompt_tokens += size
        self.context = read[1:]
        self._offered = _search_of_the_past(bytes(request.tools)) if self.may_recall else ""
        step = next(self._steps)
        usage = {"prompt_tokens": size, "completion_tokens": 50}
        if isinstance(step, str):
            return ModelAnswer(messages=({"role": "assistant", "content": step},), text=step, usage=usage)
        self.calls += 1
        name, arguments = step
        call = ToolCall(f"call_{self.calls}", name, jsonio.text_of(arguments))
        function = {"name": call.name, "arguments": call.arguments}
        message = {"role": "assistant", "content": None}
        message["tool_calls"] = [{"id": call.id, "type": "function", "function": function}]  # type: ignore[assignment]
        return ModelAnswer(messages=(message,), calls=(call,), usage=usage)

    def tokens(self, messages: Any, tools: Any = ()) -> int:
        """Return the exact size of a request in OpenAI's vocabulary."""
        return sum(self._read(jsonio.encode(value)).tokens for value in (*messages, list(tools)))

    def _read(self, value: bytes) -> Seen:
        known = self._known_texts.get(value)
        if known is None:
            text = "\n".join(_texts(jsonio.decode(value)))
            known = self._known_texts[value] = Seen(text, self._tokenizer.count(text) + PER_MESSAGE)
        return known

    # Work

    def _package(self, package: str, modules: list[Module]) -> Iterator[Step]:
        yield "plan", {"steps": [{"step": f"note on {module.path}", "status": "open"} for module in modules]}
        for module in modules:
            yield from self._note(module)
        yield from self._index(package, modules)
        yield f"The notes for {package} are written."

    def _note(self, module: Module) -> Iterator[Step]:
        """Read a module, measure it, and write a note on it and its imports."""
        yield from self._known(module.path, module.own if self.needs == "definitions" else ())
        yield from self._measured(module.path)
        if self.needs == "definitions":
            yield from self._known(module.path, module.own)
        own = "\n".join(self._quotes(module.own) if self.needs == "definitions" else [self._sum_of(module.path)])
        yield "write_file", {"path": module.note, "content": f"# {module.path}\n\n{own}\n\nRests on:\n"}
        there = [one for one in module.imported if self._has(*one)]
        self.needed += len(module.imported)
        if there:
            yield self._append(module, [quote for one in there for quote in self._told(*one)])
        for one in module.imported:
            if one not in there:
                yield from self._looked_up(*one)
                yield self._append(module, self._told(*one))
        yield self._append(module, [self._signature()])

    def _has(self, path: str, facts: tuple[Fact, ...]) -> bool:
        """Return whether the context has everything a note needs about this module."""
        return all(map(self._quote, facts)) if self.needs == "definitions" else bool(self._sum_of(path))

    def _told(self, path: str, facts: tuple[Fact, ...]) -> list[str]:
        return self._quotes(facts) if self.needs == "definitions" else [self._sum_of(path)]

    def _looked_up(self, path: str, facts: tuple[Fact, ...]) -> Iterator[Step]:
        yield from self._known(path, facts) if self.needs == "definitions" else self._measured(path)

    def _known(self, path: str, facts: tuple[Fact, ...]) -> Iterator[Step]:
        """Read a file unless the context has all the facts needed from it."""
        if path in self._read_once:
            for fact in facts:
                yield from self._recalled(fact.query, partial(self._quote, fact))
            if all(map(self._quote, facts)):
                return
        self.rereads += path in self._read_once
        self._read_once.add(path)
        yield "read_file", {"path": path}
        for fact in facts:
            if not self._quote(fact):
                self.rereads += 1
                yield "search", {"pattern": rf"\b{fact.name}\b", "path": path}

    def _measured(self, path: str) -> Iterator[Step]:
        """Measure checksum and size of a file unless they are in the context."""
        if path in self._measured_once:
            yield from self._recalled(path, partial(self._sum_of, path))
        if self._sum_of(path):
            return
        self.rereads += path in self._measured_once
        self._measured_once.add(path)
        yield "shell", {"command": f"cksum {path}"}
        self.unknown += not self._sum_of(path)

    def _recalled(self, query: str, quote: Callable[[], str]) -> Iterator[Step]:
        """Look up a fact that has left the context, if a search tool is offered."""
        if not self._offered or quote():
            return
        self.recalls += 1
        yield self._offered, {"query": query}
        self.recalled_tokens += self.context[-1].tokens
        self.helpful += bool(quote())

    def _index(self, package: str, modules: list[Module]) -> Iterator[Step]:
        """Write the checksums of all modules as measured."""
        lines: list[str] = []
        for module in modules:
            self.needed += 1
            yield from self._measured(module.path)
            lines.append(self._sum_of(module.path))
        content = "\n".join([f"# {package}", *lines, self._signature()])
        yield "write_file", {"path": f"notes/{package}/index.md", "content": f"{content}\n"}

    def _append(self, module: Module, lines: list[str]) -> Step:
        quoted = "\n".join(lines)
        return "shell", {"command": f"cat >> {module.note} <<'END'\n{quoted}\nEND"}

    # Lookups in the context

    def _found(self, key: Fact | str, name: str, pattern: Callable[[], re.Pattern[str]]) -> str:
        return next((quote for seen in self.context if (quote := seen.quote(key, name, pattern))), "")

    def _quote(self, fact: Fact) -> str:
        return self._found(fact, fact.name, lambda: fact.pattern)

    def _quotes(self, facts: tuple[Fact, ...]) -> list[str]:
        quotes = [self._quote(fact) for fact in facts]
        self.unknown += quotes.count("")
        return quotes

    def _sum_of(self, path: str) -> str:
        """Return checksum, size and name as cksum prints them."""
        return self._found(path, path, lambda: re.compile(rf"(?<!\d)\d+ \d+ {re.escape(path)}\b"))

    def _signature(self) -> str:
        line = self._found("signature", "must end with", lambda: _SIGNED)
        self.unsigned += not line
        return line.partition('"')[2].rstrip('"')


def _search_of_the_past(tools: bytes) -> str:
    """Return the name of a tool whose description says it searches the conversation by one query."""
    for tool in jsonio.decode(tools):
        function = tool["function"]
        says_so = re.search(r"\bsearch\b.*\bconversation\b", function["description"], re.IGNORECASE)
        if says_so and "query" in function["parameters"]["properties"]:
            return str(function["name"])
    return ""


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a message as a reader sees it: the values of arguments, not their JSON."""
    if isinstance(value, str):
        if value[:1] in "{[" and (decoded := _decoded(value)) is not None:
            yield from _texts(decoded)
        else:
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _decoded(text: str) -> Any:
    try:
        value = jsonio.decode(text)
    except jsonio.NotJSON:
        return None
    return value if isinstance(value, dict | list) else None
