"""Attacks on the provider's account with the gateway's own key: routes, other owners' ids, and spellings of both."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import midfold
from midfold.config import Config
from midfold.config.schema import GatewaySettings, Key, UpstreamSettings
from midfold.gateway.admission import hash_key, new_key
from midfold.session.sessions import Sessions
from midfold.testing import Request, ScriptedProvider
from midfold.testing.answers import Answer, events, value
from support.attacks import PROVIDERS_KEY, behind_the_door, raw, status_of
from support.gateway_soak import gateway as start_gateway
from support.gateways import call
from support.pulse import Pulse

RED, BLUE = new_key(), new_key()
KEYS = {"red": Key(hash=hash_key(RED)), "blue": Key(hash=hash_key(BLUE))}
MAKING = ("/v1/files", "/v1/batches", "/v1/messages/batches", "/v1/uploads", "/v1/conversations", "/v1/responses")


class Account:
    """Provider account with objects of several owners."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def __call__(self, request: Request) -> Answer:
        path = request.path.partition("?")[0]
        kind = "resp" if path.endswith("/responses") else "thing"
        if request.method == "POST" and path in (*MAKING, "/v1/chat/completions"):
            made = f"{kind}_{next(self._numbers)}"
            if isinstance(request.body, dict) and request.body.get("stream"):
                first = {"type": "response.created", "response": {"id": made, "metadata": {"id": "resp_planted"}}}
                return events([first, {"type": "response.completed", "response": {"id": made}}], named=True)
            return value({"metadata": {"id": "resp_planted"}, "id": made})
        if path.startswith("/v1/batches/"):
            return value({"id": path.split("/")[3], "output_file_id": "file-out", "error_file_id": None})
        if path.startswith("/v1/uploads/"):
            return value({"id": path.split("/")[3], "file": {"id": "file-uploaded"}})
        return value({"reached": request.path})


class Door:
    """Gateway with a provider key."""

    def __init__(self, url: str, provider: ScriptedProvider) -> None:
        self.url, self.provider = url, provider

    def ask(self, key: str, method: str, path: str, body: Any = b"", **headers: str) -> tuple[int, Any]:
        status, _, answer = call(self.url, method, path, body, x_midfold_key=key, **headers)
        try:
            return status, json.loads(answer)
        except ValueError:
            return status, answer

    def make(self, key: str, path: str, **body: Any) -> str:
        status, answer = self.ask(key, "POST", path, {"model": "m", **body})
        assert status == 200
        return str(answer["id"])

    @property
    def reached(self) -> list[str]:
        return [f"{one.method} {one.path}" for one in self.provider.requests]


@contextmanager
def door(sessions: Sessions | None = None, account: Any = None, **gateway: Any) -> Iterator[Door]:
    with ScriptedProvider(then=account or Account()) as provider:
        config = Config(gateway=GatewaySettings(upstream=provider.url, **{"api_key_env": "K", **gateway}), keys=KEYS)
        with behind_the_door(config, sessions=sessions) as url:
            yield Door(url, provider)


