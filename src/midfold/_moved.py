"""Modules that have moved: their old paths work for one version, with a warning that names the new place.

`MOVED` has a row for each old path; one with names that changed as well says so in `RENAMED`. What is in `GONE` has no
new place: the error says what to use. Python asks this finder last, and only for modules that nobody else has found:
what has not moved costs nothing, and no old path is imported before somebody asks for it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # what type checkers read as true, without the cost of importing typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

MOVED = {
    "midfold.cache.break_even": "midfold",
    "midfold.core.budget": "midfold",
    "midfold.core.compaction": "midfold",
    "midfold.core.digest": "midfold",
    "midfold.core.laws": "midfold.transcript.laws",
    "midfold.core.message": "midfold",
    "midfold.core.redact": "midfold",
    "midfold.dashboard": "midfold.pages",
    "midfold.engines": "midfold",
    "midfold.engines.assemble": "midfold.engine.assemble",
    "midfold.engines.job": "midfold.engine.job",
    "midfold.eval": "midfold.lab",
    "midfold.replay": "midfold.lab",
    "midfold.summarize": "midfold",
    "midfold.summarize.client": "midfold",
    "midfold.summarize.endpoint": "midfold",
    "midfold.testing.server": "midfold.testing.doubles",
    "midfold.testing.turns": "midfold.testing.answers",
    "midfold.trajectory": "midfold.lab",
    "midfold.turns": "midfold.store.usage",
    "midfold.wire.markers": "midfold",
}
GONE = {
    "midfold.testing.rules_provider": "midfold.testing.ScriptedProvider answers as a test wants",
    "midfold.testing.prefix_cache": "midfold.lab.replay prices what a provider's cache does",
}
"""What only tests of midfold needed, and what to use instead."""
RENAMED = {
    "midfold.eval": {"BUILT_IN": "METHODS"},
    "midfold.replay": {"BUILT_IN": "POLICIES", "Policy": "ReplayPolicy"},
    "midfold.trajectory": {
        "Compressed": "CompressedRecord",
        "Finished": "TrajectoryAccount",
        "Job": "TrajectoryJob",
        "Settings": "TrajectorySettings",
        "run": "compress_trajectories",
    },
    "midfold.turns": {"Turn": "ReportedTurn"},
}


class MovedModules:
    """The finder and the loader of old paths."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in GONE:
            raise ModuleNotFoundError(f"{name} is gone: {GONE[name]}", name=name)
        if not name.startswith("midfold.") or not any(f"{old}.".startswith(f"{name}.") for old in MOVED):
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, MovedModules, is_package=True)  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        return None

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """A module whose names are looked up in the new place; a package that only leads to moved ones has none."""
        old = module.__name__
        if old not in MOVED:
            return
        import warnings
        from importlib import import_module

        new, renamed = MOVED[old], RENAMED.get(old, {})
        told = "".join(f"; {before} is called {now}" for before, now in renamed.items())
        warnings.warn(f"{old} is now {new}{told}", DeprecationWarning, stacklevel=2)

        def find(name: str) -> object:
            return getattr(import_module(new), renamed.get(name, name))

        module.__getattr__ = find  # type: ignore[method-assign]


def install() -> None:
    """Asks this finder after all others."""
    sys.meta_path.append(MovedModules)
