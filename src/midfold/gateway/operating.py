"""What makes the gateway something to leave running: a door, figures, a log, and whether it is ready.

operations = Operations(config, sessions)
app = create_app(config, sessions=sessions, extra_routes=operations.routes())
uvicorn.run(operations.around(app), http=PatientProtocol)
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from typing import TYPE_CHECKING

from midfold.config import Config
from midfold.errors import ConfigError, MidfoldError
from midfold.gateway.admission import Admission, Limits
from midfold.gateway.browsers import LOOPBACK, Browsers
from midfold.gateway.exchange import Account
from midfold.gateway.figures import Figures
from midfold.gateway.keys import Keys
from midfold.gateway.logs import Entry, Log, now, to
from midfold.gateway.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from midfold.gateway.front import Front
    from midfold.service import Sessions

READY_WITHIN = 3.0
"""Seconds a store may take to answer."""


def check_door(config: Config) -> None:
    """Who listens beyond this machine must know who comes in."""
    host = config.gateway.host
    if host not in LOOPBACK and host != "::1" and not config.keys:
        raise ConfigError(
            f"gateway.host {host} listens beyond this machine, so keys must name who may use it: "
            "`midfold keys new NAME` makes a key"
        )


class Operations:
    """The parts around one gateway."""

    def __init__(self, config: Config, sessions: Sessions | None, *, log: Log | None = None) -> None:
        self.config, self.sessions = config, sessions
        self.figures = Figures()
        self._log = log or (to() if config.gateway.log == "requests" else None)

    def routes(self) -> list[Route]:
        from starlette.routing import Route

        return [Route("/metrics", self._metrics), Route("/readyz", self._ready)]

    def around(self, app: Front) -> Admission:
        """The application that is served."""
        settings = self.config.gateway
        limits = Limits(
            body_bytes=settings.largest_body, body_seconds=settings.body_seconds, total_bytes=settings.largest_total
        )
        app.gateway.accountants.append(self.figures)
        if self._log is not None:
            app.gateway.accountants.append(self.write)
        keys = Keys({name: key.hash for name, key in self.config.keys.items()})
        door = Admission(app, keys, limits, self.figures.refuse, Browsers.of(self.config))
        self.figures.gauge("midfold_held_bytes", "Bytes of requests that are not over.", lambda: door.held)
        if importlib.util.find_spec("resource") is not None:
            self.figures.gauge("midfold_resident_bytes", "Most memory the process has had.", _memory)
        return door

    def write(self, account: Account) -> None:
        """One line about a request that is over."""
        assert self._log is not None
        self._log(
            Entry(
                at=now(),
                owner=account.owner,
                method=account.method if account.method.isalpha() else "",
                route=account.route,
                status=account.status,
                milliseconds=round(account.seconds * 1_000, 2),
                first_byte=round(account.first_byte * 1_000, 2),
                action=account.action,
                receipt=account.receipt or "",
                tokens_before=account.tokens_before or 0,
                tokens_after=account.tokens_after or 0,
                bytes_in=account.received,
                bytes_out=account.sent,
                reason=account.reason,
            )
        )

    async def _metrics(self, request: Request) -> Response:
        from starlette.responses import Response

        return Response(self.figures.page(), headers={"content-type": CONTENT_TYPE})

    async def _ready(self, request: Request) -> Response:
        """Whether requests can be served as they should: 200, or 503 with what is missing.

        Where requests were not looked at because of faults of the gateway's, it says how many, by kind.
        """
        from starlette.responses import JSONResponse

        trouble = await self._trouble()
        told: dict[str, object] = {"status": "not ready" if trouble else "ready", "store": trouble or "ok"}
        unmanaged = {labels[0]: int(count) for labels, count in self.figures.unmanaged.values().items()}
        return JSONResponse(told | ({"unmanaged": unmanaged} if unmanaged else {}), 503 if trouble else 200)

    async def _trouble(self) -> str:
        if self.sessions is None:
            return ""
        store = self.sessions.store
        try:
            async with asyncio.timeout(READY_WITHIN):
                await asyncio.to_thread(store.sessions, 1)
        except TimeoutError:
            return f"no answer within {READY_WITHIN:g} seconds"
        except MidfoldError as error:
            return type(error).__name__
        return ""


def _memory() -> float:
    import resource  # there is none on Windows

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1_024
