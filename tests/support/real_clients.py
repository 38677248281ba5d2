"""Run released clients, each installed in its own folder under .bench, on two user messages against a local provider.

Every address that a client might use is configured; all other traffic goes to a proxy that refuses it and records the
names in `ClientRun.strangers`. A command of `midfold run` starts each client, once per user message.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from bench.peers import HOME, environment
from midfold.testing.doubles import Request
from support import client_scripts
from support.automatic_cache import AutomaticCache
from support.data import need
from support.prefix_cache import PrefixCache
from support.provider_replies import Turn
from support.provider_rules import prompt_tokens, tokens
from support.rules_provider import RulesProvider, Served

FACT = "FACT-4417"
ASKS = (
    f"First ask: rename the function foo to bar in every module, for ticket {FACT}.",
    "Second ask: now write the notes for release 3.4.1 in two lines.",
)
RULE = "- Never push to main before the release team has looked at it. RULE-7731"
OWNERS = [f"- Module {number} is owned by team {number * 7}; ask it first." for number in range(25)]
RULES = "\n".join(["# Project rules", RULE, *OWNERS])
DONE = "This ask is done."
SUMMARY_ASK = "create a detailed summary of"
"""Text of Claude Code's summary request, which includes its tools."""
NEWEST = 20
"""Minimum number of last messages that no fold touches if they are small."""
PATIENCE = 600
APART = 10.0
"""Seconds between two requests, for the cache models."""
CLOSING_LINE = re.compile(r"midfold: ([\d,]+) requests?, (?:compacted (once|([\d,]+) times)|no compaction needed)")


class ShellModel:
    """Model that calls the client's shell a fixed number of times per user message, then says that it is done.

    For other requests (a title or a summary) it repeats the user messages it sees.
    """

    def __init__(self, steps: int, lines: int) -> None:
        self.steps, self.lines = steps, lines
        self._taken = self._asks = 0
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Turn:
        tool = shell_of(request.body)
        if tool is None:
            seen = "\n".join(ask for ask in ASKS if ask in request.raw.decode())
            return Turn(f"<summary>\n1. Primary Request and Intent:\n{seen}\n</summary>")
        with self._lock:
            if self._taken % (self.steps + 1) == self.steps:
                self._taken += 1
                self._asks += 1
                return Turn(f"{DONE} It was number {self._asks}.")
            self._taken += 1
            number = self._taken
        line = f"step {number} line %g: module_{number} was looked at and nothing is wrong with it"
        command = f"seq -f '{line}' {self.lines}"
        return Turn(f"Step {number}.", ((f"call_{number:04}", tool[0], arguments_of(tool[1], command)),))


def shell_of(body: Any) -> tuple[str, Mapping[str, Any]] | None:
    """Return name and schema of the shell tool, or None for requests that are not the agent's own turns."""
    said = (body.get("messages") or body.get("input") or [""]) if isinstance(body, Mapping) else [""]
    if SUMMARY_ASK in json.dumps(said[-1]):
        return None
    for tool in (body.get("tools") or ()) if isinstance(body, Mapping) else ():
        function = tool.get("function") or tool
        if str(function.get("name")).lower() in ("bash", "shell", "exec_command", "shell_command"):
            return function["name"], function.get("input_schema") or function.get("parameters") or {}
    return None


def arguments_of(schema: Mapping[str, Any], command: str) -> dict[str, Any]:
    """Return arguments for a client's shell tool with the command and its required fields."""
    known = schema.get("properties", {})
    key = "cmd" if "cmd" in known else "command"
    is_list = known.get(key, {}).get("type") == "array"
    needed = {name: "look" for name in schema.get("required", ()) if known.get(name, {}).get("type") == "string"}
    return {**needed, key: ["bash", "-c", command] if is_list else command}


class Strangers:
    """Proxy that refuses every request and records the hosts it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        asked = self.asked

        class Refusing(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                line = self.rfile.readline(200).decode("latin-1").strip()
                if not re.match(r"[A-Z]+ /", line):
                    asked.append(line)
                self.wfile.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refusing)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Strangers:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Workplace(NamedTuple):
    """Home of a user and a project with rules."""

    home: Path
    project: Path
    upstream: str
    nothing: str
    """Address that serves nothing."""
    window: int
    compacts: bool
    """True if the client's own compaction is on."""


