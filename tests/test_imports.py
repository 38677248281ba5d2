"""Importing midfold is fast, prints nothing, and imports only msgspec."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

MOST_EXTRA_SECONDS = 0.080
RUNS = 7
LOADED = """
import sys
before = set(sys.modules)
import midfold
midfold.read, midfold.write, midfold.Meter, midfold.Message, midfold.MidfoldError
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(name for name in new if name not in sys.stdlib_module_names))
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)


def test_reading_and_writing_loads_msgspec_and_nothing_else_from_outside_the_standard_library() -> None:
    # msgspec imports typing_extensions if it is installed.
    assert set(python("-c", LOADED).stdout.split()) - {"typing_extensions"} == {"midfold", "msgspec"}


def test_import_takes_at_most_80_ms_more_than_a_bare_interpreter() -> None:
    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    def cost(code: str) -> float:
        """Return the processor time, which is less affected by other load than wall-clock time."""
        start = spent()
        python("-c", code)
        return spent() - start

    pairs = [(cost("pass"), cost("import midfold")) for _ in range(RUNS)]
    assert min(full for _, full in pairs) - min(bare for bare, _ in pairs) <= MOST_EXTRA_SECONDS


def test_import_prints_nothing_reads_no_environment_and_writes_no_file(tmp_path: Path) -> None:
    code = (
        "import os\n"
        "class Closed(dict):\n"
        "    def __getitem__(self, key): raise RuntimeError(key)\n"
        "    get = __getitem__\n"
        "import msgspec, importlib.metadata\n"
        "os.environ = Closed()\n"
        "import midfold\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert list(tmp_path.iterdir()) == []
