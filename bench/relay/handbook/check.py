"""Check the result of the relay task `handbook`; prints one line per check and `N of M` last."""

from __future__ import annotations

import sys
from pathlib import Path

WORK = Path(sys.argv[1])


def read(name: str) -> str:
    """Return a file of the result; empty if it does not exist."""
    path = WORK / name
    return path.read_text(encoding="utf-8") if path.is_file() else ""


FACTS = {
    "booking": [67, 7171],
    "refunds": [50, 9077],
    "shipping": [54, 2252],
    "returns": [37, 3170],
    "invoices": [29, 4423],
    "warranty": [4, 2027],
    "accounts": [29, 9704],
    "privacy": [14, 4278],
}
RENAMED = {"warranty": "guarantee"}
TERMS = "# Terms\n\nSimply do not edit this page. Utilise as is.\n"


def checks() -> dict[str, bool]:
    """Return the checks by name."""
    names = {RENAMED.get(topic, topic): facts for topic, facts in FACTS.items()}
    pages = {name: read(f"pages/{name}.md") for name in names}
    order = ["shipping", *sorted(name for name in names if name != "shipping")]
    index = [f"- {name}: {names[name][0]} h, ext {names[name][1]}" for name in order]
    total = sum(extension for _, extension in names.values())
    changes = read("CHANGES.md")
    found = {
        "4 limits": pages["refunds"].rstrip().endswith("## Limits\n\nNo refund after 30 days."),
        "5 officer": "## Data protection officer" in pages["privacy"] and "## Contact" not in pages["privacy"],
        "6 index, corrected": [line for line in read("INDEX.md").splitlines() if line.startswith("- ")] == index,
        "7 renamed": bool(pages["guarantee"]) and not read("pages/warranty.md"),
        "8 sum": changes.rstrip().endswith(str(total)),
        "8 pages": all(name in changes for name in names),
        "rule: legal": read("legal/terms.md") == TERMS,
    }
    for name, (hours, extension) in names.items():
        text = pages[name]
        old = next((old for old, new in RENAMED.items() if new == name), name)
        found[f"1 {name}"] = bool(text) and "utilise" not in text.lower()
        found[f"2 {name}"] = bool(text) and "Simply" not in text and "\n\nOpen page 0" in text
        found[f"3 {name}, corrected"] = text.split("\n")[1:2] == ["Reviewed: 2027"] and "2026" not in text
        found[f"rule: numbers of {name}"] = f"within {hours} hours. The desk has extension {extension}." in text
        found[f"rule: address of {name}"] = f"{old}@shop.example" in text
    return found


def main() -> None:
    """Print the checks."""
    results = checks()
    for name, passed in results.items():
        sys.stdout.write(f"{'ok' if passed else 'FAILED'}: {name}\n")
    sys.stdout.write(f"{sum(results.values())} of {len(results)}\n")


if __name__ == "__main__":
    main()
