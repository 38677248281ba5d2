"""Contract test suite for context engines.

    from midfold.testing.engines import EngineContract

    class TestMine(EngineContract):
        engine = MyEngine()         # an instance, the class, or a pytest fixture called `engine`

Needs pytest and hypothesis. `midfold.engines` documents the contract, `midfold.transcript.laws` what makes a transcript
valid. An engine that never folds satisfies the contract, too.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from midfold.api import request_for
from midfold.compaction.archive import handle_of
from midfold.compaction.boundary import latest_human, latest_visible_answer
from midfold.compaction.budget import Pressure
from midfold.compaction.context import with_size
from midfold.compaction.handoff import recognise
from midfold.compaction.receipt import Receipt, receipt_schema
from midfold.compaction.request import CompactionRequest, CompactionState, Outcome, SummaryAnswer
from midfold.engines import ContextEngine
from midfold.errors import FailureKind, SummaryFailed
from midfold.model import drive, local_summarizer
from midfold.plugins import name_problem
from midfold.testing import strategies
from midfold.testing.doubles import ScriptedSummarizer
from midfold.transcript import jsonio
from midfold.transcript.document import Document, read, write
from midfold.transcript.laws import is_empty, violations
from midfold.transcript.message import Message, Text, Transcript

CANARY = "zyzzyva"
"""Word contained in every text, argument and result of these conversations, and nowhere else."""


def long_conversation(dialect: str, count: int = 9, *, results: bool = True) -> list[dict[str, Any]]:
    """Return several rounds, after a system prompt if the dialect has one in its list; without `results`, text only."""
    opening = [] if dialect == "anthropic" else [{"role": "system", "content": f"You help with {CANARY}."}]
    return [*opening, *(message for messages in rounds(dialect, count, results=results) for message in messages)]


def rounds(dialect: str, count: int, *, results: bool = True) -> list[list[dict[str, Any]]]:
    """Return rounds of a user message, three parallel calls with long results, and an assistant message."""
    make = {"openai-chat": _chat, "openai-responses": _responses, "anthropic": _anthropic}[dialect]
    return [make(number, results) for number in range(count)]


def spoiled_conversation(dialect: str) -> list[Any]:
    """Return a long conversation with real-world defects: orphans, unanswered calls, empty and unreadable messages."""
    whole = rounds(dialect, 8)
    orphan = {
        "openai-chat": {"role": "tool", "tool_call_id": "gone", "content": f"{CANARY} orphan"},
        "openai-responses": {"type": "function_call_output", "call_id": "gone", "output": f"{CANARY} orphan"},
        "anthropic": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "gone", "content": CANARY}]},
    }[dialect]
    for number in (2, 7):
        _lose_a_result(whole[number], dialect)
    whole[5].insert(1, {"role": "user", "content": f"{CANARY}: and quickly"})
    return [
        orphan,
        *(message for messages in whole[:4] for message in messages),
        {"role": "assistant", "content": ""},
        {"role": "user", "content": None},
        f"no message: {CANARY}",
        *(message for messages in whole[4:7] for message in messages),
        {"role": "assistant", "content": f"{CANARY} once more"},
        orphan,
        *whole[7],
    ]


def _lose_a_result(messages: list[dict[str, Any]], dialect: str) -> None:
    """Remove the result of the second of three parallel calls."""
    if dialect == "anthropic":
        del messages[2]["content"][1]
    else:
        del messages[-3]


def _ask(number: int) -> str:
    return f"{CANARY}: please look at src/part{number}.py and tell me why test {number} fails. " + _talk(number, 12)


def _answer(number: int) -> str:
    return f"{CANARY}: part {number} fails because of line {number * 7}. " + _talk(number + 50, 30)


def _talk(number: int, sentences: int) -> str:
    return " ".join(f"Remark {number}.{place} is about the {CANARY} of module {place}." for place in range(sentences))


def _calls(number: int) -> list[tuple[str, str, dict[str, str], str]]:
    path = f"src/{CANARY}/part{number}.py"
    listing = "\n".join(f"{line}: value_{number}_{line} = compute('{CANARY}', {line})" for line in range(60))
    output = f"{CANARY}\n" + "\n".join(f"test_{number}_{line} PASSED" for line in range(40)) + "\n1 failed"
    return [
        (f"call_{number}_a", "read_file", {"path": path}, listing),
        (f"call_{number}_b", "terminal", {"command": f"pytest {path} -k {CANARY}"}, output),
        (f"call_{number}_c", "search_files", {"pattern": CANARY, "path": "src"}, f"{path}:3: import {CANARY}"),
    ]


def _chat(number: int, results: bool) -> list[dict[str, Any]]:
    calls = _calls(number) if results else []
    made = [
        {"id": call, "type": "function", "function": {"name": name, "arguments": jsonio.text_of(arguments)}}
        for call, name, arguments, _ in calls
    ]
    return [
        {"role": "user", "content": _ask(number)},
        *([{"role": "assistant", "content": None, "tool_calls": made}] if calls else []),
        *({"role": "tool", "tool_call_id": call, "content": text} for call, _, _, text in calls),
        {"role": "assistant", "content": _answer(number)},
    ]


def _responses(number: int, results: bool) -> list[dict[str, Any]]:
    calls = _calls(number) if results else []
    thought = {"type": "reasoning", "id": f"rs_{number}", "summary": [{"type": "summary_text", "text": CANARY}]}
    return [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": _ask(number)}]},
        *([thought] if calls else []),
        *(
            {"type": "function_call", "call_id": call, "name": name, "arguments": jsonio.text_of(arguments)}
            for call, name, arguments, _ in calls
        ),
        *({"type": "function_call_output", "call_id": call, "output": text} for call, _, _, text in calls),
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": _answer(number)}]},
    ]


def _anthropic(number: int, results: bool) -> list[dict[str, Any]]:
    calls = _calls(number) if results else []
    thought: dict[str, Any] = {"type": "thinking", "thinking": f"{CANARY}, hm", "signature": "c2lnbmVk"}
    made = [{"type": "tool_use", "id": call, "name": name, "input": arguments} for call, name, arguments, _ in calls]
    given = [{"type": "tool_result", "tool_use_id": call, "content": text} for call, _, _, text in calls]
    return [
        {"role": "user", "content": [{"type": "text", "text": _ask(number)}]},
        *([{"role": "assistant", "content": [thought, *made]}, {"role": "user", "content": given}] if calls else []),
        {"role": "assistant", "content": [{"type": "text", "text": _answer(number)}]},
    ]


class EngineRun:
    """One compaction: its input, its output, and the conversation in its dialect."""

    def __init__(
        self,
        engine: ContextEngine,
        messages: list[Any],
        dialect: str,
        *,
        summarizer: Callable[..., str | SummaryAnswer] | None = None,
        state: CompactionState | None = None,
        context_length: int | None = None,
        **changes: Any,
    ) -> None:
        self.document: Document = read(messages, dialect=dialect)
        self.request = request(self.document, state=state, context_length=context_length, **changes)
        self.outcome: Outcome = drive(engine.compress(self.request), summarizer or local_summarizer)

    @property
    def output(self) -> list[Any]:
        written: list[Any] = write(self.document, messages=self.outcome.messages)
        return written

    def fingerprint(self) -> bytes:
        """Serialize the whole output."""
        out = self.outcome
        facts = [self.output, out.receipt.to_dict(), msgspec.to_builtins(out.state), sorted(out.archive)]
        return jsonio.encode(facts)


def size(messages: list[Any], dialect: str) -> int:
    document = read(messages, dialect=dialect)
    return request_for(document).meter.count(document.messages).tokens


def request(
    document: Document, *, state: CompactionState | None = None, context_length: int | None = None, **changes: Any
) -> CompactionRequest:
    """Return a request that must be compacted now: the threshold is half of the conversation's size."""
    if context_length is None:
        context_length = max(request_for(document).meter.count(document.messages).tokens, 200)
    made = request_for(document, state=state, context_length=context_length)
    return msgspec.structs.replace(made, **changes)


