"""Anchors, images, position and role of the handoff, and requested sizes, as a user sees them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import midfold
from midfold.compaction.assemble import handoff_role
from midfold.compaction.handoff import MARKER
from midfold.compaction.local.digest import duplicates
from midfold.compaction.previews import spill_results
from support.build import folded, setting, view, work
from support.fixtures import assistant, call, number_lines, system, user

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0K" * 40}}
OPENING = [system(), user("Hello."), assistant("Hi.")]


def shot(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}, PICTURE]}


def contents(messages: list[dict[str, Any]]) -> list[str]:
    return [str(message.get("content")) for message in messages]


def place_of(messages: list[dict[str, Any]], text: str) -> int:
    return next(place for place, content in enumerate(contents(messages)) if text in content)


def test_an_ask_far_back_stays_with_its_reply_before_the_handoff_that_tells_later_work() -> None:
    messages = [*OPENING, *work(0, 30), user("THE ASK"), assistant("THE REPLY"), *work(100, 60)]
    result = folded(messages, config=setting(protect_last_n=4))
    ask = place_of(result.messages, "THE ASK")
    assert result.messages[ask + 1]["content"] == "THE REPLY"
    assert place_of(result.messages, MARKER + " Earlier") > ask + 1
    assert result.messages[-1] is messages[-1]


@pytest.mark.parametrize("prune", ["digest", "off"])
def test_the_newest_picture_of_the_user_stays_far_back_and_older_ones_go(prune: str) -> None:
    newest = shot("NEWEST")
    old = call(900, "look", {}, "")
    old[1]["content"] = [{"type": "text", "text": "TOOL SHOT"}, PICTURE]
    messages = [*OPENING, shot("OLDEST"), *old, *work(0, 10), newest, assistant("Seen."), *work(100, 60)]
    messages += [user("THE ASK"), assistant("Yes."), *work(300, 4)]
    result = midfold.compact(messages, context_length=32_000, config=setting(protect_last_n=4, prune=prune))
    assert result.changed
    assert any(message is newest for message in result.messages)
    assert sum("data:image" in content for content in contents(result.messages)) == 1


def test_digests_alone_replace_old_pictures_too() -> None:
    messages = [*OPENING, shot("OLDEST"), assistant("Seen."), *work(0, 60, 600), shot("NEWEST"), assistant("Seen.")]
    result = midfold.compact(messages, context_length=64_000, config=setting(protect_last_n=4))
    assert result.receipt.status == "pruned"
    assert sum("data:image" in content for content in contents(result.messages)) == 1
    assert [digest.message for digest in result.receipt.digests if digest.kind == "media"] == [3]


def test_a_system_prompt_that_is_not_protected_is_folded_from_the_first_compaction_on() -> None:
    messages = [*OPENING, *work(0)]
    few = midfold.Protection(protect_system_prompt=False, protect_last_n=4)
    result = folded(messages, protection=few)
    assert all(message["role"] != "system" for message in result.messages)
    assert [message["content"] for message in result.messages[:2]] == ["Hello.", "Hi."]


@pytest.mark.parametrize("before", [None, "user", "assistant", "tool"])
@pytest.mark.parametrize("after", [None, "user", "assistant"])
def test_the_role_of_the_handoff_differs_from_the_one_before_it(before: Any, after: Any) -> None:
    role = handoff_role(before, after)
    assert role == ("assistant" if before == "user" or (before == "tool" and after == "user") else "user")


def test_no_neighbours_have_the_same_role_with_pinned_turns_either() -> None:
    for count in range(1, 6):
        messages = [*OPENING, *work(0, 20), user("ASK"), *([assistant("REPLY")] * (count % 2)), *work(100, 60)]
        roles = [message["role"] for message in folded(messages, config=setting(protect_last_n=count)).messages]
        assert not any(one == two != "tool" for one, two in itertools.pairwise(roles))


def test_handoff_between_two_kept_asks_needs_no_other_generated_message() -> None:
    messages = [system(), user("THE TASK"), *work(0, 30), user("THE ASK"), *work(100, 60)]
    result = folded(messages, config=setting(protect_last_n=4))
    assert [message["role"] for message in result.messages[:5]] == ["system", "user", "assistant", "user", "assistant"]
    assert sum(MARKER in content for content in contents(result.messages[1:])) == 1
    assert place_of(result.messages, "THE TASK") < place_of(result.messages, MARKER + " E") < len(result.messages)


def test_results_of_the_tail_are_shortened_only_if_they_must_be_and_the_newest_last() -> None:
    def size(words: int) -> midfold.Compaction:
        large = call(900, "sh", {}, "large " * words)
        newest = call(901, "sh", {}, "newest " * 3_000)
        return folded([*OPENING, *work(0), *large, *newest], context_length=60_000)

    exact, shortened = size(8_000), size(40_000)
    assert not exact.receipt.digests
    assert [digest.kind for digest in shortened.receipt.digests] == ["spill"]
    assert shortened.receipt.new_tokens < shortened.receipt.threshold_tokens
    assert "newest " * 3_000 in contents(shortened.messages)[-1]
    assert not any("protect_last_n" in notice for notice in shortened.receipt.notices)


def test_the_newest_results_go_last_also_where_they_were_answered_and_what_fits_then_comes_back() -> None:
    def shortened(newest: int) -> list[int]:
        batches = [
            call(900 + n, f"t{n}", {}, number_lines(f"of {n}: line {{n}}", lines))
            for n, lines in enumerate((4_000, 60, 1_400, newest))
        ]
        messages = [*OPENING, *work(0), *itertools.chain(*batches), assistant("I see.")]
        result = folded(messages, context_length=40_000, config=setting(protect_last_n=10))
        return [number for number, (_, told) in enumerate(batches) if told not in result.messages]

    assert shortened(1_500) == [0, 2], "and not the newest"
    assert shortened(5_000) == [0, 3], "and nothing that fits when these are gone"


def test_protect_last_n_gives_way_only_to_the_threshold_and_the_notice_says_so() -> None:
    talk = [message for n in range(40) for message in (user(f"{n} " * 400), assistant("yes " * 400))]
    result = folded([system(), *talk], context_length=12_000)
    assert result.boundary is not None
    kept = len(result.before) - result.boundary.end
    (notice,) = [notice for notice in result.receipt.notices if "protect_last_n" in notice]
    assert 2 <= kept < 20
    assert (
        f"Kept the last {kept} messages instead of the 20 of protect_last_n: with the ones before them and with"
        in notice
    )
    assert (
        f"a full-length summary the view would not be below the threshold of {result.receipt.threshold_tokens:,}"
        in notice
    )
    assert result.receipt.new_tokens < result.receipt.threshold_tokens


def test_a_notice_does_not_promise_what_even_the_shortest_tail_does_not_give() -> None:
    talk = [message for n in range(4) for message in (user(f"{n} " * 9_000), assistant("yes " * 9_000))]
    result = folded([system(), *talk], context_length=12_000)
    (notice,) = [notice for notice in result.receipt.notices if "protect_last_n" in notice]
    assert "even without the ones before them" in notice
    assert result.receipt.new_tokens >= result.receipt.threshold_tokens


def test_a_size_that_was_asked_for_folds_older_messages_before_it_shortens_the_newest() -> None:
    newest = call(901, "sh", {}, "newest " * 250)
    messages = [*OPENING, *work(0), *work(200, 3, 150), user("THE ASK " * 20), *newest]
    result = folded(messages, target_tokens=3_000, context_length=200_000)
    assert result.messages[-1] is newest[1]
    assert any(message.get("content") == "THE ASK " * 20 for message in result.messages)


def test_copies_are_found_by_what_results_say() -> None:
    same = "line of a file\n" * 40
    messages = view(
        [user("Go."), *call(1, "read", {}, same), *call(2, "read", {}, same), *call(3, "read", {}, same + "x")]
    )
    found = duplicates(messages, 0, len(messages))
    assert {place.message: copy.message for place, copy in found.items()} == {2: 4}


@pytest.mark.parametrize(("rounds", "newest"), [(10, 120), (31, 120), (13, 600), (20, 700), (31, 800)])
def test_room_is_not_made_at_the_cost_of_results_that_the_model_has_not_seen(rounds: int, newest: int) -> None:
    lines = [120] * (rounds - 1) + [newest]
    reads = [
        call(
            number, "read_file", {"path": f"p{number}.py"}, f"file {number}\n" + number_lines("line {n} is fine", count)
        )
        for number, count in enumerate(lines)
    ]
    with midfold.open("memory:") as sessions:
        session = sessions.session("a", context_length=16_000, leaves_room=True)
        session.append([user("Read all files."), *(message for read in reads for message in read)])
        assert session.compact().changed
        assert session.view().messages[-1] == reads[-1][-1]


def test_a_result_that_the_model_has_not_seen_stays_whole_where_the_window_holds_it() -> None:
    """It may exceed the threshold once: a model that sees only the ends of a file it requested reads it again."""
    file = number_lines("line {n} defines a function of laws.py", 850)
    asked = call(900, "read_file", {"path": "src/laws.py"}, file)
    messages = [*OPENING, *work(0, 30), *asked]
    result = midfold.compact(messages, context_length=16_000, config=setting(protect_last_n=4))
    assert result.changed
    assert result.messages[-1] is messages[-1]
    seen = [*messages, assistant("I have read it."), user("Go on.")]
    later = midfold.compact(seen, context_length=16_000, config=setting(protect_last_n=4))
    assert not any(message is messages[-1] for message in later.messages), "seen: it gives way to the threshold"
    huge = [*OPENING, *work(0, 30), *call(900, "read_file", {"path": "src/laws.py"}, file * 4)]
    cut = midfold.compact(huge, context_length=16_000, config=setting(protect_last_n=4))
    assert "unfold mf-" in str(cut.messages[-1]["content"]), "no window holds it"


def test_what_is_shown_by_its_ends_is_cut_at_lines_and_shows_how_a_run_ended() -> None:
    lines = [f"line {number} of the output of a run is fine" for number in range(30)]
    output = "\n".join(["Exit code 1", *lines[:15], "AssertionError: 7 is not 8", *lines[15:]])
    (shown,) = view([user("Go."), *call(1, "sh", {}, output)])[2:]
    told = spill_results(shown, "mf-123456789abc", 150).parts[0].text.split("\n")
    gap = next(place for place, line in enumerate(told) if line.startswith("[… "))
    assert "unfold mf-123456789abc" in told[gap] and told[gap + 1] == "AssertionError: 7 is not 8 […]"
    assert told[:gap] == output.split("\n")[:gap]
    assert told[gap + 2 :] == lines[-len(told[gap + 2 :]) :]


def test_a_result_of_which_hardly_anything_would_be_left_out_stays_whole() -> None:
    (shown,) = view([user("Go."), *call(1, "sh", {}, "a verdict of some words " * 10)])[2:]
    assert spill_results(shown, "mf-123456789abc", 40) == shown
    (longer,) = view([user("Go."), *call(1, "sh", {}, "a verdict of some words " * 20)])[2:]
    assert len(spill_results(longer, "mf-123456789abc", 40).parts[0].text) < len(longer.parts[0].text) - 100


@pytest.mark.parametrize("first", [0, 1, 2, 3, 5])
def test_a_system_prompt_that_is_not_protected_is_folded_whatever_else_stays(first: int) -> None:
    messages = [system("You are THE PROMPT."), user("Hello."), assistant("Hi."), *work(0, 60)]
    protection = midfold.Protection(protect_system_prompt=False, protect_first_n_messages=first)
    result = midfold.compact(messages, context_length=30_000, protection=protection, config=setting(prune="off"))
    assert result.receipt.status == "compacted"
    again = midfold.compact(
        [*result.messages, *work(100, 60)],
        context_length=30_000,
        protection=protection,
        state=result.state,
        config=setting(prune="off"),
    )
    for shown in (result.messages, again.messages):
        assert not any(message["role"] == "system" for message in shown)


@pytest.mark.parametrize(("results", "stays"), [(2, True), (4, False)])
def test_only_a_short_direct_reply_stays_with_an_ask_far_back(results: int, stays: bool) -> None:
    calls = [turn for number in range(results) for turn in call(900 + number, "look", {"at": number}, f"SEEN {number}")]
    batch = {**calls[0], "tool_calls": [made for turn in calls[::2] for made in turn["tool_calls"]]}
    reply = [batch, *calls[1::2]]
    messages = [*OPENING, *work(0, 30), user("THE ASK"), *reply, assistant(""), *work(100, 60)]
    result = folded([message for message in messages if message["content"] != ""], config=setting(protect_last_n=4))
    assert result.receipt.status == "compacted"
    assert place_of(result.messages, "THE ASK")
    assert (reply[-1] in result.messages) is stays


def test_the_newest_system_messages_in_the_middle_stay_where_not_all_can() -> None:
    told = [{"role": "system", "content": f"RULE {number}. " + "Mind the gap. " * 60} for number in range(12)]
    turns = [turn for number, rule in enumerate(told) for turn in (rule, *work(number * 10, 6))]
    result = folded([*OPENING, *turns, *work(500, 20)], config=setting(protect_last_n=4, prune="off"))
    kept = [message for message in result.messages if message in told]
    assert 0 < len(kept) < len(told) - 1
    assert kept == told[-len(kept) :]
