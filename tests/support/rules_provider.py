"""Provider that enforces provider rules and bills by a prefix cache: a real HTTP server on loopback.

    with RulesProvider(model, window=32_768) as provider:
        client = OpenAI(base_url=f"{provider.url}/v1")
    provider.rejected, provider.bills

`model` is a function from a request to a turn. Serves both of OpenAI's wire formats and Anthropic's, whole and
streaming, with `GET /v1/models` and `count_tokens`. With `in_stream`, an overflow of a streaming request is
reported
inside a stream that began with 200; without `names_limit`, errors omit the window's size. Responses and
conversations
are stored, and a request that continues one is checked and billed with all its items.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from types import TracebackType
from typing import Any, NamedTuple

from midfold.cli.demo_session import text_tokens, tokens
from midfold.testing.answers import Answer, value
from midfold.testing.doubles import Request, ScriptedProvider
from support.prefix_cache import Bill, PrefixCache, Refused
from support.provider_replies import Turn, anthropic, chat, output_items, refused_stream, responses
from support.provider_rules import Problem, check, prompt_tokens

Model = Callable[[Request], Turn]
WIRES = {"/chat/completions": "chat", "/responses": "responses", "/messages": "anthropic"}
AUTOMATIC_MINIMUM, AUTOMATIC_STEP = 1_024, 128
LARGEST_BODY = 32_000_000
_TOO_LONG = "Your input exceeds the context window of this model. Please adjust your input and try again."
UNNAMED = {"chat": _TOO_LONG, "responses": _TOO_LONG, "anthropic": "prompt is too long"}
"""Overflow error that does not name the limit."""


class Served(NamedTuple):
    """Answered request."""

    wire: str
    prompt: int
    bill: Bill
    body: Mapping[str, Any]
    """Whole request, including the items it continues from."""


class KeptItems:
    """Stored items of responses and conversations, by id."""

    def __init__(self) -> None:
        self._items: dict[str, list[Any]] = {}

    def add(self, given: str, items: list[Any]) -> None:
        self._items[given] = [*self._items.get(given, ()), *items]

    def whole(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the request with the items it continues from; raise LookupError for an unknown id."""
        asked = body.get("previous_response_id") or _id_of(body.get("conversation"))
        if not asked:
            return body
        if asked not in self._items:
            raise LookupError(asked)
        return {**body, "input": [*self._items[asked], *_listed(body.get("input"))]}

    def keep(self, body: Mapping[str, Any], given: str, output: list[Any]) -> None:
        """Store the items of an answered request; `body` is the whole request."""
        if body.get("store") is False:
            return
        self._items[given] = [*_listed(body.get("input")), *output]
        if conversation := _id_of(body.get("conversation")):
            self._items[conversation] = self._items[given]


def _id_of(value: Any) -> str | None:
    return value.get("id") if isinstance(value, Mapping) else value


def _listed(items: Any) -> list[Any]:
    return [{"role": "user", "content": items}] if isinstance(items, str) else list(items or ())


