"""Example data of `midfold demo`: a conversation, and a coding session with its client and provider.

The client resends its whole history with every request, as agents do. The provider implements Anthropic's API: it
rejects requests that break the rules for roles, pairing, markers and length, and bills by a prefix cache. Every run
is identical.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from itertools import accumulate
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

Wire = list[dict[str, Any]]
Call = tuple[str, str, Mapping[str, Any]]
"""Id, tool name and arguments."""

EXAMPLE_WINDOW = 64_000
EVERY = 12
"""Turns between two user messages."""
TOOLS = (("read_file", "path"), ("terminal", "command"))
PER_MESSAGE = 4
PER_IMAGE = 1_000
CACHE_MINIMUM, CACHE_SECONDS, CACHE_POSITIONS, CACHE_MARKERS = 1_024, 300.0, 20, 4
_PIECES = re.compile(r" ?[A-Za-z]{1,6}|\d{1,3}|[^\sA-Za-z\d]|\s+")


def example_conversation(rounds: int = 160) -> Wire:
    """Return reads, edits, searches and test runs in rotation, some failing, and a user message every 20 rounds."""
    prompt = "You are a careful software engineer. Use the tools; keep the user informed."
    ask = "Make the invoice service pass its tests without touching the public API."
    messages: Wire = [{"role": "system", "content": prompt}, {"role": "user", "content": ask}]
    for number in range(rounds):
        messages += call(number, *_work(number))
        if number % 20 == 19:
            done = f"Round {number}: module m{number % 7} is done because its tests pass now."
            more = f"Good. Never change the schema; go on with module m{(number + 1) % 7}."
            messages += [{"role": "assistant", "content": done}, {"role": "user", "content": more}]
    return messages


def _work(number: int) -> tuple[str, dict[str, Any], str]:
    path = f"src/invoice/m{number % 7}.py"
    match number % 4:
        case 0:
            return "read_file", {"path": path, "offset": number}, number_lines(f"code {{n}} of {path}", 60)
        case 1:
            found = number_lines(f"{path}:{{n}}: def total_{number}", 25)
            return "search_files", {"pattern": f"total_{number}", "path": "src"}, found
        case 2:
            return "patch", {"path": path, "patch": number_lines("+ line {n}", 20)}, f"patched {path}, 20 lines"
    code = 1 if number % 8 == 7 else 0
    output = number_lines(f"test_{number}_{{n}} PASSED", 70) + ("\nE   AssertionError: total is 3" if code else "")
    return "terminal", {"command": f"pytest tests/m{number % 7}"}, json.dumps({"output": output, "exit_code": code})


def call(number: int, name: str, arguments: dict[str, Any], result: str) -> Wire:
    """Return a tool call and its result in OpenAI's format."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": f"call_{number}", "type": "function", "function": function}]
    return [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": result},
    ]


def number_lines(line: str, count: int) -> str:
    """Return `count` copies of a line with `{n}` replaced by the line number."""
    return "\n".join(line.replace("{n}", str(number)) for number in range(count))


SYSTEM = "You are a careful software engineer. Use the tools; keep the user informed. " + number_lines(
    "House rule {n}: small commits, tests first, no new dependency without asking.", 12
)


def next_turn(raw: bytes) -> tuple[str, tuple[Call, ...]]:
    """Return the model's next text and tool calls, derived from the request bytes."""
    number = sum(map(ord, raw[-400:].decode("latin-1"))) % 7919
    said = raw.count(b'"assistant"')
    last = raw.rfind(b"Go on with module")
    asked = last >= 0 and max(raw.rfind(b'"tool_result"'), raw.rfind(b'"tool"')) < last
    if b"please report" in raw[-600:]:
        return f"Module {number % 40} is done: its {number % 9} tests pass, and nothing else was touched.", ()
    name, arguments = "terminal", {"command": f"pytest tests/m{number % 40} -q"}
    if number % 2:
        name, arguments = "read_file", {"path": f"src/billing/m{number % 40}.py"}
    return "Let me look at it first." if asked else "", ((f"call_{number}_{said}", name, arguments),)


def run_tool(name: str, arguments: Mapping[str, Any], turn: int) -> str:
    """Return a tool's output: about two kilobytes of code or test results."""
    if name == "read_file":
        path = str(arguments.get("path"))
        return number_lines(f"def total_{turn}_{{n}}(invoice):  # {path}:{{n}} of revision {turn}", 28)
    failing = "\nE   AssertionError: total is 3, expected 4" if turn % 5 == 0 else ""
    return number_lines(f"tests/test_{turn}.py::test_{{n}} PASSED", 40) + failing + f"\nexit code {int(bool(failing))}"


