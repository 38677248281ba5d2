"""Run all benchmarks, or those named.

python -m bench [wire] [tokens] [redact] [compact] [store] [recall] [keys] [gateway] [trajectories] [longtask]
                [frameworks] [user_words]
"""

from __future__ import annotations

import importlib
import sys

BENCHMARKS = (
    "wire",
    "tokens",
    "redact",
    "compact",
    "store",
    "recall",
    "keys",
    "gateway",
    "trajectories",
    "longtask",
    "frameworks",
    "user_words",
)


def main() -> None:
    names = sys.argv[1:] or BENCHMARKS
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"unknown benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    for name in names:
        module = importlib.import_module(f"bench.{name}")
        title = (module.__doc__ or name).strip().splitlines()[0]
        print(f"\n== {name}: {title}")
        module.main()


if __name__ == "__main__":
    main()
