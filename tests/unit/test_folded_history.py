"""What every framework's adapter shares: a whole history, what is sent of it, and what is remembered between calls."""

from __future__ import annotations

import json
from typing import Any

from midfold import AnswerBounds, FailureKind, Setup, SummaryAsk, SummaryFailed
from midfold.adapters.folded_history import FoldedHistory, answer_recall

WORDS = "lorem ipsum dolor sit amet " * 110


class Broken:
    """A summarizer that fails, and counts how often it was asked."""

    def __init__(self, kind: FailureKind) -> None:
        self.kind, self.asked = kind, 0

    def __call__(self, ask: SummaryAsk) -> str:
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
    """Without results that a digest could stand for."""
    asks = [{"role": "user", "content": f"note {number}: {WORDS}"} for number in range(turns)]
    return [message for ask in asks for message in (ask, {"role": "assistant", "content": "I noted it."})]


def setup(summarizer: Any = None, window: int = 16_000) -> Setup:
    return Setup(context_length=window, summarizer=summarizer)


def carry(history: FoldedHistory) -> Any:
    """What was kept, as it comes back from where a framework keeps it."""
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
