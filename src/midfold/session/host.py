"""`EngineHost`: the stateful interface of the specification, on plain messages, over any conversation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from midfold.cache.health import Health
from midfold.compaction.boundary import Protection
from midfold.compaction.budget import Budget, Pressure
from midfold.compaction.media import MediaReducer
from midfold.compaction.receipt import Receipt
from midfold.compaction.request import CompactionState, Redactor
from midfold.decide import Decision
from midfold.engines import ContextEngine
from midfold.model import Summarizer
from midfold.models import learn_limit
from midfold.session.conversation import (
    CompactArguments,
    Compacted,
    Conversation,
    MemoryConversation,
    PreparedFold,
)
from midfold.session.setup import Setup
from midfold.transcript.document import Document, read, write
from midfold.transcript.message import Message
from midfold.transcript.tokens import Count

if TYPE_CHECKING:
    from midfold.config import Config

T = TypeVar("T")


class _FoldThread(threading.Thread):
    """Daemon thread that makes one fold; an unfinished fold is dropped when the program ends."""

    def __init__(self, make: Callable[[], PreparedFold]) -> None:
        super().__init__(name="midfold-ahead", daemon=True)
        self._make = make
        self.ready: PreparedFold | None = None

    def run(self) -> None:
        try:
            self.ready = self._make()
        except Exception:  # noqa: BLE001 - a later compaction may still succeed
            self.ready = None


class BackgroundFold:
    """Fold made in a thread while the agent continues, at most one at a time."""

    def __init__(self) -> None:
        self._work: _FoldThread | None = None

    @property
    def has_begun(self) -> bool:
        return self._work is not None

    @property
    def in_flight(self) -> bool:
        return self._work is not None and self._work.is_alive()

    def start(self, conversation: Conversation[Any], prompt_tokens: int | None = None) -> bool:
        """Start a fold of the current view; return whether one was started."""
        make = None if self.has_begun else conversation.prepare(prompt_tokens)
        if make is None:
            return False
        self._work = _FoldThread(make)
        self._work.start()
        return True

    def take(self) -> PreparedFold | None:
        """Wait for the fold and return it; None if there is none or it failed."""
        work, self._work = self._work, None
        if work is None:
            return None
        work.join()
        return work.ready

    def take_failed(self) -> PreparedFold | None:
        """Return the fold if it is finished and its summary failed, else None."""
        ready = None if self._work is None or self._work.is_alive() else self._work.ready
        return self.take() if ready is not None and ready.has_failed else None

    def drop(self) -> None:
        """Drop the fold because its messages are gone."""
        self._work = None


class _ConversationAttribute(Generic[T]):
    """Descriptor for an attribute of the host's conversation."""

    def __init__(self, path: str) -> None:
        self._get, (self._inner, _, self._name) = attrgetter(path), path.rpartition(".")

    def __get__(self, host: EngineHost | None, owner: type[EngineHost]) -> T:
        return self if host is None else self._get(host.conversation)  # type: ignore[return-value]

    def __set__(self, host: EngineHost, value: T) -> None:
        setattr(attrgetter(self._inner)(host.conversation) if self._inner else host.conversation, self._name, value)


