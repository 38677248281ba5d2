"""Who may see which sessions.

Rules of this file:
1. Every route asks before it reads. What a caller may not see does not exist for it: the answer is the same 404 as for
   a session that nobody ever had.
2. Handles are looked up in a session the caller may see, never in the whole store.
3. Where no key is asked for, a request must be addressed to this machine: a page elsewhere could otherwise read a store
   through a name of its own that leads here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from starlette.exceptions import HTTPException

if TYPE_CHECKING:
    from starlette.requests import Request

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
Sees = Callable[[str], bool]
"""Whether a session of this name may be seen."""


class Access(Protocol):
    """What a server must know to keep its callers apart."""

    def sees(self, request: Request, /) -> Sees:
        """What the caller of this request may see. May raise an `HTTPException`, such as 401."""


class Everything:
    """For loopback, where the only caller is the owner of the store. `hosts` are the names it may be called by."""

    def __init__(self, hosts: Iterable[str] = LOOPBACK) -> None:
        self.hosts = frozenset(host.lower() for host in hosts)

    def sees(self, request: Request, /) -> Sees:
        if not self._is_ours(request.headers.getlist("host")):
            raise HTTPException(421, f"expected a request for {', '.join(sorted(self.hosts))}")
        return everything

    def _is_ours(self, given: Sequence[str]) -> bool:
        if len(given) != 1:
            return False
        host, colon, port = given[0].lower().rpartition(":")
        return (host if colon and port.isdigit() else given[0].lower()) in self.hosts


def everything(name: str) -> bool:
    return True


class Under:
    """For servers whose sessions begin with the name of their owner: everybody sees what begins with their own."""

    def __init__(self, owner: Callable[[Request], str]) -> None:
        self.owner = owner
        """The beginning that belongs to the caller; raises an `HTTPException` for a caller it does not know."""

    def sees(self, request: Request, /) -> Sees:
        mine = self.owner(request)
        return lambda name: name.startswith(mine)
