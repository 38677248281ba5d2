"""History shared by all framework adapters: the whole history, the messages sent, and the state between calls."""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from midfold import Setup, SummaryFailed, SummaryRequest, ToolSpec
from midfold.adapters import folded_history
from midfold.adapters.folded_history import RECALL_TOOLS, FoldedHistory, Histories, HistorySettings, answer_recall
from midfold.recall import NOTHING_FOLDED
from midfold.types import AnswerBounds, FailureKind

WORDS = "lorem ipsum dolor sit amet " * 110


class Broken:
    """Summarizer that fails and counts its requests."""

    def __init__(self, kind: FailureKind) -> None:
        self.kind, self.asked = kind, 0

    def __call__(self, ask: SummaryRequest) -> str:
        self.asked += 1
        raise SummaryFailed(self.kind)


def talk(turns: int) -> list[dict[str, Any] | None]:
    said: list[dict[str, Any] | None] = [{"role": "user", "content": "Read the files. The word is PLUM."}]
    for number in range(turns):
        call = {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": "read_file", "arguments": json.dumps({"path": f"f{number}.txt"})},
        }
        text = f"the number of f{number} is {number * 7} {WORDS}"
        said.append({"role": "assistant", "content": None, "tool_calls": [call]})
        said.append({"role": "tool", "tool_call_id": f"call_{number}", "content": text})
    return said


def chat(turns: int) -> list[dict[str, Any] | None]:
    """Return a conversation without tool results that a digest could replace."""
    asks = [{"role": "user", "content": f"note {number}: {WORDS}"} for number in range(turns)]
    return [message for ask in asks for message in (ask, {"role": "assistant", "content": "I noted it."})]


def setup(summarizer: Any = None, window: int = 16_000) -> Setup:
    return Setup(context_length=window, summarizer=summarizer)


def carry(history: FoldedHistory) -> Any:
    """Return the state after a round trip through a framework's storage."""
    return json.loads(json.dumps(history.keep()))


def sent(history: FoldedHistory) -> str:
    return json.dumps([history.wires[one] if isinstance(one, int) else one for one in history.pieces])


def test_the_pause_after_a_failed_summary_is_remembered_before_there_is_a_fold() -> None:
    writer = Broken("network")
    first = FoldedHistory(setup(writer), chat(20))
    assert first.fold() is None
    asked, kept = writer.asked, carry(first)
    assert asked > 0
    assert kept["memory"]["state"]["failure"]
    again = FoldedHistory(setup(writer), chat(21), kept)
    again.fold()
    assert writer.asked == asked


def test_a_fold_that_no_longer_fits_is_forgotten_but_for_the_pause() -> None:
    writer = Broken("timeout")
    first = FoldedHistory(setup(writer), chat(20))
    first.fold()
    assert first.is_folded
    kept, asked = carry(first), writer.asked
    edited = chat(20)
    edited[0] = {"role": "user", "content": "Something else."}
    again = FoldedHistory(setup(writer), edited, kept)
    assert not again.is_folded
    assert again.conversation.state.count == 0
    assert again.conversation.state.failure == first.conversation.state.failure
    again.fold()
    assert again.is_folded
    assert writer.asked == asked
    assert "note 0:" not in sent(again)


def test_a_kept_fold_is_sent_again_byte_for_byte_with_what_is_new() -> None:
    first = FoldedHistory(setup(), talk(20))
    first.fold()
    assert carry(first) == first.keep()
    again = FoldedHistory(setup(), talk(21), carry(first))
    assert sent(again)[: len(sent(first)) - 1] == sent(first)[:-1]
    assert again.pieces[-2:] == [41, 42]


def test_originals_of_every_fold_can_be_looked_up_by_what_was_kept() -> None:
    kept: Any = None
    for turns in range(1, 40):
        history = FoldedHistory(setup(), talk(turns), kept)
        history.fold()
        kept = carry(history)
    assert history.conversation.state.count >= 2
    last = FoldedHistory(setup(), talk(40), kept)
    answer = answer_recall("context_search", '{"query": "number f2"}', last.originals, last.threshold)
    assert "the number of f2 is 14" in answer.text
    assert answer_recall("context_search", "no JSON", last.originals, None).is_error
    assert answer_recall("context_search", {"query": "f2"}, {}, None).text == NOTHING_FOLDED


def test_two_folds_in_one_call_keep_what_the_first_one_wrote() -> None:
    history = FoldedHistory(setup(window=60_000), talk(60))
    first = history.fold()
    assert history.learn_refusal(ValueError("This model's maximum context length is 16000 tokens."))
    second = history.fold(force=True)
    assert first is not None
    assert second is not None
    assert (first.status, second.status) == ("pruned", "compacted")
    assert all(None not in originals for originals in history.originals.values())
    answer = answer_recall("context_search", {"query": "number f1"}, history.originals, None)
    assert "the number of f1 is 7" in answer.text