class EngineHost:
    """Engine with the stateful methods of the specification, on plain messages.

    host = EngineHost(model="claude-opus-4-6")               # in memory
    host = EngineHost(conversation=sessions.session("alice"))  # on a store, which keeps its state
    host.append(messages)
    host.update_from_response(usage)
    if host.should_compress():
        messages = host.compress(messages)
    """

    state: _ConversationAttribute[CompactionState] = _ConversationAttribute("state")
    last: _ConversationAttribute[Receipt | None] = _ConversationAttribute("last")
    size: _ConversationAttribute[Count] = _ConversationAttribute("size")
    health: _ConversationAttribute[Health] = _ConversationAttribute("health")
    archive: _ConversationAttribute[dict[str, tuple[Message, ...]]] = _ConversationAttribute("archive")
    """Originals by handle, of an in-memory conversation."""
    engine: _ConversationAttribute[ContextEngine] = _ConversationAttribute("setup.engine")
    config: _ConversationAttribute[Config] = _ConversationAttribute("setup.config")
    summarizer: _ConversationAttribute[Summarizer | None] = _ConversationAttribute("setup.summarizer")
    model: _ConversationAttribute[str | None] = _ConversationAttribute("setup.model")
    window: _ConversationAttribute[int] = _ConversationAttribute("setup.window")
    budget: _ConversationAttribute[Budget] = _ConversationAttribute("setup.budget")

    def __init__(
        self,
        engine: ContextEngine | None = None,
        *,
        conversation: Conversation[Any] | None = None,
        model: str | None = None,
        context_length: int | None = None,
        output_reservation: int | None = None,
        config: Config | None = None,
        summarizer: Summarizer | None = None,
        redactor: Redactor | None = None,
        media_reducer: MediaReducer | None = None,
        protection: Protection | None = None,
        system: Any = None,
        tools: Sequence[Any] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.conversation: Conversation[Any] = conversation or MemoryConversation(
            Setup(
                engine,
                model=model,
                context_length=context_length,
                output_reservation=output_reservation,
                config=config,
                summarizer=summarizer,
                redactor=redactor,
                media_reducer=media_reducer,
                protection=protection,
                system=system,
                tools=tools,
                clock=clock,
            )
        )
        self._ahead = BackgroundFold()

    def append(self, messages: Any) -> None:
        """Append messages."""
        self.conversation.append(messages)

    def update_from_response(self, usage: Any) -> None:
        """Record the usage the provider reported for the current prompt; do nothing if the response has none."""
        self.conversation.observe(usage)

    def update_from_error(self, message: str) -> bool:
        """Correct the context window from an overflow error that names its limit; return whether it changed."""
        return self.conversation.setup.correct_window(learn_limit(message))

    def update_model(self, model: str | None, context_length: int | None = None) -> None:
        """Switch to another model: recompute all limits, and reset strikes and failures."""
        self.conversation.update_model(model, context_length)

    def decide(self, prompt_tokens: int | None = None, *, upcoming_idle: float | None = None) -> Decision:
        """Decide whether to compact before the next request, with the pressure and the reason."""
        return self.conversation.decide(prompt_tokens, upcoming_idle=upcoming_idle)

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        """Return whether to compact before the next request."""
        return self.decide(prompt_tokens).fold

    def pressure(self, prompt_tokens: int | None = None) -> Pressure:
        """Return the pressure; NONE also if strikes, a cooldown or the settings prevent a compaction."""
        return self.decide(prompt_tokens).pressure

    def has_content_to_compress(self, messages: Any) -> bool:
        """Return whether a forced compaction would fold anything."""
        return self.conversation.has_content(messages)

    def compress(
        self,
        messages: Any,
        current_tokens: int | None = None,
        focus_topic: str | None = None,
        force: bool = False,
        keep_last_exchanges: int | None = None,
        lineage: str = "",
    ) -> Any:
        """Return the compacted conversation in the caller's format, or the same object if there was nothing to do.

        `lineage` names the conversation: a `state` of that lineage is used even if the messages contain no summary.
        """
        document = self._sync(messages)
        done = self.conversation.compact(
            prompt_tokens=current_tokens,
            focus=focus_topic,
            force=force,
            keep_last_exchanges=keep_last_exchanges,
            lineage=lineage,
        )
        return self._write(document, messages, done)

    async def compress_async(
        self, messages: Any, current_tokens: int | None = None, **arguments: Unpack[CompactArguments]
    ) -> Any:
        """Compact on an event loop: await a summarizer that has a `later`, and run any other in a thread."""
        document = self._sync(messages)
        arguments["prompt_tokens"] = current_tokens
        return self._write(document, messages, await self.conversation.compact_async(**arguments))

    def prepare(self, messages: Any, current_tokens: int | None = None) -> PreparedFold | None:
        """Return a compaction prepared in advance for `swap`; the conversation is unchanged."""
        self._sync(messages)
        make = self.conversation.prepare(current_tokens)
        return None if make is None else make()

    def swap(self, messages: Any, ready: PreparedFold) -> Any:
        """Return the conversation with a prepared fold, or the same object if it no longer fits."""
        document = self._sync(messages)
        done = self.conversation.swap(ready)
        return messages if done is None else self._write(document, messages, done)

    def step(self, messages: Any, current_tokens: int | None = None) -> Any:
        """Return the messages to send next.

        Under soft pressure a fold is prepared in a thread; when a compaction is due, it is swapped in. Without one that
        fits, the conversation is compacted immediately.
        """
        if current_tokens is None:
            self._sync(messages)
        decision = self.decide(current_tokens)
        if not decision.fold:
            if decision.pressure is Pressure.SOFT and not self._ahead.has_begun:
                self._sync(messages)
                self._ahead.start(self.conversation, current_tokens)
            return messages
        ready = self._ahead.take() if decision.pressure is Pressure.HARD else None
        self._ahead.drop()
        swapped = messages if ready is None else self.swap(messages, ready)
        return swapped if swapped is not messages else self.compress(messages, current_tokens)

    @property
    def in_flight(self) -> bool:
        """Return whether `step` is preparing a fold."""
        return self._ahead.in_flight

    def unfold(self, handle: str) -> list[Any]:
        """Return the originals of a handle of this conversation."""
        return self.conversation.unfold(handle)

    def reset(self) -> None:
        """Start a new conversation and drop the old one."""
        self._ahead.drop()
        self.conversation.reset()

    def export(self) -> dict[str, Any]:
        """Return the state to persist across restarts, as plain JSON."""
        return self.conversation.save()

    def restore(self, exported: Mapping[str, Any]) -> None:
        """Restore the state exported by an earlier host of the same conversation."""
        self.conversation.restore(exported)

    def _sync(self, messages: Any) -> Document:
        document = read(messages)
        self.conversation = self.conversation.sync(document).session
        return document

    def _write(self, document: Document, messages: Any, done: Compacted[Any]) -> Any:
        if not done.changed:
            return messages
        view = self.conversation.view()
        return write(document, messages=view.transcript, system=view.prompt if document.system is not None else None)