def tool_specs(key: str) -> Wire:
    """Return the tool definitions; `key` is the API's name for the schema."""
    return [
        {
            "name": name,
            "description": f"Run {name.replace('_', ' ')}.",
            key: {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]},
        }
        for name, argument in TOOLS
    ]


class SessionClient(Protocol):
    """Client of one API format."""

    def send(self, history: Wire) -> tuple[Wire, list[Call]]: ...

    def results(self, answers: list[tuple[str, str]]) -> Wire: ...


class CodingSession:
    """Coding session of a client that resends its history every turn."""

    def __init__(self, client: SessionClient, turns: int) -> None:
        self.client, self.turns = client, turns
        self.history: Wire = []
        self.done = 0

    def run(self, each: Callable[[int], None] | None = None) -> None:
        """Run all turns; if the client raises, `done` holds the number of finished turns."""
        self.history.append({"role": "user", "content": f"Fix the billing service, module by module. {_go_on(0)}"})
        for turn in range(1, self.turns + 1):
            self._step(turn)
            self.done = turn
            if each is not None:
                each(turn)

    def _step(self, turn: int) -> None:
        said, calls = self.client.send(self.history)
        self.history += said
        if not calls:
            self.history.append({"role": "user", "content": _go_on(turn)})
            return
        end = "\nplease report" if turn % EVERY == 0 else ""
        answers = [(id_, run_tool(name, arguments, turn) + end) for id_, name, arguments in calls]
        self.history += self.client.results(answers)


def _go_on(turn: int) -> str:
    return f"Go on with module {turn % 40}. Keep the public API; ticket BILL-{1000 + turn}."


class RequestRefused(Exception):
    """Error response of the provider, with the provider's message."""


class DemoClient:
    """Client of Anthropic's API over one standard library connection.

    With `marks` it sets cache markers as real clients do: at the end of the system prompt and of the last two user
    messages.
    """

    def __init__(self, url: str, model: str, *, max_tokens: int = 1_024, marks: bool = False) -> None:
        place = urlsplit(url)
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
        self._fixed = {
            "model": model,
            "max_tokens": max_tokens,
            "system": [_mark({"type": "text", "text": SYSTEM})] if marks else SYSTEM,
            "tools": tool_specs("input_schema"),
        }
        self._marks = marks

    def send(self, history: Wire) -> tuple[Wire, list[Call]]:
        headers = {"content-type": "application/json", "x-api-key": "demo", "anthropic-version": "2023-06-01"}
        sent = _mark_history(history) if self._marks else history
        body = json.dumps({**self._fixed, "messages": sent}).encode()
        self._connection.request("POST", "/v1/messages", body, headers)
        answer = self._connection.getresponse()
        value = json.loads(answer.read())
        if answer.status != 200:
            raise RequestRefused(value["error"]["message"])
        calls = [(block["id"], block["name"], block["input"]) for block in value["content"] if "input" in block]
        return [{"role": "assistant", "content": value["content"]}], calls

    def results(self, answers: list[tuple[str, str]]) -> Wire:
        blocks = [{"type": "tool_result", "tool_use_id": id_, "content": text} for id_, text in answers]
        return [{"role": "user", "content": blocks}]

    def close(self) -> None:
        self._connection.close()


def _mark(block: dict[str, Any]) -> dict[str, Any]:
    return {**block, "cache_control": {"type": "ephemeral"}}


