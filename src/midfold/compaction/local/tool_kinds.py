"""Recognize the family of a tool by its name, or by its arguments, and describe the remaining families.

1. A specific name decides, without case, separators, server or namespace.
2. A vague name (`run`, `search`, `create`, `task`) decides only if the arguments do not contradict.
3. Otherwise arguments and words of the name decide; the default is `other`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from midfold.compaction.local.outcome import stated_outcome
from midfold.compaction.local.tool_actions import (
    CONTENT_KEYS,
    NEW_KEYS,
    OLD_KEYS,
    editor,
    is_patch,
    listing,
    patch,
    patch_text,
    read,
    search,
    shell,
    write,
)
from midfold.compaction.local.tool_call import (
    COMMAND_KEYS,
    Action,
    Outcome,
    ToolCallRecord,
    act,
    clip,
    flat,
    judge_action,
    plural,
    scalar,
)

# Sub-agents: goal and status.


GOAL_KEYS = ("description", "goal", "task", "objective", "prompt", "instructions", "message", "title", "request")

_BAD = ("failed", "error", "timeout", "timed_out", "cancelled", "canceled", "interrupted")


def agent(look: ToolCallRecord) -> Action:
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
        return judge_action(look, "agent", did, f"answered, {look.size()}")
    shown = ", ".join(f"{number} {look.say(state, 24)}" for state, number in states.most_common(4))
    shown = look.say(next(iter(states)), 24) if sum(states.values()) == 1 else shown
    told = stated_outcome(look.body, content=True)
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


# Browsers and screens: action, and page or element.


DEEDS = (
    "navigate", "goto", "open", "click", "type", "fill", "press", "scroll", "snapshot", "screenshot", "hover", "select",
    "drag", "wait", "evaluate", "console", "network", "back", "forward", "close", "resize", "upload", "tabs",
    "dialog", "vision",
)  # fmt: skip


def browser(look: ToolCallRecord) -> Action:
    deed = look.text("action", "type", "operation") or next((deed for deed in DEEDS if look.has_word(deed)), "")
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
    return judge_action(look, "browser", did, detail)


# Unknown tools: most informative arguments, and response size.


SHOWN = 4
_WRITES = ("create", "update", "delete", "remove", "add", "set", "send", "book", "cancel", "save", "post", "put", "modify", "insert", "upload")  # fmt: skip  # noqa: E501


def other(look: ToolCallRecord) -> Action:
    body = look.body
    if isinstance(body.value, list):
        detail = plural(len(body.value), "item")
    elif isinstance(body.value, dict) and not _inner_text(look):
        detail = plural(len(body.fields), "field")
    elif body.media:
        detail = plural(body.media, "media part")
    elif not body.text.strip():
        detail = "nothing came back"
    elif body.characters <= 80 and body.value is None:
        detail = f"answered {look.quote(body.text, 80)}"
    else:
        detail = look.size()
    wrote = bool(look.words) and look.has_word(*_WRITES)
    otherwise: Outcome = "ok" if body.value is not None else "unknown"
    return judge_action(
        look, "other", _deed(look), detail, content=False, paths=look.paths(), wrote=wrote, otherwise=otherwise
    )


def _inner_text(look: ToolCallRecord) -> bool:
    """Return whether the JSON response was only an envelope around a text."""
    return look.body.text[:64].lstrip()[:1] != "{"


def _deed(look: ToolCallRecord) -> str:
    telling = sorted(((_rank(key, value), key, value) for key, value in look.given.items()), key=lambda item: item[0])
    shown = [f"{look.say(key, 24)}={_show_value(look, value)}" for rank, key, value in telling[:SHOWN] if rank < 9]
    if shown:
        return "called it with " + ", ".join(shown)
    if look.raw.strip() not in ("", "{}", "null") and not look.arguments:
        return f"called it with {look.code(look.raw, 80)}"
    return "called it"


def _show_value(look: ToolCallRecord, value: Any) -> str:
    if isinstance(value, str):
        return look.say(value, 40)
    if isinstance(value, list):
        return plural(len(value), "item")
    return clip(flat(scalar(value)), 24)


def _rank(key: str, value: Any) -> int:
    """Rank ids and names first, then short scalars, then lists; long texts and objects last."""
    if value is None or value in ("", [], {}) or isinstance(value, dict):
        return 9
    if isinstance(value, list):
        return 5
    if isinstance(value, str) and len(value) > 200:
        return 6
    key = key.lower()
    if key.endswith(("id", "key", "number", "code")):
        return 0
    if key.endswith(("name", "title", "path", "url", "query", "subject", "email")):
        return 1
    return 2 if not isinstance(value, bool) else 4


# Plans and to-do lists: items, and number done.


ITEM_KEYS = ("todos", "plan", "items", "tasks", "tasklist", "todolist", "steps")
DONE = ("completed", "complete", "done", "finished")


def plan(look: ToolCallRecord) -> Action:
    items = next((value for key in ITEM_KEYS if isinstance(value := look.get(key), list)), None)
    return judge_action(look, "plan", _plan_deed(look, items), _detail(look, items), content=False)


def _plan_deed(look: ToolCallRecord, items: list[Any] | None) -> str:
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
            if look.has_word("update", "set")
            else f"looked at task {look.say(number, 20)}"
        )
    if subject:
        return f"added the task {look.quote(subject, 90)}"
    if look.has_word("exit", "enter"):
        return "left plan mode" if look.has_word("exit") else "entered plan mode"
    return "looked at the plan"


def _detail(look: ToolCallRecord, items: list[Any] | None) -> str:
    if items is not None or look.has("taskid", "subject"):
        return "updated"
    return look.size()


def _status(item: Any) -> str:
    value = item.get("status", item.get("state")) if isinstance(item, dict) else None
    return value if isinstance(value, str) else ""


def _label(item: dict[str, Any]) -> str:
    texts = (item.get(key) for key in ("content", "step", "title", "subject", "description", "task"))
    return next((text for text in texts if isinstance(text, str) and text), "")


# Long-running processes: session, action, and state.


SESSION_KEYS = ("sessionid", "processid", "pid", "bashid", "shellid", "terminalid", "taskid", "id", "session")


def process(look: ToolCallRecord) -> Action:
    session = look.text(*SESSION_KEYS)
    which = f"session {look.say(session, 40)}" if session else "a process"
    did = f"{_process_deed(look)} {which}"
    body = look.body
    if body.running:
        return act(look, "process", did, f"still running, {look.size()}", outcome="unknown")
    code = body.exit_code
    status = body.fields.get("status")
    shown = [f"exit {code}"] if code is not None else []
    if isinstance(status, str):
        shown.append(look.say(status, 40))
    return judge_action(look, "process", did, ", ".join([*shown, look.size()]), otherwise="unknown")


def _process_deed(look: ToolCallRecord) -> str:
    sent = look.text("chars", "input", "data", "text", "keys")
    if sent.strip():
        return f"sent {look.code(sent, 60)} to"
    action = look.text("action", "operation")
    if action:
        return f"did {look.quote(action, 30)} on"
    if look.has_word("kill", "stop", "terminate"):
        return "stopped"
    return "listed processes of" if look.has_word("list") else "looked at the output of"


# Fetched pages and web searches: address or query, and response size.


URL_KEYS = ("url", "urls", "uri", "href", "link", "address", "source")


def web(look: ToolCallRecord) -> Action:
    address, more = _address(look)
    query = look.text("query", "q", "searchterm", "searchquery", "keywords", "prompt")
    if address:
        method = look.text("method")
        verb = f"requested {look.say(method, 8)}" if method else "fetched"
        did = f"{verb} {look.say(address, 110)}" + (f" and {more} more" if more else "")
    else:
        did = f"searched the web for {look.quote(query, 90)}" if query else "searched the web"
    results = look.body.fields.get("results")
    detail = plural(len(results), "result") if isinstance(results, list) else look.size()
    status = look.body.fields.get("status_code", look.body.fields.get("statusCode"))
    if type(status) is int:
        detail = f"HTTP {status}, {detail}"
    return judge_action(look, "web", did, detail)


def _address(look: ToolCallRecord) -> tuple[str, int]:
    value = look.get(*URL_KEYS)
    if isinstance(value, list):
        texts = [item for item in value if isinstance(item, str)]
        return (texts[0], len(texts) - 1) if texts else ("", 0)
    return (value, 0) if isinstance(value, str) else ("", 0)


Describer = Callable[[ToolCallRecord], Action]

_FILE_KEYS = (
    "filepath",
    "path",
    "filename",
    "targetfile",
    "absolutepath",
    "relativepath",
    "notebookpath",
    "file",
    "paths",
    "files",
)
_PATTERN_KEYS = ("pattern", "regex", "searchterm", "searchpattern")
_PATCHES = ("patch", "diff", "input")

_NAMES: dict[Describer, str] = {
    shell: "bash shell execcommand localshell localshellcall containerexec runshellcommand terminal runterminalcmd "
    "runterminalcommand executecommand executebash runcommand runinterminal shellcommand powershell runbash "
    "executeipythoncell ipython executepython codeinterpreter executecode runcode pythoninterpreter "
    "runpython shelltool bashtool",
    read: "readfile viewfile openfile cat getfilecontents readtextfile readmanyfiles readmultiplefiles notebookread "
    "viewimage fsread readmediafile readfiles readfilecontents",
    write: "writefile createfile savefile writetofile fswrite newfile deletefile movefile createdirectory removefile",
    editor: "strreplaceeditor strreplacebasededittool texteditor editanthropic fileeditor",
    patch: "multiedit applypatch strreplace editfile replaceinfile notebookedit applydiff searchreplace "
    "inserteditintofile editblock updatefile undoedit patchfile editnotebook searchandreplace applyedit",
    search: "grep searchfiles searchfilecontent ripgrep rg grepsearch codebasesearch searchcode contentsearch "
    "findinfiles searchdir searchfile searchinfiles searchfiletext",
    listing: "glob ls listdir listdirectory listfiles findfile findfiles filesearch directorytree findbyname "
    "globfilesearch",
    web: "webfetch websearch fetchurl urlfetch webextract httprequest readurl googlewebsearch webcrawl searchweb "
    "openurl webbrowse fetchwebpage tavilysearch bravewebsearch",
    agent: "delegatetask delegate subagent spawnagent dispatchagent newtask delegatetoagent runsubagent callagent "
    "runagent waitagent sendinput agenttool",
    process: "writestdin bashoutput killshell killbash killprocess listprocesses readprocessoutput taskoutput taskstop "
    "getterminaloutput processmanager interactwithprocess",
    browser: "browser browse computer computeruse browseraction browseruse",
    plan: "todowrite todoread todo todos updateplan taskcreate taskupdate tasklist taskget exitplanmode enterplanmode "
    "managetodolist writetodos tasktracker updatetodolist readtodos",
}
_BY_NAME = {name: describer for describer, names in _NAMES.items() for name in names.split()}

_VAGUE: dict[str, Describer] = {
    "read": read, "view": read, "open": read, "get": read,
    "write": write, "create": write, "save": write, "delete": write,
    "edit": patch, "patch": patch, "replace": patch, "insert": patch,
    "search": search, "find": listing, "list": listing,
    "run": shell, "exec": shell, "execute": shell, "command": shell, "python": shell, "sh": shell, "cmd": shell,
    "fetch": web, "task": agent, "agent": agent, "process": process, "plan": plan,
}  # fmt: skip


def recognise(look: ToolCallRecord) -> Describer:
    known = _BY_NAME.get(look.local)
    if known is shell and patch_text_in_command(look):
        return patch
    if known is not None and not (look.foreign and _is_mistaken(look, known)):
        return known
    shaped = _by_shape(look)
    if shaped is not other:
        return shaped
    if known is not None:
        return other
    vague = _VAGUE.get(look.local)
    return vague if vague is not None and not look.foreign else other


def patch_text_in_command(look: ToolCallRecord) -> bool:
    return "*** Begin Patch" in look.command[:300]


def _is_mistaken(look: ToolCallRecord, known: Describer) -> bool:
    """Return whether a server's tool only shares a known name: agent, plan and process tools need arguments."""
    return known in (agent, plan, process) and not look.arguments