class RealClient(NamedTuple):
    """One client: its packages and commands. `begin` writes its settings and returns its environment."""

    name: str
    packages: tuple[str, ...]
    program: str
    """Program of an npm package, else the text of a script."""
    model: str
    measure: str
    window: int
    steps: int
    begin: Callable[[Workplace], dict[str, str]]
    commands: tuple[tuple[str, ...], ...] = ()
    lines: int = 60

    @property
    def is_npm(self) -> bool:
        return bool(self.commands)

    @property
    def folder(self) -> Path:
        if self.is_npm:
            return HOME / "npm" / self.program
        return HOME / "-with-".join(self.packages).replace("==", "-")

    def install(self) -> list[str]:
        """Return the command that starts it; skip with a reason if it is missing and not required."""
        if self.is_npm:
            return [str(install_npm(self.folder, self.packages) / ".bin" / self.program)]
        with installing(self.folder, self.packages[0]):
            return [str(environment(*self.packages)), "-c", self.program]


@contextmanager
def installing(folder: Path, package: str) -> Iterator[None]:
    """Hold the lock for installations; skip the test if the package is missing and not required."""
    required = os.environ.get("MIDFOLD_REQUIRE_ALL")
    ready = (folder / ".ready").exists()
    need(ready or required, f"{package} is not installed under .bench (make clients does it)")
    HOME.mkdir(exist_ok=True)
    with (HOME / ".installing").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install_npm(folder: Path, packages: tuple[str, ...]) -> Path:
    """Install npm packages into a folder and return its node_modules; skip the test if they are not required."""
    with installing(folder, packages[0]):
        wanted = "\n".join(packages)
        ready = folder / ".ready"
        if not ready.exists() or ready.read_text() != wanted:
            need(shutil.which("npm"), "there is no npm here")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            options = ["--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder)]
            subprocess.run(["npm", "install", *options, *packages], check=True, cwd=folder)
            ready.write_text(wanted)
    return folder / "node_modules"


class ClientRun(NamedTuple):
    """Result of a client run; `requests` are the agent's own, without titles and the like."""

    output: str
    exit_codes: tuple[int, ...]
    requests: tuple[Served, ...]
    refused: tuple[str, ...]
    overflows: int
    folds: int
    strangers: tuple[str, ...]

    @property
    def cached(self) -> float:
        """Return the fraction of all prompts read from a cache, by breakpoints or by identical prefix bytes."""
        cache = PrefixCache() if self.requests[0].wire == "anthropic" else AutomaticCache()
        bills = [cache.bill(one.body, at=APART * number) for number, one in enumerate(self.requests)]
        return sum(bill.read for bill in bills) / sum(bill.prompt for bill in bills)

    @property
    def last(self) -> str:
        """Return the last prompt as JSON."""
        return json.dumps(self.requests[-1].body, ensure_ascii=False)

    @property
    def unfoldable(self) -> int:
        """Return the maximum tokens, over all requests, of the fixed parts and the last messages."""
        return max(_unfoldable(one) for one in self.requests)


def _unfoldable(served: Served) -> int:
    body = dict(served.body)
    key = "input" if served.wire == "responses" else "messages"
    items = body[key] if isinstance(body[key], list) else [body[key]]
    return prompt_tokens(served.wire, {**body, key: []}) + sum(tokens(item) for item in items[-NEWEST:])


def drive(
    client: RealClient,
    folder: Path,
    *,
    through: bool = True,
    knows_window: bool = True,
    compacts: bool = False,
    names_limit: bool = True,
) -> ClientRun:
    """Run both user messages through the gateway or without it, as a user would start the client."""
    command = client.install()
    model = ShellModel(client.steps, client.lines)
    window = client.window if through else 1 << 40
    with Strangers() as strangers, RulesProvider(model, window=window, names_limit=names_limit) as provider:
        place = Workplace(folder / "home", folder / "project", provider.url, strangers.url, client.window, compacts)
        _furnish(place, knows_window)
        given = _environment(place, strangers, client)
        outputs, codes, closings = [], [], []
        asks = [[*command, *_filled(line, place)] for line in client.commands] if client.is_npm else [command]
        for line in asks:
            trusted = ["--trust-host", urlsplit(provider.url).netloc]
            words = [sys.executable, "-m", "midfold", "run", *trusted, "--", *line] if through else line
            done = subprocess.run(
                words,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                text=True,
                env=given,
                cwd=place.project,
                timeout=PATIENCE,
                check=False,
            )
            outputs.append(done.stdout + done.stderr)
            codes.append(done.returncode)
            closings += CLOSING_LINE.findall(done.stderr)
    overflows = [problem for problem in provider.rejected if problem.is_overflow]
    return ClientRun(
        "\n".join(outputs),
        tuple(codes),
        tuple(one for one in provider.served if shell_of(one.body)),
        tuple(problem.message for problem in provider.rejected if not problem.is_overflow),
        len(overflows),
        sum(1 if once == "once" else int(times.replace(",", "") or 0) for _, once, times in closings),
        tuple(strangers.asked),
    )


def resume_exported(client: RealClient, folder: Path, target: str, words: Callable[[str], list[str]]) -> ClientRun:
    """Run the client alone in another home, resuming the exported session of this folder."""
    command = client.install()
    with Strangers() as strangers, RulesProvider(ShellModel(1, 5), window=client.window) as provider:
        home, project = folder / "later" / "home", folder / "project"
        place = Workplace(home, project, provider.url, strangers.url, client.window, False)
        _furnish(place, True)
        given = _environment(place, strangers, client)
        shutil.copytree(folder / "home" / ".local", home / ".local")
        export = [sys.executable, "-m", "midfold", "sessions", "export", "last", "--for", target]
        options: dict[str, Any] = {"capture_output": True, "text": True, "env": given, "cwd": project}
        closings = subprocess.run(export, check=False, timeout=PATIENCE, **options).stderr
        name = re.search(r"resume ([0-9a-f-]{36})`", closings)
        assert name is not None, closings
        line = [*command, *words(name[1])]
        done = subprocess.run(line, check=False, timeout=PATIENCE, stdin=subprocess.DEVNULL, **options)
    refused = tuple(problem.message for problem in provider.rejected)
    served = tuple(one for one in provider.served if shell_of(one.body))
    return ClientRun(done.stdout + done.stderr, (done.returncode,), served, refused, 0, 0, tuple(strangers.asked))


def _furnish(place: Workplace, knows_window: bool) -> None:
    for one in (place.home, place.project, place.home.parent / "tmp"):
        one.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "init", "-q", str(place.project)], check=True)
    for name in ("AGENTS.md", "CLAUDE.md"):
        (place.project / name).write_text(RULES, encoding="utf-8")
    known = f'models:\n  "*":\n    context_window: {place.window}\n' if knows_window else "{}\n"
    (place.home / "midfold.yaml").write_text(known, encoding="utf-8")


