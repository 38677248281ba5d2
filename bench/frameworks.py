"""One long session in each framework, with its own compaction and with midfold: refusals, tokens, cache, recalled
facts.

`python -m bench frameworks [LangChain]`. The model is scripted and the provider is on loopback; it enforces the
rules
of its wire format and a window of 24,000 tokens, and bills by a prefix cache. Each of twelve user messages makes
the
model read six files; a thirteenth asks for a word of the first one and for a number in an early file. A summary
request
is answered with the goal, if it is visible, and the newest twenty facts.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.peers import ROOT, environment
from midfold.testing.answers import Answer, value
from midfold.testing.doubles import Request

sys.path.append(str(ROOT / "tests"))
from support.frameworks import AGENTS, LANGCHAIN, LITELLM, MIDFOLD_NEEDS, PYDANTIC_AI
from support.prefix_cache import Bill
from support.provider_replies import Turn
from support.provider_rules import check, prompt_tokens
from support.reading_model import file_text, last_result, numbers_in, offered
from support.rules_provider import RulesProvider, Served

WINDOW = 24_000
ASKS, FILES = 12, 6
EARLY = 2
WORD = "PLUM"
SYSTEM = "You are a careful reader of files."
SUMMARY_FACTS = 20
FRAMEWORKS: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "LangChain 1.4.7": (
        LANGCHAIN,
        "langchain_session.py",
        (
            "nothing",
            "SummarizationMiddleware",
            "ContextEditingMiddleware",
            "midfold",
            "midfold, summaries by the model",
        ),
    ),
    "OpenAI Agents SDK 0.24.0": (
        AGENTS,
        "openai_agents_session.py",
        ("nothing", "OpenAIResponsesCompactionSession", "midfold"),
    ),
    "pydantic-ai 2.66.0": (PYDANTIC_AI, "pydantic_ai_session.py", ("nothing", "OpenAICompaction", "midfold")),
    "LiteLLM 1.106.2": (LITELLM, "litellm_session.py", ("nothing", "trim_messages", "compress", "midfold")),
}
LABELS = {
    "SummarizationMiddleware": "`SummarizationMiddleware`, at half of the window",
    "ContextEditingMiddleware": "`ContextEditingMiddleware`, at half of the window",
    "OpenAIResponsesCompactionSession": "`OpenAIResponsesCompactionSession`",
    "OpenAICompaction": "`OpenAICompaction`, from 20 messages on",
    "trim_messages": "`trim_messages`, to three quarters of the window",
    "compress": "`compress`, at half of the window",
}


class Row(NamedTuple):
    """Result of one session."""

    framework: str
    policy: str
    answered: int
    refused: int
    requests: int
    tokens: int
    cached: int
    word: str
    early: str


def asks() -> Iterator[str]:
    for step in range(ASKS):
        first = step * FILES + 1
        remember = f" Remember the word {WORD}, I shall ask for it." if step == 0 else ""
        yield f"Step {step + 1}: read the files f{first}.txt to f{first + FILES - 1}.txt.{remember}"
    yield f"What was the word, and what is the number of f{EARLY}.txt?"


def text_of(body: dict[str, Any]) -> str:
    """Return all text that a model sees, including its provider's own compactions."""
    items = body.get("messages") or body.get("input") or ""
    hidden = (_sealed(item) for item in items if isinstance(item, dict) and item.get("type") == "compaction")
    return "\n".join([json.dumps(items, ensure_ascii=False), str(body.get("instructions") or ""), *hidden])


def summary(text: str) -> str:
    goal = next(iter(re.findall(rf"Step 1: read[^\"\\]*{WORD}[^\"\\.]*", text)), "read the files that were asked for")
    facts = sorted(numbers_in(text).items())[-SUMMARY_FACTS:]
    lines = "\n".join(f"- the number of f{name}.txt is {number}" for name, number in facts)
    rest = "### In Progress\n- reading, in the order of the files\n\n## Next Steps\n- read what the next ask names"
    return f"## Goal\n{goal}\n\n## Progress\n### Done\n{lines}\n{rest}\n"


class Reader:
    """Model that reads the files named in the newest user message, and answers the last one from its context or by
    lookup.
    """

    def __init__(self) -> None:
        self.read = 0
        self.searches = 0
        self.early = ""

    def __call__(self, request: Request) -> Turn:
        body, text = request.body, text_of(request.body)
        tools = offered(body)
        if not tools:
            return Turn(summary(text))
        call, result = last_result(body)
        wanted = re.findall(r"Step \d+: read the files f\d+\.txt to f(\d+)\.txt", _last_user(body))
        if wanted and self.read < int(wanted[-1]):
            self.read += 1
            return Turn("", ((f"call_{self.read}", "read_file", {"path": f"f{self.read}.txt"}),))
        if wanted:
            return Turn(f"Read up to f{self.read}.txt.")
        return self._tell(text, tools, result if call.startswith("search") else "")

    def _tell(self, text: str, tools: list[str], result: str) -> Turn:
        known = numbers_in(text).get(EARLY) == EARLY * 7
        found = numbers_in(result).get(EARLY) == EARLY * 7
        if not known and not self.searches and "context_search" in tools:
            self.searches += 1
            return Turn("", (("search_1", "context_search", {"query": f"number f{EARLY}.txt"}),))
        self.early = "by search" if found and self.searches else "yes" if known else "no"
        return Turn(json.dumps({"word": "yes" if WORD in text else "no", "early": self.early}))


def _sealed(item: dict[str, Any]) -> str:
    return base64.b64decode(item["encrypted_content"]).decode()


