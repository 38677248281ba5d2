"""`python -m midfold.adapters.hermes install DIR`."""

from __future__ import annotations

import sys

from midfold.adapters.hermes import install

USAGE = "usage: python -m midfold.adapters.hermes install DIR\n"


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] != "install":
        sys.stderr.write(USAGE)
        return 2
    try:
        folder = install(arguments[1])
    except OSError as error:
        sys.stderr.write(f"could not write the plugin to {arguments[1]}: {error.strerror}\n")
        return 1
    sys.stdout.write(f"{folder}\nNow set in Hermes' config.yaml:\n\ncontext:\n  engine: midfold\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
