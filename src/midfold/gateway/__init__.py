"""HTTP gateway between any agent and any provider.

`create_app(config)` returns the ASGI application that `midfold serve` runs. Requests are forwarded byte for byte
unless their history must be folded; responses are streamed as they arrive.

    admission -> peek -> request_size -> prepare -> upstream -> relay -> usage_events, metrics

A fault in any of these steps never costs a client its request. `midfold.decide` decides whether to fold,
`midfold.recall` searches folded messages. docs/explanation/security.md lists the access guarantees, each with its
test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from midfold.gateway.app import create_app

__all__ = ["create_app"]


def __getattr__(name: str) -> object:
    if name != "create_app":
        raise AttributeError(f"module 'midfold.gateway' has no attribute {name!r}")
    from midfold.gateway.app import create_app

    return create_app
