"""A compaction made ahead of time: it may be swapped in later, if what it was made from has not changed."""

from __future__ import annotations

import msgspec

from midfold.core.archive import fold_id
from midfold.core.compaction import CompactionState, Outcome
from midfold.core.message import Transcript


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """An outcome, and what it was made from."""

    outcome: Outcome
    made_from: str
    messages: int
    compactions: int

    def fits(self, messages: Transcript, state: CompactionState) -> str:
        """Why it cannot be swapped in; empty if it can."""
        if state.count != self.compactions:
            return "the conversation was compacted in the meantime"
        if len(messages) < self.messages or fold_id(messages[: self.messages]) != self.made_from:
            return "the messages it was made from have changed"
        return ""

    def swapped(self, messages: Transcript) -> Transcript:
        """The fold, and every message that arrived since."""
        return (*self.outcome.messages, *messages[self.messages :])


def prepared(outcome: Outcome, messages: Transcript, state: CompactionState) -> Prepared | None:
    """What may be swapped in later; None if the compaction changed nothing."""
    if not outcome.changed:
        return None
    return Prepared(outcome=outcome, made_from=fold_id(messages), messages=len(messages), compactions=state.count)