def _by_shape(look: ToolCallRecord) -> Describer:
    for rule in (_changing, _commanding, _browsing, _planning, _delegating, _searching, _reading):
        found = rule(look)
        if found is not None:
            return found
    return _by_body(look)


def _changing(look: ToolCallRecord) -> Describer | None:
    on_file = look.has(*_FILE_KEYS)
    if on_file and look.has("command", "action", "mode") and look.text("command", "action", "mode") in (
        "view", "create", "str_replace", "insert", "undo_edit", "read", "write", "replace", "patch", "append",
    ):  # fmt: skip
        return editor
    if look.has("oldstring", "oldstr", "newstring", "newstr") or (
        on_file and look.has(*OLD_KEYS) and look.has(*NEW_KEYS)
    ):
        return patch
    if look.has(*_PATCHES) and any(is_patch(look.arguments.get(key)) for key in _PATCHES):
        return patch
    if not look.arguments and patch_text(look):
        return patch
    if on_file and look.has(*CONTENT_KEYS):
        return write
    changes = look.has_word("write", "delete", "remove", "move", "rename", "mkdir", "copy", "save")
    return write if on_file and changes else None


def _commanding(look: ToolCallRecord) -> Describer | None:
    session = look.has("sessionid", "pid", "processid", "bashid", "shellid", "terminalid")
    if session and (
        look.has("chars", "action", "signal") or look.has_word("process", "stdin", "terminal", "shell", "kill")
    ):
        return process
    if not look.has(*COMMAND_KEYS) or look.has("url"):
        return None
    runs = look.has_word(
        "run", "exec", "execute", "shell", "bash", "terminal", "command", "cmd", "python", "code", "sh", "script"
    )
    return shell if look.command and (runs or look.has("command", "cmd", "script")) else None


