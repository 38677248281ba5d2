from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from midfold.errors import PluginError
from midfold.lab.compactors import METHODS, choose_methods, load_compactor, plug
from midfold.lab.message_text import join_texts, size, total
from midfold.lab.retention_score import needs_at
from midfold.transcript.message import Transcript
from tests.support.retention import cut, path, port

CUT = cut(110, steps=60)
NEEDS = needs_at(CUT.past, CUT.future)
PAST_TOKENS = total(CUT.past)


def kept(name: str, share: float) -> Transcript:
    return METHODS[name](CUT, int(PAST_TOKENS * share), NEEDS)


@pytest.mark.parametrize("share", [0.02, 0.05, 0.2, 0.5])
@pytest.mark.parametrize("name", sorted(set(METHODS) - {"midfold"}))
def test_baselines_stay_inside_their_budget(name: str, share: float) -> None:
    assert total(kept(name, share)) <= PAST_TOKENS * share


@pytest.mark.parametrize("name", ["window", "head-tail", "masked", "ledger", "snippets"])
def test_baselines_use_the_budget_they_are_given(name: str) -> None:
    assert total(kept(name, 0.2)) >= PAST_TOKENS * 0.15


def test_the_window_ends_with_the_newest_messages_and_head_tail_begins_with_the_oldest_too() -> None:
    assert kept("window", 0.2)[-1] == CUT.past[-1]
    both = kept("head-tail", 0.2)
    assert (both[0], both[-1]) == (CUT.past[0], CUT.past[-1])


def test_masking_keeps_calls_and_hides_the_oldest_results_first() -> None:
    messages = kept("masked", 0.9)
    hidden = ["masked" in message.text for message in messages if message.role == "tool" and len(message.text) > 9]
    assert any(hidden)
    assert hidden == sorted(hidden, reverse=True)
    assert len(messages) == len(CUT.past)


def test_the_ledger_holds_names_and_the_snippets_hold_their_lines() -> None:
    assert path(3) in join_texts(kept("ledger", 0.3))
    assert f"listens on port: {port(20)}" in join_texts(kept("snippets", 0.4))


def test_random_draws_are_the_same_in_every_run() -> None:
    assert kept("random", 0.2) == kept("random", 0.2)


def keep_last(messages: list[dict[str, Any]], target_tokens: int) -> list[dict[str, Any]]:
    messages[0]["content"] = "changed"
    return messages[-2:]


def test_a_callable_gets_plain_dicts_without_the_system_prompt_and_cannot_harm_the_next() -> None:
    method = plug("mine", keep_last)
    assert method(CUT, 100, NEEDS) == CUT.past[-2:]
    assert CUT.past[0].text != "changed"
    assert plug("all", lambda messages, target: {"messages": messages})(CUT, 100, NEEDS) == CUT.past
    assert plug("none", lambda messages, target: None)(CUT, 100, NEEDS) == ()


def test_a_callable_that_fails_is_named_with_the_place() -> None:
    def broken(messages: list[Any], target_tokens: int) -> Any:
        raise ValueError("no idea")

    with pytest.raises(PluginError, match=r"method mine on talk before message 110 failed: ValueError: no idea"):
        plug("mine", broken)(CUT, 100, NEEDS)
    with pytest.raises(PluginError, match="returned no messages"):
        plug("mine", lambda messages, target: 7)(CUT, 100, NEEDS)


def test_callables_are_loaded_by_module_and_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_compactors.py").write_text("def tail(messages, target_tokens):\n    return messages[-1:]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name, function = load_compactor("mine=my_compactors:tail")
    assert (name, function([1, 2], 5)) == ("mine", [2])
    for text, problem in (
        ("mine", "expected name=package.module:function"),
        ("mine=no_such_module_here:f", "could not be loaded: No module named"),
        ("mine=my_compactors:other", "has no attribute 'other'"),
        ("mine=my_compactors:__name__", "is not callable"),
    ):
        with pytest.raises(PluginError, match=problem):
            load_compactor(text)


def test_an_unknown_method_is_answered_with_the_known_ones() -> None:
    with pytest.raises(PluginError, match="there is no method windw; built in: window, head-tail"):
        choose_methods(["windw"])
    assert list(choose_methods(["all"])) == list(METHODS)
    assert list(choose_methods({"a": "window", "b": keep_last})) == ["a", "b"]


def test_midfold_itself_is_one_of_the_methods() -> None:
    messages = kept("midfold", 0.4)
    assert 0 < sum(map(size, messages)) < PAST_TOKENS
