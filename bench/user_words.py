"""Retention of user messages: plans, rules and corrections through many compactions, in every API.

    python -m bench.user_words             all scenarios
    python -m bench.user_words --compactbench FOLDER   also the cases that CompactBench generated into FOLDER (JSON)

Each line prints the kept and the required items after the worst compaction of the run.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import midfold
from midfold.compaction.handoff import recognise

Messages = list[dict[str, Any]]
RULE = "Never touch legacy/."
LATER = "One more thing: the report must name every flag that was removed. Go on."
VAGUE = (
    "## Goal\nThe work goes on.\n\n### Done\nSeveral files were changed and looked at.\n\n## Active State\nIn progress."
)
TOPICS = ("parser", "cache", "router", "scheduler", "exporter", "login page", "billing job", "search index")
FOUR_RULES = (
    "Never send anything to the staging cluster.",
    "From now on answer in metric units only.",
    "Do not rename public functions.",
    "Please keep every reply below 120 words.",
)
OTHER_LANGUAGES = {
    "German": "Ändere niemals die Datei schema.sql.",
    "French": "Ne modifie jamais le dossier archives.",
    "Spanish": "Nunca borres los registros de clientes.",
    "Chinese": "不要修改生产数据库。",
    "Japanese": "本番データベースは絶対に変更しないでください。",
    "Russian": "Никогда не меняй файл конфигурации.",
}


def plan(items: int) -> str:
    """Return a plan of numbered items, about 30 tokens each."""
    lines = [
        f"{number}. In module_{number:02d}.py of the {TOPICS[number % 8]}, rename option_{number * 7:03d} to "
        f"setting_{number * 7:03d} and set its default to {number * 13}."
        for number in range(1, items + 1)
    ]
    return f"Work through this plan.\n\n{chr(10).join(lines)}\n\n{RULE} Report when all items are done."


def tool_call(number: int, size: int) -> Messages:
    """Return a call and its result of about `size` characters."""
    seed = random.Random(number)
    lines = (
        f"{seed.choice(TOPICS)}/{seed.randrange(10**6):06d}.py:{n}: value = {seed.random():.6f}" for n in range(999)
    )
    text = ""
    while len(text) < size:
        text += f"{next(lines)}\n"
    arguments = json.dumps({"command": f"sed -n '1,80p' module_{number % 40:02d}.py"})
    made = {"id": f"call_{number}", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": text},
    ]


def view_text(messages: Any) -> str:
    """Return all texts of a view."""
    return "\n".join(message.text for message in midfold.read(messages).messages)


def count(messages: Any) -> int:
    """Return the estimated size of messages in tokens."""
    return midfold.Meter().count(midfold.read(messages).messages).tokens


def planned_session(items: int, calls: int = 400, size: int = 4_500) -> Iterator[Messages]:
    """Yield a session in steps: a plan, tool calls, one later message of the user, more tool calls."""
    yield [{"role": "system", "content": "You are a careful engineer."}, {"role": "user", "content": plan(items)}]
    for number in range(calls):
        yield tool_call(number, size)
        if number == calls // 8:
            yield [{"role": "assistant", "content": "Twelve items are done."}, {"role": "user", "content": LATER}]


def kept_of_plan(items: int, text: str, *, has_later: bool) -> tuple[int, int]:
    """Return how many of the items, the rule and the later request a text holds, and how many it should."""
    lines = [line for line in plan(items).split("\n") if line[:1].isdigit()]
    wanted = [*lines, RULE, *([LATER] if has_later else [])]
    return sum(line in text for line in wanted), len(wanted)


class Library:
    """Stateless `compact()`, with the state passed on by the caller."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.view: Messages = []
        self.state = midfold.CompactionState()

    def step(self, messages: Messages) -> bool:
        """Append messages and compact if due; return whether a compaction happened."""
        self.view = [*self.view, *messages]
        result = midfold.compact(self.view, state=self.state, **self.options)
        self.view, self.state = list(result.messages), result.state
        return result.receipt.status == "compacted"


