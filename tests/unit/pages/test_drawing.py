"""Charts are well-formed, bounded and accessible; numbers and times are formatted for readers."""

from __future__ import annotations

import time
from itertools import pairwise
from xml.etree import ElementTree

import markupsafe
import msgspec
import pytest

from midfold.drawing import tag, ticks
from midfold.pages import charts, formatting
from midfold.pages.api_types import (
    CacheUse,
    CompactionFacts,
    Day,
    Saved,
    Segment,
    SessionFacts,
    Size,
    TurnFacts,
    UsageFacts,
)
from midfold.pages.html import hit_text, mark_words, outline, with_code

NOTHING = CacheUse(
    requests=0, prompt_tokens=0, read_tokens=0, written_tokens=0, hit_rate=None, paid=None, uncached=None, net=None
)
UNSAVED = Saved(
    requests=0,
    tokens_sent=0,
    tokens_not_sent=0,
    tokens_retrieved=0,
    paid=None,
    without_folds=None,
    summaries=None,
    net=None,
)

UNUSED = UsageFacts(requests=0, input_tokens=0, output_tokens=0, cache_read_tokens=0, cache_write_tokens=0, cost=None)


def session(tokens: int = 900, messages: int = 40) -> SessionFacts:
    size = Size(tokens=tokens, basis="reported", window=10_000, threshold=5_000, share=tokens / 10_000)
    return SessionFacts(
        key="s",
        name='<s>"',
        kind="root",
        parent=None,
        model=None,
        dialect="openai-chat",
        created=0,
        updated=0,
        ended=None,
        messages=messages,
        stored=messages,
        compaction=0,
        compactions=0,
        size=size,
        saved=UNSAVED,
        cache=NOTHING,
        usage=UNUSED,
    )


def turns(count: int) -> list[TurnFacts]:
    return [
        TurnFacts(
            at=number * 1_000,
            messages=number,
            compaction=0,
            model="m",
            prompt_tokens=1_000 + number % 4_000,
            completion_tokens=1,
            cache_read_tokens=number % 900,
            cache_write_tokens=0,
            without_folds=1_000 + number,
        )
        for number in range(count)
    ]


def folds(count: int) -> list[CompactionFacts]:
    return [
        CompactionFacts(
            seq=number,
            base=number - 1,
            at=number * 9_000,
            upto=number,
            undone=None,
            child=None,
            in_force=False,
            status="compacted",
            reason="",
            old_messages=9,
            new_messages=3,
            old_tokens=5_000,
            new_tokens=2_000,
            threshold=5_000,
            summary="local",
            failure="",
        )
        for number in range(1, count + 1)
    ]


def parsed(drawing: str) -> ElementTree.Element:
    """Parse a picture and check its accessibility: a title and a description, both referenced."""
    root = ElementTree.fromstring(drawing)
    ids = {element.get("id") for element in root if element.tag in ("title", "desc") and element.text}
    assert set((root.get("aria-labelledby") or "").split()) == ids
    assert len(ids) == 2
    assert "style" not in drawing
    return root


@pytest.mark.parametrize(("count", "marks"), [(0, 0), (1, 0), (2, 1), (250, 12), (10_000, 200)])
def test_the_chart_of_a_session_is_bounded_however_long_it_is(count: int, marks: int) -> None:
    for width in (960.0, 400.0):
        drawing = charts.usage(session(), turns(count), folds(marks), width=width)
        root = parsed(drawing)
        assert len(drawing) < 60_000 + 700 * marks
        labels = [element.text for element in root.iter("text")]
        assert "tokens" in labels
        assert any("oldest first" in (label or "") for label in labels)
        assert len(list(root.iter("a"))) == marks


def labels_on_lines(root: ElementTree.Element) -> list[str]:
    """Return labels whose box, at seven points a letter, is crossed by a line; numbers have their own disc."""
    lines = [[float(item.get(name) or 0) for name in ("x1", "y1", "x2", "y2")] for item in root.iter("line")]
    found = []
    for item in root.iter("text"):
        words, x, y = item.text or "", float(item.get("x") or 0), float(item.get("y") or 0)
        wide = 7.0 * len(words)
        left = x - {"end": wide, "middle": wide / 2}.get(item.get("text-anchor") or "", 0)
        if item.get("class") != "number" and any(
            x1 < left + wide and left < x2 + 0.1 and min(y1, y2) < y + 2 and y - 9 < max(y1, y2) + 0.1
            for x1, y1, x2, y2 in lines
        ):
            found.append(words)
    return found


@pytest.mark.parametrize("threshold", [500, 5_000, 8_500, 9_900, 10_000])
@pytest.mark.parametrize("width", [960.0, 400.0])
def test_no_label_of_a_chart_lies_on_a_line_or_on_another(threshold: int, width: float) -> None:
    facts = session()
    facts = msgspec.structs.replace(facts, size=msgspec.structs.replace(facts.size, threshold=threshold))
    root = parsed(charts.usage(facts, turns(250), folds(12), width=width))
    assert labels_on_lines(root) == []
    heights = sorted(float(item.get("y") or 0) for item in root.iter("text") if "on-" in (item.get("class") or ""))
    assert len(heights) == (2 if threshold == 10_000 else 4)
    assert all(after - before >= 12 for before, after in pairwise(heights))
    some = [Day(day=f"2026-11-{day:02}", requests=1, tokens_sent=day * 900, tokens_not_sent=9) for day in range(1, 15)]
    assert labels_on_lines(parsed(charts.days(some, width=width))) == []


