"""The framework examples run unchanged with their released frameworks, against a provider on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from support.frameworks import ADK, AGENTS, CREWAI, LANGCHAIN, LITELLM, PYDANTIC_AI, SMOLAGENTS, STRANDS, run_in
from support.provider_replies import Turn
from support.reading_model import offered
from support.rules_provider import RulesProvider

EXAMPLES = Path(__file__).parents[2] / "examples"
LONGEST = 30
PROGRAMS = {
    "crewai_agent.py": CREWAI,
    "google_adk_agent.py": ADK,
    "langchain_agent.py": LANGCHAIN,
    "litellm_calls.py": LITELLM,
    "openai_agents_agent.py": AGENTS,
    "pydantic_ai_agent.py": PYDANTIC_AI,
    "smolagents_agent.py": SMOLAGENTS,
    "strands_agent.py": STRANDS,
}
FOLDS = ("crewai_agent.py", "smolagents_agent.py")
"""Examples that are the only integration of their framework, and must therefore fold."""
CALLS = 36
RUN = r"""
import contextlib, io, json, os, runpy, sys
asked, said = json.load(sys.stdin), io.StringIO()
os.environ |= {"OPENAI_API_KEY": "sk-example", "OPENAI_BASE_URL": asked["url"] + "/v1",
               "CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false", "OTEL_SDK_DISABLED": "true",
               "OPENAI_AGENTS_DISABLE_TRACING": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
sys.argv = [asked["program"], *asked["arguments"]]
with contextlib.redirect_stdout(said):
    runpy.run_path(asked["program"], run_name="__main__")
# In a file, all of it: CrewAI has threads that print when they come to it, before the answer or after it.
with open("said.txt", "w", encoding="utf-8") as file:
    file.write(said.getvalue())
os.write(1, b"\nnull\n")
os._exit(0)
"""


def what_was_said(folder: Path) -> str:
    return (folder / "said.txt").read_text(encoding="utf-8")


def model(request: Any) -> Turn:
    """Read a file if possible, and report its content."""
    names = offered(request.body)
    if "PLUM" not in request.raw.decode():
        if "python_interpreter" in names:
            return Turn("", (("call_1", "python_interpreter", {"code": "'PL' + 'UM'"}),))
        return Turn("", (("call_1", "read_file", {"path": "notes.txt"}),))
    if "final_answer" in names:
        return Turn("", (("call_2", "final_answer", {"answer": "a file about PLUM"}),))
    return Turn("a file about PLUM")


class LongTask:
    """Model that calls the tool repeatedly and reports whether it still sees the first user message."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, request: Any) -> Turn:
        names, self.calls = offered(request.body), self.calls + 1
        if self.calls <= CALLS:
            code, path = f"'number {self.calls * 7} ' + 'lorem ipsum ' * 1000", f"notes{self.calls}.txt"
            is_python = "python_interpreter" in names
            call = ("python_interpreter", {"code": code}) if is_python else ("read_file", {"path": path})
            return Turn("", ((f"call_{self.calls}", *call),))
        text = "still know PEAR" if "PEAR" in request.raw.decode() else "forgot"
        return Turn("", (("call_end", "final_answer", {"answer": text}),)) if "final_answer" in names else Turn(text)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_an_example_runs_as_it_is(name: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("PLUM", encoding="utf-8")
    with RulesProvider(model, window=16_000) as provider:
        arguments = ["notes.txt"] if name == "litellm_calls.py" else ["What is in notes.txt?"]
        question = {"url": provider.url, "program": str(EXAMPLES / name), "arguments": arguments}
        run_in(PROGRAMS[name], RUN, question, tmp_path)
    assert "a file about PLUM" in what_was_said(tmp_path)
    assert provider.rejected == []


def test_an_answer_is_found_whatever_a_framework_prints_after_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('the answer')\nprint(('│' * 80 + '\\n') * 100)", encoding="utf-8")
    question = json.dumps({"url": "", "program": str(program), "arguments": []})
    subprocess.run([sys.executable, "-c", RUN], input=question, text=True, check=True, cwd=tmp_path, timeout=400)
    assert "the answer" in what_was_said(tmp_path)


@pytest.mark.parametrize("name", FOLDS)
def test_an_example_that_is_all_there_is_keeps_a_long_task_inside_the_window(name: str, tmp_path: Path) -> None:
    for number in range(1, CALLS + 1):
        (tmp_path / f"notes{number}.txt").write_text(f"number {number * 7} " + "lorem ipsum " * 1_000, encoding="utf-8")
    with RulesProvider(LongTask(), window=80_000) as provider:
        question = {"url": provider.url, "program": str(EXAMPLES / name), "arguments": ["Work. The word is PEAR."]}
        run_in(PROGRAMS[name], RUN, question, tmp_path)
    assert "still know PEAR" in what_was_said(tmp_path)
    assert provider.rejected == []
    sizes = [served.prompt for served in provider.served]
    assert any(after < before / 2 for before, after in pairwise(sizes))


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) <= LONGEST