class Host:
    """Engine host with the specification's methods."""

    def __init__(self, **options: Any) -> None:
        self.host = midfold.EngineHost(**options)
        self.view: Messages = []

    def step(self, messages: Messages) -> bool:
        """Append messages and compact if due; return whether a compaction happened."""
        self.view = [*self.view, *messages]
        before = self.host.state.count
        self.view = list(self.host.compress(self.view))
        return self.host.state.count > before


class Session:
    """Stored session."""

    def __init__(self, **options: Any) -> None:
        summarizer = options.pop("summarizer", None)
        self.sessions = midfold.open("memory:", summarizer=summarizer)
        self.session = self.sessions.session("s", **options)
        self.view: Any = []

    def step(self, messages: Messages) -> bool:
        """Append messages and compact if due; return whether a compaction happened."""
        self.session.append(messages)
        result = self.session.compact()
        self.view = self.session.view().messages
        return result.receipt.status == "compacted"


def vague(request: midfold.SummaryRequest) -> str:
    """Return a summary that says nothing."""
    return VAGUE


def run_plan(path: Callable[..., Any], items: int, window: int, **options: Any) -> tuple[int, int, int, int]:
    """Return the kept and wanted counts of the worst view, the folds, and the most copies of the plan in one view."""
    runner = path(context_length=window, **options)
    worst, folds, copies, has_later = (0, 0), 0, 0, False
    for messages in planned_session(items, 900 if "summarizer" in options else 400):
        has_later = has_later or any(message["content"] == LATER for message in messages)
        if runner.step(messages):
            folds += 1
            text = view_text(runner.view)
            kept, wanted = kept_of_plan(items, text, has_later=has_later)
            worst = min((kept, wanted), worst, key=lambda pair: pair[0] - pair[1])
            copies = max(copies, text.count(plan(items).split("\n")[2]))
    return *worst, folds, copies


