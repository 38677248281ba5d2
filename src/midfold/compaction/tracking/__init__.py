"""The artifact trail: what an agent did to files and to the world, told by its calls and their results alone.

    trail = follow(trail, messages, redact)     the trail with what these messages did
    sections = render(trail, room)              as lines for the sections of a handoff, the newest first
    trail = parse(handoff)                      what such lines say, so that a handoff carries the trail on
    text = without_trail(handoff)               the handoff without them, for whoever writes the next one
    runs = latest_checks(trail)                 the tests, builds and linters whose outcome still counts
    commands = missing_checks(trail, ask)       those that were asked for and not run since the last change
    acts = latest_acts(trail.acts)              the acts, each with what came of it last

State carries the trail of what is folded; what is shown also follows the messages that stay, and says how many those
are (`Trail.ahead`), so that whoever reads it back does not count them twice.

`Trail` is plain data. No model writes or rewords any of it.
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
