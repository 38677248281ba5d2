"""User rules survive any number of compactions in any API; the result is legal, deterministic and never longer."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import midfold
from bench.user_words import OTHER_LANGUAGES, Host, Library, Session, count, tool_call, vague, view_text
from midfold.transcript.laws import violations
from support.fixtures import assistant, user

RULES = ("Never push to main.", "Do not rename parse().", "Always run make check.", *OTHER_LANGUAGES.values())
TALK = ("Go on.", "What did that print?", "Fine, next.", "Thanks!", "Observation:\nNever mind this line.")
step = st.one_of(
    st.sampled_from(RULES).map(lambda text: ("rule", text)),
    st.sampled_from(TALK).map(lambda text: ("talk", text)),
    st.integers(300, 6_000).map(lambda size: ("call", size)),
    st.just(("call", 5_000)),
)


def messages_of(kind: str, value: Any, number: int) -> list[dict[str, Any]]:
    return tool_call(number, value) if kind == "call" else [user(value), assistant(f"Noted, {number}.")]


def play(steps: list[tuple[str, Any]], path: Any, **options: Any) -> list[str]:
    """Run a session; return the text of every view that a compaction made."""
    runner, said, texts = path(context_length=8_000, **options), list[str](), list[str]()
    runner.step([user("Port the parser to Rust."), assistant("I will.")])
    for number, (kind, value) in enumerate(steps):
        said += [value] if kind == "rule" else []
        before = count(runner.view) if runner.view else 0
        added = messages_of(kind, value, number)
        if runner.step(added):
            texts.append(view_text(runner.view))
            assert [rule for rule in said if rule not in texts[-1]] == []
            assert violations(midfold.read(runner.view).messages) == ()
            assert count(runner.view) < before + count(added)
    return texts


@settings(max_examples=15, deadline=None)
@given(
    st.lists(step, min_size=10, max_size=40),
    st.sampled_from([Library, Host, Session]),
    st.sampled_from([{}, {"summarizer": vague}]),
)
def test_rules_survive_every_compaction_on_every_path(
    steps: list[tuple[str, Any]], path: Any, options: dict[str, Any]
) -> None:
    assert play(steps, path, **options) == play(steps, path, **options)
