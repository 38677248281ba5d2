"""`midfold pages` in a real browser, without script: from the overview to an unfolded message and a receipt."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.browser import browser
from support.pages import CODING, HOSTILE, MARKUP, filled

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request

FOLDED = "Compaction 4"
"""Link text of a compaction that has a handoff, as does the previous one."""
PHONE, DESK = {"width": 375, "height": 800}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[str]:
    """Run the command on a free port."""
    path = tmp_path_factory.mktemp("pages") / "sessions.db"
    url = f"sqlite:///{path}?synchronous=normal"
    filled(url).close()
    command = [sys.executable, "-m", "midfold", "pages", "--store", url, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        said = running.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", said)
        assert found, said
        try:
            yield found[0]
        finally:
            running.terminate()
            rest = running.stderr.read()
    assert "Traceback" not in rest


def is_given_up(request: Request) -> bool:
    """Return whether the browser cancelled a request because a link was followed before the response."""
    return request.failure == "net::ERR_ABORTED"


@pytest.fixture
def page(chromium: Browser, address: str) -> Iterator[Page]:
    """Open a page without script that must load all its resources, and only from its own server."""
    context = chromium.new_context(viewport=DESK, java_script_enabled=False, base_url=address)  # type: ignore[arg-type]
    shown = context.new_page()
    problems: list[str] = []
    shown.on("console", lambda message: problems.append(message.text))
    shown.on("requestfailed", lambda request: None if is_given_up(request) else problems.append(request.url))
    shown.on("request", lambda request: None if request.url.startswith(address) else problems.append(request.url))
    yield shown
    assert problems == []
    context.close()


def test_from_the_overview_to_an_unfolded_message_and_the_receipt(page: Page) -> None:
    page.goto("/")
    assert page.get_by_role("heading", level=1).inner_text() == "Overview"
    assert "Prompt tokens not sent" in page.inner_text("main")
    assert page.get_by_role("img", name=re.compile("Tokens sent and not sent")).count() == 1

    page.get_by_role("link", name="Sessions", exact=True).click()
    page.get_by_label("Name").fill("coding")
    page.get_by_role("button", name="Show").click()
    assert page.locator("tbody tr").count() == 1
    title = page.locator("tbody th a").inner_text()
    assert title != CODING
    page.locator("tbody th a").click()
    assert page.get_by_role("heading", level=1).inner_text() == title
    assert CODING in page.inner_text(".lead")
    assert page.get_by_role("img", name=re.compile("Size of the prompt")).count() == 1

    page.get_by_role("link", name=FOLDED, exact=True).click()
    assert "Before" in page.inner_text(".strips")
    compared = page.locator("section", has=page.get_by_role("heading", name="Compared with the previous handoff"))
    assert "of compaction 3: " in compared.inner_text()
    assert compared.locator("li.new").count() > 0
    page.get_by_role("navigation", name="Which messages").get_by_role("link", name=re.compile("^folded")).click()
    fates = page.locator(".rows .fate").all_inner_texts()
    assert fates
    assert set(fates) == {"folded"}
    row = page.locator(".rows .row", has=page.get_by_role("link", name=re.compile("^Unfold message"))).first
    shortened = row.locator(".said").inner_text()

    page.get_by_role("link", name=re.compile("^Unfold message")).first.click()
    original = page.locator("article pre").first.inner_text()
    assert len(original) > 20
    assert shortened.split()[0] in page.inner_text("article")
    page.go_back()

    page.get_by_role("link", name="receipt").click()
    assert page.get_by_role("heading", level=1).inner_text() == "Receipt"
    assert "threshold" in page.inner_text(".lead")
    page.get_by_role("link", name=re.compile("^mf-")).first.click()
    assert page.locator("article").count() > 1


def test_search_finds_a_folded_message_and_leads_to_it(page: Page) -> None:
    page.goto("/")
    page.get_by_role("searchbox", name="Search messages").fill("uncommitted changes")
    page.get_by_role("searchbox", name="Search messages").press("Enter")
    assert page.locator(".hits li").count() > 1
    assert "uncommitted" in page.locator(".hits mark").first.inner_text().lower()
    page.locator(".hits a").first.click()
    assert "uncommitted" in page.inner_text("article").lower()


def test_markup_in_messages_and_names_is_text(page: Page) -> None:
    page.goto("/sessions")
    page.locator("tbody tr", has_text=HOSTILE).get_by_role("link").click()
    assert page.get_by_role("heading", level=1).inner_text().startswith(MARKUP[:30])
    assert HOSTILE in page.inner_text(".lead")
    page.locator(".said").first.click()
    assert MARKUP in page.locator("pre").first.inner_text()


def test_nothing_is_wider_than_a_phone_and_dark_is_dark(chromium: Browser, address: str) -> None:
    grounds: list[str] = []
    for scheme in ("light", "dark"):
        context = chromium.new_context(viewport=PHONE, color_scheme=scheme, base_url=address)  # type: ignore[arg-type]
        page = context.new_page()
        more = ("/sessions", "/cache", "/search?q=git", *_session_pages(page)) if scheme == "light" else ()
        for path in ("/", *more):
            page.goto(path)
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
        grounds.append(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
        context.close()
    light, dark = (sum(map(int, re.findall(r"\d+", ground)[:3])) for ground in grounds)
    assert light > 600 > 200 > dark


LABELS_ON_LINES = """
() => [...document.querySelectorAll('.drawing')].filter(one => one.getClientRects().length).flatMap(one => {
  const boxes = [...one.querySelectorAll('text:not(.number)')].map(text => [text.textContent, text.getBBox()]);
  const lines = [...one.querySelectorAll('line')].map(line => line.getBBox());
  return boxes.filter(([, box]) => lines.some(line => line.x < box.x + box.width && box.x < line.x + line.width
    && line.y < box.y + box.height && box.y < line.y + line.height)).map(([words]) => words);
})
"""
CUT_OFF = """
() => [...document.querySelectorAll('.card, .list, .block')].filter(one => one.getClientRects().length)
  .filter(one => one.scrollHeight > one.clientHeight + 1 && getComputedStyle(one).overflowY != 'visible').length
