"""Plans and to-do lists: how many items, how many done."""

from __future__ import annotations

from typing import Any

from midfold.core.digest.action import Action
from midfold.core.digest.look import Look, judged
from midfold.core.digest.wording import plural

ITEM_KEYS = ("todos", "plan", "items", "tasks", "tasklist", "todolist", "steps")
DONE = ("completed", "complete", "done", "finished")


def plan(look: Look) -> Action:
    items = next((value for key in ITEM_KEYS if isinstance(value := look.get(key), list)), None)
    return judged(look, "plan", _deed(look, items), _detail(look, items), content=False)


def _deed(look: Look, items: list[Any] | None) -> str:
    if items is not None:
        current = next((_label(item) for item in items if _status(item) in ("in_progress", "doing", "active")), "")
        now = f", now {look.quote(current, 70)}" if current else ""
        return f"set the plan: {plural(len(items), 'item')}, {sum(_status(item) in DONE for item in items)} done{now}"
    subject = look.text("subject", "title", "name", "content")
    number, status = look.text("taskid", "id", "todoid"), look.text("status")
    if number:
        change = f"to {look.say(status, 20)}" if status else "anew"
        return (
            f"set task {look.say(number, 20)} {change}"
            if look.said("update", "set")
            else f"looked at task {look.say(number, 20)}"
        )
    if subject:
        return f"added the task {look.quote(subject, 90)}"
    if look.said("exit", "enter"):
        return "left plan mode" if look.said("exit") else "entered plan mode"
    return "looked at the plan"


def _detail(look: Look, items: list[Any] | None) -> str:
    if items is not None or look.has("taskid", "subject"):
        return "updated"
    return look.size()


def _status(item: Any) -> str:
    value = item.get("status", item.get("state")) if isinstance(item, dict) else None
    return value if isinstance(value, str) else ""


def _label(item: dict[str, Any]) -> str:
    texts = (item.get(key) for key in ("content", "step", "title", "subject", "description", "task"))
    return next((text for text in texts if isinstance(text, str) and text), "")
