"""After a client's own compaction, recall still finds earlier messages, for their owner only."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import midfold
from midfold.recall import NAMES
from midfold.testing.doubles import Request
from midfold.transcript import jsonio
from support.client_sessions import answer, prompt
from support.fixtures import number_lines
from support.gateways import Running, running
from support.provider_replies import Turn
from support.rules_provider import RulesProvider

WINDOW = 24_000
CHAT, ANTHROPIC, RESPONSES = "openai-chat", "anthropic", "openai-responses"
PATHS = {CHAT: "/v1/chat/completions", ANTHROPIC: "/v1/messages", RESPONSES: "/v1/responses"}
EARLY = "the staging host is called heron-4417 and listens on port 9931"
LATE = "the mirror of the registry is called osprey-8823 and is read only"
TASK = "Port every module to the new parser. Never touch legacy/."
SUMMARY_ASK = "Please provide a concise summary of our conversation so far, with all that is needed to continue."
SUMMARY = """1. Primary Request and Intent: the user wants every module ported to the new parser, but not legacy.
2. Key Technical Concepts: the new parser reads tokens lazily and reports errors with line and column.
3. Files: src/parser/reader.py and src/parser/writer.py were changed, tests/test_reader.py was added.
4. Pending Tasks: modules 30 to 60 still import the old parser and have to be looked at one by one.
5. Current Work: module 29 was being ported; its test for empty input failed and was being looked into."""
DRAFT = "<analysis>\n" + "A long line that its client leaves out of the summary. " * 9 + "\n</analysis>\n"
SECOND_SUMMARY = "\n".join(f"{number}. Module {number} was ported, and its tests pass again." for number in range(9))
QUESTION = {"early": "What is the staging host called?", "late": "What is the mirror of the registry called?"}
FACTS = {"early": EARLY, "late": LATE}
WORDS = {"early": "staging host", "late": "mirror registry"}


class Shape(NamedTuple):
    """Client's messages after its compaction: a system prompt, and messages."""

    dialect: str
    system: Callable[[str], str]
    opening: Callable[[str], list[dict[str, Any]]]


def plain(text: str) -> Callable[[str], str]:
    return lambda summary: text


AGENT = plain("You are a coding agent.")


def continued(summary: str) -> str:
    return (
        "\nThis session is being continued from a previous conversation that ran out of context. The conversation is "
        f"summarized below:\n{summary}.\n\nPlease continue the conversation from where we left it off without asking "
        "the user any further questions. Continue with the last task that you were asked to work on.\n"
    )


CODEX = "Another language model started to solve this problem and produced a summary of its thinking process.\n"
SHAPES = {
    "Claude Code": Shape(ANTHROPIC, AGENT, lambda text: [prompt(ANTHROPIC, continued(text))]),
    "Cline": Shape(
        CHAT, AGENT, lambda text: [prompt(CHAT, TASK), answer(CHAT, "I begin."), prompt(CHAT, continued(text))]
    ),
    "Cline, Anthropic": Shape(
        ANTHROPIC,
        AGENT,
        lambda text: [prompt(ANTHROPIC, TASK), answer(ANTHROPIC, "I begin."), prompt(ANTHROPIC, continued(text))],
    ),
    "Continue 1.5, terminal": Shape(CHAT, AGENT, lambda text: [answer(CHAT, text)]),
    "Continue, terminal": Shape(CHAT, AGENT, lambda text: [answer(CHAT, f"[COMPACTED HISTORY]\n{text}")]),
    "Continue, editor": Shape(
        CHAT, lambda text: f"{AGENT(text)}\n\nPrevious conversation summary:\n\n {text}", lambda text: []
    ),
    "Codex": Shape(RESPONSES, AGENT, lambda text: [prompt(RESPONSES, CODEX + text)]),
    "opencode": Shape(CHAT, AGENT, lambda text: [prompt(CHAT, "What did we do so far?"), answer(CHAT, text)]),
}
TOOL = {"type": "object", "properties": {"command": {"type": "string"}}}
TOOLS: dict[str, Any] = {
    CHAT: [{"type": "function", "function": {"name": "shell", "parameters": TOOL}}],
    ANTHROPIC: [{"name": "shell", "input_schema": TOOL}],
    RESPONSES: [{"type": "function", "name": "shell", "parameters": TOOL}],
}


