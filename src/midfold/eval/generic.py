"""Facts that every project has, which a compaction need not keep because a model knows them.

Rules of this file:
1. A fact is generic if two or more *other* projects have it, if it is a name of the Python standard library, or if it
   is on the short lists of lists.py.
2. What other projects have is counted over the conversations that are being evaluated.
"""

from __future__ import annotations

import builtins
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from midfold.eval.lists import FILE_ENDINGS, FIRST_OF_COMPOUNDS, FLAGS, LAST_OF_COMPOUNDS, LIBRARIES, METHODS, NAMES

OTHER_PROJECTS = 2

_METHODS: Final = METHODS | frozenset(
    name for kind in (str, bytes, list, dict, set, int, float) for name in dir(kind) if not name.startswith("_")
)
_STANDARD: Final = frozenset(sys.stdlib_module_names) | frozenset(dir(builtins))


def shared_facts(projects: Mapping[str, Iterable[str]]) -> frozenset[str]:
    """Facts that are generic in every project that has them: two other projects have them too."""
    count = Counter(fact for facts in projects.values() for fact in set(facts))
    return frozenset(fact for fact, seen in count.items() if seen > OTHER_PROJECTS)


def is_common(fact: str) -> bool:
    """Whether a fact is generic whatever project it stands in."""
    if fact in FLAGS or fact in NAMES or fact in _STANDARD:
        return True
    if fact.startswith("--"):
        return False
    if "/" not in fact and "." in fact:
        return _is_library(*fact.split("."))
    return "-" in fact and _is_compound(fact)


def _is_library(first: str, *rest: str) -> bool:
    """`os.path.join`, `fmt.Errorf`, `line.strip`; a file such as `time.py` is the project's own."""
    if rest[-1] in FILE_ENDINGS:
        return False
    return first in _STANDARD or first in LIBRARIES or (len(rest) == 1 and rest[0] in _METHODS)


def _is_compound(fact: str) -> bool:
    """Hyphenated English, such as `read-only` and `long-running`, is written like a kebab name."""
    parts = fact.lower().split("-")
    if not all(map(str.isalpha, parts)):
        return False
    last = parts[-1]
    return parts[0] in FIRST_OF_COMPOUNDS or last in LAST_OF_COMPOUNDS or last.endswith(("ed", "ing", "able", "ly"))
