"""All engines satisfy the contract, and the contract suite detects engines that do not."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from midfold.compaction.archive import Archive
from midfold.compaction.budget import Pressure
from midfold.compaction.request import CompactionRequest, Flow
from midfold.engines import Compressor, ContextEngine, Noop
from midfold.plugins import resolve_engine
from midfold.testing.engines import EngineContract
from support.effort import effort

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "howto" / "write-a-context-engine.md"


class TestCompressor(EngineContract):
    engine = Compressor()
    examples = effort(8, 20)


class TestNoop(EngineContract):
    engine = Noop
    examples = 5


class TestTheEngineOfTheHowTo(EngineContract):
    """Engine installed as in the how-to: a directory next to config.yaml, named in the configuration."""

    examples = 5

    @pytest.fixture
    def engine(self, tmp_path: Path) -> ContextEngine:
        found = re.search(r"^```python\n(.*?)^```", HOW_TO.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        assert found is not None
        folder = tmp_path / "plugins" / "context_engine" / "headlines"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(found[1], encoding="utf-8")
        resolved = resolve_engine("headlines", config_dir=tmp_path)
        assert resolved.notices == ()
        return resolved.engine


class Bent(Compressor):
    """Built-in engine with one defect."""

    name: ClassVar[str] = "bent"

    def compress(self, request: CompactionRequest) -> Flow:
        outcome = yield from super().compress(request)
        return self.bend(request, outcome)

    def bend(self, request: CompactionRequest, outcome: Any) -> Any:
        return outcome


class Forgetful(Bent):
    def bend(self, request: CompactionRequest, outcome: Any) -> Any:
        return msgspec.structs.replace(outcome, archive=Archive())


class Talkative(Bent):
    def bend(self, request: CompactionRequest, outcome: Any) -> Any:
        receipt = msgspec.structs.replace(outcome.receipt, reason=request.messages[1].text if request.messages else "")
        return msgspec.structs.replace(outcome, receipt=receipt)


class Careless(Bent):
    def bend(self, request: CompactionRequest, outcome: Any) -> Any:
        if outcome.changed:
            return msgspec.structs.replace(outcome, messages=outcome.messages[:-1])
        return msgspec.structs.replace(outcome, messages=(*outcome.messages,))


class Longer(Bent):
    def bend(self, request: CompactionRequest, outcome: Any) -> Any:
        return msgspec.structs.replace(outcome, messages=outcome.messages + request.messages)


class Mutating(Bent):
    def bend(self, request: CompactionRequest, outcome: Any) -> Any:
        request.messages[0].wire["role"] = "user "
        return outcome


class Moody(Bent):
    calls = 0

    def bend(self, request: CompactionRequest, outcome: Any) -> Any:
        type(self).calls += 1
        state = msgspec.structs.replace(outcome.state, lineage=str(self.calls))
        return msgspec.structs.replace(outcome, state=state)


class Hashing(Bent):
    def bend(self, request: CompactionRequest, outcome: Any) -> Any:
        state = msgspec.structs.replace(outcome.state, lineage=str(hash("midfold")))
        return msgspec.structs.replace(outcome, state=state)


class Eager(Bent):
    def should_compress(self, request: CompactionRequest) -> Pressure:
        return Pressure.HARD


class Peeking(Bent):
    reads_messages = False

    def should_compress(self, request: CompactionRequest) -> Pressure:
        return Pressure.SOFT if request.messages else Pressure.NONE


class Stubborn(Compressor):
    """Engine that folds regardless of the summarizer's result."""

    def compress(self, request: CompactionRequest) -> Flow:
        flow = super().compress(request)
        try:
            ask = next(flow)
            while True:
                answer = yield ask
                ask = flow.send(msgspec.structs.replace(answer, text="all fine", failure=""))
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


suite = EngineContract()
CHAT = "openai-chat"


@pytest.mark.parametrize(
    ("engine", "check"),
    [
        (Peeking, lambda engine: suite.test_every_answer_is_a_pressure(engine, CHAT)),
        (Forgetful, lambda engine: suite.test_nothing_is_lost_without_a_handle(engine, CHAT)),
        (Talkative, lambda engine: suite.test_the_receipt_tells_no_content(engine, CHAT)),
        (Careless, lambda engine: suite.test_the_latest_ask_and_answer_stay_outside_the_fold(engine, CHAT)),
        (Careless, lambda engine: suite.test_the_receipt_counts_what_came_out(engine, CHAT)),
        (Longer, lambda engine: suite.test_it_is_never_longer_when_it_says_it_compacted(engine, CHAT)),
        (Mutating, lambda engine: suite.test_nothing_it_was_given_is_mutated(engine, CHAT)),
        (Moody, lambda engine: suite.test_a_second_run_is_byte_identical(engine, CHAT)),
        (Hashing, suite.test_another_process_with_another_hash_seed_gives_the_same_bytes),
        (Eager, lambda engine: suite.test_a_tiny_conversation_is_no_reason_to_compress(engine, CHAT)),
        (
            Stubborn,
            lambda engine: suite.test_a_summary_that_fails_by_auth_or_network_leaves_everything(engine, CHAT, "auth"),
        ),
    ],
)
def test_the_suite_notices(engine: type[ContextEngine], check: Callable[[ContextEngine], None]) -> None:
    with pytest.raises(AssertionError):
        check(engine())
