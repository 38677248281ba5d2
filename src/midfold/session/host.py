"""`EngineHost`: the verbs of the specification documents, on plain messages, over a conversation of either kind."""

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
    """Ends with the program: a fold that nobody waits for is no loss."""

    def __init__(self, make: Callable[[], PreparedFold]) -> None:
        super().__init__(name="midfold-ahead", daemon=True)
        self._make = make
        self.ready: PreparedFold | None = None

    def run(self) -> None:
        try:
            self.ready = self._make()
        except Exception:  # noqa: BLE001 - whatever went wrong ahead of time, the compaction now may still succeed
            self.ready = None


class BackgroundFold:
    """A fold made in a thread while the agent goes on: at most one at a time."""

    def __init__(self) -> None:
        self._work: _FoldThread | None = None

    @property
    def has_begun(self) -> bool:
        return self._work is not None

    @property
    def in_flight(self) -> bool:
        return self._work is not None and self._work.is_alive()

    def start(self, conversation: Conversation[Any], prompt_tokens: int | None = None) -> bool:
        """Begins a fold of the view as it is now; says whether it did."""
        make = None if self.has_begun else conversation.prepare(prompt_tokens)
        if make is None:
            return False
        self._work = _FoldThread(make)
        self._work.start()
        return True

    def take(self) -> PreparedFold | None:
        """The fold, waited for; None if there is none, or if making it came to nothing."""
        work, self._work = self._work, None
        if work is None:
            return None
        work.join()
        return work.ready

    def take_failed(self) -> PreparedFold | None:
        """A fold that is made already, and whose summary failed."""
        ready = None if self._work is None or self._work.is_alive() else self._work.ready
        return self.take() if ready is not None and ready.has_failed else None

    def drop(self) -> None:
        """Forgets the fold: what it was made from is gone."""
        self._work = None


class _Of(Generic[T]):
    """An attribute of a host that is its conversation's."""

    def __init__(self, path: str) -> None:
        self._get, (self._inner, _, self._name) = attrgetter(path), path.rpartition(".")

    def __get__(self, host: EngineHost | None, owner: type[EngineHost]) -> T:
        return self if host is None else self._get(host.conversation)  # type: ignore[return-value]

    def __set__(self, host: EngineHost, value: T) -> None:
        setattr(attrgetter(self._inner)(host.conversation) if self._inner else host.conversation, self._name, value)


