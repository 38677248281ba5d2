"""Sub-agents: the goal they were given, and the status they came back with."""

from __future__ import annotations

from collections import Counter
from typing import Any

from midfold.core.digest.action import Action
from midfold.core.digest.look import Look, act, judged

GOAL_KEYS = ("description", "goal", "task", "objective", "prompt", "instructions", "message", "title", "request")

_BAD = ("failed", "error", "timeout", "timed_out", "cancelled", "canceled", "interrupted")


def agent(look: Look) -> Action:
    goal = look.text(*GOAL_KEYS)
    tasks = look.get("tasks", "agents")
    if not goal and isinstance(tasks, list):
        first = tasks[0] if isinstance(tasks[0], dict) else {}
        goal = next(
            (text for key in ("goal", "task", "description", "prompt") if isinstance(text := first.get(key), str)), ""
        )
    kind = look.text("subagenttype", "agenttype", "agent", "agentname", "agentid", "role")
    did = f"gave a sub-agent{f' ({look.say(kind, 24)})' if kind else ''} the task {look.quote(goal, 90)}"
    if isinstance(tasks, list) and len(tasks) > 1:
        did += f" and {len(tasks) - 1} more"
    states = _states(look.body.fields)
    if not states:
        return judged(look, "agent", did, f"answered, {look.size()}")
    shown = ", ".join(f"{number} {look.say(state, 24)}" for state, number in states.most_common(4))
    shown = look.say(next(iter(states)), 24) if sum(states.values()) == 1 else shown
    told = look.stated(content=True)
    bad = [state for state in states if state.lower() in _BAD]
    if told.failed or bad:
        error = look.say(told.reason or _reason(look.body.fields), 140)
        detail = f"{shown}: {error}" if error else shown
        return act(look, "agent", did, detail, outcome="failed", error=error or shown)
    return act(look, "agent", did, f"{shown}, {look.size()}")


def _states(fields: dict[str, Any]) -> Counter[str]:
    results = fields.get("results")
    found = [item.get("status") for item in results if isinstance(item, dict)] if isinstance(results, list) else []
    found.append(fields.get("status") if not found else None)
    return Counter(state for state in found if isinstance(state, str) and state)


def _reason(fields: dict[str, Any]) -> str:
    results = fields.get("results")
    candidates = [fields, *(results if isinstance(results, list) else [])]
    errors = (item.get("error") for item in candidates if isinstance(item, dict))
    return next((error for error in errors if isinstance(error, str) and error), "")
