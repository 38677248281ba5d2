"""Follow messages call by call and record the effects of each call, judged by its result.

1. A call whose result reports a failure had no effect. In a chain of commands, those before the failed one ran and
   those after it did not.
2. Output overrides the command: a commit is recorded by its printed hash.
3. One linear pass; irrelevant calls are classified by name only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from midfold.compaction.local.digest import is_digest
from midfold.compaction.local.outcome import Body, read_body, stated_outcome
from midfold.compaction.local.tool_actions import NEW_KEYS, OLD_KEYS, patch_text
from midfold.compaction.local.tool_call import ToolCallRecord, identity, read_call_alone
from midfold.compaction.local.tool_kinds import recognise
from midfold.compaction.omissions import Omissions
from midfold.compaction.tracking.checks import CheckTracker
from midfold.compaction.tracking.commands import Step, steps_of
from midfold.compaction.tracking.edits import (
    SCRIPTS,
    FileEdit,
    changes_in_patch,
    informative_line,
    is_path,
    names_in,
    replacement,
    rewrite,
)
from midfold.compaction.tracking.entries import (
    MAX_ACTS,
    MAX_CHECKS,
    MAX_RUNNING,
    CheckKind,
    CheckRun,
    EntryCleaner,
    GitState,
    Redactor,
    TrackedFile,
    Trail,
    WorldAct,
    newest_files,
)
from midfold.compaction.tracking.file_tracker import FileTracker, is_aside_file
from midfold.compaction.tracking.shell_effects import (
    Effect,
    StepResult,
    digest_failed,
    effects_in,
    handles_files,
    leftover_files,
    script_changes,
    script_of,
    step_results,
)
from midfold.compaction.tracking.side_effects import (
    NO_HASH,
    act_outcome,
    branch_of,
    created_ids,
    fields_of,
    mark_replaced,
    tool_act,
)
from midfold.compaction.tracking.tasks import TaskTracker, goal_of
from midfold.transcript.laws import Place, pair
from midfold.transcript.message import CALL, Message, ToolCall, ToolResult, Transcript

MAX_MESSAGE_CHARS = 1_500
"""Maximum characters of an error from a reading tool; longer text is content."""
CHANGED = ("created", "changed", "deleted", "moved")
_REFUSED = "doesn't want to proceed with this tool use"

_FOLDER = re.compile(r"<cwd>([^<\n]{1,300})</cwd>|[Ww]orking directory: (/[^\s<]{1,300})")


class CallAnswer:
    """Tool result with a lazily parsed body."""

    __slots__ = ("_body", "result")

    def __init__(self, result: ToolResult) -> None:
        self.result = result
        self._body: Body | None = None

    @property
    def body(self) -> Body:
        if self._body is None:
            self._body = read_body(self.result)
        return self._body

    def has_failed(self, *, content: bool = False) -> bool:
        """Return whether a tool other than a shell reports a failure."""
        body = self.body
        if body.text[:1] == "[" and is_digest(body.text):
            return digest_failed(body.text)
        return bool(stated_outcome(body, content=content).failed)

    def has_ended_well(self) -> bool:
        """Return whether a command reports exit code 0."""
        body = self.body
        is_digested = body.text[:1] == "[" and is_digest(body.text)
        return not digest_failed(body.text) if is_digested else body.exit_code == 0


def follow(trail: Trail, messages: Transcript, redact: Redactor, omissions: Omissions | None = None) -> Trail:
    """Return the trail extended by these messages; record calls that cannot be parsed in `omissions`."""
    if not messages:
        return trail
    follower, omissions = _Follower(trail), omissions or Omissions()
    answers = pair(messages).answers
    start = min(trail.ahead, len(messages))
    for index in range(start, len(messages)):
        message = messages[index]
        if message.kinds & CALL:
            for number, part in enumerate(message.parts):
                if type(part) is ToolCall:
                    place = answers.get(Place(index, number))
                    result = messages[place.message].parts[place.part] if place is not None else None
                    answer = result if isinstance(result, ToolResult) else None
                    omissions.attempt(
                        "file tracking", partial(follower.call, trail.messages + index, part, answer), None
                    )
        elif message.role in ("user", "system"):
            follower.read_message(trail.messages + index, message)
    return follower.finish(len(messages), redact)


class _Follower:
    def __init__(self, trail: Trail) -> None:
        self.trail = trail
        self.tracker = FileTracker(trail)
        self.acts = list(trail.acts)
        self.tasks = TaskTracker(trail.running, self.acts)
        self.checks = CheckTracker(trail.checks)
        self.branch, self.branch_folder = trail.git.branch, ""
        self.commit = trail.git.commit
        self.scripts: dict[str, str] = {}
        self.whole: dict[str, str | CallAnswer] = {}
        """Last known whole content of files that were shown or written."""
        self.commands: dict[tuple[str, str], tuple[list[Step], list[list[Effect]]]] = {}
        self.tools: dict[Any, Callable[[int, ToolCallRecord, CallAnswer], None]] = {
            "shell": self._shell, "read": self._read, "write": self._write, "patch": self._patch,
            "editor": self._editor, "agent": self._agent, "process": self._process, "other": self._other,
            "search": self._search, "listing": self._search,
        }  # fmt: skip

    # Texts of messages.

    def read_message(self, at: int, message: Message) -> None:
        if not self.tracker.places.root or message.role == "user":
            for text in message.texts():
                if not self.tracker.places.root and (found := _FOLDER.search(text, 0, 20_000)):
                    self.tracker.places.learn_root(found[1] or found[2])
                self.tasks.read_reports(text, at)

    # Calls, by family.

    def call(self, at: int, call: ToolCall, result: ToolResult | None) -> None:
        record = read_call_alone(call, identity)
        family = recognise(record).__name__
        if result is None:
            if family == "agent":
                self.tasks.start(call.id or record.tool, goal_of(record), at)
            return
        act = self.tools.get(family)
        if act is not None:
            act(at, record, CallAnswer(result))

    def _read(self, at: int, record: ToolCallRecord, answer: CallAnswer) -> None:
        paths = record.paths()
        is_content = len(answer.result.text) > MAX_MESSAGE_CHARS and not answer.result.is_error
        if paths and (is_content or not answer.has_failed(content=True)):
            for path in paths[:20]:
                if is_path(path):
                    self._record_read(
                        self.tracker.places.key(path), _lines(record), at, answer if len(paths) == 1 else None
                    )

    def _record_read(self, key: str, looked: str, at: int, answer: CallAnswer | None) -> None:
        """Record that a file was shown; `answer` is set if its output shows nothing else."""
        self.tracker.read(key, looked, at)
        if answer is not None and not looked:
            self.whole[key] = answer

    def _search(self, at: int, record: ToolCallRecord, answer: CallAnswer) -> None:
        """Infer the root from search results: they are relative to the working directory."""
        if not self.tracker.places.root:
            lines = answer.result.text[:2_000].split("\n")[:12]
            self.tracker.places.learn_root_from(line.partition(":")[0] for line in lines)

    def _editor(self, at: int, record: ToolCallRecord, answer: CallAnswer) -> None:
        command = record.text("command", "action", "operation", "mode")
        if command in ("view", "read", "open"):
            self._read(at, record, answer)
        elif command in ("create", "write", "overwrite"):
            self._write(at, record, answer)
        else:
            self._patch(at, record, answer)

    def _write(self, at: int, record: ToolCallRecord, answer: CallAnswer) -> None:
        source, target = (
            record.text("source", "sourcepath", "oldpath", "from"),
            record.text("destination", "newpath", "to"),
        )
        if answer.has_failed():
            return
        key = self.tracker.places.key
        if source and target and record.has_word("move", "rename", "copy"):
            (self.tracker.copy if record.has_word("copy") else self.tracker.move)(key(source), key(target), at)
            return
        for path in record.paths()[:20]:
            if record.has_word("delete", "remove"):
                self.tracker.delete(key(path), at)
            elif not record.has_word("directory", "mkdir"):
                self._write_text(path, record.text("content", "contents", "filetext", "text", "data"), at, answer)

    def _write_text(self, path: str, content: str, at: int, answer: CallAnswer) -> None:
        head = answer.body.text[:300].lower()
        is_new = True if "created" in head else False if "updated" in head or "overw" in head else None
        self._record_content(self.tracker.places.key(path), content, at, is_new=is_new)

    def _record_content(self, key: str, content: str, at: int, *, is_new: bool | None = None) -> None:
        if key.endswith((*SCRIPTS, ".diff", ".patch")):
            self.scripts[key] = content
        seen = self.whole.get(key, "")
        before = seen if isinstance(seen, str) else seen.body.text
        self.whole[key] = content
        is_aside = is_aside_file(key)
        if before and content and not is_aside:
            self.tracker.write(key, at, rewrite(key, before, content), is_new=is_new)
            return
        is_unknown = self.tracker.is_there(key)
        lines = 0 if is_unknown else content.count("\n") + (not content.endswith("\n") and content != "")
        names = () if is_aside else names_in(content, key)
        self.tracker.write(key, at, FileEdit(key, "add", lines, 0, names), is_new=is_new)

    def _patch(self, at: int, record: ToolCallRecord, answer: CallAnswer) -> None:
        if answer.has_failed():
            return
        text = patch_text(record)
        if text:
            self._apply(changes_in_patch(text), "", at)
            return
        paths = record.paths()
        if not paths:
            return
        key = self.tracker.places.key(paths[0])
        edits = record.get("edits", "operations", "blocks")
        found = [_edit(paths[0], item) for item in edits if isinstance(item, dict)] if isinstance(edits, list) else []
        self.whole.pop(key, None)
        for change in found or [_edit(paths[0], record.arguments)]:
            is_new = change.kind == "add" and "created" in answer.body.text[:300].lower()
            self.tracker.write(key, at, change, is_new=is_new)

    def _apply(self, changes: list[FileEdit], folder: str, at: int) -> None:
        for change in changes:
            key = self.tracker.places.key(change.path, folder)
            self.whole.pop(key, None)
            if change.kind == "delete":
                self.tracker.delete(key, at)
            elif change.kind == "move":
                self.tracker.move(self.tracker.places.key(change.source, folder), key, at)
                if change.added or change.removed:
                    self.tracker.write(key, at, change)
            else:
                self.tracker.write(key, at, change, is_new=change.kind == "add")

    def _other(self, at: int, record: ToolCallRecord, answer: CallAnswer) -> None:
        what = tool_act(record.words, record.tool)
        if not what:
            return
        stated = stated_outcome(answer.body, content=False)
        if stated.failed and stated.from_harness:
            return
        given = [(key, _short(value)) for key, value in list(record.given.items())[:12]]
        shown = ", ".join(f"{key}={value}" for key, value in given if value)
        outcome = (
            stated.reason if stated.failed else fields_of(answer.body.value) or created_ids(answer.body.text[:2_000])
        )
        self.acts.append(
            WorldAct(what=what, text=f"{record.tool} {shown}", ok=not stated.failed, outcome=outcome, at=at)
        )

    # Background tasks.

    def _agent(self, at: int, record: ToolCallRecord, answer: CallAnswer) -> None:
        self.tasks.agent(at, record, answer.body)

    def _process(self, at: int, record: ToolCallRecord, answer: CallAnswer) -> None:
        self.tasks.process(at, record, answer.body, failed=answer.has_failed())

    # Shell commands.

    def _shell(self, at: int, record: ToolCallRecord, answer: CallAnswer) -> None:
        command = record.command
        folder = record.text("workdir", "cwd", "workingdirectory", "directory")
        self.tasks.shell_in_background(at, command, answer.result.text[:400], answer.body.running)
        if "*** Begin Patch" in command:
            self._patch(at, record, answer)
            return
        steps, effects = self._effects(command, folder)
        self._learn_root(steps, folder)
        if any(effects):
            self._record_effects(at, steps, effects, answer)
        if self.tracker.untried:
            self._mark_experiments(steps, effects)

    def _record_effects(self, at: int, steps: list[Step], effects: list[list[Effect]], answer: CallAnswer) -> None:
        if all(effect.kind in ("read", "see") for items in effects for effect in items):
            found: list[StepResult] | None = [StepResult(not _is_missing(answer.result))] * len(steps)
        else:
            found = step_results(steps, effects, answer.body)
        if found is None:
            return
        aside = _redundant_acts(effects, found)
        for step, items, step_result in zip(steps, effects, found, strict=True):
            for effect in items:
                if effect not in aside:
                    self._record_effect(at, step, effect, step_result, answer, is_only=len(steps) == len(items) == 1)

    def _mark_experiments(self, steps: list[Step], effects: list[list[Effect]]) -> None:
        """Record experimental files that are passed to programs other than file tools and checks."""
        for step, items in zip(steps, effects, strict=True):
            if handles_files(step) or any(effect.kind == "check" for effect in items):
                continue
            for word in (*step.words[1:], *step.reads):
                if word.rpartition("/")[2] in self.tracker.untried:
                    self.tracker.run(self.tracker.places.key(word, step.folder), ())

    def _effects(self, command: str, folder: str) -> tuple[list[Step], list[list[Effect]]]:
        """Return the programs of a command and their effects, cached because commands repeat."""
        found = self.commands.get((command, folder))
        if found is None:
            steps = steps_of(command, folder)
            found = self.commands[command, folder] = steps, effects_in(steps)
        return found

    def _learn_root(self, steps: list[Step], folder: str) -> None:
        places = self.tracker.places
        if not places.root:
            places.learn_root_from(word for step in steps for word in step.words[1:12])
            places.learn_root(folder or (steps[0].folder if steps else ""))

    def _text(self, effect: Effect, folder: str) -> str:
        """Return a script or patch from the command, or as written earlier."""
        return effect.text or self.scripts.get(self.tracker.places.key(effect.path, folder), "")

    def _record_effect(
        self, at: int, step: Step, effect: Effect, step_result: StepResult, answer: CallAnswer, *, is_only: bool
    ) -> None:
        """Record one effect of a program, if it succeeded."""
        kind = effect.kind
        if kind == "act":
            self._act(at, step, effect, step_result, answer)
        elif kind == "check":
            self._check(at, step, effect, step_result, answer)
        elif kind == "script":
            if step_result.done or step_result.reason:
                self._run(at, step, effect, step_result, answer)
        elif not step_result.done:
            return
        elif kind == "read":
            key = self.tracker.places.key(effect.path, step.folder)
            self._record_read(key, effect.target, at, answer if is_only else None)
        elif kind == "see":
            self.tracker.places.add(self.tracker.places.key(effect.path, step.folder))
        elif kind == "start":
            self.tasks.start_process(at, effect, answer.body.text[:2_000])
        elif kind == "stop":
            self.tasks.stop_process(effect.path)
        elif kind == "branch":
            self._learn_branch(step.folder, branch_of(answer.body.text))
        else:
            self._change(at, step.folder, effect)

    def _run(self, at: int, step: Step, effect: Effect, step_result: StepResult, answer: CallAnswer) -> None:
        """Record a script run: its file changes if it succeeded, and the check if it tries out the work."""
        folder, tracker = step.folder, self.tracker
        script = self._text(effect, folder)
        changes = script_changes(script) if step_result.done else []
        key = tracker.places.key(effect.path, folder) if effect.path else ""
        changed = [tracker.places.key(inner.path, folder) for inner in changes if inner.kind != "delete"]
        tries = tracker.is_trial(key, script) and not any(map(tracker.is_work, changed))
        for inner in changes:
            self._change(at, folder, inner)
        if key:
            tracker.run(key, changed)
        for path in leftover_files(script, answer.body, is_ended=step_result.done):
            tracker.write(path, at, FileEdit(path, "add"))
        if tries:
            document = " <<EOF" if step.document is not None else ""
            self._check(at, step, Effect("check", "test", " ".join(step.words) + document), step_result, answer)

    def _learn_branch(self, folder: str, branch: str) -> None:
        """Record the branch of the repository in a directory."""
        if branch:
            self.branch, self.branch_folder = branch, folder.rstrip("/.")

    def _change(self, at: int, folder: str, effect: Effect) -> None:
        """Record the effect of a program on files."""
        tracker, kind = self.tracker, effect.kind
        key = tracker.places.key(effect.path, folder) if effect.path else ""
        if kind not in ("write", "make", "copy"):
            self.whole.pop(key, None)
        if kind == "write":
            self._record_content(key, effect.text, at)
        elif kind == "append":
            lines = effect.text.count("\n") + 1
            tracker.write(
                key, at, FileEdit(key, "update", lines, 0, names_in(effect.text, key), informative_line([effect.text]))
            )
        elif kind == "change":
            tracker.write(key, at, FileEdit(key, "update", last=effect.target), is_new=False)
        elif kind == "delete":
            tracker.delete(key, at)
        elif kind == "make":
            tracker.make_folder(key, at)
        elif kind in ("move", "copy"):
            (tracker.move if kind == "move" else tracker.copy)(key, tracker.places.key(effect.target, folder), at)
        elif kind == "revert":
            tracker.revert([key] if key else None, at)
        elif kind == "stash":
            tracker.stash(at)
        elif kind == "unstash":
            tracker.unstash()
        elif kind == "patch":
            self._apply(changes_in_patch(self._text(effect, folder)), folder, at)

    def _act(self, at: int, step: Step, effect: Effect, step_result: StepResult, answer: CallAnswer) -> None:
        if not step_result.done and not step_result.reason and effect.path != "commit":
            return
        outcome = act_outcome(
            effect.path,
            answer.body.text,
            failed=not step_result.done,
            reason=step_result.reason,
            is_sure=step.joiner != "|" and (answer.has_ended_well() or bool({"-q", "--quiet"} & set(step.words))),
        )
        if not outcome.ok and not step_result.done and not step_result.reason:
            return
        if outcome.ok and effect.path == "commit":
            self.tracker.commit()
            self.commit, _, place = (
                outcome.outcome.partition(" on ") if " on " in outcome.outcome else (NO_HASH, "", "")
            )
            self.branch, self.branch_folder = place.partition(": ")[0], step.folder.rstrip("/.")
        elif outcome.ok and effect.path == "push":
            self.branch = self.branch.partition("...")[0].partition(", ")[0]
        self.acts.append(WorldAct(what=effect.path, text=effect.target, ok=outcome.ok, outcome=outcome.outcome, at=at))

    def _check(self, at: int, step: Step, effect: Effect, step_result: StepResult, answer: CallAnswer) -> None:
        if not step_result.done and not step_result.reason:
            return
        is_refused = step.wrapper and f"Usage: {step.wrapper} " in answer.body.head
        command = f"{step.wrapper} {effect.target}" if is_refused else effect.target
        kind: CheckKind = effect.path  # type: ignore[assignment]
        run = CheckRun(
            kind=kind,
            command=command,
            ok=step_result.done,
            fails=(step_result.reason,) if step_result.reason else (),
            at=at,
        )
        is_piped, is_early = step.joiner == "|", not self.tracker.has_work
        self.checks.add(run, lambda: answer.body, effect.text, is_piped=is_piped, is_early=is_early)

    def _is_own_script(self, command: str) -> bool:
        """Return whether a command runs an inline script or a file that the agent created."""
        path = script_of(command.split(" "))
        file = self.tracker.files.get(self.tracker.places.key(path)) if path else None
        return path == "" or (file is not None and file.state in ("created", "scratch"))

    # Result.

    def finish(self, messages: int, redact: Redactor) -> Trail:
        self.tracker.places.settle_root()
        clean = EntryCleaner(self.trail, redact)
        files = list(map(clean.file, self.tracker.list_files()))
        checks = self.checks.newest(MAX_CHECKS, self._is_own_script, files)
        return Trail(
            files=newest_files(files),
            acts=mark_replaced(map(clean.act, self.acts[-MAX_ACTS:])),
            running=tuple(map(clean.task, self.tasks.running[-MAX_RUNNING:])),
            checks=tuple(map(clean.check, checks)),
            git=self._git_state(files, clean),
            reads=tuple(map(clean.read, self.tracker.list_reads())),
            root=self.tracker.places.root,
            messages=self.trail.messages + messages,
            ahead=max(self.trail.ahead - messages, 0),
        )

    def _git_state(self, files: list[TrackedFile], clean: EntryCleaner) -> GitState:
        last = max((act.at for act in self.acts if act.what == "commit" and act.ok), default=-1)
        changed = max((file.at for file in files if file.state in CHANGED), default=-1)
        is_dirty = changed > last or (last < 0 and self.trail.git.is_dirty)
        is_ours = self.branch_folder in ("", self.tracker.places.root)
        branch = clean.name(self.branch) if is_ours else ""
        return GitState(branch=branch, commit=self.commit, is_dirty=is_dirty)


def _is_missing(result: ToolResult) -> bool:
    """Return whether a command that shows files failed to find one."""
    head = result.text[:600]
    return "No such file" in head or "tool_use_error" in head or _REFUSED in head


def _redundant_acts(effects: list[list[Effect]], found: list[StepResult]) -> list[Effect]:
    """Return minor acts that another act of the same command makes redundant: staging before a commit, mkdir."""
    acts = [effect for items in effects for effect in items if effect.kind == "act"]
    small = [effect for effect in acts if effect.path in ("stage", "mkdir")]
    if not small:
        return []
    commits = any(
        step_result.done and effect.path == "commit"
        for items, step_result in zip(effects, found, strict=True)
        for effect in items
    )
    others = sum(effect.kind != "make" for items in effects for effect in items)
    alone = others == sum(effect.path == "mkdir" for effect in acts)
    return [effect for effect in small if (commits if effect.path == "stage" else not alone)]


def _edit(path: str, arguments: dict[str, Any]) -> FileEdit:
    """Return one edit of any editor: a text replaced, inserted or written."""
    fields = {key.lower().replace("_", ""): value for key, value in arguments.items()}
    old = next((fields[key] for key in OLD_KEYS if isinstance(fields.get(key), str)), "")
    new = next((fields[key] for key in NEW_KEYS if isinstance(fields.get(key), str)), "")
    change = replacement(path, old, new)
    return change if old else change._replace(kind="add")


def _lines(record: ToolCallRecord) -> str:
    """Return the line range that a call requests."""
    both = record.get("viewrange", "linerange")
    if isinstance(both, list) and len(both) == 2:
        return f"{both[0]}-{both[1]}"
    first, limit = record.get("offset", "startline", "linestart", "start"), record.get("limit", "maxlines")
    last = record.get("endline", "lineend", "end")
    if type(first) is not int and type(limit) is not int:
        return ""
    start = first if type(first) is int else 1
    stop = last if type(last) is int else start + limit - 1 if type(limit) is int else ""
    return f"{start}-{stop}"


def _short(value: Any) -> str:
    """Return an argument as a short text; for a list, its items."""
    if isinstance(value, list):
        return " + ".join(filter(None, map(_short, value[:4])))
    if isinstance(value, dict):
        return " ".join(str(item)[:40] for item in list(value.values())[:4] if isinstance(item, str | int | float))
    return str(value)[:60] if isinstance(value, str | int | float) and value != "" else ""
