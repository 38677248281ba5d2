"""`midfold run`: run a command with a private gateway."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from logging.handlers import MemoryHandler
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
import msgspec

from midfold.cli.client_setup import CLIENTS, LOOPBACK, ClientLaunch, PrivateAddress, setup_of
from midfold.cli.listening import listen
from midfold.cli.options import engine_settings, short_id, with_config, with_url
from midfold.cli.serve import FOLDS, check_packages, guarded_gateway, make_server
from midfold.cli.terminal import notice
from midfold.cli.trusted_hosts import confirm_hosts
from midfold.config import Config
from midfold.errors import MidfoldError, MissingExtra, StoreError
from midfold.session.sessions import Sessions, open_sessions

if TYPE_CHECKING:
    from midfold.gateway.app import Admit
    from midfold.gateway.exchange import RequestAccount

NOT_FOUND, NOT_RUNNABLE, BY_SIGNAL = 127, 126, 128
"""Exit codes as used by shells."""
START_SECONDS, STOP_SECONDS = 30.0, 3
MAX_HELD_LINES = 1_000
"""Maximum log lines held back until the command ends."""
FROM_TERMINAL = ("SIGINT", "SIGQUIT")
"""Signals that a terminal sends to the whole foreground process group."""
PASSED = (*FROM_TERMINAL, "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")


@click.command(name="run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--upstream", metavar="URL", help="Upstream of the requests; default: where they would go without midfold."
)
@click.option(
    "--trust-host",
    "trusted",
    metavar="HOST",
    multiple=True,
    help="Trust this host without asking if a project file names it; can be repeated.",
)
@click.option(
    "--mode",
    type=click.Choice(["hygiene", "manage", "passthrough"]),
    help="Compact at 85 % of the context length (the default), at compression.threshold, or never.",
)
@with_url
@with_config
@click.argument("command_line", metavar="COMMAND [ARGS]...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def command(
    context: click.Context,
    command_line: tuple[str, ...],
    config: str | None,
    url: str | None,
    upstream: str | None,
    trusted: tuple[str, ...],
    mode: str | None,
) -> None:
    """Run a client, or any command, with a private gateway.

    midfold run claude; midfold run codex exec "..."; midfold run opencode; midfold run -- python agent.py

    The gateway listens on a free port, requires a key known only to the command and the printed page URL, and stops
    with the command. Claude Code, Codex and opencode are configured by their own settings, other commands by
    OPENAI_BASE_URL, OPENAI_API_BASE and ANTHROPIC_BASE_URL. Only the store is written; the command's exit code is
    returned.
    """
    known = engine_settings(config, {"gateway.mode": mode} if mode else {})
    check_installed("midfold run")
    setup = setup_of(command_line, os.environ, Path.cwd(), upstream)
    confirm_hosts(setup, trusted, os.environ)
    totals = RunTotals()
    with open_sessions(url, config=known) as sessions:
        with private_gateways(known, sessions, setup.upstreams, totals) as address:
            notice(f"running {setup.name} through midfold; pages: {address.page}")
            code = run_command(setup.launch(address))
        notice(totals.describe(sessions, setup.name))
    context.exit(code)


def check_installed(name: str) -> None:
    try:
        import midfold.gateway.server  # noqa: F401
    except ImportError:
        raise MissingExtra(name, "gateway") from None
    check_packages(name)


class RunTotals:
    """Accountant that counts requests, compactions and tokens not sent."""

    def __init__(self) -> None:
        self.requests = self.folds = self.tokens = 0
        self.sessions: dict[str, None] = {}
        """Sessions with compactions."""

    def __call__(self, account: RequestAccount) -> None:
        if not account.route.endswith("generate"):
            return
        self.requests += 1
        before, after = account.tokens_before or 0, account.tokens_after or 0
        self.tokens += max(before - after, 0)
        if account.action in FOLDS and account.session is not None:
            self.folds += 1
            self.sessions[account.session] = None

    def describe(self, sessions: Sessions, client: str) -> str:
        """Return the closing line of the run."""
        if not self.requests:
            hint = f"; test with `midfold doctor --client {client}`" if client in CLIENTS else ""
            return f"no request reached the gateway{hint}"
        requests = f"{self.requests:,} request{'s' * (self.requests != 1)}"
        if not self.folds:
            return f"{requests}, no compaction needed"
        times = "once" if self.folds == 1 else f"{self.folds:,} times"
        last = short_id(next(reversed(self.sessions)))
        return (
            f"{requests}, compacted {times}; {self.tokens:,} tokens not sent; {self._describe_originals(sessions)} "
            f"in {sessions.store.where}: midfold sessions view {last}"
        )

    def _describe_originals(self, sessions: Sessions) -> str:
        try:
            count = sum(sessions.store.must(name).count for name in self.sessions)
        except StoreError as error:
            return f"originals ({type(error).__name__})"
        return f"{count:,} originals stored"


@contextmanager
def private_gateways(
    config: Config,
    sessions: Sessions,
    upstreams: Mapping[str, str],
    accountant: Any,
    admit: Admit | None = None,
) -> Iterator[PrivateAddress]:
    """Run a gateway for each upstream on a free loopback port, behind a key that is never stored."""
    from midfold.gateway.access import PrivateAccess
    from midfold.gateway.admission import new_key
    from midfold.gateway.garbage import quiet_collections
    from midfold.pages import Recorder

    [listening] = listen(LOOPBACK, 0)
    port = listening.getsockname()[1]
    address = PrivateAddress(f"http://{LOOPBACK}:{port}", new_key())
    recorder = Recorder(sessions)
    gateways = {}
    for name, base in upstreams.items():
        found = gateways[name] = guarded_gateway(_private(config, base, port), sessions, recorder)
        found.app.gateway.accountants.append(accountant)
        if admit is not None:
            found.app.gateway.admit.append(admit)
    server = make_server(config)(PrivateAccess(address.key, gateways))
    server.config.timeout_graceful_shutdown = STOP_SECONDS
    serving = Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    held = [gateway.door.held for gateway in gateways.values()]
    with listening, _held_log(), quiet_collections(lambda: sum(one.total for one in held)):
        serving.start()
        try:
            ends = time.monotonic() + START_SECONDS
            while not server.started:
                if not serving.is_alive() or time.monotonic() > ends:
                    raise MidfoldError("the gateway did not start")
                time.sleep(0.005)
            yield address
        finally:
            server.should_exit = True
            serving.join(2 * STOP_SECONDS)
            recorder.close()


def _private(config: Config, base: str, port: int) -> Config:
    """Return the user's settings without those of `midfold serve`: address, keys and upstreams."""
    gateway = msgspec.structs.replace(
        config.gateway,
        upstream=base,
        api_key_env=None,
        key_header="auto",
        host=LOOPBACK,
        port=port,
        hosts=None,
        origins=None,
        log="off",
    )
    return msgspec.structs.replace(config, gateway=gateway, keys={}, upstreams={})