def _last_user(body: dict[str, Any]) -> str:
    """Return the newest user message; in a request with only compacted content, its last line."""
    items = [item for item in body.get("messages") or body["input"] if isinstance(item, dict)]
    said = [
        json.dumps(item) if item.get("role") == "user" else _sealed(item).splitlines()[-1]
        for item in items
        if item.get("role") == "user" or item.get("type") == "compaction"
    ]
    return next((one for one in reversed(said) if "Step " in one or "What was the word" in one), "")


class CompactingProvider(RulesProvider):
    """Provider that also has OpenAI's compaction endpoint: user messages stay, an opaque summary replaces the rest.

    The opaque part may contain calls, so pairs of calls and results across a compaction are not checked.
    """

    def _answer(self, request: Request) -> Answer:
        body = request.body
        compacts = request.path.endswith("/responses/compact")
        if isinstance(body, dict) and (compacts or '"type":"compaction"' in request.raw.decode().replace(" ", "")):
            body = {**body, "input": list(_paired(body["input"]))}
        if not compacts:
            return super()._answer(Request(**{**msgspec.structs.asdict(request), "body": body}))
        problem = check("responses", body, self.window)
        if problem is not None:
            return self._refuse("responses", problem)
        prompt = prompt_tokens("responses", body)
        self.served.append(Served("responses", prompt, Bill(prompt, 0, 0, 0), body))
        sealed = base64.b64encode(f"{summary(text_of(body))}\n{_last_user(body)}".encode()).decode()
        users = [item for item in body["input"] if isinstance(item, dict) and item.get("role") == "user"]
        whole = {"type": "message", "status": "completed"}
        output = [{"id": f"msg_u{place}", **whole, **item} for place, item in enumerate(users)]
        output.append({"type": "compaction", "id": f"cmp_{len(self.served)}", "encrypted_content": sealed})
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        usage = {"input_tokens": prompt, "output_tokens": 200, "total_tokens": prompt + 200, **details}
        head = {"id": f"resp_c{len(self.served)}", "object": "response.compaction", "created_at": 1_700_000_000}
        return value({**head, "output": output, "usage": usage})


def _paired(items: list[Any]) -> Iterator[Any]:
    """Yield the items, with calls and results that lack their other half relabelled so that they pass the check."""
    calls = {item["call_id"] for item in items if item.get("type") == "function_call"}
    results = {item["call_id"] for item in items if item.get("type") == "function_call_output"}
    for item in items:
        alone = item.get("type") in ("function_call", "function_call_output") and item["call_id"] not in calls & results
        yield {"type": "unpaired", **{key: item[key] for key in item if key != "type"}} if alone else item


def session(framework: str, policy: str, packages: tuple[str, ...], program: str) -> Row:
    reader, first, more = Reader(), packages[0], packages[1:]
    python = environment(first, *more, *MIDFOLD_NEEDS)
    files = {f"f{number}.txt": file_text(number) for number in range(1, ASKS * FILES + 1)}
    with CompactingProvider(reader, window=WINDOW) as provider:
        given = {"url": f"{provider.url}/v1", "key": "sk-bench", "policy": policy, "window": WINDOW, "system": SYSTEM}
        done = subprocess.run(
            [str(python), str(Path(__file__).parent / "framework_sessions" / program)],
            input=json.dumps({**given, "asks": list(asks()), "files": files}),
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONPATH": str(ROOT / "src")},
        )
    if done.returncode != 0:
        sys.exit(f"{framework} with {policy} failed:\n{done.stderr[-3000:]}")
    answers = json.loads(done.stdout.splitlines()[-1])
    if any("Connection" in one for one in answers):
        sys.exit(f"{framework} with {policy}: the provider broke off, so the row says nothing about the framework")
    told = json.loads(answers[-1]) if answers[-1].startswith("{") else {}
    prompt, read = sum(one.prompt for one in provider.served), sum(bill.read for bill in provider.bills)
    good = sum(one.startswith("Read up to") for one in answers[:-1]) + answers[-1].startswith("{")
    if good < len(answers):
        told = {"word": "-", "early": "-"}
    for message in sorted({problem.message[:160] for problem in provider.rejected})[:2]:
        print(f"    refused: {message}", file=sys.stderr)
    counts = (good, len(provider.rejected), len(provider.served), prompt, read)
    return Row(framework, policy, *counts, told["word"], told["early"])


def main() -> None:
    wanted = [name for name in FRAMEWORKS if any(word.lower() in name.lower() for word in sys.argv[2:])]
    size = prompt_tokens("chat", {"messages": [file_text(1)]})
    print(f"  {ASKS + 1} asks, {ASKS * FILES} files of about {size} tokens, a window of {WINDOW:,}.")
    print(f"  The word is of the first ask, the number of file {EARLY}.\n")
    columns = "framework | under | asks answered | refused | requests | tokens sent | from the cache | not from it"
    print(f"| {columns} | word | number |\n|---|---|---|---|---|---|---|---|---|---|")
    for framework in wanted or FRAMEWORKS:
        packages, program, policies = FRAMEWORKS[framework]
        for policy in policies:
            row = session(framework, policy, packages, program)
            print(
                f"| {row.framework} | {LABELS.get(row.policy, row.policy)} | {row.answered} of {ASKS + 1} "
                f"| {row.refused} | {row.requests} | {row.tokens:,} | {row.cached / max(row.tokens, 1):.0%} "
                f"| {row.tokens - row.cached:,} | {row.word} | {row.early} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