def gaps(dialect: str) -> st.SearchStrategy[list[list[Any]]]:
    """Generate messages, valid and malformed, to insert between the messages of a conversation."""
    between = st.lists(strategies.messages(dialect) | strategies.malformed_messages(dialect), max_size=3)
    return st.lists(between, min_size=4, max_size=6)


def weave(dialect: str, between: list[list[Any]]) -> list[Any]:
    """Return rounds that are long enough to fold, with the messages of a gap after each of a round's first messages."""
    out: list[Any] = []
    for messages, gap in zip(rounds(dialect, len(between)), between, strict=True):
        for place, message in enumerate(messages):
            out += [message, *gap[place : place + 1]]
    return out


def legal(run: EngineRun) -> None:
    """Check that a changed transcript keeps every law, directly and after a round trip through its dialect."""
    if run.outcome.changed:
        assert violations(run.outcome.messages) == ()
        assert violations(read(run.output, dialect=run.document.dialect.name).messages) == ()
    else:
        assert run.outcome.messages is run.request.messages


def shorter(run: EngineRun) -> None:
    if not run.outcome.changed:
        return
    count = run.request.meter.count
    assert count(run.outcome.messages).tokens < count(run.request.messages).tokens
    assert run.outcome.receipt.new_tokens < run.outcome.receipt.old_tokens


