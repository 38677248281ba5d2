"""A derived text that fails is omitted: the compaction continues, receipt and log report it, nothing leaks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

import midfold
from midfold.compaction.omissions import REDACTION_FAILED
from support.build import SECRET
from support.fixtures import assistant, call, user

pytestmark = pytest.mark.omits
TEXT = "text of a message"
MODEL_ANSWER = (
    "## Goal\nFix the parser.\n\n## Progress\n### Done\n- read src/a.py\n\n## Next Steps\n- test it\n" + "- x\n" * 400
)


def fail(*_: Any, **__: Any) -> NoReturn:
    raise ValueError(TEXT)


def history(size: int = 40) -> list[dict[str, Any]]:
    steps = [
        message
        for n in range(12)
        for message in call(n, "Bash", {"command": f"pytest tests/test_{n}.py"}, f"line {n} of the output\n" * size)
    ]
    rest = [turn for n in range(15) for turn in (assistant(f"Part {n} is read. " * 30), user(f"Go on with {n}."))]
    return [user("Fix the parser in src/a.py."), *steps, *rest]


SEAMS = {
    "midfold.compaction.context.follow": "file tracking",
    "midfold.compaction.context.render": "file tracking",
    "midfold.compaction.tracking.checks.CheckTracker.add": "file tracking",
    "midfold.compaction.context.find_client_instructions": "client instructions",
    "midfold.compaction.local.fold_reader.describe_call": "tool headline",
    "midfold.compaction.local.fold_reader.call_headline": "tool headline",
    "midfold.compaction.local.fold_reader.FoldReader._drop_stale": "tool headline",
    "midfold.compaction.local.fold_reader.with_credentials": "redaction",
    "midfold.compaction.local.local_summary.LineSelection": "local summary",
    "midfold.compaction.local.local_summary.FoldReader": "local summary",
    "midfold.compaction.assemble.local_audit": "summary check",
}


@pytest.mark.parametrize(("seam", "what"), SEAMS.items())
@pytest.mark.parametrize("target", [None, 2_000])
def test_failure_while_a_local_summary_is_derived(
    seam: str, what: str, target: int | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(seam, fail)
    result = midfold.compact(history(), context_length=8_000, target_tokens=target, force=True)
    assert result.receipt.status == "compacted"
    assert_reported(result, what, caplog)
    assert "Go on with 14." in str(result.messages)


MODEL_SEAMS = {
    "midfold.engines.compressor.lacking": "summary check",
    "midfold.engines.compressor.accept": "summary check",
    "midfold.compaction.assemble.audit_summary": "summary check",
}


@pytest.mark.parametrize(("seam", "what"), MODEL_SEAMS.items())
def test_failure_while_a_models_summary_is_checked(
    seam: str, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(seam, fail)
    answer = f"{MODEL_ANSWER}- the key is {SECRET}\n"
    strict = midfold.SummaryAnswer(text=answer, strict=True)
    result = midfold.compact(history(), context_length=8_000, force=True, summarizer=lambda _: strict)
    assert result.receipt.summary.source == "model"
    assert "Fix the parser." in str(result.messages)
    assert SECRET not in str(result.messages)
    assert_reported(result, what, caplog)


def test_no_summary_can_be_made_at_all(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("midfold.compaction.local.local_summary._local_summary", fail)
    monkeypatch.setattr("midfold.compaction.local.local_summary.sections_text", fail)
    result = midfold.compact(history(), context_length=8_000, force=True)
    assert result.receipt.status == "compacted"
    assert_reported(result, "local summary", caplog)
    assert result.archive[result.receipt.fold]


@pytest.mark.parametrize(
    ("seam", "what"),
    [
        ("midfold.engines.compressor.digest", "tool digest"),
        ("midfold.engines.compressor.shrink_arguments", "tool arguments"),
    ],
)
def test_failure_while_old_results_are_pruned(
    seam: str, what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    large = call(99, "Write", {"file_path": "a.py", "content": "x = 1\n" * 2_000}, "output\n" * 2_000)
    messages = [user("Fix it."), *large, *(turn for n in range(40) for turn in (assistant(f"{n}"), user(f"go on {n}")))]
    monkeypatch.setattr(seam, fail)
    result = midfold.compact(messages, context_length=16_000, force=True)
    assert result.changed
    assert_reported(result, what, caplog)


@pytest.mark.parametrize("summarizer", [None, lambda ask: MODEL_ANSWER + ask.prompt()], ids=["local", "model"])
def test_a_text_whose_redaction_fails_is_omitted_and_never_shown_unredacted(
    summarizer: Callable[..., str] | None, caplog: pytest.LogCaptureFixture
) -> None:
    def redactor(text: str) -> str:
        if SECRET in text:
            raise ValueError(text)
        return text

    secret = [user(f"Use the key {SECRET} for the upload."), assistant(f"I noted {SECRET}.")]
    leak = call(98, "Bash", {"command": f"export KEY={SECRET}"}, f"KEY={SECRET}\n" * 40)
    messages = [*history()[:1], *secret, *leak, *history()[1:]]
    result = midfold.compact(messages, context_length=8_000, force=True, redactor=redactor, summarizer=summarizer)
    assert result.receipt.status == "compacted"
    kept = "".join(str(message) for message in result.messages if message not in messages)
    assert SECRET not in kept
    assert SECRET not in str(result.receipt.to_dict()) + str(result.state)
    assert_reported(result, "redaction", caplog)


def test_a_redactor_that_always_fails_leaves_every_derived_text_out() -> None:
    result = midfold.compact(history(), context_length=8_000, force=True, redactor=fail)
    kept = "".join(str(message) for message in result.messages if message not in history())
    assert REDACTION_FAILED in kept
    assert "src/a.py" not in kept


def test_nothing_is_omitted_where_nothing_fails() -> None:
    result = midfold.compact(history(), context_length=8_000, force=True)
    assert result.receipt.omitted == ()
    assert not [notice for notice in result.receipt.notices if "mitted" in notice]


def assert_reported(result: midfold.Compaction, what: str, caplog: pytest.LogCaptureFixture) -> None:
    """Assert a report in the receipt, its notices and the log, by kind and position, without the text of the error."""
    found = [omission for omission in result.receipt.omitted if omission.what == what]
    assert found
    assert found[0].error == "ValueError"
    assert found[0].where.startswith("test_omissions.py:")
    assert any(what in notice for notice in result.receipt.notices)
    logged = [record for record in caplog.records if record.name == "midfold" and record.levelno == logging.ERROR]
    assert any(what in record.getMessage() for record in logged)
    said = f"{result.receipt.to_dict()} {[record.getMessage() for record in logged]}"
    assert TEXT not in said
    assert SECRET not in said
