"""The `midfold` command, and `python -m midfold`; imports nothing before interrupts are handled."""

import sys


def run() -> None:
    """Run the command line."""
    try:
        from midfold.cli import signals

        signals.hear()
        from midfold.cli.main import run_command

        run_command()
    except KeyboardInterrupt:
        end_interrupted()
    except Exception:
        # An interrupt during class creation may surface as another exception of a library, or as a RuntimeError.
        if not signals.is_interrupted():
            raise
        end_interrupted()


def end_interrupted() -> None:
    """Print one line and exit; a second interrupt ends the process at once."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stderr.write("midfold: interrupted\n")
    sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    run()
