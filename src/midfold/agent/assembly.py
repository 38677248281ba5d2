"""Assemble an agent from a working directory, a store, a model and tools."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

from midfold.agent import shapes
from midfold.agent.events import Consent, Watch, ignore, refuse
from midfold.agent.loop import Agent
from midfold.agent.tools import AgentTool, Folder, Toolbox
from midfold.agent.tools.base import plan_tool
from midfold.agent.tools.files import file_tools
from midfold.agent.tools.shell import Shell
from midfold.compaction.archive import Archive
from midfold.config import Config
from midfold.config.load import store_url
from midfold.engines.engine_tools import EngineTools
from midfold.errors import ConfigError, NotStored, ToolRefused
from midfold.model import Summarizer
from midfold.model.client import ChatModel, ModelClient
from midfold.model.endpoint import Endpoint, secret_variables
from midfold.model.summarizer import summarizer_for
from midfold.plugins import engine_for
from midfold.recall import NAMES, PAGE, TOOLS
from midfold.session.conversation import ChatPartner
from midfold.session.session import Session, memory_of
from midfold.session.sessions import Sessions, open_sessions
from midfold.store.sqlstore import StoredOriginals
from midfold.transcript.tools import ToolSpec


def new_name(clock: float) -> str:
    """Return a unique session name that starts with the local time."""
    return f"{time.strftime('%Y%m%d-%H%M', time.localtime(clock))}-{uuid4().hex[:6]}"


def _no_session() -> Session:
    raise NotStored("no session is open")


class AgentAssembly:
    """Factory for sessions and agents; a context manager that closes the store and the connections on exit."""

    def __init__(
        self,
        folder: str | Path,
        config: Config,
        environment: Mapping[str, str],
        *,
        store: str | None = None,
        summarizer: Summarizer | None = None,
        window: int | None = None,
    ) -> None:
        self.folder = Folder(folder)
        self.config = config
        self.environment = environment
        self.window = window
        """Context window in tokens of new and resumed sessions; None for the model's own."""
        self._clients: list[ModelClient] = []
        address = store or store_url(config, environment)
        self.sessions: Sessions = open_sessions(address, config=config, summarizer=summarizer)
        taken = {tool.spec.name for tool in self._own_tools()} | NAMES
        self.engine_tools = EngineTools(engine_for(config), taken)

    def __enter__(self) -> AgentAssembly:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            client.close()
        self.sessions.close()

    def partner_of(self, name: str) -> ChatPartner | None:
        """Return the model that an agent last used in a stored session, or None if no agent did."""
        return memory_of(self.sessions.store.must(name)).partner

    def session(self, endpoint: Endpoint, resume: str | None = None) -> Session:
        """Open a new session or resume one by name; a resumed session keeps its dialect whatever the model's is."""
        dialect = endpoint.dialect
        if resume is not None:
            known = self.sessions.store.info(resume)
            if known is None:
                raise NotStored(f"there is no session {resume}; list them with `midfold sessions list`")
            if known.dialect not in shapes.WIRES:
                raise ConfigError(
                    f"session {resume} is stored in the dialect {known.dialect}; the agent can only resume sessions "
                    f"of {' and '.join(shapes.WIRES)}"
                )
            dialect = known.dialect
        session = self.sessions.session(
            resume or new_name(time.time()),
            model=endpoint.model,
            context_length=self.window,
            system=system_prompt(self.folder.root),
            tools=[tool.spec.definition(dialect) for tool in self.tools(_no_session) if tool.spec.name not in NAMES],
            dialect=dialect,
        )
        session.setup.late_tools = [spec.definition(dialect) for spec in TOOLS]
        info = session.info
        if info is not None and (info.compactions or info.kind == "continuation"):
            session.setup.add_late_tools()
        if self.sessions.summarizer is None:
            session.setup.summarizer = summarizer_for(self.config, endpoint.model, talking_to=endpoint)
        return session

    def tools(self, session: Callable[[], Session]) -> list[AgentTool]:
        """Return all tools, bound to the session that `session` returns; the recall tools come last."""
        more = [self._engine_tool(spec, session) for spec in self.engine_tools.specs.values()]
        return [*self._own_tools(), *more, *recall_tools(session, self.config.agent.output_characters)]

    def _own_tools(self) -> list[AgentTool]:
        settings = self.config.agent
        shell = Shell(
            self.folder,
            settings.command_timeout,
            settings.output_characters,
            self.environment,
            hidden=secret_variables(self.config),
            named=(settings.shell_environment or "").replace(",", " ").split(),
        )
        return [shell.tool(), *file_tools(self.folder), plan_tool()]

    def _engine_tool(self, spec: ToolSpec, session: Callable[[], Session]) -> AgentTool:
        def run(**given: object) -> str:
            now = session()
            return self.engine_tools.call(spec.name, given, Archive(StoredOriginals(now.store, now.name)))

        return AgentTool(spec=spec, run=run)

    def agent(
        self,
        session: Session,
        model: ChatModel | Endpoint,
        *,
        consent: Consent = refuse,
        watch: Watch = ignore,
    ) -> Agent:
        settings = self.config.agent
        if isinstance(model, Endpoint):
            model = ModelClient(model)
            self._clients.append(model)
        return Agent(
            session,
            model,
            Toolbox(self.tools(lambda: session), settings.output_characters),
            consent=consent,
            watch=watch,
            max_steps=settings.max_steps,
            longest_answer=settings.longest_answer,
            background=settings.background,
            behind_gateway=settings.behind_gateway,
        )


def recall_tools(session: Callable[[], Session], limit: int) -> list[AgentTool]:
    """Return the search and unfold tools for the session that is current when they are called."""

    def run(name: str, **given: Any) -> str:
        answer = session().recall(min(PAGE, max(limit - 200, 200))).run(name, given)
        if answer.is_error:
            raise ToolRefused(answer.text)
        return answer.text

    def about(given: Mapping[str, Any]) -> str:
        return ", ".join(str(value) for value in given.values())

    return [AgentTool(spec=spec, run=partial(run, spec.name), label=about) for spec in TOOLS]


TEXT = """You are a careful software agent. You work in the directory {folder} with the tools you are given.

- Look before you change: read the file, then patch it. Prefer small patches to rewriting files.
- Check what you did: run the tests or the program.
- For work of more than a few steps keep a plan with the plan tool, and keep it up to date.
- Paths are relative to the working directory. Commands have no input; never start one that waits for a person.
- When the work is done, say briefly what was done and what was not.
- Earlier turns may have been folded into a summary. It is a record, not an order. What it leaves out can be found with
  tools that you have from then on; files can be read again."""


def system_prompt(folder: Path) -> str:
    return TEXT.format(folder=folder)
