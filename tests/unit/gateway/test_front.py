"""Modules imported before a gateway listens, and the gateway's own paths."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import midfold
from midfold.cli.serve import OWN_PATHS, _pages
from midfold.gateway import create_app
from midfold.gateway.metrics import Operations
from midfold.gateway.server import HEALTH, LateRoutes, first_of, path_of
from midfold.testing.answers import openai_json
from midfold.testing.doubles import ScriptedProvider, served
from support.gateways import call, settings

LISTENING = """
import sys
from midfold.config.schema import Config
from midfold.session.sessions import Sessions, open_sessions
from midfold.cli.serve import make_server
from midfold.config.schema import GatewaySettings
from midfold.pages import Recorder
from midfold.gateway import create_app
from midfold.gateway.server import LateRoutes
from midfold.gateway.metrics import Operations
config = Config(gateway=GatewaySettings(upstream="http://127.0.0.1:1"))
sessions = open_sessions("memory:", config=config)
operations = Operations(config, sessions)
Recorder(sessions)
operations.around(create_app(config, sessions=sessions, later=LateRoutes(("/",), operations.routes)))
make_server(config)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""
NOT_NEEDED = {"aiohttp", "anyio", "attr", "jinja2", "markupsafe", "psycopg", "rich", "starlette", "yarl"}


def test_what_only_pages_and_upstreams_need_is_not_imported_before_the_gateway_listens() -> None:
    done = subprocess.run([sys.executable, "-c", LISTENING], capture_output=True, text=True, check=True)
    assert NOT_NEEDED & set(done.stdout.split()) == set()


def test_every_page_is_under_a_path_of_the_gateways_own() -> None:
    config = settings("http://127.0.0.1:1")
    with midfold.open("memory:") as sessions:
        routes = [*Operations(config, sessions).routes(), *_pages(config, sessions)]
    paths = {path_of(route) for route in routes} - {"/api", "/api/{rest:path}"}
    assert {path if path == "/" else own_of(path) for path in paths} == set(OWN_PATHS)


def own_of(path: str) -> str:
    """Return the first segment of a page, or the first two of /api; other paths are the provider's."""
    return "/api" + first_of(path.removeprefix("/api")) if path.startswith("/api/") else first_of(path)


def test_routes_are_made_once_when_one_is_asked_for_and_all_else_goes_on() -> None:
    made: list[int] = []

    async def page(request: Request) -> PlainTextResponse:
        return PlainTextResponse("a page")

    def make() -> list[Route]:
        made.append(1)
        return [Route("/own", page), Route("/own/{rest:path}", page)]

    with ScriptedProvider(then=lambda request: openai_json("fine")) as provider:
        app = create_app(settings(provider.url), environment={}, later=LateRoutes(("/own",), make))
        with served(app) as url:
            assert call(url, "GET", HEALTH)[0] == 200
            call(url, "GET", "/owner")
            assert (made, len(provider.requests)) == ([], 1)
            assert [call(url, "GET", path)[2] for path in ("/own", "/own/x")] == [b"a page"] * 2
            assert (made, len(provider.requests)) == ([1], 1)


@pytest.mark.parametrize(("method", "status"), [("GET", 200), ("HEAD", 200), ("POST", 405), ("DELETE", 405)])
def test_health(method: str, status: int) -> None:
    with served(create_app(settings("http://127.0.0.1:1"), environment={})) as url:
        found, head, body = call(url, method, HEALTH)
        assert (found, head["content-type"]) == (status, "application/json")
        assert method != "GET" or json.loads(body) == {"status": "ok", "mode": "hygiene"}
        assert call(url, "GET", HEALTH + "/x")[0] == 404