def step(dialect: str, number: int, more: str = "") -> list[dict[str, Any]]:
    output = number_lines(f"line {{n}} of module {number} is fine", 60) + more
    given = json.dumps({"command": f"make {number}"})
    if dialect == ANTHROPIC:
        call = {"type": "tool_use", "id": f"t{number}", "name": "shell", "input": json.loads(given)}
        back = {"type": "tool_result", "tool_use_id": f"t{number}", "content": output}
        return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [back]}]
    if dialect == RESPONSES:
        called = {"type": "function_call", "call_id": f"t{number}", "name": "shell", "arguments": given}
        return [called, {"type": "function_call_output", "call_id": f"t{number}", "output": output}]
    made = {"id": f"t{number}", "type": "function", "function": {"name": "shell", "arguments": given}}
    back = {"role": "tool", "tool_call_id": f"t{number}", "content": output}
    return [{"role": "assistant", "content": None, "tool_calls": [made]}, back]


def body(dialect: str, system: str, talk: list[Any]) -> dict[str, Any]:
    given: dict[str, Any] = {"model": "claude-opus-4-6" if dialect == ANTHROPIC else "gpt-4o", "tools": TOOLS[dialect]}
    if dialect == ANTHROPIC:
        return {**given, "max_tokens": 900, "system": system, "messages": talk}
    if dialect == RESPONSES:
        return {**given, "instructions": system, "input": talk, "store": False}
    return {**given, "messages": [{"role": "system", "content": system}, *talk]}


def is_offered(request: Request) -> bool:
    tools = request.body.get("tools") or []
    return {tool.get("name") or tool["function"]["name"] for tool in tools} >= NAMES


def model(request: Request) -> Turn:
    """Write a requested summary; search for a requested fact that is not in the context."""
    told = request.raw.decode()
    *_, last = request.body.get("messages") or request.body["input"]
    if SUMMARY_ASK in json.dumps(last):
        return Turn(DRAFT + SECOND_SUMMARY if SUMMARY.splitlines()[1] in told else DRAFT + SUMMARY)
    for kind in QUESTION:
        if QUESTION[kind] in told:
            if FACTS[kind] in told:
                return Turn(f"Found: {FACTS[kind]}")
            if is_offered(request) and "h-search" not in told:
                return Turn("", (("h-search", "context_search", {"query": WORDS[kind]}),))
            return Turn("I do not know.")
    return Turn("Fine.")


def send(gateway: Running, shape: Shape, system: str, talk: list[Any], key: str = "k") -> str:
    headers = {"x_api_key": key} if shape.dialect == ANTHROPIC else {"authorization": f"Bearer {key}"}
    status, _, answered = gateway.post(PATHS[shape.dialect], body(shape.dialect, system, talk), **headers)
    assert status == 200, answered
    return answered.decode()


def work_and_compact(gateway: Running, shape: Shape) -> list[Any]:
    """Run a conversation until it was folded, continue for a while, and request the client's summary.

    Return the conversation before the summary request.
    """
    dialect, system = shape.dialect, AGENT("")
    talk = [prompt(dialect, TASK), *step(dialect, 0), *step(dialect, 1, f"\n{EARLY}\n")]
    for number in range(2, 80):
        talk += step(dialect, number)
        send(gateway, shape, system, talk)
        if gateway.accounts[-1].receipt is not None:
            break
    for number in range(80, 84):
        talk += step(dialect, number, f"\n{LATE}\n" if number == 81 else "")
        send(gateway, shape, system, talk)
    asked = [*talk, answer(dialect, "Fine."), prompt(dialect, SUMMARY_ASK)]
    assert json.dumps(SUMMARY.splitlines()[0])[1:-1] in send(gateway, shape, system, asked)
    return talk


def reopened(shape: Shape, question: str, summary: str = SUMMARY) -> list[Any]:
    """Return the client's conversation after its compaction, with a question."""
    opening = shape.opening(summary)
    if opening and opening[-1]["role"] == "user":
        opening.append(answer(shape.dialect, "I go on."))
    return [*opening, prompt(shape.dialect, question)]


def tools_of(request: Request) -> bytes:
    return bytes(jsonio.entries(request.raw)["tools"])


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("kind", QUESTION)
def test_recall_finds_what_was_before_the_clients_own_compaction(name: str, kind: str, tmp_path: Path) -> None:
    shape, url = SHAPES[name], f"sqlite:///{tmp_path}/g.db?synchronous=normal"
    system = shape.system(SUMMARY)
    talk = reopened(shape, QUESTION[kind])
    with RulesProvider(model, window=WINDOW) as provider:
        with midfold.open(url) as sessions, running(provider.url, sessions=sessions, window=WINDOW) as gateway:
            work_and_compact(gateway, shape)
            offered = tools_of(provider.requests[-1])
            begun = len(provider.requests)
            assert FACTS[kind] in send(gateway, shape, system, talk)
            assert gateway.accounts[-1].reason == "recall: 1 hidden rounds"
            assert (
                "after the client's own compaction" in gateway.accounts[-1].reason
                or "recall" in gateway.accounts[-1].reason
            )
        with midfold.open(url) as sessions, running(provider.url, sessions=sessions, window=WINDOW) as gateway:
            talk += [answer(shape.dialect, f"Found: {FACTS[kind]}"), prompt(shape.dialect, "Thanks.")]
            send(gateway, shape, system, talk)
            assert gateway.accounts[-1].reason.endswith("after the client's own compaction")
        assert provider.rejected == []
    after = provider.requests[begun:]
    assert {tools_of(request) for request in after} == {offered}, "the tools stay byte for byte"