def chat(number: int, tokens: int = 128_000) -> Messages:
    """Return a chat of about so many tokens, the four rules among its turns."""
    seed = random.Random(number)
    messages: Messages = [{"role": "system", "content": "You are a helpful assistant."}]
    places = sorted(seed.sample(range(5, 190), 4))
    rules = list(FOUR_RULES)
    for turn in range(200):
        topic = seed.choice(TOPICS)
        ask = f"What happens in the {topic} when value {seed.randrange(900)} arrives while job {turn} runs, and why?"
        if turn in places:
            ask = rules.pop(0)
        words = " ".join(f"{seed.choice(TOPICS)} {seed.randrange(10**5)}" for _ in range(tokens // 200 // 4))
        messages += [{"role": "user", "content": ask}, {"role": "assistant", "content": f"In short: {words}."}]
    return [*messages, {"role": "user", "content": "And now?"}]


def rules_in_chats(share: float, chats: int = 20) -> tuple[int, int]:
    """Return how many of four rules each are kept in chats that are compacted to a share of their size."""
    kept = 0
    for number in range(chats):
        messages = chat(number)
        size = count(messages)
        result = midfold.compact(messages, context_length=200_000, target_tokens=int(size * share), force=True)
        text = view_text(result.messages)
        kept += sum(rule in text for rule in FOUR_RULES)
    return kept, 4 * chats


def rule_in_message_three(folds: int = 20) -> tuple[int, int]:
    """Return after how many of so many folds a rule from message 3 is still there, in seven languages."""
    kept = wanted = 0
    for rule in ("Never push to main.", *OTHER_LANGUAGES.values()):
        runner = Library(context_length=16_000)
        runner.step([{"role": "system", "content": "Work."}, {"role": "user", "content": "Port the parser."}])
        runner.step([{"role": "assistant", "content": "I will."}, {"role": "user", "content": rule}])
        seen, number = 0, 0
        while seen < folds:
            number += 1
            extra = [{"role": "assistant", "content": "Next."}, {"role": "user", "content": f"Now part {number}."}]
            if runner.step([*tool_call(number, 3_000), *(extra if number % 7 == 0 else [])]):
                seen += 1
                kept += rule in view_text(runner.view)
        wanted += folds
    return kept, wanted


RELAY_ASK = """Prepare the release 2.4 of this project. Ten items, all of them:
1. Read src/limits.py and note the three limits it defines; the report in item 10 needs them.
2. Rename the function load_all in src/loader.py to load_batch, and every caller.
3. Add a test for load_batch with an empty list to tests/test_loader.py.
4. Move the constant RETRIES from src/net.py to src/limits.py.
5. Fix the wrong total in src/report.py: the last row is left out.
6. Add a --quiet flag to src/cli.py that suppresses the table.
7. Write CHANGELOG.md: one line for each change, newest first.
8. Delete src/old_export.py and what imports it.
9. Set the version in src/__init__.py to 2.4.0.
10. Write REPORT.md: the three limits of item 1, the callers changed in item 2, and the sum that tools/sum.py prints.

Rules:
- Never edit anything below vendor/.
- Do not add a dependency.
- Every commit message starts with the number of its item.
- Only the standard library in tests.
- Keep lines below 100 characters.
- Do not run tools/publish.sh.
"""


def relay(folds: int = 6) -> tuple[int, int]:
    """Return after how many folds the whole user message occurs exactly once, in the situation of the relay kit."""
    view: Messages = [{"role": "user", "content": RELAY_ASK}]
    kept = number = 0
    for fold in range(folds):
        while count(view) < 8_000:
            number += 1
            view += tool_call(number, 2_500)
        view = list(midfold.compact(view, context_length=16_000, target_tokens=3_200, force=True).messages)
        kept += view_text(view).count(RELAY_ASK.strip()) == 1 and count(view) <= 3_400
        if fold == 1:
            view.append({"role": "user", "content": "Correction for item 9: the version is 2.4.1, not 2.4.0."})
    return kept, folds


def compactbench(folder: str, share: float) -> tuple[int, int, int, int]:
    """Return kept and wanted prohibitions and decisions of CompactBench's cases at a share of their size."""
    counts = [0, 0, 0, 0]
    for file in sorted(Path(folder).glob("*.json")):
        case = json.loads(file.read_text())
        messages = [{"role": turn["role"], "content": turn["content"]} for turn in case["transcript"]["turns"]]
        size = count(messages)
        result = midfold.compact(messages, context_length=8_000, target_tokens=int(size * share), force=True)
        text = view_text(result.messages).lower()
        said = view_text([message for message in messages if message["role"] == "user"]).lower()
        for at, key in ((0, "forbidden_behaviors"), (2, "locked_decisions")):
            facts = [fact.lower().removeprefix("approach: ") for fact in case["ground_truth"][key]]
            facts = [fact for fact in facts if fact in said]
            counts[at] += sum(fact in text for fact in facts)
            counts[at + 1] += len(facts)
    return counts[0], counts[1], counts[2], counts[3]


def main() -> None:
    """Run the scenarios and print their figures."""
    paths: list[tuple[str, Callable[..., Any], dict[str, Any]]] = [
        ("library, local summary", Library, {}),
        ("library, vague summarizer", Library, {"summarizer": vague}),
        ("EngineHost, local summary", Host, {}),
        ("EngineHost, vague summarizer", Host, {"summarizer": vague}),
        ("session, local summary", Session, {}),
        ("session, vague summarizer", Session, {"summarizer": vague}),
    ]
    for items, window in ((40, 128_000), (80, 64_000), (160, 128_000)):
        for name, path, options in paths:
            kept, wanted, folds, copies = run_plan(path, items, window, **options)
            print(f"plan of {items} at {window // 1000}k, {name}: {kept} of {wanted}, {folds} folds, {copies} copies")
    for share in (0.1, 0.05, 0.02):
        print("rules in 20 chats of 128k at {:.0%}: {} of {}".format(share, *rules_in_chats(share)))
    print("rule in message 3, 7 languages, 20 folds each: {} of {}".format(*rule_in_message_three()))
    print("relay, whole ask once: {} of {} folds".format(*relay()))
    if "--compactbench" in sys.argv:
        folder = sys.argv[sys.argv.index("--compactbench") + 1]
        for share in (1.0, 0.5):
            found = compactbench(folder, share)
            print("CompactBench at {:.0%}: prohibitions {} of {}, decisions {} of {}".format(share, *found))


def handoff_text(messages: Any) -> str:
    """Return the text of the handoff in a view."""
    found = (message.text for message in midfold.read(messages).messages if (ours := recognise(message)))
    return next((text for text in found if ours and ours.kind == "fold"), "")


if __name__ == "__main__":
    main()
