"""Write the table of docs/reference/failures.md from the failure policy; the introduction is not changed.

python tools/gen_failures_doc.py          write the file
python tools/gen_failures_doc.py --check  exit 1 when it is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

from midfold.compaction.receipt import FAILURES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "failures.md"
MARK = "<!-- Below this line: tools/gen_failures_doc.py. Do not edit. -->"
COLUMNS = ("failure", "what the receipt says", "class", "tried again", "main model", "cooldown", "then", "remedy")


def table() -> str:
    """Return the policy as Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for kind, row in FAILURES.items():
        again = f"{row.retries}x" + (f" after {row.wait:g} s" if row.wait else "") if row.retries else "no"
        main = "once" if row.main_model else "no"
        pause = f"{row.cooldown:g} s"
        cells = (f"`{kind}`", row.description, row.retry_class, again, main, pause, row.then, row.remedy)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def render(page: str) -> str:
    """Return `page` with a new table below the marker."""
    introduction, mark, _ = page.partition(MARK)
    if not mark:
        raise SystemExit(f"{PAGE}: the line that starts the generated part is missing: {MARK}")
    return f"{introduction}{MARK}\n\n{table()}"


def main(arguments: list[str]) -> int:
    page = PAGE.read_text(encoding="utf-8")
    fresh = render(page)
    if "--check" in arguments:
        print("up to date" if fresh == page else "out of date: run python tools/gen_failures_doc.py")
        return int(fresh != page)
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
