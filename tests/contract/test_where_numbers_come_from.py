"""Receipts compute the basis of their sizes, and whether the originals can be restored."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import midfold
from midfold.compaction.archive import Archive
from midfold.compaction.request import CompactionRequest, Flow
from midfold.engines import Compressor
from midfold.gateway.prepare import NOTHING, larger
from midfold.gateway.request_size import PromptReports
from midfold.transcript.tokens import Count
from support.build import PORTING, WINDOW, assistant, call, user

ESTIMATE = midfold.compact(PORTING, context_length=WINDOW * 100).receipt.old_tokens


@pytest.mark.parametrize(
    ("usage", "basis"),
    [
        (None, "estimated"),
        ({}, "estimated"),
        ({"prompt_tokens": 0}, "estimated"),
        ({"prompt_tokens": 9_999}, "reported"),
    ],
)
@pytest.mark.parametrize("force", [True, False])
def test_a_size_is_reported_only_where_a_provider_reported_it(usage: Any, basis: str, force: bool) -> None:
    receipt = midfold.compact(PORTING, context_length=WINDOW, usage=usage, force=force).receipt
    assert receipt.token_basis == basis
    assert receipt.old_tokens == (9_999 if basis == "reported" else ESTIMATE)


def test_a_report_that_is_the_same_number_as_the_estimate_is_a_report() -> None:
    receipt = midfold.compact(PORTING, context_length=WINDOW, usage={"prompt_tokens": ESTIMATE}).receipt
    assert (receipt.token_basis, receipt.old_tokens) == ("reported", ESTIMATE)


def test_a_session_says_what_the_size_of_its_view_rests_on() -> None:
    with midfold.open("memory:") as sessions:
        session = sessions.session("s", context_length=WINDOW)
        session.append(PORTING)
        assert session.preview().token_basis == "estimated"
        session.observe({"prompt_tokens": ESTIMATE})
        assert session.preview().token_basis == "reported"
        session.append([user("And?")])
        assert session.preview().token_basis == "calibrated"
        assert session.compact().receipt.token_basis == "calibrated"
        assert session.size.basis == "calibrated"


def test_the_gateway_has_a_report_for_this_very_request_or_calibrates() -> None:
    anchors = PromptReports()
    anchors.observe((b"one", b""), 1_200, 1_000)
    assert anchors.size([b"zero", b"one"], b"", 1_000) == Count(1_200, "reported")
    assert anchors.size([b"zero", b"one", b"two"], b"", 1_000) == Count(1_200, "calibrated"), "there is a message more"
    assert anchors.size([b"zero", b"one"], b"", 1_100) == Count(1_320, "calibrated"), "other tools stand beside it"
    assert anchors.size([b"two"], b"", 1_000) == Count(1_000, "estimated")


def test_after_an_overflow_the_larger_size_counts_with_what_it_rests_on() -> None:
    weighed = Count(900, "calibrated")
    assert larger(weighed, NOTHING) == weighed
    assert larger(weighed, Count(1_000, "reported")) == (1_000, "reported")
    assert larger(weighed, Count(800, "reported")) == weighed


class Forgetful(Compressor):
    """Engine that keeps no originals."""

    name = "forgetful"

    def compress(self, request: CompactionRequest) -> Flow:
        outcome = yield from super().compress(request)
        return msgspec.structs.replace(outcome, archive=Archive())


FULL = [
    user("Read them all."),
    assistant("Yes."),
    *(
        message
        for n in range(300)
        for message in call(
            n,
            "read_file",
            {"path": f"src/area{n}/module_{n * 7919}.py"},
            f"ERROR E{n * 31:05}: port {20_000 + n}. " * 9,
        )
    ),
]
"""More names than fit into any summary."""


def test_a_compaction_is_recoverable_only_if_its_originals_are_kept() -> None:
    kept = midfold.compact(FULL, context_length=WINDOW).receipt
    dropped = midfold.compact(FULL, context_length=WINDOW, engine=Forgetful()).receipt
    assert (kept.recoverable, kept.summary.facts_lost) == (True, 0)
    assert kept.summary.facts_recoverable > 0
    assert (dropped.recoverable, dropped.summary.facts_recoverable) == (False, 0)
    assert dropped.summary.facts_lost == kept.summary.facts_recoverable
    small = midfold.compact([user("Hi."), assistant("Hello.")], engine=Forgetful()).receipt
    assert (small.status, small.recoverable) == ("unchanged", True)


def test_a_stored_session_keeps_every_original() -> None:
    with midfold.open("memory:") as sessions:
        session = sessions.session("s", context_length=WINDOW)
        session.append(PORTING)
        receipt = session.compact().receipt
        assert receipt.recoverable
        assert session.unfold(receipt.fold)[0] in PORTING


@pytest.mark.parametrize("kept", [True, False])
def test_the_command_says_that_an_archive_which_is_not_written_is_gone(kept: bool, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    file.write_text(json.dumps(FULL))
    command = [sys.executable, "-m", "midfold", "compact", str(file), "--context-length", str(WINDOW), "--local"]
    options = ["-o", str(tmp_path / "out.json"), "--overwrite"] if kept else []
    told = subprocess.run([*command, "--json", *options], capture_output=True, text=True, check=True).stdout
    receipt = json.loads(told)["receipt"]
    assert receipt["recoverable"] is kept
    assert (receipt["summary"]["facts_lost"] == 0) is kept
    shown = subprocess.run([*command, *options], capture_output=True, text=True, check=True).stdout
    assert ("The originals exist only in the input" in shown) is not kept


def numbered(count: int, words: int) -> list[dict[str, Any]]:
    spoken = ("user", "assistant")
    return [
        {"role": spoken[number % 2], "content": f"{number} " + "every span of the lexer " * words}
        for number in range(count)
    ]


@pytest.mark.parametrize("count", [599, 600, 601, 1_500])
@pytest.mark.parametrize("words", [1, 3, 12])
def test_a_call_and_a_host_have_one_estimate_at_any_number_of_messages(count: int, words: int) -> None:
    messages = numbered(count, words)
    size = midfold.compact(messages, context_length=10**8).receipt.old_tokens
    for window in (int(size / 0.49), int(size / 0.51), 10 * size):
        host = midfold.EngineHost(context_length=window)
        host.append(messages)
        receipt = midfold.compact(messages, context_length=window).receipt
        assert receipt.old_tokens == host.size.tokens == size
        assert (receipt.status != "unchanged") is host.should_compress()


@pytest.mark.parametrize("system", ["Be careful.", [{"type": "text", "text": "Be careful."}]])
def test_the_new_size_counts_the_note_in_a_separate_system_prompt(system: Any) -> None:
    messages = [user("Port it."), assistant("Yes."), *numbered(200, 12)]
    result = midfold.compact(messages, system=system, context_length=16_000)
    assert result.receipt.status == "compacted"
    again = midfold.compact(result.messages, system=result.system, context_length=10**6)
    assert result.receipt.new_tokens == again.receipt.old_tokens
    assert result.receipt.new_messages == len(result.messages)
