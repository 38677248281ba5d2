"""The `midfold` command, and `python -m midfold`. Nothing is imported before an interrupt would be one line."""

import sys


def run() -> None:
    """The console entry point."""
    try:
        from midfold.cli import signals

        signals.hear()
        from midfold.cli.main import run_command

        run_command()
    except KeyboardInterrupt:
        end_interrupted()
    except Exception:
        # An interrupt that comes while a class is made may leave as an exception of its library, or as a RuntimeError.
        if not signals.is_interrupted():
            raise
        end_interrupted()


def end_interrupted() -> None:
    """One line, then the end; who cannot wait for that interrupts again and has it."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stderr.write("midfold: interrupted\n")
    sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    run()
