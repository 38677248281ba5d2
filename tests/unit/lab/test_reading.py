"""Reading probes: methods rotate, readers and graders are blind, an interrupted run continues."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from midfold.cli.main import main
from midfold.compaction.request import SummaryRequest
from midfold.compaction.summary import CHARACTERS_PER_TOKEN as OF_SUMMARIES
from midfold.errors import TranscriptError
from midfold.lab.reading import METHODS, Probe, ProbeQuestion, ReadingRun, _stand_in, load_probes, render, tokens
from midfold.transcript.document import read
from midfold.transcript.tokens import estimate_text

METHODS_HERE = ("whole", "window", "midfold")
SECRET = "the port is 48213"


def past(turns: int = 40) -> list[dict[str, object]]:
    messages: list[dict[str, object]] = [{"role": "user", "content": f"Set up the server; {SECRET}."}]
    for turn in range(turns):
        call = {"id": f"c{turn}", "type": "function"}
        call["function"] = {"name": "run", "arguments": json.dumps({"command": f"make step-{turn}"})}  # type: ignore[assignment]
        messages.append({"role": "assistant", "content": f"Step {turn}.", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{turn}", "content": f"step {turn} made\n" * 30})
    return messages


def probes(count: int = 2) -> list[Probe]:
    questions = tuple(ProbeQuestion(kind, f"{kind}?", f"gold {kind}") for kind in ("recall", "decision"))
    return [Probe(f"s{number}", past(), questions) for number in range(count)]


class Model:
    """Scripted model: readers with the secret in context are right, and the grader goes by their text."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        if "GOLD:" in prompt:
            grades: dict[str, dict[str, float]] = {}
            for line in prompt.splitlines():
                if found := re.match(r"## (\d+) ", line):
                    number = found.group(1)
                elif found := re.match(r"([a-z])\) (.*)", line):
                    grades.setdefault(number, {})[found.group(1)] = {"yes": 1, "no": -1}.get(found.group(2), 0)
            return f"Here it is: {json.dumps(grades)}"
        knows = SECRET in prompt
        return json.dumps({"answers": ["yes" if knows else "no", "unknown"], "usable": 5 if knows else 1})


def run(folder: Path, model: Model | None, **options: int) -> ReadingRun:
    return ReadingRun(probes(), METHODS_HERE, folder, floor=600, model=model, **options)


def test_scores_by_method_kind_and_half(tmp_path: Path) -> None:
    scores = {score.method: score for score in run(tmp_path, Model()).run()}
    whole, window = scores["whole"], scores["window"]
    assert (whole.right, whole.by_kind["recall"], whole.by_kind["decision"]) == (0.5, 1.0, 0.0)
    assert (whole.halves, whole.wrong, whole.unknown, whole.usable, whole.answers) == ((0.5, 0.5), 0, 2, 5.0, 4)
    assert (window.right, window.wrong, window.usable) == (0.0, 2, 1.0)
    assert window.tokens <= 600 < whole.tokens
    assert 300 <= scores["midfold"].tokens <= 600


def test_each_reader_sees_each_session_once_and_nobody_sees_a_method_or_a_gold(tmp_path: Path) -> None:
    model = Model()
    run(tmp_path, model, readers=2).run()
    readers = [prompt for prompt in model.prompts if "GOLD:" not in prompt]
    assert len(readers) == 2 * len(METHODS_HERE) * 2
    assert not any("gold" in prompt for prompt in readers)
    assert not any(
        re.search(r"\b(whole|window|midfold)\b", prompt.partition("QUESTIONS")[2]) for prompt in model.prompts
    )
    names = sorted(path.name.split(".")[:2] for path in (tmp_path / "readers").glob("*.answer.txt"))
    assert names == [[f"R{reader}", f"s{session}"] for reader in range(1, 7) for session in range(2)]


def test_without_a_model_prompts_wait_and_the_run_goes_on(tmp_path: Path) -> None:
    model = Model()
    for folder in ("readers", "graders"):
        waiting = run(tmp_path, None)
        assert waiting.run() == []
        assert {path.parent.name for path in waiting.waiting} == {folder}
        for path in waiting.waiting:
            answer = path.with_name(path.name.replace(".prompt.", ".answer."))
            answer.write_text(model(path.read_text()))
    assert {score.method for score in run(tmp_path, None).run()} == set(METHODS_HERE)


@pytest.mark.parametrize("method", [name for name in METHODS if "plain" not in name and "model" not in name])
def test_every_method_keeps_to_its_size(tmp_path: Path, method: str) -> None:
    asked = ReadingRun(probes(1), (method,), tmp_path, floor=600, model=Model())
    asked.run()
    if method in ("midfold", "window", "mask"):
        assert asked.sizes[method, "s0"] <= 600
    if method != "whole":
        assert asked.sizes[method, "s0"] < tokens(read(past()).messages) * 0.8


@pytest.mark.parametrize("method", ["plain", "once-plain", "folds-plain", "midfold-model", "once-model", "folds-model"])
def test_whoever_summarises_is_waited_for(tmp_path: Path, method: str) -> None:
    asked = ReadingRun(probes(1), (method,), tmp_path, floor=600)
    assert asked.run() == []
    assert [path.parent.name for path in asked.waiting] == ["summaries"]
    assert "Step 1" in asked.waiting[0].read_text()


