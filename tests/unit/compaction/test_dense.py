"""Effects of a requested size on the framing, protected content and the ledger."""

from __future__ import annotations

from typing import Any

import pytest

import midfold
from midfold.compaction.handoff import MARKER, TERSE_END, filler, handoff, recognise
from midfold.compaction.planner import ANSWER_FOLDED
from midfold.compaction.previews import LADDER, SHORT_TEXT, TARGET_PER_END, Ends, shorten, spill_results
from midfold.compaction.request import (
    CUT_OUT,
    DENSE_TRAIL_SHARE,
    SHORTENED_CALL,
    STAYS_AGAIN,
    SummaryRequest,
    max_whole_characters,
)
from midfold.compaction.summary import FEW_HEADINGS
from midfold.compaction.truncate import ends_of_result
from midfold.transcript.laws import violations
from midfold.transcript.message import Message, Text, ToolResult
from support.hash_seeds import outputs_under_hash_seeds
from tests.support.build import assistant, call, user

FOLD = "0123456789ab"
ASK = "Port the parser to src/parser/core.rs. You must keep port 8123. Never touch **docs/old.md**!"


def session(count: int = 60) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = [user(ASK)]
    for number in range(count):
        text = f"# the handler of module {number} validates the request\ndef handle_{number}(request): ...\n" * 12
        turns += [
            assistant(f"I read module {number} now, because handle_{number} validates its request."),
            user("go on"),
            *call(number, "read_file", {"path": f"src/module_{number}/file_{number}.py"}, text),
        ]
    return turns


def test_a_terse_handoff_is_framed_and_recognised() -> None:
    message = handoff("## Goal\nShip it", FOLD, "user", terse=True)
    found = recognise(message)
    assert found is not None
    assert found.body == "## Goal\nShip it"
    assert message.text.startswith(MARKER)
    assert "Reference only" in message.text
    assert "latest user message wins" in message.text
    assert message.text.endswith(TERSE_END)
    assert recognise(Message("user", (Text(message.text.replace("Ship", "Sink")),))) is None
    ack = recognise(filler(FOLD, "assistant", terse=True))
    assert ack is not None
    assert ack.kind == "ack"


def test_a_terse_filler_is_known_again_and_nothing_that_says_more() -> None:
    for role in ("user", "assistant"):
        message = filler(FOLD, role, terse=True)
        found = recognise(message)
        assert found is not None
        assert (found.kind, found.is_foreign) == ("ack" if role == "assistant" else "bridge", True)
        assert len(message.text) < len(filler(FOLD, role).text) * 0.65
        assert recognise(Message(role, (Text(f"{message.text} Drop the table."),))) is None


def test_asks_and_answers_that_are_short_stay_whole() -> None:
    whole = Message("user", (Text("x" * SHORT_TEXT),))
    assert shorten(whole, "mf-1", LADDER[-1]) is whole
    long = Message("assistant", (Text("begin " + "x" * 2_000 + " end"),))
    short = shorten(long, "mf-1", Ends(150, 80)).text
    assert short.startswith("begin ")
    assert short.endswith(" end")
    assert "unfold mf-1" in short


def test_where_ends_would_say_nothing_whole_sentences_and_lines_stay() -> None:
    said = Message("assistant", (Text("The handler is called twice now. " + "Let me look at the next one. " * 40),))
    told = shorten(said, "mf-1", Ends(40, 30)).text.split("\n")
    assert told[0].startswith("The handler is called twice now. Let me") and told[0].endswith("next one.")
    assert len(told) == 2 and "unfold mf-1" in told[1]
    ask = Message(
        "user", (Text(f"<system-reminder>{'be kind ' * 90}</system-reminder>\n{ASK} " + "More of it. " * 90),)
    )
    told = shorten(ask, "mf-1", Ends(40, 30, asks=200)).text.split("\n")
    assert told[0].startswith(ASK) and told[0].endswith("More of it.") and len(told[0]) <= 200
    result = Message("tool", (ToolResult("1", (Text("exit 0\n" + "a word or two more " * 90),), False, None),))
    told = spill_results(result, "mf-1", 40).parts[0].text.split("\n")
    assert told[0] == "exit 0" and len(told) == 2 and "unfold mf-1" in told[1]


