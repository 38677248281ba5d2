"""Upstreams that violate HTTP: the client's response to an invalid or endless reply."""

from __future__ import annotations

import http.client
import json
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.gateways import call, running
from support.pulse import provider

PATH = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
OPEN = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + EVENT


def switch_protocols(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nhello")


def close_in_order(connection: socket.socket) -> None:
    connection.sendall(OPEN)
    connection.shutdown(socket.SHUT_RDWR)


def reset(connection: socket.socket) -> None:
    connection.sendall(OPEN)
    time.sleep(0.3)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_status_101_is_not_relayed() -> None:
    with provider(switch_protocols) as upstream, running(upstream) as here:
        status, _, body = call(here.url, "POST", PATH, BODY)
    assert status == 502
    assert "switched protocols without a request" in json.loads(body)["error"]["message"]


def streamed(answering: Callable[[socket.socket], None], **gateway: Any) -> bytes:
    """Return the bytes of a stream at the client; raise IncompleteRead if the client can see that it is incomplete."""
    with provider(answering) as upstream, running(upstream, **gateway) as here:
        connection = http.client.HTTPConnection(here.url.removeprefix("http://"), timeout=20)
        try:
            connection.request("POST", PATH, json.dumps(BODY))
            return connection.getresponse().read()
        finally:
            connection.close()


@pytest.mark.parametrize("recall", ["off", "on"])
def test_stream_that_is_reset_is_not_a_whole_one(recall: str) -> None:
    with pytest.raises(http.client.IncompleteRead) as broken:
        streamed(reset, recall=recall)
    assert broken.value.partial == EVENT


@pytest.mark.parametrize("recall", ["off", "on"])
def test_stream_that_ends_with_its_connection_is_whole(recall: str) -> None:
    assert streamed(close_in_order, recall=recall) == EVENT
