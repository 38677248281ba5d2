"""Listening sockets and host name lookup."""

from __future__ import annotations

import socket
from threading import Thread
from urllib.parse import urlsplit

from midfold.errors import MidfoldError

LOOKUP_SECONDS = 5.0


def listen(host: str, port: int, *, hint: str = "use --port N for another port") -> list[socket.socket]:
    """Open one socket for each address of a host; raise a one-line error if that fails."""
    opened: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((row[0], row[4]) for row in found):
            listening = socket.socket(family, socket.SOCK_STREAM)
            opened.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            listening.listen()
    except OSError as error:
        for one in opened:
            one.close()
        why = (error.strerror or str(error)).lower()
        raise MidfoldError(f"cannot listen on {host}:{port}: {why}; {hint}") from error
    return opened


def lookup_problem(address: str) -> str:
    """Return why a URL's host name cannot be resolved, or an empty string; send nothing to the host."""
    host = urlsplit(address).hostname or ""
    answers: list[str] = []

    def ask() -> None:
        try:
            socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            answers.append("")
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else ""
            answers.append(f"cannot resolve {host}: {(reason or 'not a host name').lower()}")

    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(LOOKUP_SECONDS)
    return answers[0] if answers else f"cannot resolve {host}: no answer within {LOOKUP_SECONDS:g} seconds"
