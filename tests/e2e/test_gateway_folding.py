"""Stateless clients: the same history gets the same fold, from any gateway, after edits, failures and restarts."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

import midfold
from midfold.compaction.budget import Pressure
from midfold.compaction.handoff import MARKER, SYSTEM_NOTE
from midfold.compaction.request import CompactionRequest, Flow, SummaryRequest
from midfold.engines import ContextEngine
from midfold.errors import FailureKind, SummaryFailed
from midfold.gateway.exchange import Exchange, Owner
from midfold.session.sessions import Sessions
from midfold.testing import FakeClock
from midfold.testing.answers import error, openai_json, value
from midfold.testing.doubles import Request, ScriptedProvider, refusing_url
from support.fixtures import assistant, call, number_lines, system, user
from support.gateways import Running, running, settings
from support.provider_replies import Turn
from support.rules_provider import RulesProvider

WINDOW = 16_000
CHAT = "/v1/chat/completions"


def work(count: int, start: int = 0, lines: int = 30) -> list[dict[str, Any]]:
    out = [system(), user("Port the parser to Rust."), assistant("I will.")] if not start else []
    for number in range(start, start + count):
        text = number_lines(f"line {{n}} of step {number}: nothing special happens in here", lines)
        out += call(number, "terminal", {"command": f"make step-{number}"}, text)
    return out


def talk(count: int) -> list[dict[str, Any]]:
    said = number_lines("sentence {n} of a story that has no end, and no tool in it", 20)
    return [turn for n in range(count) for turn in (assistant(f"{n}: {said}"), user(f"{n}? {said}"))]


LONG = [*work(40), user("And what is left?")]


def body(messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"model": "gpt-4o", "messages": messages, **more}


def sent(provider: ScriptedProvider | RulesProvider, index: int = -1) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = provider.requests[index].body["messages"]
    return messages


def handoff(messages: list[dict[str, Any]]) -> str:
    (text,) = [str(one["content"]) for one in messages if str(one.get("content")).startswith(f"{MARKER} Earlier")]
    return text


def ok(request: Request) -> Any:
    return openai_json("fine")


def test_a_fold_is_made_once_and_used_by_every_later_request() -> None:
    with ScriptedProvider(then=ok) as provider, running(provider.url, window=WINDOW) as gateway:
        _, first, _ = gateway.post(CHAT, body(LONG))
        _, again, _ = gateway.post(CHAT, body(LONG))
        longer = [*LONG, assistant("Nothing."), user("Good.")]
        _, later, _ = gateway.post(CHAT, body(longer))
    assert [head["x-midfold-action"] for head in (first, again, later)] == ["compacted", "checkpoint", "checkpoint"]
    assert provider.requests[0].raw == provider.requests[1].raw
    prefix = provider.requests[0].raw[: provider.requests[0].raw.rindex(b"]")]
    assert provider.requests[2].raw.startswith(prefix)
    assert sent(provider)[-2:] == longer[-2:]
    assert SYSTEM_NOTE in sent(provider)[0]["content"]
    assert first["x-midfold-receipt"] == later["x-midfold-receipt"]
    assert int(first["x-midfold-tokens-before"]) >= 0.85 * WINDOW > int(first["x-midfold-tokens-after"])
    name, _, seq = first["x-midfold-receipt"].partition("#")
    assert gateway.sessions.session(name).receipts()[int(seq) - 1].receipt.status == "compacted"


def test_everything_around_the_messages_stays_byte_for_byte() -> None:
    whole = json.dumps(body(LONG, temperature=0.1, x_vendor={"n": 1}), separators=(", ", " : ")).encode()
    whole = whole.replace(b"0.1", b"1e-7")
    with ScriptedProvider(then=ok) as provider, running(provider.url, window=WINDOW) as gateway:
        gateway.post(CHAT, whole)
        left = provider.requests[0].raw
    assert left.startswith(b'{"model" : "gpt-4o", "messages" : [')
    assert left.endswith(b'], "temperature" : 1e-7, "x_vendor" : {"n" : 1}}')
    for message in sent(provider)[-6:]:
        assert json.dumps(message, separators=(", ", " : ")).encode() in whole


def test_after_a_restart_and_from_another_gateway_the_bytes_are_the_same(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/g.db?synchronous=normal"
    longer = [*LONG, assistant("Nothing."), user("Good.")]
    with ScriptedProvider(then=ok) as provider:
        with midfold.open(url) as sessions, running(provider.url, window=WINDOW, sessions=sessions) as gateway:
            gateway.post(CHAT, body(LONG))
            gateway.post(CHAT, body(longer))
        with midfold.open(url) as sessions, running(provider.url, window=WINDOW, sessions=sessions) as gateway:
            _, head, _ = gateway.post(CHAT, body(longer))
    assert head["x-midfold-action"] == "checkpoint"
    assert provider.requests[1].raw == provider.requests[2].raw


def test_a_compaction_that_is_undone_elsewhere_is_gone_with_the_next_request(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/g.db?synchronous=normal"
    longer = [*LONG, assistant("Nothing."), user("Good.")]
    with (
        ScriptedProvider(then=ok) as provider,
        midfold.open(url) as sessions,
        running(provider.url, window=WINDOW, sessions=sessions) as gateway,
    ):
        _, first, _ = gateway.post(CHAT, body(LONG))
        _, head, _ = gateway.post(CHAT, body(longer))
        assert (head["x-midfold-action"], head["x-midfold-receipt"]) == ("checkpoint", first["x-midfold-receipt"])
        with midfold.open(url) as elsewhere:
            elsewhere.session(first["x-midfold-session"]).undo()
        _, head, _ = gateway.post(CHAT, body(longer))
        assert head["x-midfold-action"] == "compacted" and head["x-midfold-receipt"] != first["x-midfold-receipt"]
        _, again, _ = gateway.post(CHAT, body(longer))
        assert (again["x-midfold-action"], again["x-midfold-receipt"]) == ("checkpoint", head["x-midfold-receipt"])
        with midfold.open(url) as elsewhere:
            elsewhere.delete(first["x-midfold-session"])
        _, head, _ = gateway.post(CHAT, body(longer))
        assert head["x-midfold-action"] == "compacted"
        assert sessions.check(deep=True) == []


def test_two_gateways_on_one_postgresql_share_their_folds(postgres_url: str) -> None:
    asked: list[SummaryRequest] = []

    def summarize(ask: SummaryRequest) -> str:
        asked.append(ask)
        return "## Goal\nPort the parser to Rust."

    with (
        ScriptedProvider(then=ok) as provider,
        midfold.open(postgres_url, summarizer=summarize) as one,
        midfold.open(postgres_url, summarizer=summarize) as two,
        running(provider.url, window=WINDOW, sessions=one) as first,
        running(provider.url, window=WINDOW, sessions=two) as second,
        ThreadPoolExecutor(8) as pool,
    ):
        heads = list(pool.map(lambda n: (first, second)[n % 2].post(CHAT, body(LONG))[1], range(8)))
    # On a busy machine a gateway may ask for its own summary before it sees the other's fold; the bytes stay the same.
    assert len(asked) in (1, 2)
    assert len({request.raw for request in provider.requests}) == 1
    actions = sorted(head["x-midfold-action"] for head in heads)
    assert actions.count("compacted") in (1, 2) and set(actions) == {"checkpoint", "compacted"}


def test_concurrent_requests_of_one_session_fold_once() -> None:
    started, asked = threading.Event(), list[SummaryRequest]()

    def slow(ask: SummaryRequest) -> str:
        asked.append(ask)
        started.wait(0.3)
        return "## Goal\nPort the parser to Rust."

    sessions = midfold.open("memory:", summarizer=slow)
    with (
        ScriptedProvider(then=ok) as provider,
        running(provider.url, window=WINDOW, sessions=sessions) as gateway,
        ThreadPoolExecutor(6) as pool,
    ):
        list(pool.map(lambda _: gateway.post(CHAT, body(LONG)), range(6)))
    assert len(asked) == 1
    assert len({request.raw for request in provider.requests}) == 1


def test_edited_and_branched_histories_fall_back_to_the_longest_fold_that_fits() -> None:
    edited_end = [*LONG[:-1], user("Something else entirely?")]
    edited_middle = [*LONG[:20], {**LONG[20], "content": "another result"}, *LONG[21:]]
    with ScriptedProvider(then=ok) as provider, running(provider.url, window=WINDOW) as gateway:
        gateway.post(CHAT, body(LONG))
        _, end, _ = gateway.post(CHAT, body(edited_end))
        assert end["x-midfold-action"] == "checkpoint"
        assert handoff(sent(provider)) == handoff(sent(provider, 0))
        assert sent(provider)[-1] == edited_end[-1]
        _, middle, _ = gateway.post(CHAT, body(edited_middle))
        assert middle["x-midfold-action"] == "compacted"
        assert handoff(sent(provider)) != handoff(sent(provider, 0))
        second = [*LONG, *talk(40), user("And now?")]
        _, grown, _ = gateway.post(CHAT, body(second))
        assert grown["x-midfold-action"] == "compacted"
        assert handoff(sent(provider)) != handoff(sent(provider, 0))
        _, back, _ = gateway.post(CHAT, body([*LONG, assistant("Back here."), user("Again.")]))
        assert back["x-midfold-action"] == "checkpoint"
        assert handoff(sent(provider)) == handoff(sent(provider, 0))
        assert gateway.sessions.check(deep=True) == []


def test_a_client_that_went_back_and_on_again_is_folded_on_its_own() -> None:
    other = [*LONG[:30], user("Turn around."), *work(40, start=200), user("Done?")]
    with ScriptedProvider(then=ok) as provider, running(provider.url, window=WINDOW) as gateway:
        gateway.post(CHAT, body([*LONG, *work(40, start=100), user("And?")]))
        gateway.post(CHAT, body(LONG))
        gateway.post(CHAT, body(other))
        assert gateway.sessions.check(deep=True) == []
    actions = [account.action for account in gateway.accounts]
    assert actions == ["compacted", "compacted", "compacted"]
    assert sent(provider)[-1] == other[-1]


def test_a_system_prompt_that_changes_every_time_keeps_its_fold() -> None:
    with ScriptedProvider(then=ok) as provider, running(provider.url, window=WINDOW) as gateway:
        for minute in range(3):
            dated = [system(f"It is 10:{minute:02}."), *LONG[1:]]
            gateway.post(CHAT, body(dated))
    assert [account.action for account in gateway.accounts] == ["compacted", "checkpoint", "checkpoint"]
    assert sent(provider)[0]["content"].startswith("It is 10:02.")
    assert sent(provider)[1:] == sent(provider, 0)[1:]


def test_the_clients_own_compaction_is_respected() -> None:
    own = [
        system(),
        user("Summary of what happened so far: the parser is half ported."),
        assistant("Good."),
        user("On!"),
    ]
    with ScriptedProvider(then=ok) as provider, running(provider.url, window=WINDOW) as gateway:
        gateway.post(CHAT, body(LONG), x_midfold_session="mine")
        _, head, _ = gateway.post(CHAT, body(own), x_midfold_session="mine")
        assert head["x-midfold-action"] == "relayed"
        assert provider.requests[-1].body["messages"] == own
        grown = [*own, *work(40, start=300), user("And?")]
        _, head, _ = gateway.post(CHAT, body(grown), x_midfold_session="mine")
    assert head["x-midfold-action"] == "compacted"
    assert head["x-midfold-session"].startswith("mine")
    assert "half ported" in json.dumps(sent(provider))


def test_what_is_asked_for_is_obeyed() -> None:
    with ScriptedProvider(then=ok) as provider:
        with running(provider.url, window=WINDOW) as gateway:
            whole = json.dumps(body(LONG)).encode()
            _, bypassed, _ = gateway.post(CHAT, whole, x_midfold_bypass="true")
            _, few, _ = gateway.post(CHAT, body([user("x " * 40_000), assistant("ok"), user("y")]))
            items = {"model": "gpt-4o", "input": "x " * 40_000, "previous_response_id": "resp_1"}
            _, continued, _ = gateway.post("/v1/responses", items)
        with running(provider.url, window=WINDOW, mode="passthrough") as gateway:
            _, passed, _ = gateway.post(CHAT, whole)
        with running(provider.url, window=WINDOW, compression={"enabled": False}) as gateway:
            _, disabled, _ = gateway.post(CHAT, whole)
    assert bypassed["x-midfold-action"] == "bypassed"
    assert few["x-midfold-action"] == "relayed"
    assert (continued["x-midfold-action"], continued["x-midfold-reason"]) == ("passed", "previous_response_id")
    assert (passed["x-midfold-action"], disabled["x-midfold-action"]) == ("passed", "passed")
    assert [request.raw for request in provider.requests if request.raw == whole] == [whole] * 3


def test_manage_folds_at_the_engines_own_threshold_and_hygiene_later() -> None:
    half = [*work(24), user("And what is left?")]
    with ScriptedProvider(then=ok) as provider:
        with running(provider.url, window=WINDOW, mode="manage") as gateway:
            assert gateway.post(CHAT, body(half))[1]["x-midfold-action"] in ("compacted", "pruned")
        with running(provider.url, window=WINDOW) as gateway:
            assert gateway.post(CHAT, body(half))[1]["x-midfold-action"] == "relayed"


def test_manage_folds_at_a_cheap_moment_where_folds_are_scheduled() -> None:
    """Below the threshold a warm cache is preserved; after a pause everything would be written again anyway."""
    some = [*work(16), user("And what is left?")]
    more = [*some, assistant("A little."), user("Then do it.")]
    clock = FakeClock(1_000.0)

    def answer(request: Request) -> Any:
        return value({"choices": [], "usage": {"prompt_tokens": 7_000, "completion_tokens": 5}})

    for schedule, expected in (("cheapest", ("compacted", "pruned")), ("threshold", ("relayed",))):
        config = settings(None, window=WINDOW, mode="manage", compression={"threshold": 0.85})
        caching = msgspec.structs.replace(config.prompt_caching, schedule=schedule)
        with ScriptedProvider(then=answer) as provider, midfold.open("memory:", clock=clock) as sessions:
            gateway_settings = msgspec.structs.replace(config.gateway, upstream=provider.url)
            config = msgspec.structs.replace(config, gateway=gateway_settings, prompt_caching=caching)
            with running(provider.url, config=config, sessions=sessions) as gateway:
                assert gateway.post(CHAT, body(some))[1]["x-midfold-action"] == "relayed"
                clock.advance(20)
                assert gateway.post(CHAT, body(more))[1]["x-midfold-action"] == "relayed", "the cache is warm"
                clock.advance(400)
                _, head, _ = gateway.post(CHAT, body(more))
                assert head["x-midfold-action"] in expected
                receipts = [
                    record for info in sessions.store.sessions() for record in sessions.session(info.name).receipts()
                ]
                reasons = [record.receipt.timing.reason for record in receipts if record.receipt.timing is not None]
                assert reasons == (["cold"] if schedule == "cheapest" else [])


@pytest.mark.parametrize(
    ("cached", "schedule", "early"), [(6_000, "auto", True), (0, "auto", False), (6_000, "", False)]
)
def test_manage_uses_cheap_moments_by_default_where_the_provider_caches(
    cached: int, schedule: str, early: bool
) -> None:
    some = [*work(14), user("And what is left?")]
    more = [*some, assistant("A little."), user("Then do it.")]
    clock = FakeClock(1_000.0)

    def answer(request: Request) -> Any:
        details = {"cached_tokens": cached}
        usage = {"prompt_tokens": 7_000, "completion_tokens": 5, "prompt_tokens_details": details}
        return value({"choices": [], "usage": usage})

    config = settings(None, window=WINDOW, mode="manage")
    caching = msgspec.structs.replace(config.prompt_caching, schedule=schedule or "threshold")
    with ScriptedProvider(then=answer) as provider, midfold.open("memory:", clock=clock) as sessions:
        upstream = msgspec.structs.replace(config.gateway, upstream=provider.url)
        config = msgspec.structs.replace(config, gateway=upstream, prompt_caching=caching)
        with running(provider.url, config=config, sessions=sessions) as gateway:
            assert gateway.post(CHAT, body(some))[1]["x-midfold-action"] == "relayed"
            clock.advance(20)
            assert gateway.post(CHAT, body(more))[1]["x-midfold-action"] == "relayed", "the cache is warm"
            clock.advance(400)
            _, head, _ = gateway.post(CHAT, body(more))
            assert head["x-midfold-action"] in (("compacted", "pruned") if early else ("relayed",))


def test_reported_tokens_count_before_the_estimate() -> None:
    half = [*work(24), user("And what is left?")]

    def heavy(request: Request) -> Any:
        return value({"choices": [], "usage": {"prompt_tokens": int(WINDOW * 0.9), "completion_tokens": 5}})

    with ScriptedProvider(then=heavy) as provider, running(provider.url, window=WINDOW) as gateway:
        assert gateway.post(CHAT, body(half))[1]["x-midfold-action"] == "relayed"
        more = [*half, assistant("A little."), user("Then do it.")]
        _, head, _ = gateway.post(CHAT, body(more))
    assert head["x-midfold-action"] in ("compacted", "pruned")
    assert int(head["x-midfold-tokens-before"]) >= 0.9 * WINDOW


def test_too_many_messages_are_folded_whatever_their_size() -> None:
    many = [system(), *(turn for n in range(60) for turn in (user(f"Q{n}?"), assistant(f"A{n}.")))]
    with ScriptedProvider(then=ok) as provider, running(provider.url, hygiene_hard_message_limit=100) as gateway:
        _, head, _ = gateway.post(CHAT, body([*many, user("And?")]))
    assert head["x-midfold-action"] == "compacted"
    assert len(sent(provider)) < 60


def overflowing(real: int) -> RulesProvider:
    return RulesProvider(lambda request: Turn("fine"), window=real)


def test_an_overflow_is_recovered_once_and_its_limit_believed() -> None:
    with overflowing(12_000) as provider, running(provider.url, window=200_000) as gateway:
        status, head, _ = gateway.post(CHAT, body(LONG))
        assert (status, head["x-midfold-action"]) == (200, "recovered")
        assert len(provider.requests) == 2
        assert len(provider.requests[1].raw) < len(provider.requests[0].raw)
        status, head, _ = gateway.post(CHAT, body([*LONG, assistant("So."), user("On.")]))
        assert (status, head["x-midfold-action"], len(provider.rejected)) == (200, "checkpoint", 1)


def test_what_cannot_be_made_smaller_is_not_sent_again() -> None:
    only = [system(), user("word " * 14_000), assistant("ok"), user("again"), assistant("ok"), user("word " * 14_000)]
    with overflowing(8_000) as provider, running(provider.url, window=200_000) as gateway:
        status, _, answer = gateway.post(CHAT, body(only))
    assert status == 400 and json.loads(answer)["error"]["code"] == "context_length_exceeded"
    sizes = [len(request.raw) for request in provider.requests]
    assert len(sizes) <= 2 and sizes == sorted(sizes, reverse=True)


def test_byte_limits_make_pictures_smaller() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 40_000}}
    talk = [system()]
    for number in range(6):
        talk += [
            {"role": "user", "content": [{"type": "text", "text": f"Picture {number}"}, picture]},
            assistant("Seen."),
        ]
    talk.append(user("Compare them."))

    def strict(request: Request) -> Any:
        if len(request.raw) > 120_000:
            return error(413, "Request exceeds the maximum allowed number of bytes.", "request_too_large")
        return openai_json("fine")

    with ScriptedProvider(then=strict) as provider, running(provider.url, window=200_000) as gateway:
        status, head, _ = gateway.post(CHAT, body(talk))
    assert (status, head["x-midfold-action"], len(provider.requests)) == (200, "recovered", 2)


def failing(kind: FailureKind) -> Sessions:
    def summarize(ask: SummaryRequest) -> str:
        raise SummaryFailed(kind)

    return midfold.open("memory:", summarizer=summarize)


def test_a_failing_summariser_leaves_the_request_and_the_providers_own_error_is_answered() -> None:
    sessions = failing("auth")
    huge = [*work(70), user("And?")]
    with overflowing(WINDOW) as provider, running(provider.url, window=WINDOW, sessions=sessions) as gateway:
        whole = json.dumps(body(huge)).encode()
        status, head, answer = gateway.post(CHAT, whole)
        assert (status, json.loads(answer)["error"]["code"]) == (400, "context_length_exceeded")
        assert [request.raw for request in provider.requests] == [whole]
        assert head["x-midfold-reason"] == "not folded: auth"


def test_a_failing_summariser_is_replaced_by_the_fallback_where_that_is_allowed() -> None:
    for allowed, action in ((True, "compacted"), (False, "relayed")):
        sessions = failing("timeout")
        options = {"window": WINDOW, "sessions": sessions, "compression": {"lossy_fallback": allowed}}
        with ScriptedProvider(then=ok) as provider, running(provider.url, **options) as gateway:
            _, head, _ = gateway.post(CHAT, body(LONG))
        assert head["x-midfold-action"] == action


def test_a_store_that_does_not_answer_costs_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    from midfold.errors import StoreUnavailable

    def broken(*arguments: Any, **options: Any) -> Any:
        raise StoreUnavailable

    sessions = midfold.open("memory:")
    whole = json.dumps(body(LONG)).encode()
    with ScriptedProvider(then=ok) as provider, running(provider.url, window=WINDOW, sessions=sessions) as gateway:
        monkeypatch.setattr(sessions.store.checkpoints, "find", broken)
        status, head, _ = gateway.post(CHAT, whole)
    assert (status, provider.requests[0].raw) == (200, whole)
    assert head["x-midfold-reason"] == "not looked at: StoreUnavailable"


def counting(gateway: Running, messages: list[dict[str, Any]]) -> tuple[int, str]:
    given = {"model": "claude-x", "messages": messages}
    status, head, answer = gateway.post("/v1/messages/count_tokens", given)
    assert status == 200
    return json.loads(answer)["input_tokens"], head["x-midfold-action"]


def test_tokens_are_counted_by_the_provider_or_estimated() -> None:
    talk = [user("word " * 500)]
    with overflowing(WINDOW) as provider, running(provider.url, window=WINDOW) as gateway:
        assert counting(gateway, talk) == (506, "relayed")
    with ScriptedProvider(then=error(404)) as none, running(none.url, window=WINDOW) as gateway:
        tokens, action = counting(gateway, talk)
        assert (action, 450 < tokens < 900) == ("estimated", True)


def test_responses_compact_answers_with_readable_items_for_every_provider() -> None:
    items: list[dict[str, Any]] = [{"role": "user", "content": "Port the parser to Rust."}]
    for number in range(30):
        made = {"type": "function_call", "call_id": f"c{number}", "name": "sh", "arguments": "{}"}
        text = number_lines(f"line {{n}} of {number}", 40)
        items += [made, {"type": "function_call_output", "call_id": f"c{number}", "output": text}]
    items += [{"type": "message", **turn} for turn in talk(20)]
    items.append({"role": "user", "content": "And now?"})
    with running(refusing_url(), window=WINDOW) as gateway:
        status, head, answer = gateway.post("/v1/responses/compact", {"model": "gpt-4o", "input": items})
        found = json.loads(answer)
        assert (status, found["object"], head["x-midfold-action"]) == (200, "response.compaction", "compacted")
        assert len(found["output"]) < len(items) - 20 and found["output"][-1]["content"] == "And now?"
        fold = next(one for one in found["output"] if MARKER in json.dumps(one))
        assert fold["type"] == "message"
        name = head["x-midfold-session"]
        receipt = gateway.sessions.session(name).receipts()[-1].receipt
        assert gateway.sessions.session(name).unfold(receipt.fold)
        status, head, _ = gateway.post(
            "/v1/responses/compact", {"model": "m", "previous_response_id": "r", "input": []}
        )
        assert status == 502


def marked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages as caching clients send them: markers on the current last two messages."""
    out = []
    for place, message in enumerate(messages):
        block: dict[str, Any] = {"type": "text", "text": message["content"]}
        if place >= len(messages) - 2:
            block["cache_control"] = {"type": "ephemeral"}
        out.append({"role": message["role"], "content": [block]})
    return out