@pytest.mark.parametrize("name", SHAPES)
def test_another_owner_with_the_same_summary_gets_nothing(name: str) -> None:
    shape = SHAPES[name]
    with RulesProvider(model, window=WINDOW) as provider, running(provider.url, window=WINDOW) as gateway:
        work_and_compact(gateway, shape)
        talk = reopened(shape, QUESTION["early"])
        told = send(gateway, shape, shape.system(SUMMARY), talk, key="somebody-else")
        assert "I do not know." in told and not is_offered(provider.requests[-1])


def test_another_summary_and_a_summary_in_no_known_shape_are_not_linked() -> None:
    shape = SHAPES["Cline"]
    other = "\n".join(f"{number}. Another thing that was never said here, number {number}." for number in range(5))
    with RulesProvider(model, window=WINDOW) as provider, running(provider.url, window=WINDOW) as gateway:
        work_and_compact(gateway, shape)
        pasted = [prompt(CHAT, f"Read this:\n{SUMMARY}\n{QUESTION['early']}")]
        for talk in (reopened(shape, QUESTION["early"], other), pasted):
            told = send(gateway, shape, AGENT(""), talk)
            assert "I do not know." in told and not is_offered(provider.requests[-1])


CLINE_3 = {
    "with a model": "Context summary:\n\nThe modules were ported one after the other, as it was asked for.",
    "without a model": f"{TASK}\n\n<SYSTEM_NOTICE>\nEarlier context was compacted. Summary of your actions after the "
    "request above:\nmake was called for modules 2 to 40</SYSTEM_NOTICE>",
}


@pytest.mark.parametrize("kind", CLINE_3)
@pytest.mark.parametrize("dialect", [CHAT, ANTHROPIC])
def test_a_client_that_summarizes_elsewhere_is_known_by_the_messages_it_keeps(
    kind: str, dialect: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/g.db?synchronous=normal"
    shape = Shape(dialect, AGENT, lambda text: [])
    with RulesProvider(model, window=WINDOW) as provider:
        with midfold.open(url) as sessions, running(provider.url, sessions=sessions, window=WINDOW) as gateway:
            kept = work_and_compact(gateway, shape)[-4:]
            offered = tools_of(provider.requests[-1])
            compacted = [prompt(dialect, CLINE_3[kind]), *kept, answer(dialect, "Done.")]
            talk = [*compacted, prompt(dialect, QUESTION["early"])]
            assert "I do not know." in send(gateway, shape, AGENT(""), talk, key="somebody-else")
            assert EARLY in send(gateway, shape, AGENT(""), talk)
        with midfold.open(url) as sessions, running(provider.url, sessions=sessions, window=WINDOW) as gateway:
            talk += [answer(dialect, EARLY), prompt(dialect, "Thanks.")]
            send(gateway, shape, AGENT(""), talk)
            assert tools_of(provider.requests[-1]) == offered
        assert provider.rejected == []


def test_a_second_compaction_still_leads_to_the_first_session() -> None:
    shape = SHAPES["Continue, terminal"]
    with RulesProvider(model, window=WINDOW) as provider, running(provider.url, window=WINDOW) as gateway:
        work_and_compact(gateway, shape)
        talk = [*reopened(shape, "Go on."), *step(CHAT, 90), answer(CHAT, "Fine."), prompt(CHAT, SUMMARY_ASK)]
        send(gateway, shape, AGENT(""), talk)
        for kind in QUESTION:
            told = send(gateway, shape, AGENT(""), reopened(shape, QUESTION[kind], SECOND_SUMMARY))
            assert FACTS[kind] in told
        assert provider.rejected == []


def test_a_deleted_session_is_not_searched() -> None:
    shape = SHAPES["Claude Code"]
    with RulesProvider(model, window=WINDOW) as provider, running(provider.url, window=WINDOW) as gateway:
        work_and_compact(gateway, shape)
        for info in gateway.sessions.all():
            gateway.sessions.delete(info.name)
        talk = reopened(shape, QUESTION["early"])
        assert "I do not know." in send(gateway, shape, AGENT(""), talk)
