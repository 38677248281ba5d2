"""Decide which of the user's words stay in messages and which the handoff quotes."""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import proxy

from midfold.compaction.archive import handle_of
from midfold.compaction.boundary import Plan
from midfold.compaction.handoff import without_summary
from midfold.compaction.previews import Ends, ladder_for
from midfold.compaction.receipt import OmittedWords
from midfold.compaction.summary import CHARACTERS_PER_TOKEN
from midfold.compaction.truncate import shown_words
from midfold.compaction.user_record import (
    MAX_OTHER_SHARE,
    MAX_WORDS_SHARE,
    RecordText,
    UserRecord,
    Words,
    missing_words,
    parse_record,
    reports_finished,
    words_of,
)
from midfold.transcript.message import Transcript
from midfold.transcript.tokens import estimate_text

if TYPE_CHECKING:
    from midfold.compaction.context import CompactionContext

STAYING_OF_TARGET = 0.1
"""Share of a target size for verbatim messages; if they take more, they are truncated."""


class WordsOfUser:
    """User's words in the messages of a compaction and in the previous handoff, read once.

    The context owns this object, which refers to it weakly: a cycle would keep a large request in memory.
    """

    def __init__(self, job: CompactionContext, beside: Callable[[CompactionContext], Container[int]]) -> None:
        self.job: CompactionContext = proxy(job)
        self._find_beside = beside
        """Callable that returns the indices of messages that also hold a client's summary."""
        self._records: dict[Plan, RecordText] = {}

    @cached_property
    def view_tokens(self) -> int:
        """Maximum tokens of the view without system prompt and tools."""
        job = self.job
        return max(int((job.limit - job.fixed_tokens * job.scale) / max(job.scale, 0.01)), 0)

    @cached_property
    def _previous(self) -> tuple[list[Words], str]:
        """Record and summary of the previous handoff; no record if the handoff is not genuine."""
        state = self.job.state
        return parse_record(state.summary) if state.folds else ([], state.summary)

    @property
    def previous_summary(self) -> str:
        """Summary of the previous handoff, without the user's words."""
        return self._previous[1]

    @property
    def previous_tokens(self) -> int:
        """Tokens of the user's words in the previous handoff."""
        return estimate_text(self.job.state.summary) - estimate_text(self.previous_summary)

    @cached_property
    def _speech(self) -> dict[int, tuple[list[Words], str]]:
        """User's words in each message, redacted, and the assistant's reports that everything is finished."""
        job, tools, beside = self.job, dict[str, str](), self._find_beside(self.job)
        found: dict[int, tuple[list[Words], str]] = {}
        for index, message in enumerate(job.messages):
            if index in job.generated_messages:
                continue
            said = words_of(without_summary(message) if index in beside else message, tools)
            report = reports_finished(message)
            if said or report:
                handle, redact = handle_of(message), job.request.redact
                words = [Words(redact(text), handle, is_reply=is_reply) for text, is_reply in said]
                found[index] = (words, report)
        return found

    @cached_property
    def _newest_message(self) -> int:
        """Index of the newest message with words of the user that are not a reply; -1 if there is none."""
        asked = (index for index, (words, _) in self._speech.items() if any(not said.is_reply for said in words))
        return max(asked, default=-1)

    @cached_property
    def _newest_text(self) -> str:
        return self._speech[self._newest_message][0][-1].text if self._newest_message >= 0 else ""

    @property
    def _max_tokens(self) -> int:
        return int(self.view_tokens * MAX_WORDS_SHARE)

    @cached_property
    def newest_tokens(self) -> int:
        """Tokens that the newest request may take as a message of its own: all of it up to half of a view."""
        size = estimate_text(self._newest_text)
        return size if size <= self._max_tokens else self._max_tokens // 2

    @cached_property
    def shown_of_newest(self) -> int:
        """Characters of the newest request that stay in its message, however small the view is."""
        is_whole = estimate_text(self._newest_text) <= self._max_tokens
        return len(self._newest_text) if is_whole else int(self.newest_tokens * CHARACTERS_PER_TOKEN)

    @cached_property
    def ladder(self) -> tuple[Ends, ...]:
        """Levels of truncation for a target size, from none to the strongest."""
        return ladder_for(self.job.limit, self.shown_of_newest)

    @property
    def staying_tokens(self) -> int:
        """Tokens of a target size for verbatim messages: their share plus the newest request."""
        return int(self.job.limit * STAYING_OF_TARGET + self.newest_tokens * self.job.scale)

    def tokens(self, plan: Plan) -> int:
        """Return the tokens of the user's words in the handoff of a plan."""
        return round(self.record(plan).tokens * self.job.scale)

    def record(self, plan: Plan) -> RecordText:
        """Return the words that a handoff quotes: those of the previous one, and those that this plan folds."""
        if plan not in self._records:
            attempt = self.job.omissions.attempt
            self._records[plan] = attempt("user words", lambda: self._build(plan), self._previous_record)
        return self._records[plan]

    def missing_from(self, view: Transcript) -> tuple[OmittedWords, ...]:
        """Return the rules, decisions and tasks in the messages that a view does not contain verbatim."""
        record = UserRecord(self._previous[0])
        for words, _ in self._speech.values():
            for spoken in words:
                record.add(spoken)
        redact = self.job.request.redact
        return missing_words(record, "\n".join(redact(message.text) for message in view))

    @property
    def _previous_record(self) -> RecordText:
        """Record of the previous handoff, unchanged."""
        text = self.job.state.summary.removesuffix(self.previous_summary).strip() if self._previous[0] else ""
        return RecordText(text, estimate_text(text))

    def _build(self, plan: Plan) -> RecordText:
        fold, terse = set(plan.fold()), self.job.request.target_tokens is not None
        record = UserRecord(self._previous[0])
        for index, (words, report) in self._speech.items():
            if index in fold:
                for spoken in words:
                    record.add(spoken)
                if report:
                    record.finish(report)
        shown = 0
        if self._newest_message >= 0 and self._newest_message not in fold:
            shown = self.newest_tokens
            if terse and len(self._newest_text) > self.shown_of_newest:
                head = shown_words(self._newest_text, 0, self.shown_of_newest)[0]
                handle = handle_of(self.job.messages[self._newest_message])
                fence = "```\n" if head.count("```") % 2 else ""
                record.add(Words(fence + self._newest_text[len(head) :].strip(), handle, is_whole=False))
        maximum = max(self._max_tokens - shown, self._max_tokens // 2)
        return record.build(maximum, int(self.view_tokens * MAX_OTHER_SHARE), terse=terse)