def test_a_client_that_moves_its_own_cache_markers_is_one_conversation() -> None:
    asked: list[SummaryRequest] = []

    def summarize(ask: SummaryRequest) -> str:
        asked.append(ask)
        return f"## Goal\nSummary number {len(asked)}."

    sessions = midfold.open("memory:", summarizer=summarize)
    story = [user("Tell me a story."), *talk(60), assistant("More."), user("More?")]
    with (
        RulesProvider(lambda request: Turn("fine"), window=WINDOW) as provider,
        running(provider.url, window=WINDOW, sessions=sessions) as gateway,
    ):
        for end in range(5, len(story) + 1, 2):
            whole = {"model": "claude-x", "max_tokens": 9, "system": "Be brief.", "messages": marked(story[:end])}
            assert gateway.post("/v1/messages", whole)[0] == 200
        names = [info.name for info in sessions.all()]
    assert provider.rejected == []
    assert len(asked) >= 2 and len(names) == 1
    assert "Summary number 1" in asked[1].previous
    folds = [account.action for account in gateway.accounts].count("compacted")
    assert folds in (len(asked), len(asked) - 1), "the next one is prepared"
    last = provider.requests[-1].body["messages"]
    assert [block.get("cache_control") for message in last[-2:] for block in message["content"]] == [
        {"type": "ephemeral"}
    ] * 2


