"""Load generator of the gateway benchmark: one process, plain sockets, minimal work per request."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple
from urllib.parse import urlsplit

CHAT = "/v1/chat/completions"


class Timed(NamedTuple):
    """Timed request: whether it succeeded, and the seconds to the first byte of its body and to its end."""

    good: bool
    first: float
    whole: float


class Connection:
    """Persistent HTTP/1.1 connection."""

    def __init__(self, url: str, path: str = CHAT) -> None:
        place = urlsplit(url)
        self.host, self.port = place.hostname or "", place.port or 80
        self.head = (
            f"POST {path} HTTP/1.1\r\nhost: {self.host}:{self.port}\r\ncontent-type: application/json\r\n"
            "authorization: Bearer sk-bench\r\naccept: */*\r\n"
        )
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, body: bytes) -> Timed:
        if self.streams is None:
            self.streams = await asyncio.open_connection(self.host, self.port, limit=2**20)
        reader, writer = self.streams
        started = time.perf_counter()
        writer.write(f"{self.head}content-length: {len(body)}\r\n\r\n".encode() + body)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        good = b" 200 " in head[:15]
        if b"transfer-encoding: chunked" in head:
            first, size = await _chunked(reader)
        else:
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            data = await reader.readexactly(length)
            first, size = time.perf_counter(), len(data)
        ended = time.perf_counter()
        if b"connection: close" in head:
            await self.close()
        return Timed(good and size > 0, first - started, ended - started)

    async def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


async def _chunked(reader: asyncio.StreamReader) -> tuple[float, int]:
    first, size = 0.0, 0
    while True:
        length = int(await reader.readline(), 16)
        data = await reader.readexactly(length + 2)
        first = first or time.perf_counter()
        size += length
        if not length:
            return first, size + len(data) - 2


async def one_by_one(url: str, bodies: list[bytes], path: str = CHAT) -> list[Timed]:
    connection = Connection(url, path)
    done = [await connection.post(body) for body in bodies]
    await connection.close()
    return done


async def together(url: str, bodies: list[bytes], clients: int) -> tuple[float, list[Timed]]:
    """Send all bodies with a number of concurrent clients; return the total seconds and the timed requests."""
    queue = iter(bodies)
    done: list[Timed] = []

    async def client() -> None:
        connection = Connection(url)
        for body in queue:
            try:
                done.append(await connection.post(body))
            except (OSError, asyncio.IncompleteReadError, ValueError):
                done.append(Timed(False, 0.0, 0.0))
                await connection.close()
        await connection.close()

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return time.perf_counter() - started, done