def check_anchors(run: EngineRun) -> None:
    if not run.outcome.changed:
        return
    before, boundary = run.request.messages, run.outcome.receipt.boundary
    for index in (latest_human(before), latest_visible_answer(before)):
        if index is None:
            continue
        assert _is_shown(before[index], run.outcome.messages), f"messages[{index}] is gone"
        if boundary is not None and run.outcome.receipt.status == "compacted":
            assert not boundary.start <= index < boundary.end or index in boundary.pinned


def recoverable(run: EngineRun) -> None:
    """Check that every message that is missing or changed is behind a handle."""
    archived = {message.digest for messages in run.outcome.archive.values() for message in messages}
    there = {id(message) for message in run.outcome.messages}
    for index, message in enumerate(run.request.messages):
        if id(message) not in there and message.digest not in archived and not is_empty(message):
            assert _is_contained(message, run.outcome.messages), f"messages[{index}] {message!r} is lost"
    for handle, messages in run.outcome.archive.items():
        assert len(messages) > 1 or handle in (handle_of(messages[0]), run.outcome.receipt.fold)


def is_handoff(message: Message) -> bool:
    found = recognise(message)
    return found is not None and found.kind == "fold"


def _is_shown(message: Message, messages: Transcript) -> bool:
    """Return whether the message is present, or another original message contains all of its content."""
    if any(other is message for other in messages):
        return True
    said = [part.text for part in message.parts if isinstance(part, Text) and part.text.strip()]
    return not said or any(
        other.role == message.role and recognise(other) is None and all(text in other.text for text in said)
        for other in messages
    )


def _is_contained(message: Message, messages: Transcript) -> bool:
    """Return whether a message was only extended: a note in a system prompt, a stub beside its calls."""
    return any(
        other.role == message.role
        and all(
            part in other.parts or (isinstance(part, Text) and any(part.text in text for text in other.texts()))
            for part in message.parts
        )
        for other in messages
    )


def validate(receipt: dict[str, Any]) -> None:
    """Validate against the published JSON Schema if jsonschema is installed."""
    try:
        checker = importlib.import_module("jsonschema")
    except ImportError:
        return
    checker.validate(receipt, receipt_schema())


DIALECTS = strategies.DIALECTS
SUMMARY = f"## Goal\nShip it.\n\n## Progress\n### Done\n- {CANARY} three files were read."
NO_SUCH_PROCESS = 77