CLOSED = [
    ("DELETE", "/v1/models/ft:gpt-4o:org::id"),
    ("POST", "/v1/models"),
    ("GET", "/v1/files"),
    ("GET", "/v1/batches"),
    ("GET", "/v1/messages/batches"),
    ("GET", "/v1/chat/completions"),
    ("GET", "/v1/responses"),
    ("GET", "/v1/conversations"),
    ("GET", "/v1/organization/users"),
    ("POST", "/v1/organization/admin_api_keys"),
    ("GET", "/v1/organizations/api_keys"),
    ("GET", "/v1/fine_tuning/jobs"),
    ("POST", "/v1/fine_tuning/jobs"),
    ("POST", "/v1/assistants"),
    ("POST", "/v1/threads"),
    ("POST", "/v1/vector_stores"),
    ("GET", "/v1/containers"),
    ("GET", "/v1/evals"),
    ("GET", "/v1/skills"),
    ("GET", "/v1/usage"),
    ("GET", "/v1/key"),
    ("GET", "/v1"),
    ("GET", "/api/tags"),
    ("DELETE", "/api/delete"),
    ("PUT", "/v1/chat/completions"),
    ("PATCH", "/v1/responses"),
    ("OPTIONS", "/v1/models"),
    ("GET", "/v1/models/a/b/c/d"),
    ("POST", "/v1/files/file-1"),
    ("GET", "/v1/files/file-1/content/x"),
]
SPELLINGS = [
    "/v1/models/a%2f..%2F..%2ffiles%2Ffile-1",
    "/v1/models/%2Ffiles",
    "/v1/models/a%2Fb%2Fc%2Fd",
    "/v1/models%2Ffile-1",
    "/v1/files%2Ffile-1",
    "/v1/models/a%252Fb",
    "/v1/%66iles/file-1",
    "/v1/models/%2e%2e/files/file-1",
    "/v1/models/../files/file-1",
    "/v1/models/./../files",
    "/v1/models/..%2ffiles",
    "/v1/models/..;/files",
    "/v1/models;x=y",
    "/v1//files/file-1",
    "//v1/models",
    "/v1/models/",
    "/v1/models//",
    "/v1/v1/files",
    "/v1/v1/models",
    "/V1/models",
    "/v1/Models",
    "/v1/models%00",
    "/v1/models%0a",
    "/v1/models%20",
    "/v1/models%3f/files",
    "/v1/models%23",
    "/v1/models/...",
    "/./v1/models",
    "/v1/models/%252e%252e/files",
    "/v1/models/a|b",
    "/v1/models/'x'",
]


def test_what_is_not_in_the_table_is_closed_and_says_what_opens_it() -> None:
    with door() as gateway:
        for method, path in CLOSED:
            status, answer = gateway.ask(RED, method, path)
            assert (status, method, path) == (403, method, path)
            assert "gateway.routes: all" in answer["error"]["message"]
        status, answer = gateway.ask(RED, "GET", "/v1/organizations/users", anthropic_version="2023-06-01")
        assert (status, answer["type"], answer["error"]["type"]) == (403, "error", "permission_error")
        assert gateway.reached == []


def test_no_spelling_gets_around_the_table() -> None:
    with door() as gateway:
        for path in SPELLINGS:
            for method in ("GET", "POST", "DELETE"):
                answer = raw(
                    gateway.url,
                    f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nx-midfold-key: {RED}\r\n\r\n".encode(),
                )
                assert (status_of(answer), path) == (403, path)
        assert gateway.reached == []


def test_a_method_in_a_header_is_not_sent_on() -> None:
    with door() as gateway:
        gateway.ask(RED, "POST", "/v1/embeddings", b"{}", x_http_method_override="DELETE", x_original_url="/v1/files")
    assert not {"x-http-method-override", "x-original-url"} & set(gateway.provider.requests[0].headers)


def test_a_part_of_the_account_is_not_the_clients_to_choose() -> None:
    chosen = {"openai_organization": "org-1", "OpenAI_Project": "proj-1", "x_goog_user_project": "p"}
    for routes, passed in (("known", 0), ("all", 3)):
        with door(routes=routes) as gateway:
            for path in ("/v1/chat/completions", "/v1/files"):
                assert gateway.ask(RED, "POST", path, b'{"model":"m"}', **chosen)[0] == 200
            for request in gateway.provider.requests:
                assert (
                    len({"openai-organization", "openai-project", "x-goog-user-project"} & set(request.headers))
                    == passed
                )


def test_a_model_with_a_slash_in_its_name_is_found_as_official_clients_write_it() -> None:
    with door() as gateway:
        for name in ("maker%2Fname:free", "maker%2fname%3Afree", "maker/name", "a%2Fb%40c"):
            assert gateway.ask(RED, "GET", f"/v1/models/{name}") == (200, {"reached": f"/v1/models/{name}"})
            assert gateway.ask(RED, "DELETE", f"/v1/models/{name}")[0] == 403


def test_generation_counting_models_and_embeddings_are_open() -> None:
    posts = ("chat/completions", "completions", "messages", "messages/count_tokens", "complete", "responses")
    posts += ("responses/input_tokens", "embeddings", "images/generations", "images/edits", "audio/speech")
    posts += ("audio/transcriptions", "audio/translations", "moderations", "rerank")
    with door() as gateway:
        for path in posts:
            for prefix in ("/v1/", "/"):
                assert gateway.ask(RED, "POST", prefix + path, {"model": "m"})[0] == 200, path
        for path in ("/v1/models", "/models", "/v1/models/gpt-4o", "/v1/models/maker/name:free", "/v1/models?limit=5"):
            assert gateway.ask(RED, "GET", path)[0] == 200
        assert len(gateway.reached) == 2 * len(posts) + 5


