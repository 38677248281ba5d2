"""The artifact trail of a whole transcript: what it shows, after what a handoff in it tells."""

from __future__ import annotations

import msgspec

from midfold.fold.handoff import generated_messages
from midfold.fold.redact import redact
from midfold.fold.trail.entries import Trail
from midfold.fold.trail.follow import follow
from midfold.fold.trail.handoff_lines import parse
from midfold.transcript.message import Transcript


def trail_of(messages: Transcript) -> Trail:
    """What these messages did, and what a handoff of ours among them says was done before."""
    ours = generated_messages(messages)
    start = next((at for at in reversed(ours) if ours[at].kind == "fold" and not ours[at].is_foreign), None)
    if start is None:
        return follow(Trail(), messages, redact)
    before = parse(ours[start].body)
    ahead = before.ahead + sum(start < at <= start + before.ahead for at in ours)
    return follow(msgspec.structs.replace(before, messages=start + 1, ahead=ahead), messages[start + 1 :], redact)
