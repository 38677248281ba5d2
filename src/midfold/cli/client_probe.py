"""Check that a client's requests reach the gateway.

The client is started as `midfold run` starts it, with a one-word prompt. Nothing is forwarded: the gateway answers
with an error that clients do not retry.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from midfold.cli.client_setup import ClientLaunch, setup_of
from midfold.cli.run import check_installed, private_gateways
from midfold.config import Config
from midfold.session.sessions import open_sessions

if TYPE_CHECKING:
    from midfold.gateway.exchange import Exchange, RequestAccount

QUESTION = "Answer with the word ready."
WORDS = {
    "claude": ("-p", QUESTION),
    "codex": ("exec", "--skip-git-repo-check", QUESTION),
    "opencode": ("run", QUESTION),
}
PATIENCE, END_SECONDS = 60.0, 5.0
ANSWER = (400, "midfold doctor received this request and did not forward it")


def probe_client(name: str, config: Config) -> tuple[bool, str]:
    """Start the client and return whether a request arrived, with a message for the report."""
    program = shutil.which(name)
    if program is None:
        return False, f"{name} is not on the PATH"
    check_installed("midfold doctor --client")
    setup = setup_of([program, *WORDS[name]], os.environ, Path.cwd())
    seen, routes = Event(), []

    def refuse(exchange: Exchange) -> tuple[int, str]:
        return ANSWER

    def look(account: RequestAccount) -> None:
        routes.append(account.route)
        if account.route.endswith("generate"):
            seen.set()

    started = time.monotonic()
    with (
        open_sessions("memory:", config=config) as sessions,
        private_gateways(config, sessions, setup.upstreams, look, refuse) as address,
    ):
        code = _watch(setup.launch(address), seen)
    took = time.monotonic() - started
    if seen.is_set():
        kind = next(route for route in routes if route.endswith("generate")).partition(" ")[0]
        return True, f"received a request from {name} after {took:.1f} s ({kind}); it was not forwarded"
    end = f"exited with code {code}" if code is not None else f"was stopped after {PATIENCE:g} s"
    others = f"; {len(routes)} other requests arrived" if routes else ""
    return (
        False,
        f"{name} {end} without a model request{others}; check its login and its provider settings",
    )


def _watch(launch: ClientLaunch, seen: Event) -> int | None:
    """Wait until a request arrives or the client ends; return its exit code if it ended on its own."""
    quiet = subprocess.DEVNULL
    child = subprocess.Popen(
        launch.command, env={**os.environ, **launch.environment}, stdin=quiet, stdout=quiet, stderr=quiet
    )
    ends = time.monotonic() + PATIENCE
    while child.poll() is None and time.monotonic() < ends and not seen.wait(0.05):
        pass
    code = child.poll()
    if code is None:
        child.terminate()
        try:
            child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    return code
