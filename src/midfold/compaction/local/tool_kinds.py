"""Recognize the family of a tool by its name, or by its arguments, and describe the remaining families.

1. A specific name decides, without case, separators, server or namespace.
2. A vague name (`run`, `search`, `create`, `task`) decides only if the arguments match no family.
3. Arguments and words of the name decide before a vague name; the default is `other`.
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


def agent(record: ToolCallRecord) -> Action:
    goal = record.text(*GOAL_KEYS)
    tasks = record.get("tasks", "agents")
    if not goal and isinstance(tasks, list):
        first = tasks[0] if isinstance(tasks[0], dict) else {}
        goal = next(
            (text for key in ("goal", "task", "description", "prompt") if isinstance(text := first.get(key), str)), ""
        )
    kind = record.text("subagenttype", "agenttype", "agent", "agentname", "agentid", "role")
    did = f"gave a sub-agent{f' ({record.say(kind, 24)})' if kind else ''} the task {record.quote(goal, 90)}"
    if isinstance(tasks, list) and len(tasks) > 1:
        did += f" and {len(tasks) - 1} more"
    states = _states(record.body.fields)
    if not states:
        return judge_action(record, "agent", did, f"answered, {record.size()}")
    shown = ", ".join(f"{number} {record.say(state, 24)}" for state, number in states.most_common(4))
    shown = record.say(next(iter(states)), 24) if sum(states.values()) == 1 else shown
    stated = stated_outcome(record.body, content=True)
    bad = [state for state in states if state.lower() in _BAD]
    if stated.failed or bad:
        error = record.say(stated.reason or _reason(record.body.fields), 140)
        detail = f"{shown}: {error}" if error else shown
        return act(record, "agent", did, detail, outcome="failed", error=error or shown)
    return act(record, "agent", did, f"{shown}, {record.size()}")


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


BROWSER_ACTIONS = (
    "navigate", "goto", "open", "click", "type", "fill", "press", "scroll", "snapshot", "screenshot", "hover", "select",
    "drag", "wait", "evaluate", "console", "network", "back", "forward", "close", "resize", "upload", "tabs",
    "dialog", "vision",
)  # fmt: skip


def browser(record: ToolCallRecord) -> Action:
    verb = record.text("action", "type", "operation") or next(
        (verb for verb in BROWSER_ACTIONS if record.has_word(verb)), ""
    )
    target = record.text("url", "uri")
    if target:
        target = f" {record.say(target, 110)}"
    else:
        element = record.text("element", "selector", "ref", "uid", "text", "key", "name", "coordinate")
        target = f" {record.quote(element, 60)}" if element else ""
    did = f"used the browser: {record.say(verb, 30) or 'looked'}{target}"
    detail = record.size()
    if record.body.media:
        detail = plural(record.body.media, "media part")
    return judge_action(record, "browser", did, detail)


# Unknown tools: most informative arguments, and response size.


MAX_SHOWN_ARGUMENTS = 4
_WRITES = ("create", "update", "delete", "remove", "add", "set", "send", "book", "cancel", "save", "post", "put", "modify", "insert", "upload")  # fmt: skip  # noqa: E501


def other(record: ToolCallRecord) -> Action:
    body = record.body
    if isinstance(body.value, list):
        detail = plural(len(body.value), "item")
    elif isinstance(body.value, dict) and not _inner_text(record):
        detail = plural(len(body.fields), "field")
    elif body.media:
        detail = plural(body.media, "media part")
    elif not body.text.strip():
        detail = "nothing came back"
    elif body.characters <= 80 and body.value is None:
        detail = f"answered {record.quote(body.text, 80)}"
    else:
        detail = record.size()
    wrote = bool(record.words) and record.has_word(*_WRITES)
    otherwise: Outcome = "ok" if body.value is not None else "unknown"
    return judge_action(
        record,
        "other",
        _call_description(record),
        detail,
        content=False,
        paths=record.paths(),
        wrote=wrote,
        otherwise=otherwise,
    )


def _inner_text(record: ToolCallRecord) -> bool:
    """Return whether the JSON response was only an envelope around a text."""
    return record.body.text[:64].lstrip()[:1] != "{"


def _call_description(record: ToolCallRecord) -> str:
    ranked = sorted(((_rank(key, value), key, value) for key, value in record.given.items()), key=lambda item: item[0])
    shown = [
        f"{record.say(key, 24)}={_show_value(record, value)}"
        for rank, key, value in ranked[:MAX_SHOWN_ARGUMENTS]
        if rank < 9
    ]
    if shown:
        return "called it with " + ", ".join(shown)
    if record.raw.strip() not in ("", "{}", "null") and not record.arguments:
        return f"called it with {record.code(record.raw, 80)}"
    return "called it"


def _show_value(record: ToolCallRecord, value: Any) -> str:
    if isinstance(value, str):
        return record.say(value, 40)
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


def plan(record: ToolCallRecord) -> Action:
    items = next((value for key in ITEM_KEYS if isinstance(value := record.get(key), list)), None)
    return judge_action(record, "plan", _plan_description(record, items), _detail(record, items), content=False)


def _plan_description(record: ToolCallRecord, items: list[Any] | None) -> str:
    if items is not None:
        current = next((_label(item) for item in items if _status(item) in ("in_progress", "doing", "active")), "")
        now = f", now {record.quote(current, 70)}" if current else ""
        return f"set the plan: {plural(len(items), 'item')}, {sum(_status(item) in DONE for item in items)} done{now}"
    subject = record.text("subject", "title", "name", "content")
    number, status = record.text("taskid", "id", "todoid"), record.text("status")
    if number:
        change = f"to {record.say(status, 20)}" if status else "anew"
        return (
            f"set task {record.say(number, 20)} {change}"
            if record.has_word("update", "set")
            else f"looked at task {record.say(number, 20)}"
        )
    if subject:
        return f"added the task {record.quote(subject, 90)}"
    if record.has_word("exit", "enter"):
        return "left plan mode" if record.has_word("exit") else "entered plan mode"
    return "looked at the plan"


def _detail(record: ToolCallRecord, items: list[Any] | None) -> str:
    if items is not None or record.has("taskid", "subject"):
        return "updated"
    return record.size()


def _status(item: Any) -> str:
    value = item.get("status", item.get("state")) if isinstance(item, dict) else None
    return value if isinstance(value, str) else ""


def _label(item: dict[str, Any]) -> str:
    texts = (item.get(key) for key in ("content", "step", "title", "subject", "description", "task"))
    return next((text for text in texts if isinstance(text, str) and text), "")


# Long-running processes: session, action, and state.


SESSION_KEYS = ("sessionid", "processid", "pid", "bashid", "shellid", "terminalid", "taskid", "id", "session")


def process(record: ToolCallRecord) -> Action:
    session = record.text(*SESSION_KEYS)
    which = f"session {record.say(session, 40)}" if session else "a process"
    did = f"{_process_description(record)} {which}"
    body = record.body
    if body.running:
        return act(record, "process", did, f"still running, {record.size()}", outcome="unknown")
    code = body.exit_code
    status = body.fields.get("status")
    shown = [f"exit {code}"] if code is not None else []
    if isinstance(status, str):
        shown.append(record.say(status, 40))
    return judge_action(record, "process", did, ", ".join([*shown, record.size()]), otherwise="unknown")


def _process_description(record: ToolCallRecord) -> str:
    sent = record.text("chars", "input", "data", "text", "keys")
    if sent.strip():
        return f"sent {record.code(sent, 60)} to"
    action = record.text("action", "operation")
    if action:
        return f"did {record.quote(action, 30)} on"
    if record.has_word("kill", "stop", "terminate"):
        return "stopped"
    return "listed processes of" if record.has_word("list") else "looked at the output of"


# Fetched pages and web searches: address or query, and response size.


URL_KEYS = ("url", "urls", "uri", "href", "link", "address", "source")


def web(record: ToolCallRecord) -> Action:
    address, more = _address(record)
    query = record.text("query", "q", "searchterm", "searchquery", "keywords", "prompt")
    if address:
        method = record.text("method")
        verb = f"requested {record.say(method, 8)}" if method else "fetched"
        did = f"{verb} {record.say(address, 110)}" + (f" and {more} more" if more else "")
    else:
        did = f"searched the web for {record.quote(query, 90)}" if query else "searched the web"
    results = record.body.fields.get("results")
    detail = plural(len(results), "result") if isinstance(results, list) else record.size()
    status = record.body.fields.get("status_code", record.body.fields.get("statusCode"))
    if type(status) is int:
        detail = f"HTTP {status}, {detail}"
    return judge_action(record, "web", did, detail)


def _address(record: ToolCallRecord) -> tuple[str, int]:
    value = record.get(*URL_KEYS)
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


def recognise(record: ToolCallRecord) -> Describer:
    known = _BY_NAME.get(record.local)
    if known is shell and patch_text_in_command(record):
        return patch
    if known is not None and not (record.foreign and _is_mistaken(record, known)):
        return known
    shaped = _by_shape(record)
    if shaped is not other:
        return shaped
    if known is not None:
        return other
    vague = _VAGUE.get(record.local)
    return vague if vague is not None and not record.foreign else other


def patch_text_in_command(record: ToolCallRecord) -> bool:
    return "*** Begin Patch" in record.command[:300]


def _is_mistaken(record: ToolCallRecord, known: Describer) -> bool:
    """Return whether a server's tool only shares a known name: agent, plan and process tools need arguments."""
    return known in (agent, plan, process) and not record.arguments


