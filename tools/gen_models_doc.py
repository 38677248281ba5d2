"""Write the tables of docs/reference/models.md from the model table; the introduction is not changed.

python tools/gen_models_doc.py          write the file
python tools/gen_models_doc.py --check  exit 1 when it is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

from midfold.cli.models import COLUMNS, cells, groups
from midfold.models import DEFAULT

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "models.md"
MARK = "<!-- Below this line: tools/gen_models_doc.py. Do not edit. -->"


def tables() -> str:
    """Return every row of the model table as Markdown."""
    lines = ["## The table", ""]
    for source, tokens, rows in groups():
        lines += [f"### {', '.join(row.pattern for row in rows[:3])}{', ...' if len(rows) > 3 else ''}", ""]
        lines += [f"Source: {source}. Tokens: {tokens}.", ""]
        lines += ["| " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * (len(COLUMNS) - 1)]
        lines += ["| " + " | ".join((f"`{name}`", *rest)) + " |" for name, *rest in map(cells, rows)]
        lines.append("")
    lines += [
        f"Any other model: {DEFAULT.context_window:,} tokens of context, {DEFAULT.max_output:,} of output, "
        f"tokenizer {DEFAULT.tokenizer} x{DEFAULT.factor:g}, +{DEFAULT.message_overhead} per message.",
        "",
    ]
    return "\n".join(lines)


def render(page: str) -> str:
    """Return `page` with new tables below the marker."""
    introduction, mark, _ = page.partition(MARK)
    if not mark:
        raise SystemExit(f"{PAGE}: the line that starts the generated part is missing: {MARK}")
    return f"{introduction}{MARK}\n\n{tables()}"


def main(arguments: list[str]) -> int:
    page = PAGE.read_text(encoding="utf-8")
    fresh = render(page)
    if "--check" in arguments:
        print("up to date" if fresh == page else "out of date: run python tools/gen_models_doc.py")
        return int(fresh != page)
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
