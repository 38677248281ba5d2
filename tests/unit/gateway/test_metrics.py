from __future__ import annotations

import time

import httpx2
import pytest

import midfold
from midfold.compaction.receipt import RecallCost
from midfold.gateway import create_app
from midfold.gateway import metrics as operating
from midfold.gateway.exchange import RequestAccount
from midfold.gateway.metrics import Counter, Histogram, MetricGauge, Metrics, Operations, page
from midfold.testing.doubles import served
from midfold.transcript.message import Usage
from support.gateways import settings


def test_the_page_has_help_type_and_every_value() -> None:
    requests = Counter("midfold_requests_total", "Requests, by wire and outcome.", "wire", "status")
    requests.add("anthropic", "200")
    requests.add("anthropic", "200")
    requests.add("openai-chat", "502", by=0.5)
    assert page([requests, MetricGauge("midfold_streams", "Streams now open.", lambda: 3)]) == (
        "# HELP midfold_requests_total Requests, by wire and outcome.\n"
        "# TYPE midfold_requests_total counter\n"
        'midfold_requests_total{wire="anthropic",status="200"} 2\n'
        'midfold_requests_total{wire="openai-chat",status="502"} 0.5\n'
        "# HELP midfold_streams Streams now open.\n"
        "# TYPE midfold_streams gauge\n"
        "midfold_streams 3\n"
    )


def test_a_histogram_counts_what_is_at_or_below_each_bound() -> None:
    seconds = Histogram("midfold_seconds", "Time.", "wire", bounds=(0.1, 1.0))
    for measured in (0.1, 0.2, 1.5):
        seconds.observe(measured, "x")
    assert list(seconds.lines()) == [
        'midfold_seconds_bucket{wire="x",le="0.1"} 1',
        'midfold_seconds_bucket{wire="x",le="1"} 2',
        'midfold_seconds_bucket{wire="x",le="+Inf"} 3',
        'midfold_seconds_sum{wire="x"} 1.8',
        'midfold_seconds_count{wire="x"} 3',
    ]


def test_a_label_cannot_break_out_of_its_quotes() -> None:
    counter = Counter("c", "A\nB", "l")
    counter.add('a"b\\c\nd')
    assert 'c{l="a\\"b\\\\c\\nd"} 1' in page([counter])
    assert "# HELP c A\\nB\n" in page([counter])


def test_what_hidden_rounds_cost_is_counted_with_all_prompts_and_apart() -> None:
    figures = Metrics()
    hidden = RecallCost(rounds=2, prompt_tokens=900, cached_tokens=700, output_tokens=30)
    account = RequestAccount("POST", "/v1/messages", route="messages", status=200, hidden=hidden)
    account.usage = Usage(prompt_tokens=1_000, completion_tokens=10, cache_read_tokens=800)
    figures(account)
    told = figures.page()
    assert "midfold_hidden_rounds_total 2\n" in told
    for kind, apart, whole in (("read", 700, 1_500), ("new", 200, 400), ("answered", 30, 40)):
        assert f'midfold_hidden_tokens_total{{kind="{kind}"}} {apart}\n' in told
        assert f'midfold_prompt_tokens_total{{kind="{kind}"}} {whole}\n' in told


def test_store_fault_makes_the_gateway_not_ready_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operating, "FAULT_SECONDS", 0.2)
    with midfold.open("memory:") as sessions:
        config = settings("http://127.0.0.1:1")
        operations = Operations(config, sessions)
        app = create_app(config, sessions=sessions, environment={}, extra_routes=operations.routes())
        operations.around(app)
        with served(app) as url:

            def readiness() -> int:
                return httpx2.get(f"{url}/readyz").status_code

            def end_request(fault: str) -> None:
                for accountant in app.gateway.accountants:
                    accountant(RequestAccount("POST", "/v1/chat/completions", fault=fault))

            end_request("TypeError")
            assert readiness() == 200, "faults of plugins are counted, and do not concern the store"
            end_request("StoreUnavailable")
            assert readiness() == 503
            time.sleep(0.25)
            assert readiness() == 200
