"""`EngineHost` on a store: the verbs of the specification, with a session behind them instead of this process's memory.

    host = StoredHost(sessions.session("alice", model="claude-opus-4-6"))
    messages = host.compress(messages)      # synced, folded under a lease, committed

A host that is restarted, or runs on another machine, goes on where the last one was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from midfold.errors import StoreError
from midfold.fold.budget import Pressure
from midfold.host import EngineHost
from midfold.session import Session
from midfold.transcript.tokens import Count


class StoredHost(EngineHost):
    """One conversation in a store, and the engine that keeps it in its window."""

    def __init__(self, session: Session) -> None:
        super().__init__(
            session.host.engine,
            model=session.host.model,
            context_length=session.host.context_length,
            config=session.host.config,
            summarizer=session.host.summarizer,
        )
        self.session = session

    def append(self, messages: Sequence[Mapping[str, Any]]) -> None:
        self.session.append(list(messages))

    def update_from_response(self, usage: Any) -> None:
        self.session.observe(usage)

    @property
    def size(self) -> Count:
        return self.session.size

    def pressure(self, prompt_tokens: int | None = None) -> Pressure:
        known = self.session.pressure()
        return known if prompt_tokens is None else self.session.host.pressure(prompt_tokens)

    def compress(
        self,
        messages: Any,
        current_tokens: int | None = None,
        focus_topic: str | None = None,
        force: bool = False,
        keep_last_exchanges: int | None = None,
    ) -> Any:
        """The view after a compaction, in the shape of `messages`; the very same object if there was nothing to do."""
        self.session = self.session.sync(messages).session
        if current_tokens is not None:
            self.session.observe({"prompt_tokens": current_tokens})
        done = self.session.compact(focus=focus_topic, force=force, keep_last_exchanges=keep_last_exchanges)
        self.last = done.receipt
        return self.session.view().messages if done.changed else messages

    def unfold(self, handle: str) -> list[Any]:
        return self.session.unfold(handle)

    def export(self) -> dict[str, Any]:
        """Where the memory is; it needs no carrying."""
        return {"session": self.session.name}

    def restore(self, exported: Mapping[str, Any]) -> None:
        if exported.get("session") != self.session.name:
            raise StoreError("this host's memory is in the store, under the name of its session")

    def reset(self) -> None:
        """A stored conversation is ended by deleting its session, never as a side effect."""
        raise StoreError(f"session {self.session.name} is stored: open another session for another conversation")
