"""Public API as type checkers see it; checked by mypy in `make check`, never run."""

from typing import assert_type

import midfold
from midfold import Document, Message, Meter, Text, Usage
from midfold.types import Count, TokenCounter


class Mine:
    """Custom counter: a name and one method."""

    name = "mine"

    def count(self, text: str, /) -> int:
        return len(text)


def use(source: bytes) -> None:
    document = midfold.read(source, strict=True)
    assert_type(document, Document)
    assert_type(document.messages, tuple[Message, ...])
    counter: TokenCounter = Mine()
    assert_type(Meter(counter).count(document.messages), Count)
    changed = document.messages[0].with_parts((Text("x"),))
    assert_type(changed, Message)
    assert_type(midfold.types.read_usage({}), Usage | None)
    assert_type(midfold.look_up_model("gpt-5.5").model.context_window, int)
    assert_type(midfold.load_config().config.compression.threshold, float)
    assert_type(midfold.Config().compression.enabled, bool)
    with midfold.open("memory:") as sessions:
        assert_type(sessions, midfold.Sessions)
        assert_type(sessions.session("s").append([]), range)
        assert_type(sessions.session("s").compact().session, midfold.Session)
        assert_type(sessions.session("s").view(), midfold.types.View)
        assert_type(sessions.search("words"), list[midfold.types.Hit])
    assert_type(midfold.compact([]).receipt, midfold.Receipt)
    assert_type(midfold.compact([]).archive, midfold.Archive)


class Plugin(midfold.Compressor):
    """Custom engine written with public names only."""

    name = "plugin"

    def compress(self, request: midfold.CompactionRequest) -> midfold.Flow:
        outcome: midfold.Outcome = yield from super().compress(request)
        return outcome

    def tools(self) -> tuple[midfold.ToolSpec, ...]:
        return (midfold.ToolSpec("t", "d", {"type": "object"}),)


def summarize(ask: midfold.SummaryRequest) -> midfold.SummaryAnswer:
    return midfold.SummaryAnswer(text=ask.prompt())


SUMMARIZER: midfold.Summarizer = summarize


def read_only(message: Message) -> None:
    message.role = "user"  # type: ignore[misc]
    message.parts = ()  # type: ignore[misc]
