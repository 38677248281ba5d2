"""Parse notifications that clients send when a background task or sub-agent ends."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

_BLOCK = re.compile(r"<(task-notification|subagent_notification)>(.*?)(?:</\1>|\Z)", re.DOTALL)
_ID = re.compile(r"<task-id>([^<\n]{1,80})</task-id>")
_STATUS = re.compile(r"<status>\s*(\w{1,20})\s*</status>")
_SUMMARY = re.compile(r"<summary>([^<\n]{1,400})</summary>")
_RUNNING = ("running", "pending", "queued", "in_progress")


class TaskReport(NamedTuple):
    """State and report of one background task; an empty status means that it ended with an unknown result."""

    task: str
    status: str
    title: str
    text: str

    @property
    def is_running(self) -> bool:
        return self.status in _RUNNING

    @property
    def full_text(self) -> str:
        """Return the report with a first line that names the task."""
        return f"Background task {self.task} reported ({self.status or 'ended'}): {self.title}\n{self.text}"


def task_reports(text: str) -> list[TaskReport]:
    """Return the notifications in a text, in order; text inside a report is never read as a status."""
    if "notification>" not in text:
        return []
    return [report for tag, inside in _BLOCK.findall(text) if (report := _read(tag, inside)) is not None]


def _read(tag: str, inside: str) -> TaskReport | None:
    if tag == "subagent_notification":
        return _read_json(inside)
    before, _, rest = inside.partition("<result>")
    report, _, after = rest.rpartition("</result>") if "</result>" in rest else (rest, "", "")
    around = f"{before}\n{after}"
    task, status, title = (pattern.search(around) for pattern in (_ID, _STATUS, _SUMMARY))
    if task is None:
        return None
    return TaskReport(task[1].strip(), status[1].lower() if status else "", title[1] if title else "", report.strip())


def _read_json(inside: str) -> TaskReport | None:
    """Read the form of Codex: `{"agent_id": ..., "status": {"completed": "report"}}`."""
    try:
        value = json.loads(inside)
    except ValueError:
        return None
    task = value.get("agent_id") if isinstance(value, dict) else None
    if not isinstance(task, str) or not task:
        return None
    status = value.get("status")
    name, report = next(iter(status.items()), ("", "")) if isinstance(status, dict) else (status, "")
    return TaskReport(task, str(name or "").lower(), "", report if isinstance(report, str) else "")
