"""The gateway: midfold between any agent and any provider.

`create_app(config)` is the ASGI application that `midfold serve` runs. Requests leave as the bytes they came in, unless
a conversation must be folded; answers are relayed as they arrive.

    admission -> peek, measuring -> prepare -> upstream -> relay -> answered, operating

What fails in between never costs a client its request. Whether to fold is `midfold.decide`'s, searching what was folded
`midfold.recall`'s; who may do what is promised in docs/explanation/security.md, each promise with its test.
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
