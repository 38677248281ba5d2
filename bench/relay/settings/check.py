"""Check the result of the relay task `settings`; prints one line per check and `N of M` last."""

from __future__ import annotations

import sys
from pathlib import Path

WORK = Path(sys.argv[1])


def read(name: str) -> str:
    """Return a file of the result; empty if it does not exist."""
    path = WORK / name
    return path.read_text(encoding="utf-8") if path.is_file() else ""


POOLS = {
    "billing": 30,
    "search": 44,
    "mailer": 45,
    "gateway": 25,
    "reports": 37,
    "auth": 12,
    "exports": 39,
    "catalog": 25,
    "audit": 25,
    "webhooks": 41,
}
SUMS = {
    "billing": "9118bb16",
    "search": "ed84e91e",
    "mailer": "8c0d0033",
    "gateway": "138efef9",
    "reports": "3a0ea6e1",
    "auth": "2207c6c0",
    "exports": "1f80a4e8",
    "catalog": "bbc81f54",
    "audit": "b31110c8",
    "webhooks": "f8b44bc2",
}
DOUBLED = 78


def checks() -> dict[str, bool]:
    """Return the checks by name."""
    files = {name: read(f"services/{name}.ini") for name in SUMS}
    flags = [line for line in files["catalog"].splitlines() if line.startswith("flag_0")]
    report = read("REPORT.md")
    found = {
        "1 billing": "log_level = info" in files["billing"],
        "1 search": "log_level = info" in files["search"],
        "2 mailer": "max_retries = " in files["mailer"] and "\nretry = " not in files["mailer"],
        "3 gateway, corrected": "timeout = 55" in files["gateway"],
        "4 reports": "legacy_mode" not in files["reports"],
        "5 auth": "[auth]\naudit = on\n" in files["auth"],
        "6 exports": f"pool_size = {DOUBLED}" in files["exports"],
        "7 catalog": len(flags) == 10 and all(" = off" in line and "#" in line for line in flags),
        "8 audit": "[audit-log]" in files["audit"],
        "9 list": read("MIGRATED.txt").split() == sorted(SUMS),
        "later: webhooks": "log_level = warning" in files["webhooks"],
        "rule: vendor": read("vendor/defaults.ini") == "[defaults]\nlog_level = debug\nlegacy_mode = yes\n",
        "rule: no blank lines": all("\n\n" not in text for text in files.values()),
        "rule: no backups": not [*WORK.rglob("*.bak"), *WORK.rglob("*.orig"), *WORK.rglob("*~")],
    }
    found |= {f"10 {name}": f"{name}: {POOLS[name]}, {SUMS[name]}" in report for name in SUMS}
    found |= {f"rule: checksum of {name}": f"checksum = {SUMS[name]}" in files[name] for name in SUMS}
    return found


def main() -> None:
    """Print the checks."""
    results = checks()
    for name, passed in results.items():
        sys.stdout.write(f"{'ok' if passed else 'FAILED'}: {name}\n")
    sys.stdout.write(f"{sum(results.values())} of {len(results)}\n")


if __name__ == "__main__":
    main()