def _browsing(look: ToolCallRecord) -> Describer | None:
    if look.has_word("browser", "playwright", "puppeteer", "chrome", "devtools", "screenshot", "navigate"):
        return browser
    if look.has("action") and look.has("coordinate", "selector"):
        return browser
    if look.text(*URL_KEYS).startswith(("http://", "https://")) or isinstance(look.get("urls"), list):
        return web
    return web if look.has_word("web", "internet", "google") and look.has("query", "q") else None


def _planning(look: ToolCallRecord) -> Describer | None:
    if not look.has_word("todo", "todos", "plan", "task", "tasks") or look.has("goal", "prompt"):
        return None
    return plan if any(isinstance(look.get(key), list) for key in ITEM_KEYS) else None


def _delegating(look: ToolCallRecord) -> Describer | None:
    asked = look.has("prompt", "goal", "task", "tasks", "objective", "instructions")
    return (
        agent
        if asked and (look.has_word("agent", "subagent", "delegate", "task", "worker") or look.has("subagenttype"))
        else None
    )


def _searching(look: ToolCallRecord) -> Describer | None:
    by_pattern = look.has(*_PATTERN_KEYS)
    by_name = look.has_word("glob", "files", "file", "find", "list", "ls", "dir")
    if by_pattern:
        return listing if by_name and not look.has_word("grep", "search", "content", "text", "in") else search
    if look.has("query", "q") and look.has_word("search", "grep", "find", "query", "retrieve", "lookup"):
        return search
    listed = look.has_word("list", "ls", "dir", "directory", "tree", "folder") and look.has(
        "path", "directory", "dir", "dirpath"
    )
    return listing if listed else None


def _reading(look: ToolCallRecord) -> Describer | None:
    reads = look.has_word("read", "view", "open", "cat", "show", "load", "file", "get", "image", "document")
    return read if reads and look.has(*_FILE_KEYS) else None


def _by_body(look: ToolCallRecord) -> Describer:
    """Recognize nameless output that states an exit code as a shell's."""
    body = look.body
    nameless = not look.arguments and not look.local
    return shell if nameless and (body.exit_code is not None or body.running) else other