def test_namespaces_share_nothing_even_where_their_histories_are_equal() -> None:
    def admit(exchange: Exchange) -> None:
        exchange.owner = Owner(dict(exchange.headers).get(b"x-team", b"").decode())

    with ScriptedProvider(then=ok) as provider, running(provider.url, window=WINDOW) as gateway:
        gateway.app.gateway.admit.append(admit)
        heads = [gateway.post(CHAT, body(LONG), x_team=team)[1] for team in ("red", "blue", "red")]
    assert [head["x-midfold-action"] for head in heads] == ["compacted", "compacted", "checkpoint"]
    assert [head["x-midfold-session"].partition("/")[0] for head in heads] == ["red", "blue", "red"]


def test_whoever_is_not_admitted_is_refused_before_the_body_is_read() -> None:
    with ScriptedProvider() as provider, running(provider.url) as gateway:
        gateway.app.gateway.admit.append(lambda exchange: (401, "who are you?"))
        status, head, answer = gateway.post("/v1/messages", body(LONG))
    assert (status, head["x-midfold-action"]) == (401, "refused")
    assert json.loads(answer)["error"] == {"type": "authentication_error", "message": "who are you?"}
    assert provider.requests == [] and gateway.accounts[0].status == 401


def test_what_was_not_worth_folding_is_tried_again_when_it_has_grown() -> None:
    asks: list[SummaryRequest] = []

    def summarize(ask: SummaryRequest) -> str:
        asks.append(ask)
        return "## Goal\nRead it."

    huge = user("Read this:\n" + number_lines("sentence {n}, to be kept to the letter", 1_400))
    start = [system(), user("Hello."), assistant("Hello."), user("Ready?"), assistant("Ready."), huge]
    sessions = midfold.open("memory:", summarizer=summarize)
    with ScriptedProvider(then=ok) as provider, running(provider.url, window=WINDOW, sessions=sessions) as gateway:
        _, first, _ = gateway.post(CHAT, body(start))
        tried = len(asks)
        _, again, _ = gateway.post(CHAT, body(start))
        assert len(asks) == tried
        _, grown, _ = gateway.post(CHAT, body([*start, assistant("Read."), *talk(12), assistant("Yes."), user("So?")]))
    assert first["x-midfold-reason"].startswith("not folded: ")
    assert again["x-midfold-reason"] == "a fold failed a moment ago"
    assert grown["x-midfold-action"] == "compacted"