"""


@pytest.mark.parametrize("screen", [DESK, PHONE], ids=["desk", "phone"])
def test_no_label_lies_on_a_line_and_nothing_scrolls_inside_a_page(
    chromium: Browser, address: str, screen: dict[str, int]
) -> None:
    context = chromium.new_context(viewport=screen, base_url=address)  # type: ignore[arg-type]
    page = context.new_page()
    session, compaction, *_ = _session_pages(page)
    for path in ("/", session, compaction):
        page.goto(path)
        assert page.locator(".drawing text, .strips").count() > 0
        assert page.evaluate(LABELS_ON_LINES) == [], path
        assert page.evaluate(CUT_OFF) == 0, path
    context.close()


def test_sessions_are_chosen_and_put_in_order_without_script(page: Page) -> None:
    page.goto("/sessions")
    page.get_by_label("Model").select_option("gpt-4o")
    page.get_by_role("button", name="Show").click()
    assert [text.split(" · ")[0] for text in page.locator("tbody th small").all_inner_texts()] == ["airline"]
    page.goto("/sessions")
    page.get_by_role("link", name="Messages", exact=True).click()
    counts = [int(text.replace(",", "")) for text in page.locator("td[data-label=Messages]").all_inner_texts()]
    assert counts == sorted(counts, reverse=True) and len(set(counts)) > 1
    page.get_by_role("columnheader", name="Messages").get_by_role("link").click()
    again = [int(text.replace(",", "")) for text in page.locator("td[data-label=Messages]").all_inner_texts()]
    assert again == counts[::-1]


def _session_pages(page: Page) -> list[str]:
    page.goto("/sessions?q=coding")
    session = page.locator("tbody th a").get_attribute("href")
    return [f"{session}{rest}" for rest in ("", "/compactions/4", "/compactions/4/receipt", "/messages/3")]


def test_a_store_that_is_not_there_and_a_port_in_use_are_told(tmp_path: Path, address: str) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "midfold", "pages", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    missing = run("--store", f"sqlite:///{tmp_path}/none.db")
    assert missing.returncode == 2
    assert "no such file" in missing.stderr
    taken = run("--store", "memory:", "--port", address.rpartition(":")[2])
    assert taken.returncode == 2
    assert "use --port 0 for a free port" in taken.stderr
