"""Gateway with several owners, identified by gateway keys or by their provider credentials."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import midfold
from midfold.gateway import create_app
from midfold.gateway.admission import Admission, GatewayKeys, hash_key, new_key
from midfold.session.sessions import Sessions
from midfold.testing.doubles import Request, served
from support.gateways import Running, call, settings
from support.provider_replies import Turn
from support.rules_provider import RulesProvider

PATHS = {
    "responses/compact": "/v1/responses/compact",
    "chat": "/v1/chat/completions",
    "anthropic": "/v1/messages",
    "responses": "/v1/responses",
}
DOORS = ("keys", "credentials")


class Model:
    """Model with scripted turns; without any it answers that all is fine."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.asked: list[Request] = []
        self.before: Callable[[Request], None] = lambda request: None

    def __call__(self, request: Request) -> Turn:
        self.before(request)
        self.asked.append(request)
        return self.turns.pop(0) if self.turns else Turn("Fine.")

    @property
    def last(self) -> bytes:
        return self.asked[-1].raw

    def looks_for(self, text: str, words: str) -> None:
        """Script the next turn: a call of a midfold tool with this text next to it."""
        self.turns = [Turn(words, (("h1", "context_search", {"query": text}),)), Turn("Done.")]


class Owners(NamedTuple):
    """Clients of several owners, each with its own headers."""

    model: Model
    gateway: Running
    headers: dict[str, dict[str, str]]

    def send(self, owner: str, wire: str, body: dict[str, Any], **more: str) -> tuple[dict[str, str], Any]:
        """Send a request and return the response's headers and content."""
        whole = {"model": "gpt-4o", **({"max_tokens": 500} if wire == "anthropic" else {}), **body}
        status, head, data = call(self.gateway.url, "POST", PATHS[wire], whole, **self.headers[owner], **more)
        assert status == 200, data
        return head, data if whole.get("stream") else json.loads(data)


@contextmanager
def owners(door: str, *, sessions: Sessions | None = None, window: int = 16_000, **options: Any) -> Iterator[Owners]:
    """Run a gateway with recall and two owners, Alice and Bob."""
    keys = {name: new_key() for name in ("alice", "bob")}
    model = Model()
    own = sessions or midfold.open("memory:")
    with RulesProvider(model, window=window) as provider:
        options.setdefault("recall", "on")
        app = create_app(settings(provider.url, window=window, **options), sessions=own, environment={})
        hashes = {name: hash_key(key) for name, key in keys.items()}
        door_of = Admission(app, GatewayKeys(hashes if door == "keys" else {}))
        name = "x_midfold_key" if door == "keys" else "authorization"
        with served(door_of) as url:
            shown = {owner: {name: key if door == "keys" else f"Bearer {key}"} for owner, key in keys.items()}
            yield Owners(model, Running(url, app, own), shown)
    if sessions is None:
        own.close()
