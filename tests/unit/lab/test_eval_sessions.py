from __future__ import annotations

import json
from pathlib import Path

import pytest

from midfold.errors import TranscriptError
from midfold.lab.recorded_sessions import all_cuts, cuts_of, half_of, load_sessions, sessions_of
from midfold.testing.engines import long_conversation
from midfold.transcript.document import read
from midfold.transcript.message import Thinking
from support.fixtures import assistant, user
from tests.support.retention import LEAST_PAST, conversation, session


def test_a_conversation_is_split_where_a_compaction_was_recorded() -> None:
    summary = {**user("Summary so far."), "_meta": {"compact_summary": True, "compact_boundary": {"trigger": "auto"}}}
    told = user("This session is being continued from a previous conversation that ran out of context.")
    sessions = sessions_of(read([user("a"), assistant("b"), summary, assistant("c"), told, assistant("d")]))
    assert [[message.text[:7] for message in item.messages] for item in sessions] == [
        ["a", "b"],
        ["Summary", "c"],
        ["This se", "d"],
    ]
    assert [item.number for item in sessions] == [1, 2, 3]
    assert [item.human for item in sessions] == [(True, False), (False, False), (False, False)]


def test_system_prompts_thinking_and_meta_are_left_out() -> None:
    thought = {**assistant("said"), "reasoning_content": "thought", "_meta": {"ts": "now"}}
    (only,) = sessions_of(read([{"role": "system", "content": "rules"}, user("hi"), thought]))
    assert [message.role for message in only.messages] == ["user", "assistant"]
    assert not any(isinstance(part, Thinking) for message in only.messages for part in message.parts)
    assert only.values(2) == [user("hi"), assistant("said")]


def test_a_compactor_may_change_what_it_is_given() -> None:
    item = session()
    item.values(2)[0]["content"] = "changed"
    assert item.values(2)[0]["content"].startswith("Please tidy up")


def test_projects_come_from_the_file_or_from_its_folder(tmp_path: Path) -> None:
    named = {"id": "x", "source": "swe", "meta": {"instance_id": "django__django-11564"}, "messages": [user("a")]}
    (tmp_path / "one.jsonl").write_text(json.dumps(named) + "\n" + json.dumps({"messages": [user("b")]}) + "\n")
    first, second = load_sessions([tmp_path / "one.jsonl"])
    assert (first.conversation, first.project) == ("x", "swe/django__django")
    assert second.project == str(tmp_path)
    assert second.conversation.endswith("one.jsonl, conversation 2")


def test_errors_name_the_file_and_the_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text(json.dumps(conversation()) + "\n{not json\n")
    with pytest.raises(TranscriptError, match=r"broken\.jsonl, line 2"):
        load_sessions([broken])
    with pytest.raises(TranscriptError, match=r"cannot read .*gone\.jsonl: no such file"):
        load_sessions([tmp_path / "gone.jsonl"])


def test_cuts_stand_before_assistant_messages_with_every_call_answered_and_enough_on_both_sides() -> None:
    item = session()
    cuts = cuts_of(item, least_past=LEAST_PAST)
    assert len(cuts) >= 2
    for cut in cuts:
        assert item.messages[cut.at].role == "assistant"
        assert item.messages[cut.at - 1].role in ("tool", "user")
        assert len(cut.future) >= 20
    assert cuts_of(item, least_past=10**9) == []


@pytest.mark.parametrize("dialect", ["openai-chat", "openai-responses", "anthropic"])
def test_every_dialect_is_cut_between_steps(dialect: str) -> None:
    (only,) = sessions_of(read(long_conversation(dialect, 12), dialect=dialect))
    cuts = cuts_of(only, least_past=LEAST_PAST)
    assert cuts
    assert all(only.messages[cut.at].role == "assistant" for cut in cuts)


def test_each_conversation_is_in_one_half_and_always_the_same() -> None:
    sessions = [session(name=f"talk {number}") for number in range(30)]
    train, held = (all_cuts(sessions, split, LEAST_PAST) for split in ("train", "held"))
    assert train
    assert held
    assert len(train) + len(held) == len(all_cuts(sessions, "all", LEAST_PAST))
    assert [half_of(f"talk {number}") for number in (0, 1, 4)] == ["train", "train", "held"]
