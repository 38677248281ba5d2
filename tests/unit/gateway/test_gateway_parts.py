"""Small parts of the gateway in isolation."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import msgspec
import pytest

import midfold
from midfold.config import Config
from midfold.config.schema import Compression, GatewaySettings, PromptCaching, UpstreamSettings
from midfold.errors import ConfigError
from midfold.gateway import create_app
from midfold.gateway.encodings import decode_body
from midfold.gateway.exchange import NO_OWNER
from midfold.gateway.limits import Policy
from midfold.gateway.overflows import overflow_of
from midfold.gateway.peek import peek, peek_slowly
from midfold.gateway.recall_loop import NAMES_TAKEN, definitions
from midfold.gateway.request_size import ClientHistory, PromptReports, ToolOffer
from midfold.gateway.routes import client_product, request_options, route_of, to_client, to_upstream
from midfold.gateway.upstream import Upstreams, UsageTap
from midfold.models import ModelOverride
from midfold.recall import TOOLS
from midfold.transcript.document import read


def config(window: int = 100_000, mode: Any = "hygiene", **compression: Any) -> Config:
    return Config(
        gateway=GatewaySettings(upstream="http://h/v1", mode=mode),
        compression=Compression(**compression),
        models={"*": ModelOverride(context_window=window)},
    )


@pytest.mark.parametrize(
    ("method", "path", "kind", "dialect"),
    [
        ("POST", "/v1/chat/completions", "generate", "openai-chat"),
        ("POST", "/chat/completions", "generate", "openai-chat"),
        ("POST", "/v1/responses", "generate", "openai-responses"),
        ("POST", "/v1/responses/compact", "compact", "openai-responses"),
        ("POST", "/v1/messages", "generate", "anthropic"),
        ("POST", "/v1/messages/count_tokens", "count", "anthropic"),
        ("GET", "/v1/responses", "other", None),
        ("POST", "/v1/messages/batches", "other", None),
        ("POST", "/v1/embeddings", "other", None),
    ],
)
def test_routes(method: str, path: str, kind: str, dialect: str | None) -> None:
    assert route_of(method, path)[:2] == (kind, dialect)


@pytest.mark.parametrize(
    ("base", "path", "url"),
    [
        ("https://api.openai.com/v1", "/v1/chat/completions", "https://api.openai.com/v1/chat/completions"),
        ("https://api.openai.com", "/v1/chat/completions", "https://api.openai.com/v1/chat/completions"),
        ("https://api.openai.com/v1/", "/chat/completions", "https://api.openai.com/v1/chat/completions"),
        ("https://openrouter.ai/api/v1", "/v1/models", "https://openrouter.ai/api/v1/models"),
        ("http://h:1/proxy", "/v1/messages", "http://h:1/proxy/v1/messages"),
    ],
)
def test_addresses_are_joined_without_doubling_the_version(base: str, path: str, url: str) -> None:
    upstreams = Upstreams(Config(gateway=GatewaySettings(upstream=base)), {})
    assert upstreams.default is not None and upstreams.default.base + upstreams.default.target(path).path == url


def test_the_most_specific_pattern_wins_and_no_key_is_shown() -> None:
    rows = {
        "*": UpstreamSettings(base_url="http://all"),
        "claude-*": UpstreamSettings(base_url="http://a", wire="anthropic"),
        "claude-opus-*": UpstreamSettings(base_url="http://opus", api_key_env="K"),
    }
    upstreams = Upstreams(Config(upstreams=rows), {"K": "secret-key"})
    places = [upstreams.find(name, wire) for name, wire in (("claude-opus-5", "anthropic"), ("CLAUDE-x", "anthropic"))]
    assert [place and place.base for place in places] == ["http://opus", "http://a"]
    assert (other := upstreams.find("claude-x", "openai")) is not None and other.base == "http://all"
    assert "secret" not in repr(upstreams.all())
    with pytest.raises(ConfigError, match="base_url is missing"):
        Upstreams(Config(upstreams={"x": UpstreamSettings()}), {})


def test_the_trigger_is_85_percent_unless_the_answer_needs_more() -> None:
    policy = Policy(config())
    assert policy.limits("m", 0).trigger == 85_000
    assert policy.limits("m", 8_000).trigger == 85_000
    assert policy.limits("m", 50_000) == policy.limits("m", 50_000)
    assert (policy.limits("m", 50_000).trigger, policy.limits("m", 50_000).reservation) == (47_500, 50_000)
    assert policy.limits("m", 200_000).trigger == 85_000
    assert Policy(config(mode="manage")).limits("m", 0).trigger == 50_000
    assert Policy(config(mode="manage", threshold=0.7)).limits("m", 20_000).trigger == 56_000
    scheduled = msgspec.structs.replace(config(mode="manage"), prompt_caching=PromptCaching(schedule="cheapest"))
    assert Policy(scheduled).limits("m", 0).looked_at == 20_000, "cheap moments come before the threshold"
    hygiene = msgspec.structs.replace(config(), prompt_caching=PromptCaching(schedule="cheapest"))
    assert Policy(hygiene).engine_config().prompt_caching.schedule == "threshold"
    assert not Policy(config(mode="passthrough")).enabled
    assert not Policy(config(enabled=False)).enabled


def test_a_limit_that_was_learnt_replaces_the_window_and_never_enlarges_it() -> None:
    policy = Policy(config())
    assert [policy.limits("m", 0, learned).window for learned in (0, 32_000, 200_000)] == [100_000, 32_000, 100_000]


def test_reports_are_bound_to_the_messages_and_the_checkpoint_they_measured() -> None:
    reports, chains = PromptReports(), [b"a", b"b", b"c"]
    assert reports.size(chains, b"", 1_000) == (1_000, "estimated")
    reports.observe((b"b", b""), 1_500, 1_000)
    assert reports.size([b"a", b"b"], b"", 1_000) == (1_500, "reported")
    assert reports.size(chains, b"", 1_200) == (1_800, "calibrated")
    assert reports.size(chains, b"cp", 1_200) == (1_200, "estimated")
    assert reports.size([b"a", b"x"], b"", 1_200) == (1_200, "estimated")
    reports.observe((b"c", b""), 10, 90_000)
    assert reports.size(chains, b"", 1_200) == (1_800, "calibrated")


@pytest.mark.parametrize("chunk", [1, 7, 1_000_000])
@pytest.mark.parametrize("filler", [0, 300_000])
def test_usage_is_found_in_any_pieces_of_any_length(chunk: int, filler: int) -> None:
    quoted = json.dumps('he said "usage": {"prompt_tokens": 9}')
    data = (
        b'{"content": ' + quoted.encode() + b', "pad": "' + b"x" * filler + b'", "usage": {"prompt_tokens": 12, '
        b'"completion_tokens": 3}}'
    )
    tap = UsageTap()
    for start in range(0, len(data), chunk if filler == 0 or chunk > 1 else 1_000):
        step = chunk if filler == 0 or chunk > 1 else 1_000
        tap.feed(data[start : start + step])
    usage = tap.usage()
    assert usage is not None and (usage.prompt_tokens, usage.completion_tokens) == (12, 3)
    assert tap.size == len(data)


def test_bodies_without_their_encoding() -> None:
    assert decode_body(gzip.compress(b"abc"), "gzip") == b"abc"
    assert decode_body(zlib.compress(b"abc"), "deflate") == b"abc"
    assert decode_body(b"abc", "") == decode_body(b"abc", "identity") == b"abc"
    assert decode_body(b"abc", "br") == decode_body(b"not gzip", "gzip") == b""
    assert len(decode_body(gzip.compress(b"x" * 1_000_000), "gzip", max_bytes=1_000)) == 1_000


def test_headers() -> None:
    given = [(b"authorization", b"Bearer mine"), (b"x-midfold-session", b" s "), (b"x-midfold-bypass", b"TRUE")]
    assert request_options(given) == ("s", True, "")
    assert to_upstream(given) == [("authorization", "Bearer mine")]
    assert to_upstream([*given, (b"cookie", b"a=b")], ("x-api-key", "k")) == [("x-api-key", "k")]
    assert to_upstream([(b"accept-encoding", b"zstd")]) == [("accept-encoding", "identity")]
    assert to_client([(b"Connection", b"x-hop"), (b"X-Hop", b"1"), (b"X-Kept", b"2")]) == [(b"x-kept", b"2")]
    assert to_client([(b"X-Midfold-Action", b"theirs"), (b"x-midfold-receipt", b"1"), (b"a", b"2")]) == [(b"a", b"2")]


@pytest.mark.parametrize(
    ("status", "text", "found"),
    [
        (400, "This model's maximum context length is 8192 tokens. However, you requested 9000", (8192, False)),
        (400, "prompt is too long: 213462 tokens > 200000 maximum", (200_000, False)),
        (400, "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000", (200_000, False)),
        (413, "Request exceeds the maximum allowed number of bytes.", (0, True)),
        (413, "", (0, False)),
        (400, "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum", (0, True)),
        (400, "temperature must be between 0 and 2", None),
        (400, "tool_use ids were found without tool_result blocks", None),
        (500, "internal error", None),
    ],
)
def test_which_errors_are_about_size(status: int, text: str, found: tuple[int, bool] | None) -> None:
    body = json.dumps({"error": {"message": text, "type": "invalid_request_error"}}).encode()
    told = overflow_of(status, body)
    assert (told and told[:2]) == found


OFFERED = definitions("openai-chat", TOOLS)
TALK = b'"messages":[{"role":"user","content":"Hi."}]'


@pytest.mark.parametrize(
    ("body", "starts"),
    [
        (b'{"model": "m", "tools": [ {"a": 1e-7} ], "x": 1,', b'{"model": "m", "tools": [ {"a": 1e-7},{"type"'),
        (b'{"tools": null,', b'{"tools": [{"type"'),
        (b'{"tools": [],', b'{"tools": [{"type"'),
        (b"{", b"{" + TALK + b',"tools":[{"type"'),
    ],
)
def test_tools_are_offered_behind_the_clients_and_nothing_else_changes(body: bytes, starts: bytes) -> None:
    history = ClientHistory(read(body + TALK + b"}", dialect="openai-chat"))
    found = history.body_with(history.talk, noted=False, offered=OFFERED)
    assert found.startswith(starts) and TALK in found
    names = [tool.get("function", {}).get("name") for tool in json.loads(found)["tools"]]
    assert names[-3:] == ["context_search", "context_unfold", "context_timeline"]


@pytest.mark.parametrize("tools", [b"{}", b'"read_file"', b'[{"name": "context_unfold"}]'])
def test_tools_that_cannot_be_added_are_not(tools: bytes) -> None:
    with midfold.open("memory:") as sessions:
        config = Config(gateway=GatewaySettings(upstream="http://127.0.0.1:1", recall="on"))
        recall = create_app(config, sessions=sessions, environment={}).gateway.recall
        assert recall is not None
        history = ClientHistory(read(b'{"tools":' + tools + b"," + TALK + b"}", dialect="openai-chat"))
        assert recall._offer(NO_OWNER, history) == ToolOffer(problem=NAMES_TAKEN)


def test_peeking_reads_a_few_fields_and_never_fails() -> None:
    found = peek(b'{"model": "m", "stream": true, "max_tokens": 5, "messages": [{"model": "inner"}]}')
    assert found is not None and (found.name, found.is_streaming, found.output) == ("m", True, 5)
    odd = peek(b'{"model": 7, "stream": "yes", "max_tokens": "many"}')
    assert odd is not None and (odd.name, odd.is_streaming, odd.output) == (None, False, 0)
    assert [peek(body) for body in (b"", b"[]", b"{", b"\xff")] == [None] * 4
    half = peek_slowly(b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "cut \\ud83d here"}]}')
    assert half is not None
    assert (half.name, half.is_streaming) == ("m", True)
    assert [peek_slowly(body) for body in (b'["\\ud83d"]', b'{"model": "\\ud83d')] == [None] * 2


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("maximum context length is 16000 tokens. However, you requested 36827 tokens (36827 in the messages)", 36_827),
        ("prompt is too long: 210,345 tokens > 200,000 maximum", 210_345),
        ("This model's maximum context length is 8192 tokens, request req_99999999 of 2026-11-16", 0),
        ("Your input exceeds the context window of this model.", 0),
    ],
)
def test_how_large_a_refused_request_was(text: str, asked: int) -> None:
    found = overflow_of(400, json.dumps({"error": {"message": text, "code": "context_length_exceeded"}}).encode())
    assert found is not None and found.asked == asked


def test_a_limit_of_prompts_below_the_window_is_the_trigger() -> None:
    limits = Policy(Config()).limits("gpt-5", 1_000)
    assert (limits.window, limits.trigger, limits.reservation) == (400_000, int(272_000 * 0.95), 128_000)
    assert Policy(Config()).limits("gpt-5", 1_000, 300_000).reservation == 0, "a refusal knows better"


@pytest.mark.parametrize(
    ("agent", "client"),
    [
        (b"claude-cli/2.1.14 (external, cli)", "claude-cli/2.1"),
        (b"codex_cli_rs/0.98.0 (Debian 12; x86_64)", "codex_cli_rs/0.98"),
        (b"OpenAI/Python 1.2.3", "OpenAI/Python"),
        (b"node", "node"),
        (b"tool/v9-sk12345", "tool"),
        (b"tool/averylongsinglewordthatisaversion", "tool"),
        (b"Mozilla/5.0(X11)", "Mozilla/5.0"),
        (b"", ""),
        (b"<b>/1", ""),
        (b"a\xffb/1", ""),
        (b"name\x1b[31m/1", ""),
        (b"a" * 41, ""),
        (b"sk-ant-api03-abcdefgh12345678", ""),
        (b"ghp_abcdefghijklmnopqrstuvwxyzabcdefghij", ""),
        (b"deadbeef0123456789", ""),
    ],
)
def test_a_client_is_known_by_the_first_name_of_its_user_agent(agent: bytes, client: str) -> None:
    assert client_product([(b"accept", b"x/1"), (b"user-agent", agent)]) == client
    assert client_product([]) == ""