IDS = [
    ("/v1/files", "/v1/files/{}", ("GET", "DELETE")),
    ("/v1/files", "/v1/files/{}/content", ("GET",)),
    ("/v1/batches", "/v1/batches/{}", ("GET",)),
    ("/v1/batches", "/v1/batches/{}/cancel", ("POST",)),
    ("/v1/messages/batches", "/v1/messages/batches/{}", ("GET", "DELETE")),
    ("/v1/messages/batches", "/v1/messages/batches/{}/results", ("GET",)),
    ("/v1/messages/batches", "/v1/messages/batches/{}/cancel", ("POST",)),
    ("/v1/uploads", "/v1/uploads/{}/parts", ("POST",)),
    ("/v1/uploads", "/v1/uploads/{}/complete", ("POST",)),
    ("/v1/uploads", "/v1/uploads/{}/cancel", ("POST",)),
    ("/v1/responses", "/v1/responses/{}", ("GET", "DELETE")),
    ("/v1/responses", "/v1/responses/{}/cancel", ("POST",)),
    ("/v1/responses", "/v1/responses/{}/input_items?limit=2", ("GET",)),
    ("/v1/conversations", "/v1/conversations/{}", ("GET", "POST", "DELETE")),
    ("/v1/conversations", "/v1/conversations/{}/items", ("GET", "POST")),
    ("/v1/conversations", "/v1/conversations/{}/items/msg_1", ("GET", "DELETE")),
]


@pytest.mark.parametrize(("making", "using", "methods"), IDS)
def test_an_id_is_open_to_whoever_made_it_and_to_nobody_else(making: str, using: str, methods: tuple[str, ...]) -> None:
    with door() as gateway:
        made = gateway.make(RED, making)
        for method in methods:
            reached = len(gateway.reached)
            theirs = gateway.ask(BLUE, method, using.format(made))
            nobodys = gateway.ask(BLUE, method, using.format("thing_0"))
            assert (theirs[0], nobodys[0]) == (404, 404)
            assert json.dumps(theirs).replace(made, "X") == json.dumps(nobodys).replace("thing_0", "X")
            assert len(gateway.reached) == reached
            assert gateway.ask(RED, method, using.format(made))[0] == 200
        assert gateway.ask(RED, "GET", "/v1/responses/resp_planted")[0] == 404


def test_files_that_a_batch_or_an_upload_led_to_are_their_owners() -> None:
    with door() as gateway:
        batch, upload = gateway.make(RED, "/v1/batches"), gateway.make(RED, "/v1/uploads")
        assert gateway.ask(RED, "GET", "/v1/files/file-out/content")[0] == 404
        gateway.ask(RED, "GET", f"/v1/batches/{batch}")
        assert gateway.ask(RED, "GET", "/v1/files/file-out/content")[0] == 200
        gateway.ask(RED, "POST", f"/v1/uploads/{upload}/complete", {"part_ids": ["part_1"]})
        assert gateway.ask(RED, "GET", "/v1/files/file-uploaded")[0] == 200
        for made in ("file-out", "file-uploaded"):
            assert gateway.ask(BLUE, "GET", f"/v1/files/{made}")[0] == 404


def test_a_large_file_passes_by_and_is_its_owners() -> None:
    form = b'--x\r\ncontent-disposition: form-data; name="file_id"\r\n\r\n' + bytes(2_000_000) + b"\r\n--x--\r\n"
    with door() as gateway:
        status, answer = gateway.ask(RED, "POST", "/v1/files", form, content_type="multipart/form-data; boundary=x")
        assert (status, gateway.provider.requests[0].raw == form) == (200, True)
        assert gateway.ask(RED, "GET", f"/v1/files/{answer['id']}")[0] == 200
        assert gateway.ask(BLUE, "GET", f"/v1/files/{answer['id']}")[0] == 404


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
def test_what_is_stored_is_kept_in_mind_and_what_is_not_is_not(path: str) -> None:
    with door() as gateway:
        stored = gateway.make(RED, path, store=True)
        dropped = gateway.make(RED, path, store=False)
        usual = gateway.make(RED, path)
        found = [gateway.ask(RED, "GET", f"{path}/{made}")[0] for made in (stored, dropped, usual)]
        assert found == [200, 404, 200 if path == "/v1/responses" else 404]


