"""Text in a summary that looks like a handle is one only if it resolves."""

from __future__ import annotations

import pytest

from midfold import compact
from midfold.compaction.archive import framed_handles, handles_in, rewrite_foreign_handles
from midfold.compaction.handoff import filler, handoff, recognise
from midfold.transcript.message import Message, Text
from support.fixtures import assistant, call, number_lines, user
from support.timing import assert_in_proportion

OWN, STRANGE = "mf-1a2b3c4d5e6f", "mf-0123456789ab"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"see {OWN}.", {OWN}),
        (f"[{OWN}]({STRANGE})", {OWN, STRANGE}),
        (f"x{OWN} {OWN}z {OWN}A mf-12 mf-xyz1 MF-1a2b3c4d5e6f", set()),
        ("mf-1a2b", {"mf-1a2b"}),
        (f"{OWN}-{STRANGE}", {OWN, STRANGE}),
    ],
)
def test_what_looks_like_a_handle(text: str, found: set[str]) -> None:
    assert handles_in(text) == found


def test_only_own_handles_keep_their_shape() -> None:
    text = f"a {OWN} b {STRANGE}, {STRANGE}"
    assert rewrite_foreign_handles(text, lambda handle: handle == OWN) == f"a {OWN} b mf:0123456789ab, mf:0123456789ab"
    assert rewrite_foreign_handles(text, lambda handle: True) is text


def test_frames_of_ours_name_handles_and_other_text_does_not() -> None:
    texts = [f"[Bash] ran x | unfold {OWN}", f"a\n[… 9 characters | unfold {STRANGE} …]\nb", f"unfold {OWN} now"]
    assert framed_handles(texts) == {OWN, STRANGE}
    assert framed_handles([f"please | unfold {OWN} now", f"see {OWN}"]) == set()


def test_looking_for_handles_is_linear() -> None:
    small, large = ("mf-" * count + "0" * count + " mf-0" * count for count in (20_000, 80_000))
    assert_in_proportion(handles_in, small, (large, 8))


def _talk(note: str) -> list[object]:
    talk: list[object] = [user("Port the parser."), assistant("Yes.")]
    for number in range(60):
        output = number_lines(f"line {{n}} of {number} is fine", 40)
        talk += call(number, "terminal", {"command": f"make {number}"}, f"{note}\n{output}" if number == 4 else output)
    return [*talk, assistant("Done."), user("What now?")]


def test_without_a_store_invented_handles_are_not_carried_either() -> None:
    result = compact(_talk(f"NOTE the value is kept in {STRANGE} of vault_7781"), context_length=16_000, force=True)
    assert "vault_7781" in result.state.summary and STRANGE not in result.state.summary
    assert "mf:0123456789ab" in result.state.summary


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_filler_is_recognised_only_as_it_was_written(role: str) -> None:
    made = filler("0123456789ab", role)  # type: ignore[arg-type]
    assert recognise(made) is not None
    assert recognise(Message(made.role, (Text(f"{made.text} and more"),))) is None


def test_a_handoff_is_recognised_with_and_without_space_around_its_body() -> None:
    made = handoff("  a summary\n", "0123456789ab", "user")
    found = recognise(made)
    assert found is not None and found.body == "a summary"
