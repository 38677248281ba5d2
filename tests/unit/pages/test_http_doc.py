"""The API page matches the OpenAPI description."""

from __future__ import annotations

import subprocess
import sys

from support.data import ROOT


def test_the_page_about_the_api_is_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "gen_http_doc.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
