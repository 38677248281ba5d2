"""Browsers and screens: what was done, on which page or element."""

from __future__ import annotations

from midfold.core.digest.action import Action
from midfold.core.digest.look import Look, judged
from midfold.core.digest.wording import plural

DEEDS = (
    "navigate", "goto", "open", "click", "type", "fill", "press", "scroll", "snapshot", "screenshot", "hover", "select",
    "drag", "wait", "evaluate", "console", "network", "back", "forward", "close", "resize", "upload", "tabs",
    "dialog", "vision",
)  # fmt: skip


def browser(look: Look) -> Action:
    deed = look.text("action", "type", "operation") or next((deed for deed in DEEDS if look.said(deed)), "")
    target = look.text("url", "uri")
    if target:
        target = f" {look.say(target, 110)}"
    else:
        element = look.text("element", "selector", "ref", "uid", "text", "key", "name", "coordinate")
        target = f" {look.quote(element, 60)}" if element else ""
    did = f"used the browser: {look.say(deed, 30) or 'looked'}{target}"
    detail = look.size()
    if look.body.media:
        detail = plural(look.body.media, "media part")
    return judged(look, "browser", did, detail)
