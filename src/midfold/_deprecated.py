"""Public names of 0.1 that go with the next version: each still works, over `EngineHost`."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any

from midfold.host import EngineHost
from midfold.session import Session

REPLACEMENTS = {
    "BackgroundCompaction": "call EngineHost.step(messages) before each request",
    "StoredHost": "use EngineHost(conversation=session)",
}


class StoredHost(EngineHost):
    """`EngineHost(conversation=session)`."""

    def __init__(self, session: Session) -> None:
        super().__init__(conversation=session)

    @property
    def session(self) -> Session:
        assert isinstance(self.conversation, Session)
        return self.conversation


class BackgroundCompaction:
    """`EngineHost.step`, which makes the fold in a thread of its own: no executor is needed."""

    def __init__(self, host: EngineHost, executor: Executor | None = None) -> None:
        self.host = host

    @property
    def in_flight(self) -> bool:
        return self.host.in_flight

    def step(self, messages: Any, current_tokens: int | None = None) -> Any:
        return self.host.step(messages, current_tokens)

    def close(self) -> None:
        """There is nothing to close any more."""

    def __enter__(self) -> BackgroundCompaction:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
