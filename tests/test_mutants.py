"""Every mutation in tests/mutants.toml applies to the current code and names existing tests."""

from __future__ import annotations

import ast
import re
from collections import Counter

import pytest

from support.data import ROOT
from tools.mutants import Mutant, load_mutants, mutate

MUTANTS = load_mutants()
FEWEST = 60


def test_there_are_enough_of_them_and_each_has_a_name_of_its_own() -> None:
    assert len(MUTANTS) >= FEWEST
    assert [name for name, count in Counter(mutant.id for mutant in MUTANTS).items() if count > 1] == []
    assert [mutant.id for mutant in MUTANTS if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", mutant.id)] == []
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_a_mutation_applies_once_changes_the_code_and_leaves_it_python(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    mutated = mutate(text, mutant)
    assert mutated != text
    if mutant.file.endswith(".py"):
        assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(text)), "only comments or spaces change"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_a_mutation_names_tests_that_exist(mutant: Mutant) -> None:
    assert mutant.tests
    for test in mutant.tests:
        path, _, name = test.partition("::")
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {name}\(", source, re.M), f"there is no {test}"


def test_a_mutation_whose_text_is_gone_is_an_error() -> None:
    gone = Mutant("gone", "a.py", "not there", "x", ())
    with pytest.raises(ValueError, match=r"gone: its old text occurs 0 times in a\.py, not once"):
        mutate("text", gone)
    with pytest.raises(ValueError, match="2 times"):
        mutate("not there, not there", gone)