def _mark_history(history: Wire) -> Wire:
    """Return the messages with a cache marker at the end of the last two user messages."""
    places = [place for place, message in enumerate(history) if message["role"] == "user"][-2:]
    marked = list(history)
    for place in places:
        content = marked[place]["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        marked[place] = {**marked[place], "content": [*blocks[:-1], _mark(blocks[-1])]}
    return marked


class DemoBill(NamedTuple):
    """Prompt tokens of one request by price class."""

    uncached: int
    read: int
    written: int

    @property
    def prompt(self) -> int:
        return sum(self)

    @property
    def cost(self) -> float:
        """Return the cost in tokens at the base price."""
        return self.uncached + 0.1 * self.read + 1.25 * self.written


class DemoProvider:
    """Simulated provider; `answer` returns the status and body of the response to a request."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.bills: list[DemoBill] = []
        self.refused: list[str] = []
        self._entries: dict[str, float] = {}

    def answer(self, raw: bytes, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        problem = next(self._problems(body), None)
        if problem is not None:
            self.refused.append(problem)
            return 400, {"type": "error", "error": {"type": "invalid_request_error", "message": problem}}
        bill = self._bill(body, time.monotonic())
        self.bills.append(bill)
        text, calls = next_turn(raw)
        content: Wire = [{"type": "text", "text": text}] if text else []
        content += [{"type": "tool_use", "id": id_, "name": name, "input": dict(given)} for id_, name, given in calls]
        usage = {
            "input_tokens": bill.uncached,
            "cache_read_input_tokens": bill.read,
            "cache_creation_input_tokens": bill.written,
            "output_tokens": tokens(content),
        }
        head = {"id": f"msg_{len(self.bills)}", "type": "message", "role": "assistant", "model": body["model"]}
        end = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
        return 200, {**head, **end, "content": content, "usage": usage}

    def _problems(self, body: dict[str, Any]) -> Iterator[str]:
        calls: list[str] = []
        role = "assistant"
        for index, message in enumerate(body["messages"]):
            if message["role"] == role or message["role"] not in ("user", "assistant"):
                yield f"messages.{index}: roles must alternate between user and assistant, the user first"
            role = message["role"]
            blocks = _as_blocks(message["content"])
            if not blocks or any(block["type"] == "text" and not block["text"].strip() for block in blocks):
                yield f"messages.{index}: content must not be empty"
            if calls != [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]:
                yield f"messages.{index}: tool_use and tool_result blocks do not belong together"
            calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if calls:
            yield "tool_use ids were found without tool_result blocks immediately after"
        marked = sum(block != _bare(block) for block in _blocks(body))
        if marked > CACHE_MARKERS:
            yield f"a maximum of 4 blocks with cache_control may be provided, found {marked}"
        prompt, output = prompt_tokens(body), body["max_tokens"]
        if prompt + output > self.window:
            yield f"input length and `max_tokens` exceed context limit: {prompt} + {output} > {self.window}"

    def _bill(self, body: dict[str, Any], now: float) -> DemoBill:
        """Bill a request: a marker hits a prefix up to 20 blocks back; the rest up to the last marker is written."""
        blocks = list(_blocks(body))
        sizes = list(accumulate(map(tokens, blocks)))
        chain: list[str] = []
        for block in blocks:
            said = (chain[-1] if chain else body["model"]) + json.dumps(_bare(block), sort_keys=True)
            chain.append(sha256(said.encode("utf-8", "surrogatepass")).hexdigest())
        cached = [place for place, size in enumerate(sizes) if size >= CACHE_MINIMUM]
        marked = [place for place in cached if blocks[place] != _bare(blocks[place])]
        live = [place for place in cached if self._entries.get(chain[place], -1.0) >= now]
        hit = max((at for at in live if any(0 <= place - at < CACHE_POSITIONS for place in marked)), default=None)
        for place in (*marked, *([hit] if hit is not None else [])):
            self._entries[chain[place]] = now + CACHE_SECONDS
        read = sizes[hit] if hit is not None else 0
        written = max((sizes[place] - read for place in marked), default=0)
        return DemoBill(prompt_tokens(body) - read - max(written, 0), read, max(written, 0))


def _as_blocks(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _blocks(body: dict[str, Any]) -> Iterator[Any]:
    yield from body["tools"]
    for content in (body["system"], *(message["content"] for message in body["messages"])):
        yield from _as_blocks(content)


def _bare(value: Any) -> Any:
    """Return a block without cache markers."""
    if isinstance(value, dict):
        return {key: _bare(item) for key, item in value.items() if key != "cache_control"}
    return [_bare(item) for item in value] if isinstance(value, list) else value


@lru_cache(maxsize=20_000)
def text_tokens(text: str) -> int:
    """Count tokens with the simulated tokenizer: word pieces, up to three digits, single punctuation marks."""
    return len(_PIECES.findall(text))


def tokens(value: Any) -> int:
    """Count the tokens of any part of a request; an image has a flat price."""
    if isinstance(value, str):
        return text_tokens(value)
    if isinstance(value, Mapping):
        if value.get("type") in ("image", "image_url", "input_image"):
            return PER_IMAGE
        return sum(tokens(item) for key, item in value.items() if key not in ("cache_control", "signature", "type"))
    if isinstance(value, list | tuple):
        return sum(map(tokens, value))
    return 1 if value is not None else 0


def prompt_tokens(body: Mapping[str, Any]) -> int:
    """Count the tokens of messages, system prompt and tools."""
    messages = sum(PER_MESSAGE + tokens(message) for message in body["messages"])
    return messages + tokens(body["system"]) + text_tokens(json.dumps(body["tools"]))