class Broken(ContextEngine):
    """Engine with a defect."""

    name = "broken"

    def should_compress(self, request: CompactionRequest) -> Pressure:
        return Pressure.HARD

    def compress(self, request: CompactionRequest) -> Flow:
        raise RuntimeError("what the messages said")
        yield


def test_a_plugin_with_a_mistake_costs_no_request_and_tells_nothing() -> None:
    whole = json.dumps(body(LONG)).encode()
    sessions = midfold.open("memory:", engine=Broken())
    with overflowing(8_000) as provider, running(provider.url, window=WINDOW, sessions=sessions) as gateway:
        status, head, answer = gateway.post(CHAT, whole)
    assert (status, json.loads(answer)["error"]["code"]) == (400, "context_length_exceeded")
    assert [request.raw for request in provider.requests] == [whole]
    assert 'CONTEXT ENGINE FAILED: "broken": RuntimeError' in head["x-midfold-reason"]
    assert "what the messages said" not in head["x-midfold-reason"]


@pytest.mark.parametrize("name", ["gw-hidden-1", "a/b", "x" * 151])
def test_names_that_a_client_may_not_give_are_not_used(name: str) -> None:
    with ScriptedProvider(then=ok) as provider, running(provider.url, window=WINDOW) as gateway:
        _, head, _ = gateway.post(CHAT, body(LONG), x_midfold_session=name)
    assert head["x-midfold-action"] == "compacted"
    assert head["x-midfold-session"].startswith("gw-") and head["x-midfold-session"] != name
