"""Long-running processes: which session, what was done to it, whether it still runs."""

from __future__ import annotations

from midfold.core.digest.action import Action
from midfold.core.digest.look import Look, act, judged

SESSION_KEYS = ("sessionid", "processid", "pid", "bashid", "shellid", "terminalid", "taskid", "id", "session")


def process(look: Look) -> Action:
    session = look.text(*SESSION_KEYS)
    which = f"session {look.say(session, 40)}" if session else "a process"
    did = f"{_deed(look)} {which}"
    body = look.body
    if body.running:
        return act(look, "process", did, f"still running, {look.size()}", outcome="unknown")
    code = body.exit_code
    status = body.fields.get("status")
    shown = [f"exit {code}"] if code is not None else []
    if isinstance(status, str):
        shown.append(look.say(status, 40))
    return judged(look, "process", did, ", ".join([*shown, look.size()]), otherwise="unknown")


def _deed(look: Look) -> str:
    sent = look.text("chars", "input", "data", "text", "keys")
    if sent.strip():
        return f"sent {look.code(sent, 60)} to"
    action = look.text("action", "operation")
    if action:
        return f"did {look.quote(action, 30)} on"
    if look.said("kill", "stop", "terminate"):
        return "stopped"
    return "listed processes of" if look.said("list") else "looked at the output of"
