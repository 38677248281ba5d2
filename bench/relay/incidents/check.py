"""Check the result of the relay task `incidents`; prints one line per check and `N of M` last."""

from __future__ import annotations

import sys
from pathlib import Path

WORK = Path(sys.argv[1])


def read(name: str) -> str:
    """Return a file of the result; empty if it does not exist."""
    path = WORK / name
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def content(name: str) -> list[str]:
    """Return the lines of a report without the closing line, which a worker may also add to lists."""
    return [line for line in read(name).splitlines() if not line.startswith("-- ")]


DAYS = {
    "day1": [
        "INC-09829",
        "INC-81096",
        "INC-41113",
        "INC-86964",
        "INC-08770",
        "INC-24896",
        "INC-57454",
        "INC-25007",
        "INC-49013",
    ],
    "day2": ["INC-59627", "INC-22703", "INC-67212", "INC-98393", "INC-00015"],
    "day3": ["INC-48500", "INC-97138", "INC-77446", "INC-34581"],
    "day4": ["INC-26572", "INC-91446", "INC-65941", "INC-23712", "INC-29193", "INC-57321", "INC-93752"],
    "day5": ["INC-17188", "INC-49848", "INC-86832"],
    "day6": ["INC-98769", "INC-60490", "INC-99210", "INC-28273", "INC-57884", "INC-10353", "INC-94901", "INC-10712"],
    "day7": [
        "INC-82748",
        "INC-29940",
        "INC-22732",
        "INC-63012",
        "INC-04888",
        "INC-50269",
        "INC-35484",
        "INC-71803",
        "INC-33854",
        "INC-87526",
    ],
    "day8": ["INC-70287", "INC-53884", "INC-39062", "INC-39803", "INC-98604", "INC-33945", "INC-81967", "INC-63992"],
}


def log_lines(day: str) -> list[list[str]]:
    """Return the words of the lines with incidents."""
    return [line.split() for line in read(f"logs/{day}.log").splitlines() if " ERROR " in line]


def checks() -> dict[str, bool]:
    """Return the checks by name."""
    everything = sorted({incident for incidents in DAYS.values() for incident in incidents})
    nodes = sorted({words[2] for day in DAYS for words in log_lines(day)})
    counts = [f"{day} {len(incidents)}" for day, incidents in DAYS.items()]
    found = {
        "3 counts": content("report/COUNTS.txt") == counts,
        "4 all": content("report/ALL.txt") == everything,
        "5 and 8: notified once each": read("sent.txt").split() == ["START", "END-4417"],
        "6 word": "Word: marigold" in read("report/HEAD.md"),
        "later: nodes": content("report/NODES.txt") == nodes,
        "rule: no percentages": not any("%" in path.read_text() for path in WORK.glob("report/*")),
        "rule: logs stay": all(len(log_lines(day)) == len(DAYS[day]) for day in DAYS),
        "rule: nothing elsewhere": {path.name for path in WORK.iterdir()}
        <= {"logs", "report", "tools", "runbook.md", "sent.txt"},
    }
    for day in DAYS:
        lines = read(f"report/{day}.md").strip().splitlines()
        wanted = [f"# {day}", *(f"- {words[4]} on {words[2]}" for words in log_lines(day))]
        found[f"2 {day}"] = [line for line in lines if line and not line.startswith("--")] == wanted
        found[f"2 {day}, last line"] = lines[-1:] == ["-- checked"]
    return found


def main() -> None:
    """Print the checks."""
    results = checks()
    for name, passed in results.items():
        sys.stdout.write(f"{'ok' if passed else 'FAILED'}: {name}\n")
    sys.stdout.write(f"{sum(results.values())} of {len(results)}\n")


if __name__ == "__main__":
    main()
