"""Start and monitor the programs of the gateway benchmark, each on its own loopback port."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

from bench.peers import HEADROOM, LITELLM, ROOT, environment

LONGEST_START = 120.0
TICKS = os.sysconf("SC_CLK_TCK")
LITELLM_CONFIG = """
model_list:
  - model_name: gpt-4o
    litellm_params: {{model: openai/gpt-4o, api_base: {upstream}/v1, api_key: sk-bench}}
"""
COMPILED = {
    "PYTHONDONTWRITEBYTECODE": "",
    "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "midfold-bench-pyc"),
}
"""Environment that lets a source tree use compiled bytecode, as the installed peers do."""


class Program:
    """Program that runs inside a block: `with Program(name, command) as program:`."""

    def __init__(self, name: str, command: list[str], port: int, health: str = "/", **variables: str) -> None:
        self.name, self.command, self.port, self.health = name, command, port, health
        self.url = f"http://127.0.0.1:{port}"
        self.variables = variables
        self.started = 0.0

    def __enter__(self) -> Program:
        began = time.perf_counter()
        self.process = subprocess.Popen(
            self.command,
            cwd=ROOT,
            env={**os.environ, "NO_PROXY": "127.0.0.1", **self.variables},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while not self._answers():
            if self.process.poll() is not None or time.perf_counter() - began > LONGEST_START:
                self._end()
                sys.exit(f"{self.name} did not start: {' '.join(self.command)}")
            time.sleep(0.01)
        self.started = time.perf_counter() - began
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        """End the program and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(self.url + self.health, timeout=2):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False

    @property
    def cpu(self) -> float:
        """Return the processor seconds used, children included."""
        return sum(_cpu(pid) for pid in self._family())

    @property
    def resident(self) -> float:
        """Return the resident memory in megabytes."""
        return sum(_resident(pid) for pid in self._family())

    def _family(self) -> list[int]:
        found = [self.process.pid]
        for pid in found:
            children = Path(f"/proc/{pid}/task/{pid}/children")
            with contextlib.suppress(OSError):
                found += map(int, children.read_text().split())
        return found


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _resident(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _uvicorn(name: str, app: str, **variables: str) -> Program:
    port = free_port()
    quiet = ["--port", str(port), "--log-level", "critical", "--no-access-log"]
    return Program(name, [sys.executable, "-m", "uvicorn", app, *quiet], port, **variables)


def upstream() -> Program:
    return _uvicorn("direct", "bench.gateways.upstream:app")


def bare(target: str) -> Program:
    return _uvicorn("bare relay", "bench.gateways.bare:app", UPSTREAM=target)


def midfold(target: str) -> Program:
    port = free_port()
    store = f"sqlite:///{tempfile.mkdtemp()}/gateway.db"
    command = [sys.executable, "-m", "midfold", "serve", "--upstream", target, "--port", str(port), "--store", store]
    return Program("midfold", command, port, "/healthz", **COMPILED)


def litellm(target: str) -> Program:
    port = free_port()
    folder = Path(tempfile.mkdtemp())
    (folder / "config.yaml").write_text(LITELLM_CONFIG.format(upstream=target))
    python = environment(LITELLM)
    command = [
        str(python),
        str(python.parent / "litellm"),
        "--config",
        str(folder / "config.yaml"),
        "--port",
        str(port),
    ]
    offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HOME": str(folder)}
    offline["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"
    return Program("LiteLLM proxy", command, port, "/health/liveliness", **offline)


def headroom(target: str) -> Program:
    port = free_port()
    python = environment(HEADROOM)
    command = [str(python), str(python.parent / "headroom"), "proxy", "--port", str(port), "--openai-api-url", target]
    command.append("--no-rate-limit")
    home = {"HOME": tempfile.mkdtemp(), "HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    return Program("Headroom proxy", command, port, "/health", **home)
