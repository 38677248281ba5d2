"""Check the result of the relay task `inventory`; prints one line per check and `N of M` last."""

from __future__ import annotations

import sys
from pathlib import Path

WORK = Path(sys.argv[1])


def read(name: str) -> str:
    """Return a file of the result; empty if it does not exist."""
    path = WORK / name
    return path.read_text(encoding="utf-8") if path.is_file() else ""


TOTALS = {
    "lyon": 13076,
    "porto": 13209,
    "graz": 13712,
    "turku": 15840,
    "bergen": 13925,
    "ghent": 15858,
    "malaga": 13495,
    "brno": 13633,
}
BROKEN = {"lyon": 21, "porto": 19, "graz": 22, "turku": 14, "bergen": 24, "ghent": 14, "malaga": 14, "brno": 17}
CODES = {
    "lyon": "965315",
    "porto": "548312",
    "graz": "602373",
    "turku": "491270",
    "bergen": "075529",
    "ghent": "575469",
    "malaga": "139873",
    "brno": "770254",
}
HEADER = "id,kind,quantity,condition,price"


def checks() -> dict[str, bool]:
    """Return the checks by name."""
    graz, brno = read("stock/graz.csv").splitlines(), read("stock/brno.csv")
    lines = [f"{name} {CODES[name]}" for name in sorted(CODES)]
    most = max(BROKEN, key=BROKEN.__getitem__)
    found = {
        "2 order": read("summary/ORDER.txt").split() == sorted(TOTALS, key=lambda name: -TOTALS[name]),
        "3 graz": bool(graz) and not any(line.split(",")[2] == "0" for line in graz[2:]),
        "4 brno": ",light," in brno and ",lamp," not in brno,
        "5 empty": read("stock/EMPTY.csv").strip() == HEADER,
        "6 codes": read("summary/CODES.txt").splitlines() == lines,
        "7 readme": read("README.md").rstrip().endswith("Checked."),
        "8 most": read("summary/MOST.txt").strip() == most,
        "9 done": read("summary/DONE.txt").strip() == "done",
        "later: total": read("summary/TOTAL.txt").strip() == str(sum(TOTALS.values())),
        "rule: broken rows stay": sum(",broken," in line for line in graz) == BROKEN["graz"],
    }
    for name in TOTALS:
        text = read(f"summary/{name}.txt").strip()
        found[f"1 {name}, corrected"] = text == f"{name} total={TOTALS[name]} damaged={BROKEN[name]}"
        first = read(f"stock/{name}.csv").partition("\n")[0]
        found[f"rule: first line of {name}"] = first == f"# warehouse {name}, gate code {CODES[name]}"
    return found


def main() -> None:
    """Print the checks."""
    results = checks()
    for name, passed in results.items():
        sys.stdout.write(f"{'ok' if passed else 'FAILED'}: {name}\n")
    sys.stdout.write(f"{sum(results.values())} of {len(results)}\n")


if __name__ == "__main__":
    main()