ADAPTERS = Path(folded_history.__file__).parent
MODULES = sorted(path.relative_to(ADAPTERS).as_posix() for path in ADAPTERS.rglob("*.py"))
SHARED = "folded_history.py"
LONGEST_ADAPTER = 220


def imported_modules(source: str) -> set[str]:
    """Return the names a module imports from midfold, also inside functions; relative imports are excluded."""
    nodes = list(ast.walk(ast.parse(source)))
    modules = [("." * node.level) + (node.module or "") for node in nodes if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return {module for module in modules if module.split(".")[0] in ("midfold", "")}


@pytest.mark.parametrize("name", MODULES)
def test_an_adapter_is_written_on_the_public_face_and_on_what_adapters_share(name: str) -> None:
    own = imported_modules((ADAPTERS / name).read_text(encoding="utf-8")) - {
        "midfold",
        "midfold.errors",
        "midfold.types",
    }
    if name == SHARED:
        allowed = set[str]()
    elif name.startswith("hermes/"):
        allowed = {module for module in own if f"{module}.".startswith("midfold.adapters.hermes.")}
        allowed.add("midfold.atomic")
    else:
        allowed = {"midfold.adapters.folded_history"}
    assert own - allowed == set()


def test_an_inner_module_would_be_seen_wherever_it_is_imported() -> None:
    source = "import json, midfold.compaction\ndef f():\n    from midfold.store import x\n    from ..fold import y\n"
    assert imported_modules(source) == {"midfold.compaction", "midfold.store", "..fold"}


@pytest.mark.parametrize("name", [name for name in MODULES if name != SHARED])
def test_an_adapter_is_thin(name: str) -> None:
    assert len((ADAPTERS / name).read_text(encoding="utf-8").splitlines()) <= LONGEST_ADAPTER


def test_the_keywords_of_adapters_are_those_of_their_one_owner() -> None:
    assert set(inspect.signature(Histories).parameters) == set(HistorySettings.__annotations__)
    with pytest.raises(TypeError, match="context_lenght"):
        Histories(context_lenght=16_000)  # type: ignore[call-arg]


def test_an_unknown_message_is_reported_once_and_stays_between_its_neighbours() -> None:
    reports: list[str] = []
    histories = Histories(context_length=16_000, report=reports.append)
    wires: list[dict[str, Any] | None] = [*chat(10), None, *chat(12)]
    messages = [object() if wire is None else wire for wire in wires]
    for _ in range(2):
        history = histories.open(messages, wires, model=None)
        assert history.fold() is not None
        chosen = history.select(messages)
        assert chosen.count(messages[20]) == 1
        assert chosen[-1] is messages[-1]
    assert reports == ["unknown message kind builtins.object: such messages are sent unchanged and never compacted"]


def test_kinds_that_anybody_makes_up_do_not_fill_the_log() -> None:
    reports: list[str] = []
    histories = Histories(report=reports.append)
    for number in range(500):
        histories.open([number], [None], model=None, kind=str)
    assert len(reports) == folded_history.MOST_KINDS


def test_tools_for_looking_back_are_counted_once_where_the_framework_offers_them() -> None:
    read_file = ToolSpec("read_file", "Read a file.", {"type": "object", "properties": {}})
    definitions = [spec.definition("openai-chat") for spec in (read_file, *RECALL_TOOLS)]
    for tools in ([read_file, *RECALL_TOOLS], definitions):
        setup = Histories().open(talk(2), talk(2), model="gpt-4o", tools=tools).conversation.setup
        assert setup.tools == definitions
        assert setup.has_unfold_tool
    setup = Histories().open(talk(2), talk(2), model="gpt-4o", tools=[read_file]).conversation.setup
    assert setup.tools == definitions[:1]
    assert not setup.has_unfold_tool


REFUSAL = "This model's maximum context length is 9000 tokens. However, you requested 12345 tokens."


def test_a_window_that_a_refusal_names_is_believed_by_every_later_history_of_the_model() -> None:
    histories = Histories(context_length=16_000)
    first = histories.open(talk(2), talk(2), model="a")
    assert histories.learn_refusal(first, ValueError(REFUSAL))
    assert not histories.learn_refusal(first, ValueError(REFUSAL.replace("9000", "90000")))
    windows = [histories.open(chat(1), chat(1), model=name).conversation.setup.window for name in ("a", "b")]
    assert windows == [9_000, 16_000]


@pytest.mark.parametrize("said", [REFUSAL, REFUSAL.upper().replace(" ", "\n")])
def test_a_window_that_an_error_only_repeats_of_the_conversation_is_not_believed(said: str) -> None:
    histories = Histories(context_length=16_000)
    wires: list[dict[str, Any] | None] = [{"role": "user", "content": f"why does it say: {said}"}]
    history = histories.open(wires, wires, model="a")
    assert not histories.learn_refusal(history, ValueError(f"invalid value: {said!r}"))
    assert history.conversation.setup.window == 16_000


def test_folds_leave_room_for_the_next_requests() -> None:
    histories = Histories(context_length=16_000)
    kept: Any = None
    folds = 0
    for turns in range(10, 40):
        history = histories.open(talk(turns), talk(turns), kept, model=None)
        folds += history.fold() is not None
        kept = carry(history)
    assert 2 <= folds <= 5


def test_the_first_fold_keeps_as_much_word_for_word_as_later_ones_though_it_brings_tools_along() -> None:
    histories, kept, same = Histories(context_length=16_000), None, list[int]()
    for turns in range(10, 40):
        history = histories.open(talk(turns), talk(turns), kept, model=None, recall="folded")
        if history.fold() is not None:
            same.append(sum(isinstance(piece, int) for piece in history.pieces))
        kept = carry(history)
    assert len(same) >= 2
    assert same[0] >= min(same[1:]) >= 5


def responses(turns: int) -> list[dict[str, Any] | None]:
    said: list[dict[str, Any] | None] = [{"role": "user", "content": "Read the files."}]
    for number in range(turns):
        call = {"call_id": f"call_{number}", "name": "read_file", "arguments": "{}"}
        said += [{"type": "function_call", **call}]
        said += [{"type": "function_call_output", "call_id": f"call_{number}", "output": WORDS}]
    return said


def anthropic(turns: int) -> list[dict[str, Any] | None]:
    said: list[dict[str, Any] | None] = [{"role": "user", "content": "Read the files."}]
    for number in range(turns):
        use = {"type": "tool_use", "id": f"call_{number}", "name": "read_file", "input": {}}
        said += [{"role": "assistant", "content": [use]}]
        result = {"type": "tool_result", "tool_use_id": f"call_{number}", "content": WORDS}
        said += [{"role": "user", "content": [result]}]
    return said


@pytest.mark.parametrize("unknown", [7, 8], ids=["call", "result"])
@pytest.mark.parametrize(
    ("dialect", "make"), [("openai-chat", talk), ("openai-responses", responses), ("anthropic", anthropic)]
)
def test_the_other_half_of_an_unknown_call_or_result_stays_with_it(dialect: str, make: Any, unknown: int) -> None:
    wires = make(30)
    messages = list(wires)
    wires[unknown] = None
    history = Histories(context_length=16_000).open(messages, wires, model=None, dialect=dialect)
    assert history.fold() is not None
    chosen = history.select(messages)
    places = [place for place, one in enumerate(chosen) if one is messages[7] or one is messages[8]]
    assert len(places) == 2
    assert places[1] == places[0] + 1
    again = Histories(context_length=16_000).open(messages, wires, carry(history), model=None, dialect=dialect)
    assert again.is_folded


def test_a_call_that_waits_behind_an_unknown_message_is_known() -> None:
    wires = talk(3)[:-1]
    wires.insert(1, None)
    assert FoldedHistory(setup(), wires).wires == wires


def test_an_answer_of_recall_takes_what_the_window_bears_also_after_the_state_was_carried_on() -> None:
    sizes = {}
    for window in (16_000, 64_000):
        history = FoldedHistory(setup(window=window), talk(80 if window > 16_000 else 24))
        assert history.fold(force=True) is not None
        again = FoldedHistory(setup(window=1_000_000), history.wires, carry(history))
        bounds = AnswerBounds.of(history.conversation.setup.budget.threshold_tokens)
        assert carry(history)["threshold"] == history.threshold == again.threshold
        found = answer_recall("context_search", {"query": "number lorem"}, again.originals, again.threshold).text
        handle = next(iter(again.originals))
        shown = answer_recall("context_unfold", {"handle": handle, "start": 0}, again.originals, again.threshold).text
        assert len(found) <= bounds.hits + 800 and len(shown) <= bounds.page + 200
        sizes[window] = len(found), len(shown)
    assert sizes[16_000] < sizes[64_000]
    whole = answer_recall("context_search", {"query": "number lorem"}, again.originals, None).text
    assert len(whole) > sizes[64_000][0]
