"""Track an agent's work (the "trail"): file changes and side effects, from tool calls and their results alone.

    trail = follow(trail, messages, redact)     extend the trail by these messages
    sections = render(trail, budget)            format it as lines of a handoff, newest first
    trail = parse(handoff)                      parse such lines, so that a handoff carries the trail
    text = without_trail(handoff)               remove them for the author of the next summary
    runs = latest_checks(trail)                 tests, builds and linters whose outcome is still valid
    commands = missing_checks(trail, text)      requested checks that did not run since the last change
    acts = latest_acts(trail.acts)              side effects, each with its latest outcome

Session state stores the trail of the folded messages. The rendered trail also covers the messages that stay and states
their number (`Trail.ahead`), so that a reader does not count them twice.

`Trail` is plain data. No LLM writes or rewords any of it.
"""

from midfold.compaction.tracking.checks import latest_checks, missing_checks
from midfold.compaction.tracking.entries import CheckRun, FileRead, GitState, RunningTask, TrackedFile, Trail, WorldAct
from midfold.compaction.tracking.handoff_lines import parse, render, without_trail
from midfold.compaction.tracking.side_effects import latest_acts
from midfold.compaction.tracking.tasks import without_stale_states
from midfold.compaction.tracking.track import follow

__all__ = [
    "CheckRun",
    "FileRead",
    "GitState",
    "RunningTask",
    "TrackedFile",
    "Trail",
    "WorldAct",
    "follow",
    "latest_acts",
    "latest_checks",
    "missing_checks",
    "parse",
    "render",
    "without_stale_states",
    "without_trail",
]
