"""Old paths of modules work for one version: they warn and say where their names are now."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from midfold._moved import GONE, MOVED

OLD = """
from midfold.eval import BUILT_IN, Compactor, Evaluation, evaluate
from midfold.wire.markers import mark
from midfold.replay import BUILT_IN, Policy, Replay, load_policy, replay
from midfold.trajectory import Compressed, Finished, Job, Settings, compress_record, run
from midfold.testing.server import served
from midfold.testing.turns import turn
import midfold.lab
assert (evaluate, replay, run) == (midfold.lab.evaluate, midfold.lab.replay, midfold.lab.compress_trajectories)
assert Policy is midfold.lab.ReplayPolicy and BUILT_IN is midfold.lab.POLICIES and Settings().target_tokens
"""


def python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=False)


def test_old_paths_give_the_names_of_the_new_place_and_warn_where_they_are_imported() -> None:
    done = python(OLD, "-W", "always::DeprecationWarning")
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if "DeprecationWarning" in line]
    assert len(warnings) == 6
    assert warnings[0].startswith("<string>:2: DeprecationWarning: midfold.eval is now midfold.lab")
    assert "midfold.wire.markers is now midfold" in warnings[1]
    assert "run is called compress_trajectories" in warnings[3]


@pytest.mark.parametrize(
    "old",
    [
        "midfold.eval",
        "midfold.wire.markers",
        "midfold.engines",
        "midfold.core.digest",
        "midfold.replay",
        "midfold.trajectory",
        "midfold.turns",
    ],
)
def test_where_such_warnings_are_errors_the_import_fails_with_the_new_place(old: str) -> None:
    done = python(f"import {old}", "-W", "error::DeprecationWarning")
    assert done.returncode == 1
    assert f"{old} is now {MOVED[old]}" in done.stderr or f"is now {MOVED[old]}" in done.stderr


def test_no_old_path_is_loaded_unasked_and_a_wrong_one_is_still_an_error() -> None:
    done = python("import midfold, midfold.lab, sys; print(*sys.modules)", "-W", "error::DeprecationWarning")
    assert done.returncode == 0, done.stderr
    assert not {"midfold.eval", "midfold.replay", "midfold.trajectory", "midfold.lab.retention"} & set(
        done.stdout.split()
    )
    assert "No module named 'midfold.evaluation'" in python("import midfold.evaluation").stderr
    assert "cannot import name 'no_such'" in python("from midfold.eval import no_such").stderr


def test_a_name_that_changed_in_a_room_that_stayed_warns_too() -> None:
    code = "from midfold.agent.tools import Tool; import midfold.agent; assert Tool is midfold.agent.AgentTool"
    done = python(code, "-W", "always::DeprecationWarning")
    assert done.returncode == 0, done.stderr
    assert "is now midfold.agent.AgentTool" in done.stderr


@pytest.mark.parametrize("old", GONE)
def test_a_module_that_is_gone_says_what_to_use(old: str) -> None:
    done = python(f"import {old}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {old} is gone: {GONE[old]}"
    place, _, name = GONE[old].split()[0].rpartition(".")
    assert hasattr(import_module(place), name)
