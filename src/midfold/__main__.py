"""`python -m midfold`."""

from midfold.cli.main import run

run()