def _environment(place: Workplace, strangers: Strangers, client: RealClient) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
    proxies = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy")
    return {
        **kept,
        "HOME": str(place.home),
        "TMPDIR": str(place.home.parent / "tmp"),
        "MIDFOLD_CONFIG": str(place.home / "midfold.yaml"),
        "ASKS": json.dumps(ASKS),
        "CLIENT_MODEL": client.model,
        **dict.fromkeys(proxies, strangers.url),
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "OPENAI_API_KEY": "k",
        "ANTHROPIC_API_KEY": "k",
        "OPENAI_BASE_URL": f"{place.upstream}/v1",
        "OPENAI_API_BASE": f"{place.upstream}/v1",
        "ANTHROPIC_BASE_URL": place.upstream,
        **client.begin(place),
    }


def _filled(words: tuple[str, ...], place: Workplace) -> Iterator[str]:
    for word in words:
        yield word.format(first=ASKS[0], second=ASKS[1])


def _plain(place: Workplace) -> dict[str, str]:
    return {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}


def _claude_code(place: Workplace) -> dict[str, str]:
    own = {"hasCompletedOnboarding": True, "autoCompactEnabled": place.compacts, "autoUpdates": False}
    (place.home / ".claude.json").write_text(json.dumps(own), encoding="utf-8")
    compaction = {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000"} if place.compacts else {"DISABLE_AUTO_COMPACT": "1"}
    return {
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "4096",
        **compaction,
    }


def _codex(place: Workplace) -> dict[str, str]:
    folder = place.home / ".codex"
    folder.mkdir()
    limit = place.window // 2 if place.compacts else 1 << 40
    (folder / "config.toml").write_text(
        f"""
model = "gpt-5-codex"
model_provider = "local"
model_context_window = {1 << 40 if not place.compacts else place.window}
model_auto_compact_token_limit = {limit}
check_for_update_on_startup = false
chatgpt_base_url = "{place.nothing}"
[features]
apps = false
plugins = false
[analytics]
enabled = false
[model_providers.local]
name = "local"
base_url = "{place.upstream}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
supports_websockets = false
[projects."{place.project}"]
trust_level = "trusted"
""",
        encoding="utf-8",
    )
    return {}


def _opencode(place: Workplace) -> dict[str, str]:
    model = {"name": "local", "limit": {"context": place.window if place.compacts else 1 << 40, "output": 4096}}
    options = {"baseURL": f"{place.upstream}/v1", "apiKey": "k"}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "local", "options": options, "models": {"m1": model}}
    settings = {
        "provider": {"local": provider},
        "model": "local/m1",
        "small_model": "local/m1",
        "autoupdate": False,
        "share": "disabled",
        "compaction": {"auto": place.compacts, "prune": False},
        "permission": {"*": "allow"},
    }
    (place.project / "opencode.json").write_text(json.dumps(settings), encoding="utf-8")
    names = ("AUTOUPDATE", "MODELS_FETCH", "SHARE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "CLAUDE_CODE")
    return {"npm_config_registry": place.nothing, **{f"OPENCODE_DISABLE_{name}": "true" for name in names}}


BYTES, BREAKPOINTS = "byte prefix", "breakpoints"


def _agent(name: str, script: str, *packages: str, model: str = "gpt-4o") -> RealClient:
    """Return a client that is a script on released packages, with a matching window."""
    measure = BREAKPOINTS if model.startswith("claude") else BYTES
    return RealClient(name, packages, script, model, measure, AGENT_WINDOW, 66, _plain)


AGENT_WINDOW = 64_000
CODEX_EXEC = ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
CLIENTS = (
    RealClient(
        "Claude Code",
        ("@anthropic-ai/claude-code@2.1.325",),
        "claude",
        "claude-sonnet-4-5",
        BREAKPOINTS,
        100_000,
        75,
        _claude_code,
        (
            ("-p", "{first}", "--model", "claude-sonnet-4-5", "--allowedTools", "Bash"),
            ("-p", "--continue", "{second}", "--model", "claude-sonnet-4-5", "--allowedTools", "Bash"),
        ),
    ),
    RealClient(
        "Codex",
        ("@openai/codex@0.166.0",),
        "codex",
        "gpt-5-codex",
        BYTES,
        80_000,
        75,
        _codex,
        ((*CODEX_EXEC, "{first}"), (*CODEX_EXEC, "resume", "--last", "{second}")),
    ),
    RealClient(
        "opencode",
        ("opencode-ai@1.18.33",),
        "opencode",
        "m1",
        BYTES,
        80_000,
        75,
        _opencode,
        (("run", "{first}"), ("run", "--continue", "{second}")),
    ),
    _agent("OpenAI SDK, chat completions", client_scripts.OPENAI_CHAT, "openai==3.49.0"),
    _agent("OpenAI SDK, previous_response_id", client_scripts.OPENAI_KEPT, "openai==3.49.0"),
    _agent("Anthropic SDK", client_scripts.ANTHROPIC, "anthropic==2.8.0", model="claude-sonnet-4-5"),
    _agent("OpenAI Agents SDK", client_scripts.AGENTS, "openai-agents==0.24.0"),
    _agent("LangChain", client_scripts.LANGCHAIN, "langchain==1.4.7", "langchain-openai==1.7.3"),
    _agent("Pydantic AI", client_scripts.PYDANTIC_AI, "pydantic-ai-slim[anthropic]==2.66.0", model="claude-sonnet-4-5"),
    _agent("LiteLLM", client_scripts.LITELLM, "litellm==1.106.2", "mcp==2.3.0"),
)
