"""Measure the size of the code base, and how much of it one fold runs through.

.venv/bin/python tools/measure_house.py

Prints files and lines of src, the functions and files that a plain `compact`, a fold of a stored session and a fold
in
the gateway run through (traced), and the ten most imported modules. docs/explanation/architecture.md has the
figures.
"""

from __future__ import annotations

import ast
import asyncio
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any

import midfold

SOURCE = Path(midfold.__file__).parent
WINDOW = "models: {gpt-4o: {context_window: 16000}}\n"
ANSWER = json.dumps(
    {
        "id": "a",
        "object": "chat.completion",
        "model": "gpt-4o",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Done."}}],
        "usage": {"prompt_tokens": 9_000, "completion_tokens": 2, "total_tokens": 9_002},
    }
).encode()


def talk() -> list[dict[str, Any]]:
    """Return a conversation with tool results, long enough to be folded at 16,000 tokens."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Port the parser to Rust. Keep the tests."}]
    for step in range(60):
        name, arguments = "read_file", json.dumps({"path": f"src/module_{step}.py"})
        call = {"id": f"c{step}", "type": "function", "function": {"name": name, "arguments": arguments}}
        messages.append({"role": "assistant", "content": f"Step {step}.", "tool_calls": [call]})
        text = "\n".join(f"line {line} of module {step}: value_{line} = {line * step}" for line in range(30))
        messages.append({"role": "tool", "tool_call_id": f"c{step}", "content": text})
    return [*messages, {"role": "user", "content": "Go on."}]


def traced(work: Callable[[], object]) -> tuple[int, int]:
    """Return the number of midfold functions and files that run during some work, in every thread."""
    seen: set[CodeType] = set()

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            seen.add(frame.f_code)

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    named = {code for code in seen if not code.co_name.startswith("<")}
    return len(named), len({code.co_filename for code in named})


def fold_in_session() -> None:
    with midfold.open("memory:") as sessions:
        session = sessions.session("a", model="gpt-4o", context_length=16_000)
        session.append(talk())
        assert session.compact().changed


class _Provider(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)

    def log_message(self, *_: object) -> None:
        """Suppress the log line."""


def fold_in_gateway() -> None:
    from midfold.config import load
    from midfold.gateway import create_app

    server = ThreadingHTTPServer(("127.0.0.1", 0), _Provider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = f"gateway: {{upstream: 'http://127.0.0.1:{server.server_port}/v1'}}\n" + WINDOW
    with TemporaryDirectory() as folder:
        file = Path(folder, "config.yaml")
        file.write_text(settings, encoding="utf-8")
        config = load(file, environ={}).config
    app = create_app(config, sessions=midfold.open("memory:", config=config), environment={})
    headers = asyncio.run(_request(app))
    server.shutdown()
    assert headers[b"x-midfold-action"] in (b"compacted", b"pruned"), headers


async def _request(app: Any) -> dict[bytes, bytes]:
    body = json.dumps({"model": "gpt-4o", "messages": talk()}).encode()
    sent: list[dict[str, Any]] = []
    incoming = [{"type": "http.request", "body": body, "more_body": False}]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/v1/chat/completions", "raw_path": b"/v1/chat/completions", "query_string": b"", "root_path": "",
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json"),
                    (b"content-length", str(len(body)).encode()), (b"authorization", b"Bearer k")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip

    async def receive() -> dict[str, Any]:
        return incoming.pop(0) if incoming else await asyncio.sleep(3600, {"type": "http.disconnect"})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return dict(next(message["headers"] for message in sent if message["type"] == "http.response.start"))


def importers() -> Counter[str]:
    """Count the modules that import each module."""
    modules = {_dotted(path): path for path in SOURCE.rglob("*.py")}
    found: Counter[str] = Counter()
    for name, path in modules.items():
        meant = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("midfold"):
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    meant.add(inner if inner in modules else str(node.module))
        found.update(meant - {name})
    return found


def _dotted(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def main() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
    fan_in = importers()
    rows = [
        ("Python files in src", f"{len(files):,}"),
        ("lines", f"{lines:,}"),
        ("modules with one importer", f"{sum(count == 1 for count in fan_in.values()):,}"),
    ]
    folds = {
        "a plain compact": lambda: midfold.compact(talk(), model="gpt-4o", context_length=16_000),
        "a fold of a session": fold_in_session,
        "a fold in the gateway": fold_in_gateway,
    }
    for name, work in folds.items():
        work()
        functions, through = traced(work)
        rows.append((f"{name}: functions, files", f"{functions:,}, {through:,}"))
    busiest = ", ".join(f"{name.removeprefix('midfold.')} {count}" for name, count in fan_in.most_common(10))
    rows.append(("imported by most", busiest))
    for label, figure in rows:
        print(f"| {label} | {figure} |")


if __name__ == "__main__":
    main()