@pytest.mark.parametrize("size", [1, 20_000], ids=["small", "large enough to be held back"])
def test_the_id_of_a_stream_is_its_owners(size: int) -> None:
    with door() as gateway:
        body = {"model": "m", "input": "x" * size, "stream": True}
        status, streamed = gateway.ask(RED, "POST", "/v1/responses", body)
        assert (status, streamed.count(b"resp_1")) == (200, 2)
        again = {"model": "m", "input": "y", "previous_response_id": "resp_1"}
        assert gateway.ask(BLUE, "POST", "/v1/responses", again)[0] == 404
        assert gateway.ask(RED, "POST", "/v1/responses", again)[0] == 200
        planted = {**again, "previous_response_id": "resp_planted"}
        assert gateway.ask(RED, "POST", "/v1/responses", planted)[0] == 404


def test_an_encoded_answer_is_read_and_passed_on_as_it_is() -> None:
    packed = gzip.compress(b'{"id":"file-9"}')

    def account(request: Request) -> Answer:
        return Answer(pieces=(packed,), headers={"content-encoding": "gzip"}) if request.method == "POST" else value({})

    with door(account=account) as gateway:
        assert call(gateway.url, "POST", "/v1/files", b"{}", x_midfold_key=RED)[2] == packed
        assert gateway.ask(RED, "GET", "/v1/files/file-9")[0] == 200


