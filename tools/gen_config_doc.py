"""Write the tables of docs/reference/config.md from the settings; the text above the marker is written by hand.

.venv/bin/python tools/gen_config_doc.py          write the file
.venv/bin/python tools/gen_config_doc.py --check  exit 1 when it is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

from midfold.config import reference

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "config.md"
MARKER = "<!-- Below this line: made by tools/gen_config_doc.py from src/midfold/config/schema.py. -->"


def updated(page: str) -> str:
    """Return the page with new tables."""
    introduction, marker, _ = page.partition(MARKER)
    if not marker:
        raise SystemExit(f"{PAGE} has lost its marker line: {MARKER}")
    return f"{introduction}{MARKER}\n\n{reference()}"


def main() -> None:
    old = PAGE.read_text(encoding="utf-8")
    new = updated(old)
    if "--check" in sys.argv[1:]:
        sys.exit(0 if new == old else f"{PAGE} is out of date: run tools/gen_config_doc.py")
    PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
