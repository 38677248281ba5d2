"""The contract every context engine keeps, as a suite its author can run.

from midfold.testing.engines import EngineContract

class TestMine(EngineContract):
    engine = MyEngine()         # an instance, the class, or a pytest fixture called `engine`

Needs pytest and hypothesis. What may be expected of an engine is in `midfold.engine`; what makes a transcript
legal is in `midfold.transcript.laws`. An engine that never folds keeps the contract, too.
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

from midfold.engine import ContextEngine
from midfold.engine.job import with_size
from midfold.errors import FailureKind, SummaryFailed
from midfold.fold.budget import Pressure
from midfold.fold.receipt import Receipt
from midfold.fold.request import CompactionState
from midfold.model import drive, local_summarizer
from midfold.plugins import name_problem
from midfold.testing import strategies
from midfold.testing.checks import (
    Run,
    anchored,
    gaps,
    is_handoff,
    legal,
    recoverable,
    request,
    shorter,
    size,
    validate,
    woven,
)
from midfold.testing.conversations import CANARY, long_conversation, rounds, spoiled_conversation
from midfold.testing.doubles import ScriptedSummarizer
from midfold.transcript.document import read

DIALECTS = strategies.DIALECTS
SUMMARY = f"## Goal\nShip it.\n\n## Progress\n### Done\n- {CANARY} three files were read."
NO_SUCH_PROCESS = 77


class EngineContract:
    """Subclass this in a test module and give it an `engine`."""

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
        assert isinstance(found, ContextEngine), "the fixture `engine` gives no ContextEngine"
        return found

    @pytest.fixture(params=DIALECTS)
    def dialect(self, request: pytest.FixtureRequest) -> str:
        name: str = request.param
        return name

    def generated(self, dialect: str, check: Callable[[list[Any]], None]) -> None:
        """Checks conversations nobody would think of; the same ones on every run."""

        @settings(self.profile, max_examples=self.examples)
        @given(gaps(dialect))
        def checked(between: list[list[Any]]) -> None:
            check(woven(dialect, copy.deepcopy(between)))

        checked()

    # What it is

    def test_its_name_can_be_configured(self, subject: ContextEngine) -> None:
        assert isinstance(subject.name, str)
        assert name_problem(subject.name) == ""

    def test_its_tools_have_names_of_their_own_and_others_are_refused(self, subject: ContextEngine) -> None:
        names = [tool.name for tool in subject.tools()]
        assert len(set(names)) == len(names)
        run = Run(subject, long_conversation("openai-chat"), "openai-chat")
        with pytest.raises(KeyError):
            subject.call_tool("no such tool", {}, run.outcome.archive)

    # Deciding

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
        self.generated(dialect, check)

    # Never harming what it was given

    def test_nothing_it_was_given_is_mutated(self, subject: ContextEngine, dialect: str) -> None:
        for messages in (long_conversation(dialect), spoiled_conversation(dialect)):
            before = copy.deepcopy(messages)
            run = Run(subject, messages, dialect, force=True)
            assert messages == before
            assert all(message.wire is given for message, given in zip(run.request.messages, messages, strict=True))

    def test_an_unchanged_outcome_is_the_same_messages(self, subject: ContextEngine, dialect: str) -> None:
        run = Run(subject, rounds(dialect, 1)[0], dialect, context_length=200_000)
        assert not run.outcome.changed
        assert run.outcome.messages is run.request.messages
        assert run.outcome.system is run.request.system
        assert not run.outcome.archive

    def test_an_empty_conversation_is_no_error(self, subject: ContextEngine, dialect: str) -> None:
        run = Run(subject, [], dialect, force=True)
        assert run.outcome.messages == ()

    @pytest.mark.parametrize("kind", ["auth", "network"])
    def test_a_summary_that_fails_by_auth_or_network_leaves_everything(
        self, subject: ContextEngine, dialect: str, kind: FailureKind
    ) -> None:
        summarizer = ScriptedSummarizer([SummaryFailed(kind)] * 9)
        run = Run(subject, long_conversation(dialect, results=False), dialect, summarizer=summarizer, force=True)
        if summarizer.asks:
            assert run.outcome.messages is run.request.messages
            assert run.outcome.receipt.status in ("aborted", "unchanged")
            assert run.outcome.receipt.compaction_count == run.request.state.count

    def test_a_flow_can_be_given_up_at_every_ask(self, subject: ContextEngine, dialect: str) -> None:
        flow = subject.compress(request(read(long_conversation(dialect, results=False), dialect=dialect), force=True))
        if next(flow, None) is not None:
            flow.close()

    # Compacting

    def test_the_result_keeps_the_laws(self, subject: ContextEngine, dialect: str) -> None:
        for messages in (long_conversation(dialect), spoiled_conversation(dialect)):
            legal(Run(subject, messages, dialect))
            legal(Run(subject, messages, dialect, force=True))
            legal(Run(subject, messages, dialect, keep_last_exchanges=1))
            legal(Run(subject, messages, dialect, target_tokens=size(messages, dialect) * 3 // 4))

    def test_the_result_keeps_the_laws_for_generated_conversations(self, subject: ContextEngine, dialect: str) -> None:
        self.generated(dialect, lambda messages: legal(Run(subject, messages, dialect, force=True)))

    def test_the_laws_hold_from_compaction_to_compaction(self, subject: ContextEngine, dialect: str) -> None:
        messages, state = long_conversation(dialect), CompactionState()
        for _ in range(4):
            run = Run(subject, messages, dialect, state=state)
            legal(run)
            shorter(run)
            assert sum(is_handoff(message) for message in run.outcome.messages) <= 1
            messages, state = [*run.written, *long_conversation(dialect)[1:]], run.outcome.state

    def test_it_is_never_longer_when_it_says_it_compacted(self, subject: ContextEngine, dialect: str) -> None:
        shorter(Run(subject, long_conversation(dialect), dialect))
        shorter(Run(subject, long_conversation(dialect), dialect, summarizer=lambda ask: "A long story. " * 5_000))
        self.generated(dialect, lambda messages: shorter(Run(subject, messages, dialect, force=True)))

    def test_the_latest_ask_and_answer_stay_outside_the_fold(self, subject: ContextEngine, dialect: str) -> None:
        anchored(Run(subject, long_conversation(dialect), dialect))
        self.generated(dialect, lambda messages: anchored(Run(subject, messages, dialect, force=True)))

    def test_nothing_is_lost_without_a_handle(self, subject: ContextEngine, dialect: str) -> None:
        recoverable(Run(subject, long_conversation(dialect), dialect))
        recoverable(Run(subject, spoiled_conversation(dialect), dialect, force=True))

    def test_nothing_generated_is_lost_without_a_handle(self, subject: ContextEngine, dialect: str) -> None:
        self.generated(dialect, lambda messages: recoverable(Run(subject, messages, dialect, force=True)))

    # Being the same every time

    def test_a_second_run_is_byte_identical(self, subject: ContextEngine, dialect: str) -> None:
        def check(messages: list[Any]) -> None:
            first = Run(subject, messages, dialect, force=True).fingerprint()
            assert Run(subject, copy.deepcopy(messages), dialect, force=True).fingerprint() == first

        check(long_conversation(dialect))
        self.generated(dialect, check)

    def test_what_was_measured_before_changes_nothing(self, subject: ContextEngine) -> None:
        """Messages remember their size; whether somebody has asked for it must not be seen in the result."""
        messages = long_conversation("openai-chat", 200)
        fresh = Run(subject, messages, "openai-chat", context_length=200_000)
        known = request(read(messages, dialect="openai-chat"), context_length=200_000)
        known.meter.count(known.messages)
        again = drive(subject.compress(known), local_summarizer)
        assert again.messages == fresh.outcome.messages
        assert again.receipt == fresh.outcome.receipt

    def test_another_process_with_another_hash_seed_gives_the_same_bytes(self, subject: ContextEngine) -> None:
        here = b"".join(fingerprints(subject))
        seed = "4711" if os.environ.get("PYTHONHASHSEED") != "4711" else "1"
        assert replayed(subject, seed=seed) == here

    # Accounting for it

    def test_the_receipt_is_json_and_fits_its_schema(self, subject: ContextEngine, dialect: str) -> None:
        for messages in (long_conversation(dialect), spoiled_conversation(dialect), rounds(dialect, 1)[0], []):
            receipt = Run(subject, messages, dialect, force=True).outcome.receipt
            text = json.dumps(receipt.to_dict(), allow_nan=False)
            assert msgspec.json.decode(text, type=Receipt) == receipt
            validate(json.loads(text))

    def test_the_receipt_tells_no_content(self, subject: ContextEngine, dialect: str) -> None:
        for messages in (long_conversation(dialect), spoiled_conversation(dialect)):
            for summarizer in (local_summarizer, lambda ask: SUMMARY):
                run = Run(subject, messages, dialect, summarizer=summarizer, force=True)
                assert CANARY not in json.dumps(run.outcome.receipt.to_dict())

    def test_the_receipt_counts_what_came_out(self, subject: ContextEngine, dialect: str) -> None:
        run = Run(subject, long_conversation(dialect), dialect)
        receipt = run.outcome.receipt
        assert (receipt.old_messages, receipt.new_messages) == (len(run.request.messages), len(run.outcome.messages))
        assert set(receipt.handles) == set(run.outcome.archive)
        assert {digest.handle for digest in receipt.digests} <= set(run.outcome.archive)
        assert receipt.reason


def fingerprints(engine: ContextEngine) -> Iterator[bytes]:
    for dialect in DIALECTS:
        for messages in (long_conversation(dialect), spoiled_conversation(dialect)):
            yield Run(engine, messages, dialect, force=True).fingerprint()


def replayed(engine: ContextEngine, *, seed: str) -> bytes:
    """The fingerprints that another process makes with the same engine."""
    module = sys.modules[type(engine).__module__]
    try:
        parcel = pickle.dumps((module.__name__, getattr(module, "__file__", None), pickle.dumps(engine)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        pytest.skip(f"the engine cannot be sent to another process: {error}")
    done = subprocess.run(
        [sys.executable, "-c", "from midfold.testing import engines; engines._replay()"],
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
    """The other process: the engine's module under its own name, then the same conversations."""
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
