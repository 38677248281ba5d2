"""The specification's seven benchmark conversations and its 45-message example. Deterministic.

    fixture = fixtures.repeated_reads()
    midfold.compact(fixture.messages, **fixture.settings)

`settings` are the keyword arguments of `midfold.compact` that trigger the behaviour under test. Messages are OpenAI
chat
messages and new objects on every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from midfold.cli.demo_session import EXAMPLE_WINDOW, call, example_conversation, number_lines
from midfold.compaction.request import SummaryRequest
from midfold.errors import SummaryFailed

Messages = list[dict[str, Any]]

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SYSTEM_PROMPT = "You are a careful software engineer. Use the tools; keep the user informed."


class Fixture(NamedTuple):
    """Conversation and the settings to compact it with."""

    messages: Messages
    settings: dict[str, Any]


def long_tool_heavy_conversation(rounds: int = 160) -> Fixture:
    """Build reads, edits, searches and test runs in turn, some failing, with a user message every twenty rounds."""
    return Fixture(example_conversation(rounds), {"context_length": EXAMPLE_WINDOW})


def repeated_reads(copies: int = 14) -> Fixture:
    """Build repeated reads of one unchanged file; the newest copy is in the tail."""
    body = number_lines("def handler_{n}(request):  # of src/routes.py", 90)
    messages = [system(), user("Why does src/routes.py answer 500?"), assistant("I will read it and try things.")]
    for number in range(copies):
        messages += call(2 * number, "read_file", {"path": "src/routes.py"}, body)
        messages += call(2 * number + 1, "terminal", {"command": f"curl -s localhost/{number}"}, f"HTTP 500 ({number})")
    messages += call(2 * copies, "read_file", {"path": "src/routes.py"}, body)
    messages.append(assistant("The handler for DELETE is missing."))
    messages.append(user("Then add it."))
    return Fixture(messages, {"context_length": 48_000, "force": True})


def huge_terminal_output(lines: int = 30_000) -> Fixture:
    """Build a conversation with one build log, far larger than the window, among its last messages."""
    messages = [system(), user("Build it and tell me what breaks.")]
    for number in range(12):
        messages += call(number, "terminal", {"command": f"make step-{number}"}, number_lines("ok {n}", 40))
    log = number_lines("[{n}] compiling unit {n} of the tree", lines) + "\nerror: undefined symbol 'frobnicate'\n"
    messages += call(99, "terminal", {"command": "make all"}, log)
    messages.append(assistant("The link step fails: frobnicate is undefined."))
    return Fixture(messages, {"context_length": 128_000})


def image_heavy_session(pictures: int = 24) -> Fixture:
    """Build a session in which every user message has a screenshot."""
    messages = [system()]
    for number in range(pictures):
        text = {"type": "text", "text": f"Screenshot {number}: move the button {number} pixels to the left."}
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}", "detail": "high"}}
        messages.append({"role": "user", "content": [text, image]})
        messages.append(assistant(f"Moved it by {number} pixels in src/button.css."))
    return Fixture(messages, {"context_length": 64_000})


def keep_last_n_exchanges(exchanges: int = 12, keep: int = 2) -> Fixture:
    """Build a dialogue with one tool call per exchange, folded except for the last exchanges."""
    messages = [system()]
    for number in range(exchanges):
        messages.append(user(f"Question {number}: what does module m{number} do?"))
        messages += call(
            number, "read_file", {"path": f"src/m{number}.py"}, number_lines(f"line {{n}} of m{number}", 30)
        )
        messages.append(assistant(f"Answer {number}: it parses format {number}."))
    return Fixture(messages, {"context_length": 64_000, "keep_last_exchanges": keep})


def auth_or_network_failure(kind: Literal["auth", "network"] = "auth") -> Fixture:
    """Build a conversation over the threshold whose summary model is unreachable or rejects the key."""

    def unreachable(ask: SummaryRequest) -> str:
        raise SummaryFailed(kind)

    messages, settings = long_tool_heavy_conversation()
    return Fixture(messages, {**settings, "summarizer": unreachable})


def repeated_noop_compression() -> Fixture:
    """Build a conversation over the threshold that can hardly be folded: most of it is one protected user message."""
    text = number_lines("Sentence {n} of a very long legal document, to be kept to the letter.", 900)
    messages = [system()]
    for number in range(4):
        messages += [user(f"Is chapter {number} ready?"), assistant(f"Chapter {number} is ready.")]
    messages += [user(f"Translate this text:\n{text}"), assistant("I start with sentence 0.")]
    return Fixture(messages, {"context_length": 16_000})


def fastapi_example() -> Fixture:
    """Build the 45 messages, about 95,000 tokens, of the specification's before/after example."""
    messages = [
        {"role": "system", "content": "You are a helpful assistant..."},
        user("Help me set up a FastAPI project"),
        *call(1, "terminal", {"command": "mkdir project; touch requirements.txt"}, "directory created"),
        *call(2, "write_file", {"path": "main.py", "content": number_lines("# line {n}", 60)}, "file written (2.3KB)"),
    ]
    for number in range(3, 19):
        messages += call(number, *_fastapi_step(number))
    log = "8 passed, 2 failed\n" + number_lines("FAILED tests/test_api.py::test_create_user line {n}", 90)
    messages += call(19, "terminal", {"command": "pytest"}, log)
    messages.append(user("Fix the failing tests"))
    test_file = "import pytest\n" + number_lines("def test_{n}(client): ...", 110)
    messages += call(20, "read_file", {"path": "tests/test_api.py"}, test_file)
    messages.append(assistant("I see the issue with the test fixtures..."))
    messages.append(user("Great, also add error handling"))
    return Fixture(messages, {"context_length": 180_000})


FIXTURES: dict[str, Callable[[], Fixture]] = {
    "long tool-heavy conversation": long_tool_heavy_conversation,
    "repeated read-file outputs": repeated_reads,
    "huge terminal output": huge_terminal_output,
    "multimodal image-heavy session": image_heavy_session,
    'partial compress "keep last N exchanges"': keep_last_n_exchanges,
    "auth/network summary failure": auth_or_network_failure,
    "repeated no-op compression anti-thrash": repeated_noop_compression,
}
"""The specification's seven fixtures, by the names it uses."""


def system(text: str = SYSTEM_PROMPT) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def tool_results(messages: Messages) -> Iterator[str]:
    """Yield the texts of all tool results."""
    for message in messages:
        if message["role"] == "tool":
            yield message["content"]


def _fastapi_step(number: int) -> tuple[str, dict[str, Any], str]:
    """Return one of the thirty turns of editing, testing and debugging that the document omits."""
    if number % 2:
        body = number_lines(f"@app.get('/items/{number}/{{n}}')  # endpoint {{n}} of step {number}", 330)
        return "read_file", {"path": "main.py"}, body
    return (
        "terminal",
        {"command": f"pytest -k step_{number}"},
        number_lines(f"tests/test_api.py::test_{number}_{{n}} PASSED", 330),
    )
