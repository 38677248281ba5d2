"""Baseline of the gateway benchmark: a bare relay of starlette and an HTTP client.

UPSTREAM=http://... python -m uvicorn bench.gateways.bare:app
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from httpx_aiohttp.httpx2 import AiohttpTransport
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

UPSTREAM = os.environ.get("UPSTREAM", "")
DROPPED = {"host", "content-length", "transfer-encoding", "connection"}


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with httpx2.AsyncClient(transport=AiohttpTransport(), timeout=600) as client:
        app.state.client = client
        yield


async def relay(request: Request) -> StreamingResponse:
    client: httpx2.AsyncClient = request.app.state.client
    headers = [(name, value) for name, value in request.headers.items() if name not in DROPPED]
    sent = client.build_request(
        request.method, UPSTREAM + request.url.path, content=await request.body(), headers=headers
    )
    answer = await client.send(sent, stream=True)
    kept = {name: value for name, value in answer.headers.items() if name not in DROPPED}
    return StreamingResponse(answer.aiter_raw(), answer.status_code, kept)


app = Starlette(routes=[Route("/{path:path}", relay, methods=["GET", "POST"])], lifespan=lifespan)