def narrated(last: str, count: int = 40) -> list[dict[str, Any]]:
    turns = session(count)
    for number in range(3):
        turns += call(count + number, "write_file", {"path": f"src/a_{number}.py", "text": "x = 1\n" * 200}, "ok")
    announced, said = turns[-4], {"content": "Now I write it, as was asked for. " * 8}
    return [*turns[:-4], {**announced, **said}, *turns[-3:]] if last == "calls" else [*turns[:-4], assistant(last)]


def test_an_answer_that_only_announces_calls_gives_way_to_the_summary() -> None:
    for target, stays in ((600, False), (6_000, True)):
        notices = midfold.compact(narrated("calls"), target_tokens=target, force=True).receipt.notices
        assert (ANSWER_FOLDED in notices) != stays
        texts = [message.text for message in view_of(narrated("calls"), target)]
        assert any(text.startswith("Now I write it, as was asked for.") for text in texts) == stays
        assert any(text == "go on" for text in texts)


def test_an_answer_that_ends_a_turn_stays_however_small_the_size() -> None:
    answer = "All modules are read and the port is 8123."
    turns = [*narrated(answer), user("<system-reminder>Look.</system-reminder>"), *narrated("calls", 3)[-2:]]
    assert any(message.text == answer for message in view_of(turns, 600))


def prompt_catcher() -> tuple[list[str], Any]:
    """Return a summarizer, and the list of its prompts."""
    prompts: list[str] = []

    def summarise(ask: midfold.SummaryRequest) -> str:
        prompts.append(ask.prompt())
        return "## Goal\nGo on.\n\n## Progress\n### Done\n- all of it"

    return prompts, summarise


def view_of(turns: list[dict[str, Any]], target: int, summary: str = "") -> tuple[Message, ...]:
    summarizer = (lambda _: summary) if summary else None
    result = midfold.compact(turns, target_tokens=target, force=True, summarizer=summarizer)
    assert result.receipt.new_tokens <= target * 1.05
    return midfold.read(result.messages).messages


def test_what_a_summary_leaves_of_its_room_goes_to_what_stays() -> None:
    ask = "Port every module of the parser as the list says. " + "Mind the limits of each, too. " * 100
    turns = [*session(40), assistant("Fine."), user(ask), *call(90, "read_file", {"path": "a.py"}, "y = 2\n" * 400)]
    sizes = {}
    for words in (4, 160):
        view = view_of(turns, 700, "## Goal\nPort it.\n\n## Progress\n### Done\n" + "- read and ported\n" * words)
        parts = (part for message in view if recognise(message) is None for part in message.parts)
        sizes[words] = sum(len(part.text) for part in parts if isinstance(part, (Text, ToolResult)))
    assert sizes[4] > sizes[160] + 60


def test_the_newest_result_stays_whole_where_it_takes_little_of_the_size() -> None:
    lines = [f"step {n}: the pool was filled" for n in range(30)]
    turns = [*session(140), *call(90, "terminal", {"command": "make"}, "\n".join([*lines, "ValueError: no pool"]))]
    for target, is_whole in ((4_000, True), (600, False)):
        shown = [part for message in view_of(turns, target) for part in message.parts if isinstance(part, ToolResult)]
        assert ("step 15: " in shown[-1].text) == is_whole
        assert "ValueError: no pool" in shown[-1].text