class EngineHost:
    """An engine with the stateful verbs of the specification, on plain messages.

    host = EngineHost(model="claude-opus-4-6")               # in memory
    host = EngineHost(conversation=sessions.session("alice"))  # on a store, where nothing needs carrying
    host.append(messages)
    host.update_from_response(usage)
    if host.should_compress():
        messages = host.compress(messages)
    """

    state: _Of[CompactionState] = _Of("state")
    last: _Of[Receipt | None] = _Of("last")
    size: _Of[Count] = _Of("size")
    health: _Of[Health] = _Of("health")
    archive: _Of[dict[str, tuple[Message, ...]]] = _Of("archive")
    """Originals by handle, of a conversation in memory."""
    engine: _Of[ContextEngine] = _Of("setup.engine")
    config: _Of[Config] = _Of("setup.config")
    summarizer: _Of[Summarizer | None] = _Of("setup.summarizer")
    model: _Of[str | None] = _Of("setup.model")
    window: _Of[int] = _Of("setup.window")
    budget: _Of[Budget] = _Of("setup.budget")

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
        """What was added to the conversation."""
        self.conversation.append(messages)

    def update_from_response(self, usage: Any) -> None:
        """What the provider reported for the prompt so far; an answer without usage changes nothing."""
        self.conversation.observe(usage)

    def update_from_error(self, message: str) -> bool:
        """An overflow error that names its limit corrects the window; says whether it did."""
        return self.conversation.setup.correct_window(learn_limit(message))

    def update_model(self, model: str | None, context_length: int | None = None) -> None:
        """Another model: every number is derived anew, and earlier strikes and failures are forgotten."""
        self.conversation.update_model(model, context_length)

    def decide(self, prompt_tokens: int | None = None, *, upcoming_idle: float | None = None) -> Decision:
        """Whether to fold before the next request, how urgent it is, and why or why not."""
        return self.conversation.decide(prompt_tokens, upcoming_idle=upcoming_idle)

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        """Whether to fold before the next request."""
        return self.decide(prompt_tokens).fold

    def pressure(self, prompt_tokens: int | None = None) -> Pressure:
        """How urgent it is; NONE also where strikes, a pause or the settings let nothing be folded."""
        return self.decide(prompt_tokens).pressure

    def has_content_to_compress(self, messages: Any) -> bool:
        """Whether a forced compaction would fold anything."""
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
        """The conversation folded, in the caller's shape; the very same object if there was nothing to do.

        `lineage` names the conversation: a `state` of that lineage is used although no summary is in the messages.
        """
        document = self._take(messages)
        done = self.conversation.compact(
            prompt_tokens=current_tokens,
            focus=focus_topic,
            force=force,
            keep_last_exchanges=keep_last_exchanges,
            lineage=lineage,
        )
        return self._give(document, messages, done)

    async def compress_async(
        self, messages: Any, current_tokens: int | None = None, **asked: Unpack[CompactArguments]
    ) -> Any:
        """The same, for an event loop: a summarizer with a `later` is awaited, any other runs in a thread."""
        document = self._take(messages)
        asked["prompt_tokens"] = current_tokens
        return self._give(document, messages, await self.conversation.compact_async(**asked))

    def prepare(self, messages: Any, current_tokens: int | None = None) -> PreparedFold | None:
        """A compaction ahead of time, for `swap`; nothing is changed by it."""
        self._take(messages)
        make = self.conversation.prepare(current_tokens)
        return None if make is None else make()

    def swap(self, messages: Any, ready: PreparedFold) -> Any:
        """The conversation with a prepared fold in it; the very same object if it no longer fits."""
        document = self._take(messages)
        done = self.conversation.swap(ready)
        return messages if done is None else self._give(document, messages, done)

    def step(self, messages: Any, current_tokens: int | None = None) -> Any:
        """The messages to send next. A fold is made in a thread while there is still room, and swapped in when it is
        time; without one that fits, the conversation is folded there and then."""
        if current_tokens is None:
            self._take(messages)
        decision = self.decide(current_tokens)
        if not decision.fold:
            if decision.pressure is Pressure.SOFT and not self._ahead.has_begun:
                self._take(messages)
                self._ahead.start(self.conversation, current_tokens)
            return messages
        ready = self._ahead.take() if decision.pressure is Pressure.HARD else None
        self._ahead.drop()
        swapped = messages if ready is None else self.swap(messages, ready)
        return swapped if swapped is not messages else self.compress(messages, current_tokens)

    @property
    def in_flight(self) -> bool:
        """Whether `step` has a fold in the making."""
        return self._ahead.in_flight

    def unfold(self, handle: str) -> list[Any]:
        """The originals behind a handle of this conversation."""
        return self.conversation.unfold(handle)

    def reset(self) -> None:
        """A new conversation: nothing of the old one is kept."""
        self._ahead.drop()
        self.conversation.reset()

    def export(self) -> dict[str, Any]:
        """What must survive a restart, as plain JSON."""
        return self.conversation.save()

    def restore(self, exported: Mapping[str, Any]) -> None:
        """The memory of an earlier host of the same conversation."""
        self.conversation.restore(exported)

    def _take(self, messages: Any) -> Document:
        document = read(messages)
        self.conversation = self.conversation.sync(document).session
        return document

    def _give(self, document: Document, messages: Any, done: Compacted[Any]) -> Any:
        if not done.changed:
            return messages
        view = self.conversation.view()
        return write(document, messages=view.transcript, system=view.prompt if document.system is not None else None)
