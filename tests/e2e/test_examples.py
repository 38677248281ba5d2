"""The examples for frameworks run as they are, each with its released framework, against a provider on the loopback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.frameworks import AGENTS, LANGCHAIN, LITELLM, PYDANTIC_AI, run_in
from support.provider_replies import Turn
from support.rules_provider import RulesProvider

EXAMPLES = Path(__file__).parents[2] / "examples"
LONGEST = 30
PROGRAMS = {
    "langchain_agent.py": LANGCHAIN,
    "litellm_calls.py": LITELLM,
    "openai_agents_agent.py": AGENTS,
    "pydantic_ai_agent.py": PYDANTIC_AI,
}
RUN = r"""
import contextlib, io, json, os, runpy, sys
asked, said = json.load(sys.stdin), io.StringIO()
os.environ |= {"OPENAI_API_KEY": "sk-example", "OPENAI_BASE_URL": asked["url"] + "/v1",
               "OPENAI_AGENTS_DISABLE_TRACING": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
sys.argv = [asked["program"], *asked["arguments"]]
with contextlib.redirect_stdout(said):
    runpy.run_path(asked["program"], run_name="__main__")
print(json.dumps(said.getvalue()))
"""


def model(request: Any) -> Turn:
    """Reads a file if it can, and says what it saw."""
    if "PLUM" in request.raw.decode():
        return Turn("a file about PLUM")
    return Turn("", (("call_1", "read_file", {"path": "notes.txt"}),))


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_an_example_runs_as_it_is(name: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("PLUM", encoding="utf-8")
    with RulesProvider(model, window=16_000) as provider:
        arguments = ["notes.txt"] if name == "litellm_calls.py" else ["What is in notes.txt?"]
        question = {"url": provider.url, "program": str(EXAMPLES / name), "arguments": arguments}
        said = run_in(PROGRAMS[name], RUN, question, tmp_path)
    assert "a file about PLUM" in said
    assert provider.rejected == []


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) <= LONGEST
