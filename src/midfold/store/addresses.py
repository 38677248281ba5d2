"""What the address of a store says about where it is."""

from __future__ import annotations

MEMORY = frozenset({"memory:", "memory://", "sqlite://", "sqlite:///:memory:", "sqlite://:memory:"})
"""Also as other programs write it: a file of the name :memory: is what nobody wants."""
FILE = "sqlite:///"


def is_memory(url: str) -> bool:
    """Whether the store is gone with its process."""
    return url.partition("?")[0] in MEMORY


def file_of(url: str) -> str | None:
    """The path of a SQLite file; None if the store is none."""
    address = url.partition("?")[0]
    return address.removeprefix(FILE) if address.startswith(FILE) and not is_memory(url) else None