class SentPrefixes:
    """OpenAI's cache: any prefix sent before, from 1,024 tokens on, in steps of 128, without markers."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def bill(self, wire: str, body: Mapping[str, Any]) -> Bill:
        items = body.get("input" if wire == "responses" else "messages") or []
        blocks = [body.get("tools"), body.get("instructions"), *([items] if isinstance(items, str) else items)]
        key, total, cached = str(body.get("model")), 0, 0
        alive = True
        for block in blocks:
            key = sha256((key + json.dumps(block, sort_keys=True)).encode("utf-8", "surrogatepass")).hexdigest()
            total += tokens(block) if block is not None else 0
            alive = alive and key in self._seen
            cached = total if alive else cached
            self._seen.add(key)
        prompt = prompt_tokens(wire, body)
        cached = min(cached, prompt) // AUTOMATIC_STEP * AUTOMATIC_STEP
        read = cached if cached >= AUTOMATIC_MINIMUM else 0
        return Bill(prompt - read, read, 0, 0)


class RulesProvider:
    """Provider server; a context manager."""

    def __init__(
        self,
        model: Model,
        *,
        window: int,
        minimum: int = 1_024,
        models: tuple[str, ...] = (),
        in_stream: bool = False,
        names_limit: bool = True,
    ) -> None:
        self.model, self.window = model, window
        self.in_stream, self.names_limit = in_stream, names_limit
        self.models = models
        self.rejected: list[Problem] = []
        self.served: list[Served] = []
        self._marked = PrefixCache(minimum=minimum, count=tokens)
        self._automatic = SentPrefixes()
        self._kept = KeptItems()
        self._lock = threading.Lock()
        self._server = ScriptedProvider(then=self._answer)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def requests(self) -> list[Request]:
        return self._server.requests

    @property
    def bills(self) -> list[Bill]:
        return [served.bill for served in self.served]

    def __enter__(self) -> RulesProvider:
        self._server.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.__exit__(kind, problem, trace)

    def _answer(self, request: Request) -> Answer:
        path = request.path.partition("?")[0].removeprefix("/v1")
        if request.method == "POST" and path.startswith("/conversations"):
            return self._conversation(path, (request.body or {}).get("items") or [])
        if request.method == "GET" and path == "/models":
            return value({"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]})
        counting = path == "/messages/count_tokens"
        wire = "anthropic" if counting else WIRES.get(path)
        if wire is None or request.method != "POST":
            return self._refuse("chat", Problem(404, f"unknown path {request.path}"))
        if len(request.raw) > LARGEST_BODY:
            return self._refuse(wire, Problem(413, "Request exceeds the maximum allowed number of bytes."))
        body = request.body
        if counting:
            given = {"max_tokens": 1, **body} if isinstance(body, Mapping) else body
            problem = check(wire, given, 1 << 60)
            if problem is None:
                return value({"input_tokens": prompt_tokens(wire, body)})
            return self._refuse(wire, problem)
        try:
            body = self._kept.whole(body) if wire == "responses" and isinstance(body, Mapping) else body
        except LookupError as missing:
            return self._refuse(wire, Problem(400, f"Previous response with id {missing} not found."))
        problem = check(wire, body, self.window)
        if problem is None:
            return self._reply(wire, request, body)
        if problem.is_overflow and not self.names_limit:
            problem = problem._replace(message=UNNAMED[wire])
        if problem.is_overflow and self.in_stream and body.get("stream") is True:
            self.rejected.append(problem)
            return refused_stream(wire, body["model"], problem.message)
        return self._refuse(wire, problem)

    def _conversation(self, path: str, items: list[Any]) -> Answer:
        """Create a conversation, or append items to one."""
        given = path.split("/")[2] if path.endswith("/items") else f"conv_{len(self.requests)}"
        self._kept.add(given, items)
        if path.endswith("/items"):
            return value({"object": "list", "data": items, "has_more": False})
        return value({"id": given, "object": "conversation", "created_at": 1_700_000_000, "metadata": {}})

    def _reply(self, wire: str, request: Request, body: Mapping[str, Any]) -> Answer:
        with self._lock:
            number = len(self.served)
            try:
                bill = self._bill(wire, body)
            except Refused as refused:
                return self._refuse(wire, Problem(400, str(refused)))
            self.served.append(Served(wire, prompt_tokens(wire, body), bill, body))
        turn = self.model(request)
        written = text_tokens(turn.text + turn.thinking) + sum(tokens([name, given]) for _, name, given in turn.calls)
        make = {"chat": chat, "responses": responses, "anthropic": anthropic}[wire]
        if wire == "responses":
            self._kept.keep(body, f"resp_{number}", output_items(turn, number))
        return make(turn, number, body["model"], _usage(wire, bill, written), body.get("stream") is True)

    def _bill(self, wire: str, body: Mapping[str, Any]) -> Bill:
        if wire != "anthropic":
            return self._automatic.bill(wire, body)
        bill = self._marked.bill(body, at=time.monotonic())
        rest = prompt_tokens(wire, body) - bill.prompt
        return bill._replace(uncached=max(bill.uncached + rest, 1))

    def _refuse(self, wire: str, problem: Problem) -> Answer:
        with self._lock:
            self.rejected.append(problem)
        kind = "invalid_request_error" if problem.status < 404 else "not_found_error"
        inner = {"type": kind, "message": problem.message}
        if wire == "anthropic":
            return value({"type": "error", "error": inner, "request_id": "req_1"}, problem.status)
        return value({"error": {**inner, "param": None, "code": problem.code}}, problem.status)


def _usage(wire: str, bill: Bill, written: int) -> dict[str, Any]:
    if wire == "anthropic":
        return bill.usage(written)
    prompt = bill.prompt
    if wire == "chat":
        details = {"cached_tokens": bill.read}
        total = prompt + written
        return {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": total,
            "prompt_tokens_details": details,
        }
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": bill.read},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + written,
    }