@contextmanager
def _held_log() -> Iterator[None]:
    """Hold log lines back while the command uses the terminal; print them at the end."""
    held = MemoryHandler(MAX_HELD_LINES, logging.CRITICAL + 1, logging.StreamHandler(), flushOnClose=True)
    held.setLevel(logging.WARNING)
    root, theirs = logging.getLogger(), logging.getLogger("uvicorn")
    root.addHandler(held)
    before, theirs.handlers = theirs.handlers, [held]
    try:
        yield
    finally:
        root.removeHandler(held)
        theirs.handlers = before
        held.close()


def run_command(launch: ClientLaunch) -> int:
    """Run the command, forward signals to it, and return its exit code as a shell would."""
    relay = SignalRelay()
    with relay:
        try:
            child = subprocess.Popen(launch.command, env={**os.environ, **launch.environment})
        except FileNotFoundError:
            notice(f"{launch.command[0]}: command not found")
            return NOT_FOUND
        except OSError as error:
            notice(f"{launch.command[0]}: {(error.strerror or str(error)).lower()}")
            return NOT_RUNNABLE
        relay.pass_to(child.pid)
        code = _wait(child)
    return code if code >= 0 else BY_SIGNAL - code


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Wait for the command; stop together with it, so that Ctrl-Z works in programs that handle keys themselves."""
    if sys.platform == "win32":
        return child.wait()
    while True:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            child.returncode = os.waitstatus_to_exitcode(status)
            return child.returncode
        if is_in_front():
            os.kill(os.getpid(), signal.SIGSTOP)


def is_in_front() -> bool:
    """Return whether this process is in the terminal's foreground, so that its signals reach the command directly."""
    try:
        with Path("/dev/tty").open("rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except (OSError, AttributeError):
        return False


class SignalRelay:
    """Signal handler that forwards signals to a process; early ones are held until it has started."""

    def __init__(self) -> None:
        self._process: int | None = None
        self._early: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> SignalRelay:
        for name in PASSED:
            number = getattr(signal, name, None)
            # A signal that is ignored here (nohup, background jobs) stays ignored in the child, by inheritance.
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pass_to(self, process: int) -> None:
        self._process = process
        for number in self._early:
            self._send(number)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._process is None:
            self._early.append(number)
        elif not (signal.Signals(number).name in FROM_TERMINAL and is_in_front()):
            self._send(number)

    def _send(self, number: int) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.kill(self._process, number)
