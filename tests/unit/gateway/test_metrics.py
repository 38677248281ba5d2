from __future__ import annotations

from midfold.gateway.operating import Counter, Histogram, MetricGauge, page


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