def test_a_summary_of_the_length_asked_for_fills_the_size(tmp_path: Path) -> None:
    prompts: list[str] = []

    def write(prompt: str) -> str:
        lengths = re.findall(r"about ([0-9,]+) characters", prompt)
        if not lengths:
            return "nothing"
        prompts.append(prompt)
        length = int(lengths[-1].replace(",", ""))
        steps = " ".join(f"Step {turn} made what make step-{turn} says it would make." for turn in range(400))
        heads = ("## Goal\nThe server is set up.\n", "## Active State\nMade.\n", "### Done\n")
        return ("".join(heads) + steps)[:length]

    asked = ReadingRun(probes(1), ("midfold-model",), tmp_path, floor=1500, model=write)
    with pytest.raises(TranscriptError, match="expected JSON"):
        asked.run()
    assert len(prompts) == 1
    assert 0.93 * 1500 <= asked.sizes["midfold-model", "s0"] <= 1500


def test_what_stands_in_for_a_summary_is_as_long_and_as_dense_as_one() -> None:
    plain = "the server was set up and then it was looked at again by those who had asked for it "
    turns = read([{"role": "user", "content": (plain + f"src/part_{n}.py:{n} get_part_{n}() ") * 3} for n in range(60)])
    for size in (300, 900, 2_400):
        asked = SummaryRequest(messages=turns.messages, budget_tokens=size, fold="0" * 12, redact=str)
        made = _stand_in(asked).text
        assert 0.97 * size * OF_SUMMARIES <= len(made) <= size * OF_SUMMARIES
        assert 0.93 * size <= estimate_text(made) <= 1.07 * size


def test_who_summarises_for_a_larger_context_may_write_more(tmp_path: Path) -> None:
    done = "\n".join(f"{n}. The part {n} was made in src/part_{n}.py, because the old one was wrong." for n in range(9))
    turns = [*past(), {"role": "assistant", "content": done}, {"role": "user", "content": "commit"}]
    lengths = []
    for size in range(600, 800, 25):
        asked = ReadingRun([Probe("s0", turns, ())], ("midfold-model",), tmp_path / str(size), floor=size)
        asked.run()
        prompt = next((tmp_path / str(size)).rglob("*.prompt.txt")).read_text()
        lengths.append(int(re.findall(r"about ([0-9,]+) characters", prompt)[-1].replace(",", "")))
    assert all(after > 0.97 * before for before, after in pairwise(lengths))


def test_a_plain_summary_is_all_there_is_beside_the_last_ask(tmp_path: Path) -> None:
    asked = ReadingRun(probes(1), ("plain",), tmp_path, floor=600, model=lambda prompt: "SUMMARY")
    with pytest.raises(TranscriptError, match=r"R1\.s0: expected JSON, found 'SUMMARY'"):
        asked.run()
    assert (
        tmp_path / "views/plain/s0.txt"
    ).read_text() == f"### SYSTEM\nSUMMARY\n\n{render(read(past()).messages[:1])}"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ('{"answers": ["a"], "usable": 3}', "expected 2 answers, found 1"),
        ('{"answers": "a"}', "expected answers and usable"),
        ("nothing", "expected JSON"),
    ],
)
def test_a_reader_that_answers_wrongly_is_named(tmp_path: Path, answer: str, error: str) -> None:
    with pytest.raises(TranscriptError, match=error):
        run(tmp_path, lambda prompt: answer).run()  # type: ignore[arg-type]


def test_probes_are_files_of_messages_and_questions(tmp_path: Path) -> None:
    value = {"messages": [{"role": "system", "content": "x"}, *past(2)], "cut": 4}
    value["questions"] = [{"kind": "recall", "q": "?", "gold": "!"}]  # type: ignore[assignment]
    (tmp_path / "a.json").write_text(json.dumps(value))
    (probe,) = load_probes(tmp_path)
    assert (probe.name, len(probe.past), probe.questions) == ("a", 3, (ProbeQuestion("recall", "?", "!"),))
    (tmp_path / "a.json").write_text(json.dumps({"messages": past(2)}))
    with pytest.raises(TranscriptError, match=r"a\.json: expected `questions`"):
        load_probes(tmp_path)
    written = json.dumps([{"kind": "recall", "q": "?", "gold": "!"}])
    assert load_probes(tmp_path, None, lambda prompt, name: written)[0].questions == probe.questions
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(TranscriptError, match=r"a\.json: expected `messages`"):
        load_probes(tmp_path)


def test_the_command_says_what_waits_and_then_shows_a_table(tmp_path: Path) -> None:
    (tmp_path / "probes").mkdir()
    for number in range(2):
        value = {"messages": past(), "questions": [{"kind": "recall", "q": "port?", "gold": "48213"}]}
        (tmp_path / "probes" / f"s{number}.json").write_text(json.dumps(value))
    arguments = ["probes", str(tmp_path / "probes"), "-o", str(tmp_path / "run"), "--methods", "whole,window"]
    first = CliRunner().invoke(main, arguments)
    assert first.exit_code == 1
    assert "4 prompts need answers" in first.output
    for path in (tmp_path / "run/readers").glob("*.prompt.txt"):
        path.with_name(path.name.replace("prompt", "answer")).write_text('{"answers": ["48213"], "usable": 4}')
    CliRunner().invoke(main, arguments)
    for path in (tmp_path / "run/graders").glob("*.prompt.txt"):
        path.with_name(path.name.replace("prompt", "answer")).write_text('{"1": {"a": 1, "b": 0.5}}')
    last = CliRunner().invoke(main, [*arguments, "--json"])
    assert last.exit_code == 0
    assert sum(row["right"] for row in json.loads(last.stdout)) == 1.5
    assert "usable" in CliRunner().invoke(main, arguments).output
    wrong = CliRunner().invoke(main, [*arguments[:4], "--methods", "magic"])
    assert wrong.exit_code == 2
    assert "found magic" in wrong.output