def _by_shape(record: ToolCallRecord) -> Describer:
    for rule in (_changing, _commanding, _browsing, _planning, _delegating, _searching, _reading):
        found = rule(record)
        if found is not None:
            return found
    return _by_body(record)


def _changing(record: ToolCallRecord) -> Describer | None:
    on_file = record.has(*_FILE_KEYS)
    if on_file and record.has("command", "action", "mode") and record.text("command", "action", "mode") in (
        "view", "create", "str_replace", "insert", "undo_edit", "read", "write", "replace", "patch", "append",
    ):  # fmt: skip
        return editor
    if record.has("oldstring", "oldstr", "newstring", "newstr") or (
        on_file and record.has(*OLD_KEYS) and record.has(*NEW_KEYS)
    ):
        return patch
    if record.has(*_PATCHES) and any(is_patch(record.arguments.get(key)) for key in _PATCHES):
        return patch
    if not record.arguments and patch_text(record):
        return patch
    if on_file and record.has(*CONTENT_KEYS):
        return write
    changes = record.has_word("write", "delete", "remove", "move", "rename", "mkdir", "copy", "save")
    return write if on_file and changes else None


def _commanding(record: ToolCallRecord) -> Describer | None:
    session = record.has("sessionid", "pid", "processid", "bashid", "shellid", "terminalid")
    if session and (
        record.has("chars", "action", "signal") or record.has_word("process", "stdin", "terminal", "shell", "kill")
    ):
        return process
    if not record.has(*COMMAND_KEYS) or record.has("url"):
        return None
    runs = record.has_word(
        "run", "exec", "execute", "shell", "bash", "terminal", "command", "cmd", "python", "code", "sh", "script"
    )
    return shell if record.command and (runs or record.has("command", "cmd", "script")) else None