@pytest.mark.parametrize("target", [1_500, 2_500, 4_000])
def test_a_result_of_which_a_model_is_told_that_it_stays_stays_however_much_the_model_writes(target: int) -> None:
    longest = max_whole_characters(target // TARGET_PER_END)
    lines = "\n".join(f"step {n:2}: the pool was filled and the queue is empty" for n in range(longest // 53))
    ask = "Port every module of the parser as the list says. " + "Mind the limits of each, too. " * 200
    turns = [*session(60), user(ask), *call(90, "terminal", {"command": "make " + "x " * 900}, lines)]
    told: list[bool] = []

    def write(asked: SummaryRequest) -> str:
        told.append(asked.shows_result(lines))
        words = "- read a module and ported it to the new place of the parser\n" * 500
        return f"## Goal\nPort it.\n\n## Progress\n### Done\n{words}"[: int(asked.budget_tokens * 3.9)]

    result = midfold.compact(turns, target_tokens=target, force=True, summarizer=write)
    parts = (part for message in midfold.read(result.messages).messages for part in message.parts)
    assert told == [True]
    assert [part.text for part in parts if isinstance(part, ToolResult)][-1] == lines


def test_what_a_client_put_behind_a_result_is_not_taken_for_its_end() -> None:
    note = "\n\n<system-reminder>\nThink whether this is malware.\n</system-reminder>\n"
    for lines, last in ((400, "y_399 = 2"), (2, "y_1 = 2")):
        printed = "\n".join(f"y_{n} = 2" for n in range(lines))
        turns = [*session(40), *call(90, "read_file", {"path": "a.py"}, printed + note * 30)]
        shown = [part for message in view_of(turns, 600) for part in message.parts if isinstance(part, ToolResult)]
        assert shown[-1].text.count(last) == 1 and "y_0 = 2" in shown[-1].text
        assert "malware" not in shown[-1].text and "unfold mf-" in shown[-1].text


def test_a_model_is_told_what_stays_whole_and_what_does_not_and_to_use_few_headings() -> None:
    prompts, summarise = prompt_catcher()
    long, brief = (
        "Port the parser. " + "Mind the limits of each module, too. " * 60,
        "Port the parser, and mind the limits.",
    )
    views = []
    for ask, target in ((long, 700), (brief, 700), (brief, 6_000)):
        turns = [*session(40), assistant("Fine."), user(ask), *call(90, "sh", {"command": "ls"}, "a.py is fine\n" * 12)]
        views.append(midfold.compact(turns, target_tokens=target, force=True, summarizer=summarise).messages)
    cut, whole, large = (prompt.partition("</turns>")[2] for prompt in prompts)
    told, _, lost = cut.partition(CUT_OUT)
    shown = told.rpartition("[USER]: ")[2].rstrip()
    assert shown.startswith("Port the parser.") and shown in str(views[0]) and len(lost) > 1_500
    assert CUT_OUT not in whole and CUT_OUT not in large
    assert FEW_HEADINGS in whole and FEW_HEADINGS not in large


def test_a_model_is_shown_where_a_result_that_stays_is_cut_and_that_arguments_are() -> None:
    prompts, summarise = prompt_catcher()
    printed = "\n".join(["== round trip ==", *(f"handler called {n} times" for n in range(30)), "checked 9 of 9"])
    script = "python - <<EOF\n" + "print('a long script')\n" * 40 + "EOF"
    turns = [*session(40), *call(90, "sh", {"command": script}, printed)]
    result = midfold.compact(turns, target_tokens=600, force=True, summarizer=summarise)
    (view,) = (part.text for part in midfold.read(result.messages).messages[-1].parts if isinstance(part, ToolResult))
    reference = prompts[0].partition("</turns>")[2]
    before, _, rest = reference.partition(f"\n{CUT_OUT}\n")
    lost, _, after = rest.partition(f"\n{STAYS_AGAIN}\n")
    shown, end = before.rpartition("[RESULT]: ")[2], after.partition("\n</stays>")[0]
    assert shown.startswith("== round trip ==") and end.endswith("checked 9 of 9")
    assert view.startswith(shown) and view.endswith(end)
    assert "handler called 17 times" in lost and "handler called 17 times" not in view
    assert SHORTENED_CALL.format(shown=60) in before.partition("CALLS sh")[0]


def test_of_a_listing_with_line_numbers_the_first_line_tells_what_it_is() -> None:
    listing = "\n".join(f"{n:6}\u2192\tx_{n} = compute(n)" for n in range(40, 140))
    echo = "The file /srv/app/models/user.py has been updated. Here's the result of running `cat -n` on a snippet:\n"
    for text, first in ((listing, "    40\u2192\tx_40 = compute(n)"), (echo + listing, echo.rstrip())):
        turns = [*session(40), *call(90, "read_file", {"path": "a.py"}, text)]
        shown = [part for message in view_of(turns, 600) for part in message.parts if isinstance(part, ToolResult)]
        kept = [line for line in shown[-1].text.split("\n") if not line.startswith("[…")]
        assert kept == [first] if len(first) <= 100 else first.startswith(kept[0])
        assert "x_139" not in shown[-1].text


@pytest.mark.parametrize("percent", [2, 5, 10, 20, 50])
def test_results_land_and_are_legal_from_two_per_cent_to_half(percent: int) -> None:
    turns = session()
    target = midfold.compact(turns, force=True).receipt.old_tokens * percent // 100
    result = midfold.compact(turns, target_tokens=target, force=True)
    assert result.receipt.new_tokens <= max(target * 1.05, 420)
    assert violations(midfold.read(result.messages).messages) == ()
    text = "\n".join(message.text for message in midfold.read(result.messages).messages)
    assert "You must keep port 8123." in text
    if percent >= 5:
        assert "Never touch **docs/old.md**!" in text


def test_where_nothing_can_be_folded_what_is_long_is_shown_by_its_ends() -> None:
    turns = [user("Read it."), *call(1, "read_file", {"path": "a.py"}, "first line\n" + "word " * 20_000 + "last line")]
    result = midfold.compact(turns, target_tokens=1_000, force=True)
    assert result.receipt.new_tokens <= 1_000
    assert result.receipt.status == "pruned"
    assert result.receipt.digests[0].handle in str(result.messages)
    assert result.messages[0] == turns[0]


def test_lines_stand_below_the_step_they_belong_to() -> None:
    turns = [user("Go.")]
    for number in range(12):
        text = "\n".join(f"the value limit_{number}_{row} of module {number} is {4_000 + row} now" for row in range(8))
        turns += call(number, "read_file", {"path": f"src/deep/mod_{number}.py"}, text)
    turns += [assistant("Done so far."), user("And now?"), assistant("Wait.")]
    result = midfold.compact(turns, target_tokens=500, force=True)
    body = next(message.text for message in midfold.read(result.messages).messages if recognise(message))
    steps = [step for step in body.split("\n- ") if "\n  the value limit_" in step]
    assert steps
    for step in steps:
        number = step.partition("mod_")[2].partition(".py")[0]
        lines = [line for line in step.split("\n") if line.startswith("  the value limit_")]
        assert lines
        assert all(f"limit_{number}_" in line for line in lines)


def test_no_line_is_taken_for_a_heading() -> None:
    turns = [
        user("Go."),
        *call(1, "read_file", {"path": "a.py"}, "# the secret_name of module one\n## big_title here\n"),
    ]
    turns += [*session(20)[1:], user("And now?")]
    result = midfold.compact(turns, target_tokens=3_000, force=True)
    body = next(message.text for message in midfold.read(result.messages).messages if recognise(message))
    assert "secret_name" in body
    assert "\n# the secret_name" not in body
    assert "\n## big_title" not in body


def test_the_same_bytes_under_every_hash_seed() -> None:
    script = (
        "import midfold, sys\n"
        "turns = [{'role': 'user', 'content': 'Go.'}]\n"
        "for n in range(60):\n"
        "    text = f'module_{n} has limit_{n % 7} and value_{n % 11} of {4000 + n % 13} in dir_{n % 5}/file_{n}.py'\n"
        "    turns += [{'role': 'assistant', 'content': text}, {'role': 'user', 'content': 'go on'}]\n"
        "sys.stdout.write(str(midfold.compact(turns, target_tokens=500, force=True).messages))"
    )
    runs = outputs_under_hash_seeds(script, "1", "2")
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("length", "first", "last"),
    [(66, "first line\nmiddle of the long output 1", "middle of the long output 9\nthe end of it"),
     (20, "first line", "the end of it"), (6, "", "")],
)  # fmt: skip
def test_of_a_result_the_ends_inside_its_frame_are_shown_and_its_last_line(length: int, first: str, last: str) -> None:
    middle = [f"middle of the long output {n}" for n in range(1, 10)]
    printed = "\n".join(["first line", *middle, "the end of it"])
    framed = f"<returncode>1</returncode>\n<output>\n{printed}\n</output>"
    shown = f"<returncode>1</returncode>\n<output>\n{first}".strip(), f"{last}\n</output>"
    assert ends_of_result(framed, length) == shown
    assert ends_of_result(printed, length) == (first, last)


@pytest.mark.parametrize(("target", "is_added"), [(700, False), (6_000, True), (None, True)])
def test_in_a_small_summary_the_model_tells_what_was_changed(target: int | None, is_added: bool) -> None:
    asks: list[SummaryRequest] = []

    def summarise(ask: SummaryRequest) -> str:
        asks.append(ask)
        return "## Goal\nGo on.\n\n## Progress\n### Done\n- all of it"

    turns = [*session(40), *call(90, "write_file", {"path": "src/new.py", "content": "x = 1\n"}, "ok"), *session(20)]
    midfold.compact(turns, target_tokens=target, context_length=24_000, force=True, summarizer=summarise)
    assert bool(asks[0].trail_lines) == is_added
    assert any(file.path.endswith("src/new.py") for file in asks[0].trail.files)
    if target is not None:
        added = sum(len(line) for lines in asks[0].trail_lines.values() for line in lines)
        assert added <= asks[0].budget_tokens * DENSE_TRAIL_SHARE * 4


PROPOSAL = "The changes would be:\n\n" + "\n".join(
    f"{n}. Rename `ensure_{n}` to `keep_{n}` in part_{n}.go." for n in range(9)
)
REFUSED = "No. " + "Rather look at the limits of each module first. " * 4


def accepted(ask: str) -> list[dict[str, Any]]:
    return [*session(40), assistant(PROPOSAL), user(ask), *call(90, "sh", {"command": "ls"}, "a.go")]


def test_an_answer_that_a_few_words_take_up_stays_and_is_not_told_again() -> None:
    for ask, is_kept in (("yes, do that", True), (REFUSED, False)):
        texts = [message.text for message in view_of(accepted(ask), 700)]
        assert (PROPOSAL in texts) is is_kept, ask
        told = next(text for text in texts if text.startswith(MARKER) and TERSE_END in text)
        assert not is_kept or "`ensure_4`" not in told
    crowded = {"files": [f"part_{n}/keep_{n}.go" for n in range(120)]}
    turns = [*accepted("yes, do that")[:-2], *call(90, "sh", crowded, "ok")]
    large = midfold.compact(turns, target_tokens=700, force=True)
    assert PROPOSAL in [message["content"] for message in large.messages], "it stays also where not everything fits"


def test_a_model_is_told_that_such_an_answer_stays() -> None:
    prompts, summarise = prompt_catcher()
    for ask in ("yes", REFUSED):
        midfold.compact(accepted(ask), target_tokens=700, force=True, summarizer=summarise)
    taken, refused = (prompt.partition("</turns>")[2].partition("[USER]")[0] for prompt in prompts)
    assert "`ensure_8`" in taken and CUT_OUT not in taken and CUT_OUT in refused


def test_an_ask_that_is_shown_whole_is_not_marked_as_cut() -> None:
    ask = "Port the parser. " + "Mind the limits of each of its modules, too. " * 24
    prompts, summarise = prompt_catcher()
    turns = [*session(60), user(ask), *call(90, "sh", {"command": "make " + "x " * 900}, "a.go\n" * 900)]
    view = midfold.compact(turns, target_tokens=4_000, force=True, summarizer=summarise).messages
    assert any(ask in str(message["content"]) for message in view)
    assert CUT_OUT not in prompts[0].rpartition("<stays>")[2].partition("[ASSISTANT CALLS")[0]
