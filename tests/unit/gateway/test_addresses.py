"""Allowed destinations and headers of requests, in the one place that sends them."""

from __future__ import annotations

import asyncio

import pytest

from midfold.config import Config
from midfold.config.schema import GatewaySettings
from midfold.errors import ConfigError, Misdirected
from midfold.gateway.routes import is_origin_form, route_of
from midfold.gateway.upstream import Client, Upstream, Upstreams, UpstreamTarget, _address
from support.attacks import Listener


@pytest.mark.parametrize(
    "path",
    ["*@{thief}/x", "@{thief}/x", ":1@{thief}/x", ".{thief}/x", "{thief}", "", "x", "?x", "#x", "http://{thief}/x"],
)
@pytest.mark.parametrize("base", ["", "/v1"])
def test_the_client_sends_nothing_that_would_go_elsewhere(path: str, base: str) -> None:
    async def sent(upstream: Upstream, target: UpstreamTarget) -> None:
        client = Client(connect_timeout=1, retries=0)
        try:
            answer = await client.send("GET", upstream, target, [("x-api-key", "secret")], b"")
            answer.close()
        finally:
            await client.close()

    with Listener() as known, Listener() as thief:
        upstream = Upstream(known.url, base, "secret")
        target = upstream.target(path.format(thief=thief.place))
        if base and path[:1] not in ("?", "#"):
            asyncio.run(sent(upstream, target))
            assert known.heard[0].split(b" ")[1].startswith(base.encode())
        else:
            with pytest.raises(Misdirected):
                asyncio.run(sent(upstream, target))
            assert known.heard == []
        assert thief.heard == []


@pytest.mark.parametrize(
    ("base", "target", "address"),
    [
        ("http://h", UpstreamTarget("//evil/x"), "http://h//evil/x"),
        ("http://h:80", UpstreamTarget("/x", "a=%20&b?@c/d"), "http://h/x?a=%20&b?@c/d"),
        ("https://[::1]:8443", UpstreamTarget("/%2f%2e"), "https://[::1]:8443/%2f%2e"),
        ("http://H.example", UpstreamTarget("/a/../b"), "http://h.example/a/../b"),
        ("http://bücher.example", UpstreamTarget("/@x"), "http://xn--bcher-kva.example/@x"),
    ],
)
def test_an_address_is_the_upstreams_with_the_path_as_it_was_written(
    base: str, target: UpstreamTarget, address: str
) -> None:
    assert str(_address(Upstream(base, ""), target)) == address


@pytest.mark.parametrize(
    ("host", "header"), [("https://api.anthropic.com", "x-api-key"), ("http://h", "authorization")]
)
def test_where_both_vendors_have_a_path_the_host_decides(host: str, header: str) -> None:
    upstream = Upstreams(Config(gateway=GatewaySettings(upstream=host, api_key_env="K")), {"K": "k"}).default
    assert upstream is not None
    named = upstream.credential(route_of("GET", "/v1/models").wire)
    assert named is not None and named[0] == header
    assert Upstream(host, "").credential(None) is None
    assert Upstream(host, "", "k", "anthropic").credential("openai") == ("x-api-key", "k")
    assert Upstream(host, "", "k", "openai").credential("anthropic") == ("authorization", "Bearer k")


def test_an_upstream_with_a_password_is_refused_without_telling_it() -> None:
    with pytest.raises(ConfigError, match=r"gateway\.upstream: the URL contains a user name") as caught:
        Upstreams(Config(gateway=GatewaySettings(upstream="http://user:hunter2@h")), {})
    assert "hunter2" not in str(caught.value)


def test_targets() -> None:
    good = (b"/", b"/v1/models", b"//h/x", b"/x?a\\b", b"/%00", b"/@", b"/x?", b"/x??", b"/~!$&'()*+,;=:@|^`{}<>\"")
    bad = (b"", b"*", b"x", b"/\\", b"/ ", b"/\t", b"/\x7f", b"/\x80", b"/#", b"/?#", b"http://h/", b"/x?\n", b"/x\n")
    assert [is_origin_form(one) for one in good] == [True] * len(good)
    assert [is_origin_form(one) for one in bad] == [False] * len(bad)