def _browsing(record: ToolCallRecord) -> Describer | None:
    if record.has_word("browser", "playwright", "puppeteer", "chrome", "devtools", "screenshot", "navigate"):
        return browser
    if record.has("action") and record.has("coordinate", "selector"):
        return browser
    if record.text(*URL_KEYS).startswith(("http://", "https://")) or isinstance(record.get("urls"), list):
        return web
    return web if record.has_word("web", "internet", "google") and record.has("query", "q") else None


def _planning(record: ToolCallRecord) -> Describer | None:
    if not record.has_word("todo", "todos", "plan", "task", "tasks") or record.has("goal", "prompt"):
        return None
    return plan if any(isinstance(record.get(key), list) for key in ITEM_KEYS) else None


def _delegating(record: ToolCallRecord) -> Describer | None:
    has_goal = record.has("prompt", "goal", "task", "tasks", "objective", "instructions")
    return (
        agent
        if has_goal
        and (record.has_word("agent", "subagent", "delegate", "task", "worker") or record.has("subagenttype"))
        else None
    )


def _searching(record: ToolCallRecord) -> Describer | None:
    by_pattern = record.has(*_PATTERN_KEYS)
    by_name = record.has_word("glob", "files", "file", "find", "list", "ls", "dir")
    if by_pattern:
        return listing if by_name and not record.has_word("grep", "search", "content", "text", "in") else search
    if record.has("query", "q") and record.has_word("search", "grep", "find", "query", "retrieve", "lookup"):
        return search
    listed = record.has_word("list", "ls", "dir", "directory", "tree", "folder") and record.has(
        "path", "directory", "dir", "dirpath"
    )
    return listing if listed else None


def _reading(record: ToolCallRecord) -> Describer | None:
    reads = record.has_word("read", "view", "open", "cat", "show", "load", "file", "get", "image", "document")
    return read if reads and record.has(*_FILE_KEYS) else None


def _by_body(record: ToolCallRecord) -> Describer:
    """Recognize nameless output that states an exit code as a shell's."""
    body = record.body
    nameless = not record.arguments and not record.local
    return shell if nameless and (body.exit_code is not None or body.running) else other
