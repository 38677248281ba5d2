"""The agent loop: compact if needed, request, run tool calls, until the model makes no more calls.

    agent = Agent(session, ModelClient(endpoint), toolbox)
    agent.run("Fix the failing test.")

1. Every message is stored in the session before the next step, so a killed program can resume.
2. The history is always valid for the provider: calls that an interrupt or crash left open get results that say so.
3. `AgentWindow` decides when to compact; the loop calls it before each request and passes it the reported usage.
"""

from __future__ import annotations

from midfold.agent import shapes
from midfold.agent.events import Answered, Consent, Finished, Retrying, Runner, Said, Started, Watch, ignore, refuse
from midfold.agent.shapes import Result
from midfold.agent.tools.base import NAME as PLAN
from midfold.agent.tools.base import Toolbox
from midfold.agent.window import AgentWindow
from midfold.errors import ModelFailed
from midfold.model.client import ChatModel
from midfold.session.session import Session, remember_partner
from midfold.transcript.document import tool_of
from midfold.transcript.message import ToolCall, Usage, read_usage
from midfold.transcript.replies import ModelAnswer

INTERRUPTED = "[interrupted by the user]"
NOT_RUN = "not run: the user interrupted before it"
NO_RESULT = "no result: the program ended before this call did"
NO_ANSWER = "[no answer was given to this]"


class Agent:
    """Session, model and tools; `consent` is called before a tool changes anything, `watch` receives the events."""

    def __init__(
        self,
        session: Session,
        model: ChatModel,
        toolbox: Toolbox,
        *,
        consent: Consent = refuse,
        watch: Watch = ignore,
        max_steps: int = 200,
        longest_answer: int | None = None,
        background: bool = True,
        behind_gateway: bool = False,
    ) -> None:
        self.session, self.model, self.toolbox = session, model, toolbox
        self.watch, self.runner = watch, Runner(toolbox, consent, watch)
        self.max_steps, self.longest_answer = max_steps, longest_answer
        self.room = AgentWindow(session, watch, background=background, behind_gateway=behind_gateway)
        self.last: Usage | None = None

    def run(self, task: str, *, is_last: bool = False) -> str:
        """Run one turn and return the final text; with `is_last`, prepare no compaction for the next turn."""
        self.close_open_ends()
        self.session.append(shapes.user(task))
        remember_partner(self.session, self.model.endpoint)
        setup = self.session.setup
        self.watch(Started(session=self.session.name, model=self.model.endpoint.model, window=setup.window))
        for step in range(1, self.max_steps + 1):
            try:
                answer = self._answer(first=step == 1)
                self.session.append(shapes.for_session(answer.message, self.model.endpoint.wire, self.session.view()))
                if not answer.calls:
                    if not is_last:
                        self.room.prepare()
                    return self._finish("done", answer.text, step)
                self._act(answer)
            except KeyboardInterrupt:
                self.close_open_ends(INTERRUPTED, self.model.heard)
                self._finish("interrupted", self.model.heard, step)
                raise
            except ModelFailed as failed:
                self._finish("failed", "", step, str(failed))
                raise
        self.close_open_ends(f"[stopped after {self.max_steps} steps]")
        return self._finish("steps", "", self.max_steps, f"the limit of {self.max_steps} steps was reached")

    def _finish(self, how: str, text: str, steps: int, why: str = "") -> str:
        self.watch(Finished(how=how, text=text, steps=steps, why=why))
        return text

    def _answer(self, *, first: bool) -> ModelAnswer:
        """Return the next response; after an overflow, retry with a smaller request or raise."""
        self.room.before(first=first)
        rejected, attempt = 0, 0
        while True:
            body = self.request()
            if rejected and len(body) >= rejected:
                raise ModelFailed("overflow", "the conversation exceeds the window and cannot be compacted further")
            try:
                answer = self.model.ask(body, lambda text: self.watch(Said(text=text)), self._again)
                break
            except ModelFailed as failed:
                rejected, attempt = len(body), attempt + 1
                if failed.kind != "overflow" or not self.room.shrink(failed, attempt):
                    raise
        self.room.after(answer)
        self.last = read_usage(answer.usage) or self.last
        self._tell(answer)
        return answer

    def request(self) -> bytes:
        """Return the body of the next request."""
        endpoint, setup = self.model.endpoint, self.session.setup
        longest = shapes.longest_answer(endpoint, setup.window, self.longest_answer)
        later = {tool_of(tool).name for tool in setup.late_tools}
        offered = [spec for spec in self.toolbox.specs if spec.name not in later]
        body = shapes.body(endpoint, self.session.view(), offered, longest)
        return shapes.with_breakpoints(body, endpoint, setup.config.prompt_caching)

    def _again(self, failed: ModelFailed, seconds: float) -> None:
        self.watch(Retrying(kind=failed.kind, why=str(failed), seconds=seconds))

    def _tell(self, answer: ModelAnswer) -> None:
        usage = answer.tokens
        sizes = {"prompt_tokens": usage.prompt_tokens, "cached_tokens": usage.cache_read_tokens}
        finish = "calls" if answer.calls and answer.finish == "stop" else answer.finish
        self.watch(Answered(finish=finish, calls=len(answer.calls), output_tokens=usage.completion_tokens, **sizes))

    def _act(self, answer: ModelAnswer) -> None:
        """Run the calls of a response; every call gets a result, even after an interrupt."""
        done: list[Result] = []
        try:
            for call in answer.calls:
                done.append(self.runner.act(call))
                if call.name == PLAN and not done[-1].is_error:
                    self.room.wrote_plan(call)
        finally:
            left = answer.calls[len(done) :]
            stopped = [Result(call, NOT_RUN if place else INTERRUPTED, True) for place, call in enumerate(left)]
            self.session.append(shapes.results(shapes.wire_of(self.session.view()), [*done, *stopped]))

    def close_open_ends(self, words: str = NO_ANSWER, heard: str = "") -> None:
        """Make the history valid to continue: add missing tool results and a final assistant text."""
        shown = self.session.view()
        view = shown.transcript
        if not view:
            return
        if view[-1].role == "assistant":
            calls = [part for part in view[-1].parts if isinstance(part, ToolCall)]
            if not calls:
                return
            open_ends = [Result(part, NO_RESULT, True) for part in calls]
            self.session.append(shapes.results(shapes.wire_of(shown), open_ends))
        self.session.append(shapes.assistant(f"{heard.rstrip()}\n{words}".strip()))
