"""Commands: what ran, its exit code, how many lines it printed, and the line that tells what went wrong."""

from __future__ import annotations

import re

from midfold.core.digest import failure
from midfold.core.digest.action import Action, Outcome
from midfold.core.digest.look import Look, act

COMMAND_KEYS = ("command", "cmd", "commands", "script", "code", "commandline", "shellcommand")
SHELLS = ("bash", "sh", "zsh", "dash", "fish", "powershell", "pwsh", "cmd", "cmd.exe")

_INTO_FOLDER = re.compile(r"\s{0,9}cd [^\s;&|]{1,300}\s{0,9}(?:&&|;)\s{0,9}")
_SHOWS = re.compile(
    r"(?:cat|grep|egrep|rg|ag|sed -n|head|tail|less|more|awk|ls|tree|find|fd|echo|printf|jq|wc|nl|diff|strings|od|xxd"
    r"|git (?:log|show|diff|status|blame|grep|branch)|gh (?:api|pr|issue|run))\b"
)
_QUOTED = re.compile(r"'[^']*'")
_REDIRECTED = re.compile(
    r"(?<![\d&<>=-])>{1,2}\s{0,9}([^\s;&|<>()'\"$`]{1,300})|\btee (?:-a )?([^\s;&|<>()'\"$`]{1,300})"
)
_CHANGES = re.compile(
    r"(?:^|[;&|(]\s{0,9}|\n\s{0,9})(?:sudo )?(?:rm|mv|cp|mkdir|touch|chmod|ln|patch|unlink|truncate|rmdir"
    r"|sed -i|perl -p?i"
    r"|git (?:-C \S{1,200} )?(?:add|commit|apply|checkout|switch|push|merge|rebase|stash|reset|restore|rm|mv|tag"
    r"|cherry-pick|revert)"
    r"|(?:npm|pnpm|yarn|bun|pip|uv|cargo|go|apt|apt-get|brew) "
    r"(?:install|add|remove|uninstall|get|mod|update|upgrade))\b"
)
_IN_PLACE = re.compile(r"\bsed -i\S{0,9} [^\n]{0,600}?\s([^\s;&|<>()'\"$`*]{1,300})(?:$|[\n;&|])")


def shell(look: Look) -> Action:
    command = command_of(look)
    did = f"ran {look.code(_telling_part(command))}" if command else "ran a command"
    body = look.body
    shows = bool(_SHOWS.match(_telling_part(command)))
    told = failure.stated(body, content=True, opening=not shows)
    if told.failed is None:
        told = failure.own_error(body, _telling_part(command)) if shows else failure.ending(body)
    changed = written(command)
    if told.failed and told.aside:
        error = look.say(told.reason, 160)
        return act(look, "shell", did, error, outcome="failed", error=error, paths=changed[1])
    if told.failed:
        reason = told.reason if body.exit_code is not None else failure.error_line(body) or told.reason
        error = look.say(reason, 160)
        detail = [f"exit {body.exit_code}" if body.exit_code is not None else "failed", look.size()]
        detail.append(f"last error: {error}" if error else f"ends with: {look.say(failure.last_line(body.text), 120)}")
        if not body.text.strip():
            detail.pop()
        shown = ", ".join(detail)
        return act(look, "shell", did, shown, outcome="failed", error=error, paths=changed[1], wrote=changed[0])
    if body.running:
        detail = [f"still running as session {look.say(body.running, 40)}", look.size()]
        return act(look, "shell", did, ", ".join(detail), outcome="unknown", paths=changed[1], wrote=changed[0])
    detail = ([] if body.exit_code is None else [f"exit {body.exit_code}"]) + [look.size()]
    error = look.say(failure.traceback_end(body), 160)
    closing = error or look.say(failure.verdict(body), 120)
    if closing:
        detail.append(f"ends with: {closing}")
    outcome: Outcome = "ok" if told.failed is False else "unknown"
    return act(look, "shell", did, ", ".join(detail), outcome=outcome, error=error, paths=changed[1], wrote=changed[0])


def command_of(look: Look) -> str:
    value = look.get(*COMMAND_KEYS, "action")
    if isinstance(value, dict):
        value = value.get("command") or value.get("commands")
    if isinstance(value, list):
        words = [item for item in value if isinstance(item, str)]
        if len(words) > 2 and words[0].rpartition("/")[2] in SHELLS and words[1][:1] in "-/":
            return words[2]
        return " ".join(words)
    if isinstance(value, str):
        return value
    return look.raw if not look.given and look.raw[:1] not in ("{", "[", "") and look.raw != "null" else ""


def _telling_part(command: str) -> str:
    """Without the change of folder that opens so many commands."""
    found = _INTO_FOLDER.match(command[:400])
    return command[found.end() :] if found else command


def written(command: str) -> tuple[bool, tuple[str, ...]]:
    """Whether a command changes files, and which it names. A here-document's text is no command."""
    start = command[:4_000]
    here = start.find("<<")
    if here >= 0:
        end = start.find("\n", here)
        start = start[:end] if end >= 0 else start
    bare = _QUOTED.sub("''", start)
    paths = [first or second for first, second in _REDIRECTED.findall(bare)] if ">" in bare or "tee " in bare else []
    paths += _IN_PLACE.findall(bare) if "sed -i" in bare else []
    kept = tuple(dict.fromkeys(path for path in paths if not path.startswith(("/dev/", "&")) and not path.isdigit()))
    return bool(kept) or bool(_CHANGES.search(bare)), kept
