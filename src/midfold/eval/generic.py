"""Facts that every project has, which a compaction need not keep because a model knows them.

Rules of this file:
1. A fact is generic if two or more *other* projects have it, if it is a name of the Python standard library, or if it
   is on the short lists below.
2. What other projects have is counted over the conversations that are being evaluated.
"""

from __future__ import annotations

import builtins
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

OTHER_PROJECTS = 2

FLAGS: Final = frozenset(
    """
    --all --amend --author --base --body --branch --build --cached --check --color --config --count --debug --delete
    --depth --dev --diff --dry-run --exclude --exit-code --fix --force --format --global --grep --hard --head --help
    --html --ignore --include --init --input --install --json --limit --line-number --list --local --message --mode
    --name --name-only --name-status --no-cache --no-color --no-edit --no-pager --no-verify --numstat --oneline
    --only --output --parents --path --port --porcelain --prefix --pretty --progress --prune --quiet --raw --recursive
    --remote --repo --reporter --reverse --run --save --save-dev --set --short --show-toplevel --silent --since --soft
    --sort --source --staged --stat --stdin --strict --tags --target --test --tests --timeout --title --type --update
    --upgrade --user --verbose --version --watch --workspace --write --yes
    """.split()
)
NAMES: Final = frozenset(
    """
    GitHub GitLab JavaScript TypeScript OpenAI PostgreSQL MySQL SQLite MongoDB GraphQL WebSocket YouTube LinkedIn macOS
    iOS DevOps README.md package.json tsconfig.json pyproject.toml setup.py setup.cfg Makefile.am go.mod go.sum
    CLAUDE.md AGENTS.md LICENSE.md CHANGELOG.md index.html index.ts index.js main.go main.py conftest.py requirements.txt
    package-lock.json pnpm-lock.yaml yarn.lock .gitignore Cargo.toml __init__.py __init__ __main__ __name__ __file__
    node_modules localhost /dev/null /tmp /bin/bash /usr/bin /bin/sh ./... 1000 1024 2048 4096 8080 3000 5000 8000 10000
    Bash Edit Grep Read Write TodoWrite file_path old_string new_string exec_command apply_patch todoread exit_code
    return_code tool_use tool_result tool_calls
    """.split()
)
_FIRST_OF_COMPOUNDS: Final = frozenset(
    "all anti auto best co cross end ex first follow full half hard high in inter ill last left long low multi never"
    " non off on one out over part post pre read real right second self semi short side single so sub third three to"
    " top two under up user well well-known worst zero".split()
)
_LAST_OF_COMPOUNDS: Final = frozenset(
    "based by case date effort end free friendly from in kind known level line like made off only on one out over party"
    " point ready related safe side specific style the time to type up ups wide wise word".split()
)
_LIBRARIES: Final = frozenset(
    """
    atomic bufio bytes bytes cmp context embed errors exec filepath flag fmt fs http httptest io ioutil json log maps
    math net os path rand reflect regexp runtime signal slices slog sort sql strconv strings sync syscall template
    testing time unicode url utf8 assert require
    Array Buffer Date Error JSON Map Math Number Object Promise RegExp Set String Symbol console document expect global
    globalThis import.meta jest module process vi window
    """.split()
)
"""Go packages, JavaScript globals, and what every test imports."""
_METHODS: Final = frozenset(
    name for kind in (str, bytes, list, dict, set, int, float) for name in dir(kind) if not name.startswith("_")
) | frozenset("Error Errorf Fatal Fatalf Helper Log Logf Parallel Run Skip TempDir Cleanup length push map filter".split())
_FILE_ENDINGS: Final = frozenset("go js json md py rs sh sql toml ts tsx txt yaml yml".split())
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
    if rest[-1] in _FILE_ENDINGS:
        return False
    return first in _STANDARD or first in _LIBRARIES or (len(rest) == 1 and rest[0] in _METHODS)


def _is_compound(fact: str) -> bool:
    """Hyphenated English, such as `read-only` and `long-running`, is written like a kebab name."""
    parts = fact.lower().split("-")
    if not all(map(str.isalpha, parts)):
        return False
    last = parts[-1]
    return parts[0] in _FIRST_OF_COMPOUNDS or last in _LAST_OF_COMPOUNDS or last.endswith(("ed", "ing", "able", "ly"))
