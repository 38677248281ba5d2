"""The picture of a compaction is an SVG with widths in tokens and a text alternative."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from click.testing import CliRunner

from midfold.api import compact
from midfold.cli.fold_picture import FILLS, LEFT, PICTURE_WIDTH, RIGHT, draw_svg
from midfold.cli.main import main

ROOT = Path(__file__).resolve().parents[3]
CODING = ROOT / "examples" / "coding-session.json"
SVG = "{http://www.w3.org/2000/svg}"


def boxes(svg: str, fill: str, *, least: float) -> list[float]:
    widths = [
        float(box.get("width", 0)) for box in ElementTree.fromstring(svg).iter(f"{SVG}rect") if box.get("fill") == fill
    ]
    return [width for width in widths if width >= least]


def test_widths_are_in_the_ratio_of_tokens() -> None:
    result = compact(CODING.read_bytes(), context_length=32_000)
    svg = draw_svg(result, "a session")
    before, after = boxes(svg, FILLS["tail"], least=12)
    scale = (PICTURE_WIDTH - LEFT - RIGHT) / result.receipt.old_tokens
    assert abs(after - before) < 0.2, "the tail stays as it is"
    assert abs(sum(boxes(svg, FILLS["fold"], least=12)) / scale - 24_383) < 300


def test_it_tells_its_figures_in_words() -> None:
    result = compact(CODING.read_bytes(), context_length=32_000)
    root = ElementTree.fromstring(draw_svg(result, "<a & b>"))
    assert (
        root.findtext(f"{SVG}title")
        == f"<a & b>: {result.receipt.old_tokens:,} tokens become {result.receipt.new_tokens:,}"
    )
    assert "handoff 2 messages" in (root.findtext(f"{SVG}desc") or "")


def test_a_compaction_that_did_nothing_is_drawn_too() -> None:
    result = compact(CODING.read_bytes(), context_length=1_000_000)
    assert ElementTree.fromstring(draw_svg(result, "short")).tag == f"{SVG}svg"


def test_the_picture_of_the_readme_is_what_the_command_draws(tmp_path: Path) -> None:
    out = tmp_path / "fold.svg"
    arguments = ["compact", str(CODING), "--context-length", "32000", "--picture", str(out)]
    assert CliRunner().invoke(main, arguments, catch_exceptions=False).exit_code == 0
    assert out.read_text("utf-8") == (ROOT / "docs" / "images" / "fold.svg").read_text("utf-8")