def file_part(given: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": given}}]}]}


def document(given: str) -> dict[str, Any]:
    part = {"type": "document", "source": {"type": "file", "file_id": given}}
    return {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": [part]}]}


def interpreter(given: str) -> dict[str, Any]:
    tool = {"type": "code_interpreter", "container": {"type": "auto", "file_ids": [given]}}
    return {"model": "m", "input": "x", "tools": [tool]}


REFERENCES = [
    ("/v1/responses", lambda given: {"model": "m", "input": "x", "previous_response_id": given}),
    ("/v1/responses/input_tokens", lambda given: {"model": "m", "input": "x", "previous_response_id": given}),
    ("/v1/responses/compact", lambda given: {"model": "m", "input": [], "previous_response_id": given}),
    ("/v1/responses", lambda given: {"model": "m", "input": "x", "conversation": given}),
    ("/v1/responses", lambda given: {"model": "m", "input": "x", "conversation": {"id": given}}),
    ("/v1/responses", lambda given: {"model": "m", "input": [{"content": [{"type": "input_file", "file_id": given}]}]}),
    ("/v1/responses", interpreter),
    ("/v1/responses", lambda given: {"tools": [{"type": "file_search", "vector_store_ids": [given]}]}),
    ("/v1/chat/completions", file_part),
    ("/v1/messages", document),
    ("/v1/messages/count_tokens", document),
    ("/v1/messages/batches", lambda given: {"requests": [{"custom_id": "a", "params": document(given)}]}),
    ("/v1/batches", lambda given: {"input_file_id": given, "endpoint": "/v1/responses"}),
    ("/v1/images/edits", lambda given: {"prompt": "x", "images": [{"file_id": given}]}),
]


@pytest.mark.parametrize(("path", "body"), REFERENCES)
def test_an_id_inside_a_body_must_be_the_owners_too(path: str, body: Any) -> None:
    with door() as gateway:
        made = gateway.make(RED, "/v1/files")
        status, answer = gateway.ask(BLUE, "POST", path, body(made))
        assert (status, "gateway.routes: all" in json.dumps(answer)) == (404, True)
        assert len(gateway.reached) == 1
        assert gateway.ask(RED, "POST", path, body(made))[0] == 200
        assert len(gateway.reached) == 2


def hidden_in(made: str) -> list[tuple[bytes, dict[str, str]]]:
    """Return spellings of the id that a careless parser misses."""
    plain = json.dumps({"model": "m", "input": "x", "previous_response_id": made})
    twice = plain[:-1] + ',"previous_response_id":"resp_of_blue"}'
    escaped = plain.replace("previous_response_id", "previous\\u005fresponse\\u005Fid")
    far = json.dumps({"model": "m", "input": "x" * 1_500_000, "previous_response_id": made})
    return [
        (twice.encode(), {}),
        (escaped.encode(), {}),
        (escaped.replace(made, made.replace("t", "\\u0074")).encode(), {}),
        (plain.encode("utf-16"), {}),
        (plain.encode("utf-16-le"), {}),
        (plain.encode("utf-32"), {}),
        (b"\xef\xbb\xbf" + plain.encode(), {}),
        (plain.encode(), {"content_type": "multipart/form-data; boundary=x"}),
        (plain.encode(), {"content_type": "text/plain"}),
        (far.encode(), {"content_type": "multipart/form-data; boundary=x"}),
        (gzip.compress(plain.encode()), {"content_encoding": "gzip"}),
        (plain.encode() + b",", {}),
        (plain.replace("previous_response", "Previous_Response").encode(), {}),
        (json.dumps({"type": "tool_use", "input": [{"content": [{"file_id": made}]}]}).encode(), {}),
        (f"model=m&previous%5Fresponse%5Fid={made}".encode(), {"content_type": "application/x-www-form-urlencoded"}),
        (plain.encode("cp037"), {"content_type": "application/json; charset=cp037"}),
    ]


def test_an_id_cannot_be_hidden_in_a_body() -> None:
    with door() as gateway:
        made = gateway.make(RED, "/v1/files")
        for path in ("/v1/responses", "/v1/responses/input_tokens"):
            for body, headers in hidden_in(made):
                status, _ = gateway.ask(BLUE, "POST", path, body, **headers)
                assert status in (400, 404), (path, body[:80], headers)
        chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body := json.dumps({"input_file_id": made}).encode()), body)
        head = f"POST /v1/batches HTTP/1.1\r\nHost: 127.0.0.1\r\nx-midfold-key: {BLUE}\r\n"
        for kind in ("application/json", "multipart/form-data; boundary=x"):
            sent = f"{head}content-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode() + chunked
            assert status_of(raw(gateway.url, sent)) == 404
        edit = json.dumps({"prompt": "x", "images": [{"file_id": made}]}).encode()
        kinds = "content-type: multipart/form-data; boundary=x\r\ncontent-type: application/json\r\n"
        head = head.replace("/v1/batches", "/v1/images/edits")
        sent = f"{head}{kinds}content-length: {len(edit)}\r\n\r\n".encode() + edit
        assert status_of(raw(gateway.url, sent)) == 404
        chunked = b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(edit), edit)
        assert status_of(raw(gateway.url, f"{head}content-type: application/json\r\n".encode() + chunked)) == 404
        assert gateway.ask(BLUE, "POST", "/v1/responses", b'{"a":"not what it says"}', content_encoding="br")[0] in (
            400,
            415,
        )
        assert len(gateway.reached) == 1


def test_looking_for_ids_in_a_crowded_body_stops_nobody() -> None:
    crowded = b'{"model":"m","a":"file_id","messages":[' + b"{}," * 2_000_000 + b"{}]}"
    with door() as gateway:
        gateway.make(RED, "/v1/files")
        with Pulse(urlsplit(gateway.url).port or 0) as pulse:
            for path in ("/v1/chat/completions", "/v1/batches"):
                assert gateway.ask(RED, "POST", path, crowded)[0] == 413
        assert pulse.longest < 0.25
        assert len(gateway.reached) == 1


def test_an_error_gives_nobody_an_id() -> None:
    with door(account=lambda request: value({"id": "file-1"}, 400)) as gateway:
        assert gateway.ask(RED, "POST", "/v1/files", b"{}")[0] == 400
        assert gateway.ask(RED, "GET", "/v1/files/file-1")[0] == 404


