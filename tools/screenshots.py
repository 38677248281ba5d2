"""Take the screenshots of the pages for the documentation, with headless Chromium.

python tools/screenshots.py URL                 of the store at URL (tools/pages_demo.py fills one)
python tools/screenshots.py URL --into FOLDER   write to FOLDER instead of docs/images

Requires playwright (requirements/all.txt) and Debian's chromium package. The format is WebP, a third of the size of
PNG.
"""

from __future__ import annotations

import base64
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midfold.pages.formatting import session_path
from midfold.pages.lookup import Lookup
from midfold.pages.web import everything
from midfold.session.sessions import Sessions, open_sessions

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images"
QUALITY = 82
DESK, PHONE = {"width": 1120, "height": 760}, {"width": 390, "height": 760}
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync"]  # fmt: skip


def pictures(sessions: Sessions) -> Iterator[tuple[str, str, dict[str, int], str]]:
    """Yield name, path, screen size and colour scheme; the session shown is the one with the largest savings."""
    best = max(Lookup(sessions).overview(everything).sessions, key=lambda facts: facts.saved.net or 0.0)
    one = session_path(best.name)
    seq = max((record.seq for record in sessions.session(best.name).receipts() if record.receipt.fold), default=1)
    yield "pages-overview", "/", DESK, "light"
    yield "pages-overview-dark", "/", DESK, "dark"
    yield "pages-session", one, DESK, "light"
    yield "pages-session-dark", one, DESK, "dark"
    yield "pages-sessions", "/sessions", DESK, "light"
    yield "pages-sessions-dark", "/sessions", DESK, "dark"
    yield "pages-compaction", f"{one}/compactions/{seq}", DESK, "light"
    yield "pages-compaction-dark", f"{one}/compactions/{seq}", DESK, "dark"
    yield "pages-phone-dark", one, PHONE, "dark"


@contextmanager
def served(sessions: Sessions) -> Iterator[str]:
    import uvicorn

    from midfold.pages import app

    server = uvicorn.Server(uvicorn.Config(app(sessions), port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def take(browser: Browser, address: str, screen: Any, colours: Any) -> bytes:
    context = browser.new_context(viewport=screen, color_scheme=colours, device_scale_factor=2)
    page = context.new_page()
    page.goto(address)
    answer = context.new_cdp_session(page).send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
    context.close()
    return base64.b64decode(answer["data"])


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        print(__doc__)
        return 2
    folder = Path(arguments[arguments.index("--into") + 1]) if "--into" in arguments else FOLDER
    from playwright.sync_api import sync_playwright

    with open_sessions(arguments[0]) as sessions, served(sessions) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        for name, path, screen, colours in pictures(sessions):
            data = take(browser, address + path, screen, colours)
            (folder / f"{name}.webp").write_bytes(data)
            print(f"{name}.webp: {len(data) // 1024} kB", flush=True)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