def test_the_check_of_labels_can_fail() -> None:
    root = ElementTree.fromstring('<svg><line x1="0" y1="50" x2="90" y2="50"/><text x="10" y="54">folds</text></svg>')
    assert labels_on_lines(root) == ["folds"]


def test_charts_of_days_gauges_strips_and_caches() -> None:
    days = [
        Day(day=f"2026-11-{day:02}", requests=day, tokens_sent=day * 9, tokens_not_sent=day) for day in range(1, 15)
    ]
    bars = parsed(charts.days(days))
    assert len(list(bars.iter("rect"))) == 28
    parsed(charts.days(days[:1], width=380))
    for tokens, level in ((0, "fine"), (6_000, "over"), (9_999, "brim"), (30_000, "brim")):
        rects = list(parsed(charts.gauge(session(tokens).size)).iter("rect"))
        assert rects[1].get("class") == f"level {level}"
        assert float(rects[1].get("width") or 0) <= 200
    strip = parsed(
        charts.strip([Segment(what="head", messages=1, tokens=0), Segment(what="tail", messages=2, tokens=9)], 9, "b")
    )
    assert len(list(strip.iter("rect"))) == 2
    parsed(charts.cache_bar(NOTHING))


def test_text_in_a_drawing_is_escaped() -> None:
    assert tag("text", "<b>&", x='"') == '<text x="&quot;">&lt;b&gt;&amp;</text>'
    assert "<s>" not in charts.usage(session(), [], folds(1))


def test_a_template_does_not_escape_a_drawing_again() -> None:
    made = charts.gauge(session().size)
    assert markupsafe.escape(made) == made
    assert markupsafe.escape(tag("text", "<b>")) == "<text>&lt;b&gt;</text>"


def test_ticks_are_round_and_cover_the_range() -> None:
    assert ticks(0) == [0.0]
    assert ticks(64_000) == [0, 20_000, 40_000, 60_000]
    for most in (1, 3, 17, 999, 128_000, 1e9):
        found = ticks(most)
        assert 2 <= len(found) <= 8
        assert found[-1] <= most * 1.001


def test_numbers_money_shares_and_times_are_worded() -> None:
    assert [formatting.short(value) for value in (0, 999, 1_000, 12_345, 99_960, 999_600, 1_234_567, -2_500)] == [
        "0", "999", "1k", "12.3k", "100k", "1M", "1.2M", "-2.5k",
    ]  # fmt: skip
    assert [formatting.money(value) for value in (None, 0.0, 1_234.5, -0.01, 0.0021, 0.00001)] == [
        "–", "$0.00", "$1,234.50", "-$0.01", "$0.0021", "$0.00",
    ]  # fmt: skip
    assert [formatting.percent(value) for value in (None, 0.0, 0.004, 0.5, 1.2)] == [
        "–",
        "0 %",
        "< 1 %",
        "50 %",
        "120 %",
    ]
    now = time.time()
    assert [formatting.ago(int((now - age) * 1000), now) for age in (1, 61, 7_200, 200_000)] == [
        "just now", "1 min ago", "2 h ago", "2 d ago",
    ]  # fmt: skip
    assert formatting.ago(0, now) == "1970-01-01"
    assert (formatting.plural(1, "message"), formatting.plural(1_200, "message")) == ("1 message", "1,200 messages")


def test_a_handoff_is_shown_by_its_headings_and_hits_by_their_words() -> None:
    told = outline("intro\n## Goal\n- a\n- b\n\n### Next\nc\n  d")
    assert told == [("p", ["intro"]), ("h3", ["Goal"]), ("ul", ["a", "b"]), ("h4", ["Next"]), ("p", ["c", "  d"])]
    assert mark_words("<b> Git git", "git") == "&lt;b&gt; <mark>Git</mark> <mark>git</mark>"
    assert mark_words("a <", "") == "a &lt;"
    assert mark_words("contest ListTests a_test", "test") == "contest List<mark>Tests</mark> a_<mark>test</mark>"


def test_a_long_hit_is_shown_by_its_beginning_and_the_lines_around_its_words() -> None:
    lines = ["Read", "file_path: a.py", *(f"line {number}" for number in range(40)), "<the word>", "after", "end"]
    shown = str(hit_text("\n\n" + "\n".join(lines), "word")).split("\n")
    assert shown[:3] == ["Read", "file_path: a.py", "…"]
    assert "&lt;the <mark>word</mark>&gt;" in shown and shown[-1] == "end"
    assert len(shown) == 11
    assert str(hit_text("word\n" + "\n".join(lines), "word")).split("\n")[-1] == "…"
    assert hit_text("a word\nb", "word") == "a <mark>word</mark>\nb"


def test_backticks_in_pairs_are_code() -> None:
    assert with_code("run `a < b` and `c`") == "run <code>a &lt; b</code> and <code>c</code>"
    assert with_code("it`s <one>") == "it`s &lt;one&gt;"
