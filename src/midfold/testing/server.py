"""An ASGI application on a loopback port, in a thread: `with served(app) as url:`."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

LONGEST_START = 20.0


def uvicorn_module() -> Any:
    import uvicorn

    return uvicorn


@contextmanager
def served(app: Any, **options: Any) -> Iterator[str]:
    """Runs `app` with uvicorn, as `midfold serve` does, until the block ends; `options` are uvicorn's."""
    uvicorn = uvicorn_module()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    usual = {"log_level": "critical", "lifespan": "on", "server_header": False, "date_header": False}
    config = uvicorn.Config(app, **{**usual, "timeout_graceful_shutdown": 2, **options})
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    ends = time.monotonic() + LONGEST_START
    while not server.started:
        if not thread.is_alive() or time.monotonic() > ends:
            raise RuntimeError("the server did not start")
        time.sleep(0.002)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        listener.close()