class EngineContract:
    """Base class of an engine's tests; subclass it in a test module and set `engine`."""

    engine: ClassVar[Any] = None
    examples: ClassVar[int] = 20
    """Generated conversations per dialect and test."""
    profile: ClassVar[settings] = settings(
        deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )

    @pytest.fixture
    def subject(self, request: pytest.FixtureRequest) -> ContextEngine:
        given = inspect.getattr_static(type(self), "engine", None)
        if isinstance(given, type) and issubclass(given, ContextEngine):
            return given()
        if isinstance(given, ContextEngine):
            return given
        found = request.getfixturevalue("engine")
        assert isinstance(found, ContextEngine), "the fixture `engine` is not a ContextEngine"
        return found

    @pytest.fixture(params=DIALECTS)
    def dialect(self, request: pytest.FixtureRequest) -> str:
        name: str = request.param
        return name

    def check_generated(self, dialect: str, check: Callable[[list[Any]], None]) -> None:
        """Check generated conversations; the same ones on every run."""

        @settings(self.profile, max_examples=self.examples)
        @given(gaps(dialect))
        def check_one(between: list[list[Any]]) -> None:
            check(weave(dialect, copy.deepcopy(between)))

        check_one()

    # Identity

    def test_its_name_can_be_configured(self, subject: ContextEngine) -> None:
        assert isinstance(subject.name, str)
        assert name_problem(subject.name) == ""

    def test_its_tools_have_names_of_their_own_and_others_are_refused(self, subject: ContextEngine) -> None:
        names = [tool.name for tool in subject.tools()]
        assert len(set(names)) == len(names)
        run = EngineRun(subject, long_conversation("openai-chat"), "openai-chat")
        with pytest.raises(KeyError):
            subject.call_tool("no such tool", {}, run.outcome.archive)

    # Decision

    def test_a_tiny_conversation_is_no_reason_to_compress(self, subject: ContextEngine, dialect: str) -> None:
        document = read(rounds(dialect, 1)[0], dialect=dialect)
        pressure = subject.should_compress(request(document, context_length=200_000))
        assert isinstance(pressure, Pressure)
        assert pressure is Pressure.NONE

    def test_every_answer_is_a_pressure(self, subject: ContextEngine, dialect: str) -> None:
        def check(messages: list[Any]) -> None:
            asked = with_size(request(read(messages, dialect=dialect)))
            answer = subject.should_compress(asked)
            assert isinstance(answer, Pressure)
            if not subject.reads_messages:
                assert subject.should_compress(msgspec.structs.replace(asked, messages=())) is answer

        check([])
        check(long_conversation(dialect))
        self.check_generated(dialect, check)

    # Input stays unharmed

    def test_nothing_it_was_given_is_mutated(self, subject: ContextEngine, dialect: str) -> None:
        for messages in (long_conversation(dialect), spoiled_conversation(dialect)):
            before = copy.deepcopy(messages)
            run = EngineRun(subject, messages, dialect, force=True)
            assert messages == before
            assert all(message.wire is given for message, given in zip(run.request.messages, messages, strict=True))

    def test_an_unchanged_outcome_is_the_same_messages(self, subject: ContextEngine, dialect: str) -> None:
        run = EngineRun(subject, rounds(dialect, 1)[0], dialect, context_length=200_000)
        assert not run.outcome.changed
        assert run.outcome.messages is run.request.messages
        assert run.outcome.system is run.request.system
        assert not run.outcome.archive

    def test_an_empty_conversation_is_no_error(self, subject: ContextEngine, dialect: str) -> None:
        run = EngineRun(subject, [], dialect, force=True)
        assert run.outcome.messages == ()

    @pytest.mark.parametrize("kind", ["auth", "network"])
    def test_a_summary_that_fails_by_auth_or_network_leaves_everything(
        self, subject: ContextEngine, dialect: str, kind: FailureKind
    ) -> None:
        summarizer = ScriptedSummarizer([SummaryFailed(kind)] * 9)
        run = EngineRun(subject, long_conversation(dialect, results=False), dialect, summarizer=summarizer, force=True)
        if summarizer.asks:
            assert run.outcome.messages is run.request.messages
            assert run.outcome.receipt.status in ("aborted", "unchanged")
            assert run.outcome.receipt.compaction_count == run.request.state.count

    def test_a_flow_can_be_given_up_at_every_ask(self, subject: ContextEngine, dialect: str) -> None:
        flow = subject.compress(request(read(long_conversation(dialect, results=False), dialect=dialect), force=True))
        if next(flow, None) is not None:
            flow.close()

    # Compaction

    def test_the_result_keeps_the_laws(self, subject: ContextEngine, dialect: str) -> None:
        for messages in (long_conversation(dialect), spoiled_conversation(dialect)):
            legal(EngineRun(subject, messages, dialect))
            legal(EngineRun(subject, messages, dialect, force=True))
            legal(EngineRun(subject, messages, dialect, keep_last_exchanges=1))
            legal(EngineRun(subject, messages, dialect, target_tokens=size(messages, dialect) * 3 // 4))

    def test_the_result_keeps_the_laws_for_generated_conversations(self, subject: ContextEngine, dialect: str) -> None:
        self.check_generated(dialect, lambda messages: legal(EngineRun(subject, messages, dialect, force=True)))

    def test_the_laws_hold_from_compaction_to_compaction(self, subject: ContextEngine, dialect: str) -> None:
        messages, state = long_conversation(dialect), CompactionState()
        for _ in range(4):
            run = EngineRun(subject, messages, dialect, state=state)
            legal(run)
            shorter(run)
            assert sum(is_handoff(message) for message in run.outcome.messages) <= 1
            messages, state = [*run.output, *long_conversation(dialect)[1:]], run.outcome.state

    def test_it_is_never_longer_when_it_says_it_compacted(self, subject: ContextEngine, dialect: str) -> None:
        shorter(EngineRun(subject, long_conversation(dialect), dialect))
        shorter(
            EngineRun(subject, long_conversation(dialect), dialect, summarizer=lambda ask: "A long story. " * 5_000)
        )
        self.check_generated(dialect, lambda messages: shorter(EngineRun(subject, messages, dialect, force=True)))

    def test_the_latest_ask_and_answer_stay_outside_the_fold(self, subject: ContextEngine, dialect: str) -> None:
        check_anchors(EngineRun(subject, long_conversation(dialect), dialect))
        self.check_generated(dialect, lambda messages: check_anchors(EngineRun(subject, messages, dialect, force=True)))

    def test_nothing_is_lost_without_a_handle(self, subject: ContextEngine, dialect: str) -> None:
        recoverable(EngineRun(subject, long_conversation(dialect), dialect))
        recoverable(EngineRun(subject, spoiled_conversation(dialect), dialect, force=True))

    def test_nothing_generated_is_lost_without_a_handle(self, subject: ContextEngine, dialect: str) -> None:
        self.check_generated(dialect, lambda messages: recoverable(EngineRun(subject, messages, dialect, force=True)))

    # Determinism

    def test_a_second_run_is_byte_identical(self, subject: ContextEngine, dialect: str) -> None:
        def check(messages: list[Any]) -> None:
            first = EngineRun(subject, messages, dialect, force=True).fingerprint()
            assert EngineRun(subject, copy.deepcopy(messages), dialect, force=True).fingerprint() == first

        check(long_conversation(dialect))
        self.check_generated(dialect, check)

    def test_what_was_measured_before_changes_nothing(self, subject: ContextEngine) -> None:
        """Messages cache their size; whether it was computed before must not affect the result."""
        messages = long_conversation("openai-chat", 200)
        fresh = EngineRun(subject, messages, "openai-chat", context_length=200_000)
        known = request(read(messages, dialect="openai-chat"), context_length=200_000)
        known.meter.count(known.messages)
        again = drive(subject.compress(known), local_summarizer)
        assert again.messages == fresh.outcome.messages
        assert again.receipt == fresh.outcome.receipt

    def test_another_process_with_another_hash_seed_gives_the_same_bytes(self, subject: ContextEngine) -> None:
        here = b"".join(fingerprints(subject))
        seed = "4711" if os.environ.get("PYTHONHASHSEED") != "4711" else "1"
        assert replay_elsewhere(subject, seed=seed) == here

    # Accounting

    def test_the_receipt_is_json_and_fits_its_schema(self, subject: ContextEngine, dialect: str) -> None:
        for messages in (long_conversation(dialect), spoiled_conversation(dialect), rounds(dialect, 1)[0], []):
            receipt = EngineRun(subject, messages, dialect, force=True).outcome.receipt
            text = json.dumps(receipt.to_dict(), allow_nan=False)
            assert msgspec.json.decode(text, type=Receipt) == receipt
            validate(json.loads(text))

    def test_the_receipt_tells_no_content(self, subject: ContextEngine, dialect: str) -> None:
        for messages in (long_conversation(dialect), spoiled_conversation(dialect)):
            for summarizer in (local_summarizer, lambda ask: SUMMARY):
                run = EngineRun(subject, messages, dialect, summarizer=summarizer, force=True)
                told = {**run.outcome.receipt.to_dict(), "trail": None}
                assert CANARY not in json.dumps(told)

    def test_the_receipt_counts_what_came_out(self, subject: ContextEngine, dialect: str) -> None:
        run = EngineRun(subject, long_conversation(dialect), dialect)
        receipt = run.outcome.receipt
        assert (receipt.old_messages, receipt.new_messages) == (len(run.request.messages), len(run.outcome.messages))
        assert set(receipt.handles) == set(run.outcome.archive)
        assert {digest.handle for digest in receipt.digests} <= set(run.outcome.archive)
        assert receipt.reason


def fingerprints(engine: ContextEngine) -> Iterator[bytes]:
    for dialect in DIALECTS:
        for messages in (long_conversation(dialect), spoiled_conversation(dialect)):
            yield EngineRun(engine, messages, dialect, force=True).fingerprint()


def replay_elsewhere(engine: ContextEngine, *, seed: str) -> bytes:
    """Return the fingerprints that another process computes with the same engine."""
    module = sys.modules[type(engine).__module__]
    try:
        parcel = pickle.dumps((module.__name__, getattr(module, "__file__", None), pickle.dumps(engine)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        pytest.skip(f"the engine cannot be sent to another process: {error}")
    done = subprocess.run(
        [sys.executable, "-P", "-c", "from midfold.testing import engines; engines._replay()"],
        input=parcel,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        check=False,
    )
    if done.returncode == NO_SUCH_PROCESS:
        pytest.skip("the engine's module cannot be imported in another process")
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


def _replay() -> None:
    """Run in the other process: import the engine's module under its own name and replay the conversations."""
    name, file, parcel = pickle.loads(sys.stdin.buffer.read())
    try:
        importlib.import_module(name)
    except ImportError:
        spec = importlib.util.spec_from_file_location(name, file) if file else None
        if spec is None or spec.loader is None:
            sys.exit(NO_SUCH_PROCESS)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    for part in fingerprints(pickle.loads(parcel)):
        sys.stdout.buffer.write(part)
