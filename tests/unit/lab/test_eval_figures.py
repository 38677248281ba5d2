from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise

from midfold.lab.retention import LABEL_GAP, Row, compute_figures, retention_chart
from midfold.lab.retention_score import Score, demands
from midfold.transcript.document import read
from support.fixtures import user


def row(conversation: int, bound: float, *, method: str = "a", budget: float = 0.1, share: float = 0.1) -> Row:
    marks = Score(share, bound, None, 0.5, bound, bound, None)
    return Row(f"talk {conversation}", 1, "project", 7, 1_000, 10, method, budget, marks)


ROWS = [row(number % 8, number**2 % 41 / 41) for number in range(41)]


def test_a_mean_is_over_cuts_and_lies_in_its_interval() -> None:
    (figure,) = compute_figures(ROWS)
    bound = figure.measures["bound"]
    assert abs(bound.mean - sum(item.score.bound for item in ROWS) / 41) < 1e-9
    assert bound.low < bound.mean < bound.high
    assert bound.cuts == figure.cuts == 41
    assert "hard" not in figure.measures


def test_intervals_are_the_same_for_the_same_seed_and_not_for_another() -> None:
    assert compute_figures(ROWS, 1) == compute_figures(ROWS, 1)
    assert compute_figures(ROWS, 1) != compute_figures(ROWS, 2)


def test_cuts_of_one_conversation_are_not_taken_for_independent_ones() -> None:
    together = [row(number // 20, float(number // 20)) for number in range(40)]
    (figure,) = compute_figures(together)
    assert (figure.measures["bound"].low, figure.measures["bound"].high) == (0.0, 1.0)


def test_outputs_more_than_5_per_cent_above_the_budget_are_flagged() -> None:
    (figure,) = compute_figures([row(0, 1.0, share=0.104), row(1, 1.0, share=0.106)])
    assert figure.over == 1
    assert abs(figure.share - 0.105) < 1e-9


def test_the_chart_is_one_line_and_one_label_per_method_and_labels_do_not_cover_each_other() -> None:
    rows = [
        row(number % 3, 0.5 + place / 1_000, method=f"<method {place}>", budget=budget)
        for number in range(6)
        for place in range(10)
        for budget in (0.05, 0.2)
    ]
    tree = ET.fromstring(retention_chart(compute_figures(rows), subtitle="6 cuts & more"))
    name = "{http://www.w3.org/2000/svg}"
    assert len(tree.findall(f"{name}path")) == 10
    labels = [text for text in tree.findall(f"{name}text") if (text.text or "").startswith("<method")]
    heights = sorted(float(text.attrib["y"]) for text in labels)
    assert len(heights) == 10
    assert min(after - before for before, after in pairwise(heights)) >= LABEL_GAP - 0.01
    assert "prefers-color-scheme: dark" in ET.tostring(tree, encoding="unicode")


def test_a_chart_of_one_budget_can_be_drawn() -> None:
    assert "10 %" in retention_chart(compute_figures(ROWS))
    assert "hollow" not in retention_chart(compute_figures(ROWS))


def test_a_chart_marks_what_took_more_than_its_budget() -> None:
    drawn = retention_chart(compute_figures([row(0, 1.0, share=0.2), row(1, 0.5)]))
    assert "hollow: some outputs exceeded it" in drawn
    assert '<circle cx="323" cy="145" r="3.4" fill="none"' in drawn


def test_constraining_sentences_are_the_users_own_prose() -> None:
    text = (
        "Fix it. You must not touch the schema! Thanks.\n- Never push to main\n"
        "```\nassert only_code  # always\n```\n<system-reminder>You must obey.</system-reminder>Prefer short names."
    )
    assert demands(read([user(text), user("Never push to main")]).messages) == (
        "You must not touch the schema!",
        "Never push to main",
        "Prefer short names.",
    )
