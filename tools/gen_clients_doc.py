"""Write the table of docs/reference/clients.md from the results of `make clients`.

.venv/bin/python tools/gen_clients_doc.py
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "clients.md"
MEASURED = ROOT / ".bench" / "clients"
TABLE = re.compile(r"(<!-- table -->\n\n)(?:\|.*\n)*")
KINDS = ("window known", "window not known", "own compaction on")
HEADER = (
    "| client | run | context length | requests | folds | recovered | from the cache | largest prompt |\n"
    "|---|---|---|---|---|---|---|---|\n"
)


def line(row: dict[str, Any]) -> str:
    packages = ", ".join(f"`{one}`" for one in row["packages"])
    cells = (
        f"{row['client']} ({packages})",
        row["kind"],
        f"{row['window']:,}",
        f"{row['requests']:,}",
        str(row["folds"]),
        str(row["recovered"]),
        f"{row['cached']:.1%} ({row['measure']})",
        f"{row['largest']:,}",
    )
    return f"| {' | '.join(cells)} |\n"


def main() -> int:
    rows = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(MEASURED.glob("*.json"))]
    if not rows:
        sys.exit("nothing was measured: make clients")
    rows.sort(key=lambda row: (KINDS.index(row["kind"]), row["client"].lower()))
    page = PAGE.read_text(encoding="utf-8")
    table = HEADER + "".join(map(line, rows))
    PAGE.write_text(TABLE.sub(lambda found: found[1] + table, page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