def test_what_models_and_tools_say_is_no_reference() -> None:
    call_of = {"type": "tool_use", "id": "t", "name": "drive", "input": {"file_id": "1AbC", "conversation": "c"}}
    schema = {"type": "object", "properties": {"file_id": {"type": "string"}, "vector_store_ids": {"enum": ["a"]}}}
    body = {
        "model": "m",
        "max_tokens": 9,
        "metadata": {"file_id": "theirs"},
        "tools": [{"name": "drive", "input_schema": schema}],
        "messages": [
            {"role": "user", "content": 'say "file_id": "x" and {"previous_response_id": "y"}'},
            {"role": "assistant", "content": [call_of]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": '{"file_id": "z"}'}]},
        ],
    }
    with door() as gateway:
        assert gateway.ask(RED, "POST", "/v1/messages", body)[0] == 200
        sent = gateway.provider.requests[0].raw
        assert b"1AbC" in sent


def test_ids_outlive_the_gateway_and_hold_at_its_twin(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    with midfold.open(store) as sessions, door(sessions) as first, midfold.open(store) as others:
        made = first.make(RED, "/v1/files")
        config = Config(gateway=GatewaySettings(upstream=first.provider.url, api_key_env="K"), keys=KEYS)
        with behind_the_door(config, sessions=others) as url:
            twin = Door(url, first.provider)
            assert twin.ask(RED, "GET", f"/v1/files/{made}")[0] == 200
            assert twin.ask(BLUE, "GET", f"/v1/files/{made}")[0] == 404
        elsewhere = Config(
            gateway=GatewaySettings(upstream="http://127.0.0.1:1", api_key_env="K", retries=0), keys=KEYS
        )
        with behind_the_door(elsewhere, sessions=others) as url:
            assert Door(url, first.provider).ask(RED, "GET", f"/v1/files/{made}")[0] == 404
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert made.encode() not in written


def test_all_routes_can_be_opened_and_a_client_with_its_own_credential_needs_no_opening() -> None:
    paths = [(method, path) for method, path in CLOSED if method in ("GET", "POST", "DELETE")]
    for options in ({"routes": "all"}, {"api_key_env": None}):
        with door(**options) as gateway:
            for method, path in [*paths, ("DELETE", "/v1/files/file-1"), ("GET", "/v1/models/../x")]:
                assert gateway.ask(RED, method, path, authorization="Bearer mine")[0] == 200
            refers = {"model": "m", "input": "x", "previous_response_id": "resp_of_somebody"}
            assert gateway.ask(RED, "POST", "/v1/responses", refers)[0] == 200
            assert len(gateway.reached) == len(paths) + 3


def test_an_upstream_of_many_without_a_key_is_the_clients_own() -> None:
    with ScriptedProvider(then=Account()) as keyed, ScriptedProvider(then=Account()) as own:
        rows = {
            "a-*": UpstreamSettings(base_url=keyed.url, api_key_env="K", wire="anthropic"),
            "b-*": UpstreamSettings(base_url=own.url, wire="openai"),
        }
        with behind_the_door(Config(upstreams=rows, keys=KEYS)) as url:
            refers = {"model": "b-1", "input": "x", "previous_response_id": "resp_x"}
            assert Door(url, own).ask(RED, "POST", "/v1/responses", refers)[0] == 200
            assert Door(url, keyed).ask(RED, "POST", "/v1/messages", document("file-1") | {"model": "a-1"})[0] == 404
        assert (len(own.requests), len(keyed.requests)) == (1, 0)


def test_without_keys_of_the_gateway_the_table_holds_as_well() -> None:
    with ScriptedProvider(then=Account()) as provider:
        config = Config(gateway=GatewaySettings(upstream=provider.url, api_key_env="K"))
        with behind_the_door(config) as url:
            assert call(url, "DELETE", "/v1/files/file-1")[0] == 404
            assert call(url, "GET", "/v1/organization/users")[0] == 403
            made = json.loads(call(url, "POST", "/v1/files", b"{}", authorization="Bearer mine")[2])["id"]
            assert call(url, "GET", f"/v1/files/{made}", authorization="Bearer mine")[0] == 200
            assert call(url, "GET", f"/v1/files/{made}", authorization="Bearer yours")[0] == 404


def test_headers_of_ours_that_an_upstream_sends_do_not_pass() -> None:
    told = Answer(pieces=(b"{}",), headers={"x-midfold-receipt": "forged", "X-Midfold-Session": "blue/1"})
    with door(account=lambda request: told) as gateway:
        _, headers, _ = call(gateway.url, "POST", "/v1/embeddings", b"{}", x_midfold_key=RED)
    assert {name: text for name, text in headers.items() if name.startswith("x-midfold")} == {
        "x-midfold-action": "relayed"
    }
    assert PROVIDERS_KEY not in str(headers)


def test_a_key_of_the_gateway_goes_nowhere() -> None:
    other = "a key that somebody chose"
    basic = base64.b64encode(f"me:{BLUE}".encode()).decode()
    places = [
        {"x_api_key": BLUE},
        {"authorization": f"Bearer {BLUE}"},
        {"authorization": f"Basic {basic}"},
        {"authorization": f"Token token={BLUE}"},
        {"api_key": BLUE},
        {"x_goog_api_key": BLUE},
        {"x_custom": f"key={BLUE}; more"},
        {"cookie": f"a=b; session={RED}; c=d"},
        {"cookie": f"a=%6dfk_{RED[4:]}"},
        {"x_custom": other},
        {"x_custom": f"Bearer {other}"},
        {"cookie": f"a=b; own={other}; c=d"},
        {"referer": f"http://h/?key={RED}"},
    ]
    keys = {**KEYS, "own": Key(hash=hash_key(other))}
    with (
        ScriptedProvider(then=value({})) as provider,
        behind_the_door(Config(gateway=GatewaySettings(upstream=provider.url), keys=keys)) as url,
    ):
        for headers in places:
            assert call(url, "POST", "/v1/embeddings", b"{}", x_midfold_key=RED, x_kept="1", **headers)[0] == 200
        for key in (RED, BLUE, other.replace(" ", "%20"), "%6dfk_" + BLUE[4:], "%256dfk_" + BLUE[4:]):
            status, _, answer = call(url, "POST", f"/v1/embeddings?a=b&key={key}", b"{}", x_midfold_key=RED)
            assert (status, key in answer.decode()) == (400, False)
        assert call(url, "GET", f"/v1/models/{BLUE}", x_midfold_key=RED)[0] == 400
        mine = {"authorization": f"Bearer {new_key()}", "x_custom": "some value"}
        assert call(url, "POST", "/v1/embeddings?key=mine", b"{}", x_midfold_key=RED, **mine)[0] == 200
    *stripped, last = provider.requests
    assert len(stripped) == len(places)
    for request in stripped:
        written = unquote(f"{request.path} {request.headers}")
        assert not any(key in written for key in (RED, BLUE, other, basic))
        assert request.headers["x-kept"] == "1"
    assert (last.headers["authorization"], last.headers["x-custom"]) == (mine["authorization"], "some value")
    assert last.path.endswith("?key=mine")


def test_a_process_that_is_started_again_knows_whose_ids_are_whose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCOUNT_KEY", PROVIDERS_KEY)
    lines = "".join(f'  {name}:\n    hash: "{key.hash}"\n' for name, key in KEYS.items())
    config = tmp_path / "config.yaml"
    config.write_text(f"gateway:\n  api_key_env: ACCOUNT_KEY\n  log: requests\nkeys:\n{lines}")
    with ScriptedProvider(then=Account()) as provider:
        process = start_gateway(config, provider.url, f"sqlite:///{tmp_path}/s.db", tmp_path / "log")
        try:
            made = Door(process.url, provider).make(RED, "/v1/files")
            assert process.stop() == 0
            process.start()
            again = Door(process.url, provider)
            assert again.ask(BLUE, "DELETE", f"/v1/files/{made}")[0] == 404
            assert again.ask(RED, "DELETE", f"/v1/files/{made}")[0] == 200
            assert again.ask(RED, "GET", "/v1/organization/users")[0] == 403
        finally:
            process.stop()
        assert [one.method for one in provider.requests] == ["POST", "DELETE"]
        assert all(one.headers["authorization"] == f"Bearer {PROVIDERS_KEY}" for one in provider.requests)
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert not any(secret.encode() in written for secret in (made, RED, BLUE, PROVIDERS_KEY))
