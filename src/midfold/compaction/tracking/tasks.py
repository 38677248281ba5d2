"""Track background tasks: sub-agents and processes that were started, and how each ended.

A sub-agent is recorded as an act only when it ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from midfold.compaction.local.outcome import Body, stated_outcome
from midfold.compaction.local.tool_call import ToolCallRecord
from midfold.compaction.tracking.entries import RunningTask, Trail, WorldAct
from midfold.compaction.tracking.shell_effects import Effect
from midfold.transcript.task_reports import task_reports

SUB_AGENT = "sub-agent: "
_FAILED = ("failed", "errored", "error")
_STOPPED = ("killed", "stopped", "shutdown", "cancelled")
_STARTED = re.compile(
    r"running in (?:the )?background|backgrounded|[Aa]gent (?:launched|started)|spawned|working in the background"
)
_ID = re.compile(
    r"\b(?:(?:agent|task|bash|shell|session)_?id|session ID|with ID|ID|pid)[\"']?[:=]? ?[\"']?([\w.-]{1,80}\w)",
    re.I,
)
_ENDS = r"(completed|killed|failed|stopped|exited|errored|shutdown)"
_STATUS = re.compile(rf"(?:<status>|\"?status\"?: ?\{{?\"?){_ENDS}", re.I)
_STATUS_OF_ID = re.compile(rf"[\"'>:= {{]{{1,8}}{_ENDS}\b", re.I)
_MAX_STATUS_CHARS = 4_000
_JOB = re.compile(r"^\[\d{1,3}\] (\d{2,9})$", re.MULTILINE)
_PROCESS = re.compile(r"(?:PID|pid)[:= ]{1,3}(\d{2,9})")
_ENDED_WORDS = re.compile(r"\b(?:done|completed?|finished|ended|reported back)\b", re.I)
_RUNNING_WORDS = re.compile(
    r"\b(?:still running|is running|are running|in progress|in the background|not (?:yet )?(?:done|finished)|pending|"
    r"waiting (?:for|on))\b",
    re.I,
)
MIN_GOAL_CHARS = 8
"""Minimum characters of a goal; shorter ones cannot be recognized in a line."""


class TaskTracker:
    """Running tasks, and the acts recorded when they end."""

    def __init__(self, running: Iterable[RunningTask], acts: list[WorldAct]) -> None:
        self._running = {task.id: task for task in running}
        self._acts = acts
        self._jobs: list[str] = []
        """Ids of shell background processes."""

    @property
    def running(self) -> list[RunningTask]:
        return list(self._running.values())

    def start(self, task: str, what: str, at: int) -> None:
        self._running.pop(task, None)
        self._running[task] = RunningTask(id=task, what=what, at=at)

    def end(self, task: str, status: str, at: int) -> None:
        """Remove a running task; record how a sub-agent ended."""
        ended = self._running.pop(task, None)
        if ended is None or not ended.what.startswith(SUB_AGENT):
            return
        is_stopped = status in _STOPPED
        ok = None if not status else status not in _FAILED
        outcome = "" if is_stopped else f"{status} [{task}]".strip()
        self._acts.append(
            WorldAct(what="stop" if is_stopped else "agent", text=ended.what, ok=ok, outcome=outcome, at=at)
        )

    def read_reports(self, text: str, at: int) -> None:
        """End the tasks that a client's notifications report as ended."""
        for report in task_reports(text):
            if not report.is_running:
                self.end(report.task, report.status, at)

    def agent(self, at: int, record: ToolCallRecord, body: Body) -> None:
        """Track a call that starts, awaits or stops a sub-agent."""
        goal = goal_of(record)
        named = record.get("ids", "agentids", "taskids", "targets")
        tasks = [record.text("agentid", "taskid", "id"), *map(str, named if isinstance(named, list) else ())]
        if (record.has_word("close", "stop", "kill", "wait") or record.has("resume")) and any(tasks):
            for task in filter(None, tasks):
                self.end_if_reported(task, at, record, body)
            return
        stated = stated_outcome(body, content=True)
        if stated.failed and stated.from_harness:
            return
        head = body.text[:600]
        found = _ID.search(head)
        in_background = record.get("runinbackground") is True or _STARTED.search(head) or record.has_word("spawn")
        if found and in_background and not stated.failed:
            self.start(found[1], goal, at)
            return
        outcome = stated.reason if stated.failed else found[0] if found else ""
        self._acts.append(WorldAct(what="agent", text=goal, ok=not stated.failed, outcome=outcome, at=at))

    def end_if_reported(self, task: str, at: int, record: ToolCallRecord, body: Body) -> None:
        """End a task that a call stopped, or that the response reports as ended."""
        if record.has_word("close", "stop", "kill", "terminate"):
            self.end(task, "stopped", at)
            return
        place = body.text.find(task)
        found = _STATUS_OF_ID.match(body.text, place + len(task)) if place >= 0 else None
        found = found or _STATUS.search(body.text, 0, _MAX_STATUS_CHARS)
        if found:
            self.end(task, found[1].lower(), at)

    def process(self, at: int, record: ToolCallRecord, body: Body, *, failed: bool) -> None:
        """Track a call that inspects or stops a process."""
        task = record.text("sessionid", "processid", "pid", "bashid", "shellid", "terminalid", "taskid", "id")
        if not task or body.running:
            return
        if record.has_word("kill", "stop", "terminate") and failed:
            return
        if body.exit_code is not None and not record.has_word("kill", "stop", "terminate"):
            self.end(task, "exited", at)
        else:
            self.end_if_reported(task, at, record, body)

    def shell_in_background(self, at: int, command: str, text: str, session: str) -> None:
        """Track a command that continues in the background after the tool returned."""
        if "background" not in text and "Process running with session ID" not in text:
            return
        started = _ID.search(text) if _STARTED.search(text) else None
        task = session or (started[1] if started else "")
        if task:
            self.start(task, command, at)
            if started:
                self._acts.append(WorldAct(what="start", text=command, outcome=task, at=at))

    def start_process(self, at: int, effect: Effect, text: str) -> None:
        """Track a program that a shell puts into the background."""
        found = _JOB.search(text) or _PROCESS.search(text)
        task = effect.path or (found[1] if found else "") or effect.target[:40]
        self.start(task, effect.target, at)
        self._jobs.append(task)
        if not (self._acts and self._acts[-1].at == at and self._acts[-1].text == effect.target):
            self._acts.append(WorldAct(what="start", text=effect.target, outcome=task, at=at))

    def stop_process(self, name: str) -> None:
        """End a process by its id, or all processes with the name in their command.

        A target that only the shell knows (`$PID`, `%1`) may be any process started by a shell: all of them are
        removed.
        """
        if "$" in name or name.startswith("%"):
            for job in self._jobs[-1:] if name == "$!" else self._jobs:
                self._running.pop(job, None)
        elif self._running.pop(name, None) is None and len(name) > 3 and not name.isdigit():
            self._running = {key: task for key, task in self._running.items() if name not in task.what}


def goal_of(record: ToolCallRecord) -> str:
    return f"{SUB_AGENT}{record.text('description', 'goal', 'task', 'prompt', 'message', 'name')}"


def without_stale_states(text: str, trail: Trail) -> str:
    """Drop lines that contradict the trail: an ended sub-agent called running, or a running one called done."""
    running = {task.what.removeprefix(SUB_AGENT) for task in trail.running if task.what.startswith(SUB_AGENT)}
    ended = {act.text.removeprefix(SUB_AGENT) for act in trail.acts if act.text.startswith(SUB_AGENT)} - running
    wrong = [(goal, _ENDED_WORDS) for goal in running] + [(goal, _RUNNING_WORDS) for goal in ended]
    wrong = [(goal.lower(), words) for goal, words in wrong if len(goal) >= MIN_GOAL_CHARS]
    if not wrong:
        return text
    return "\n".join(
        line
        for line in text.split("\n")
        if not any(goal in (low := line.lower()) and words.search(low.replace(goal, "")) for goal, words in wrong)
    )
