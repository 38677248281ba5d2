"""Which family a tool belongs to: by its name where the name is plain, else by the shape of its arguments.

Rules of this file:
1. A tool's own name decides, without case, separators, server or namespace.
2. A name that could mean anything (`run`, `search`, `create`, `task`) decides only if its arguments agree.
3. Otherwise the arguments decide, together with the words of the name; `other` is an honest answer.
"""

from __future__ import annotations

from collections.abc import Callable

from midfold.core.digest.action import Action
from midfold.core.digest.agent import agent
from midfold.core.digest.browser import browser
from midfold.core.digest.listing import listing
from midfold.core.digest.look import Look
from midfold.core.digest.other import other
from midfold.core.digest.patch import NEW_KEYS, OLD_KEYS, editor, is_patch, patch, patch_text
from midfold.core.digest.plan import ITEM_KEYS, plan
from midfold.core.digest.process import process
from midfold.core.digest.read import read
from midfold.core.digest.search import search
from midfold.core.digest.shell import COMMAND_KEYS, command_of, shell
from midfold.core.digest.web import URL_KEYS, web
from midfold.core.digest.write import CONTENT_KEYS, write

Describer = Callable[[Look], Action]

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


def recognise(look: Look) -> Describer:
    known = _BY_NAME.get(look.local)
    if known is shell and patch_text_in_command(look):
        return patch
    if known is not None and not (look.foreign and _mistaken(look, known)):
        return known
    shaped = _by_shape(look)
    if shaped is not other:
        return shaped
    if known is not None:
        return other
    vague = _VAGUE.get(look.local)
    return vague if vague is not None and not look.foreign else other


def patch_text_in_command(look: Look) -> bool:
    return "*** Begin Patch" in command_of(look)[:300]


def _mistaken(look: Look, known: Describer) -> bool:
    """A server's `list_files` may list files of anything; its arguments must not speak of something else."""
    return known in (agent, plan, process) and not look.arguments


def _by_shape(look: Look) -> Describer:
    for rule in (_changing, _commanding, _browsing, _planning, _delegating, _searching, _reading):
        found = rule(look)
        if found is not None:
            return found
    return _by_body(look)


def _changing(look: Look) -> Describer | None:
    on_file = look.has(*_FILE_KEYS)
    if on_file and look.has("command", "action", "mode") and look.text("command", "action", "mode") in (
        "view", "create", "str_replace", "insert", "undo_edit", "read", "write", "replace", "patch", "append",
    ):  # fmt: skip
        return editor
    if look.has("oldstring", "oldstr", "newstring", "newstr") or (
        on_file and look.has(*OLD_KEYS) and look.has(*NEW_KEYS)
    ):
        return patch
    if any(is_patch(look.arguments.get(key)) for key in ("patch", "diff", "input")) or (
        not look.arguments and patch_text(look)
    ):
        return patch
    if on_file and look.has(*CONTENT_KEYS):
        return write
    changes = look.said("write", "delete", "remove", "move", "rename", "mkdir", "copy", "save")
    return write if on_file and changes else None


def _commanding(look: Look) -> Describer | None:
    session = look.has("sessionid", "pid", "processid", "bashid", "shellid", "terminalid")
    if session and (
        look.has("chars", "action", "signal") or look.said("process", "stdin", "terminal", "shell", "kill")
    ):
        return process
    if not look.has(*COMMAND_KEYS) or look.has("url"):
        return None
    runs = look.said(
        "run", "exec", "execute", "shell", "bash", "terminal", "command", "cmd", "python", "code", "sh", "script"
    )
    return shell if command_of(look) and (runs or look.has("command", "cmd", "script")) else None


def _browsing(look: Look) -> Describer | None:
    if look.said("browser", "playwright", "puppeteer", "chrome", "devtools", "screenshot", "navigate"):
        return browser
    if look.has("action") and look.has("coordinate", "selector"):
        return browser
    if look.text(*URL_KEYS).startswith(("http://", "https://")) or isinstance(look.get("urls"), list):
        return web
    return web if look.said("web", "internet", "google") and look.has("query", "q") else None


def _planning(look: Look) -> Describer | None:
    listed = any(isinstance(look.get(key), list) for key in ITEM_KEYS)
    return (
        plan
        if listed and look.said("todo", "todos", "plan", "task", "tasks") and not look.has("goal", "prompt")
        else None
    )


def _delegating(look: Look) -> Describer | None:
    asked = look.has("prompt", "goal", "task", "tasks", "objective", "instructions")
    return (
        agent
        if asked and (look.said("agent", "subagent", "delegate", "task", "worker") or look.has("subagenttype"))
        else None
    )


def _searching(look: Look) -> Describer | None:
    by_pattern = look.has(*_PATTERN_KEYS)
    by_name = look.said("glob", "files", "file", "find", "list", "ls", "dir")
    if by_pattern:
        return listing if by_name and not look.said("grep", "search", "content", "text", "in") else search
    if look.has("query", "q") and look.said("search", "grep", "find", "query", "retrieve", "lookup"):
        return search
    listed = look.said("list", "ls", "dir", "directory", "tree", "folder") and look.has(
        "path", "directory", "dir", "dirpath"
    )
    return listing if listed else None


def _reading(look: Look) -> Describer | None:
    reads = look.said("read", "view", "open", "cat", "show", "load", "file", "get", "image", "document")
    return read if reads and look.has(*_FILE_KEYS) else None


def _by_body(look: Look) -> Describer:
    """Without a call, an output that states how a process ended is still a shell's."""
    body = look.body
    nameless = not look.arguments and not look.local
    return shell if nameless and (body.exit_code is not None or body.running) else other
