"""Lists of words: what is known to everybody, and what says nothing about a fact."""

from __future__ import annotations

from typing import Final


def _listed(text: str) -> frozenset[str]:
    return frozenset(text.split())


FLAGS: Final = _listed(
    """
    --all --amend --author --base --body --branch --build --cached --check --color --config --count --debug --delete
    --depth --dev --diff --dry-run --exclude --exit-code --fix --force --format --global --grep --hard --head --help
    --html --ignore --include --init --input --install --json --limit --line-number --list --local --message --mode
    --name --name-only --name-status --no-cache --no-color --no-edit --no-pager --no-verify --numstat --oneline
    --only --output --parents --path --port --porcelain --prefix --pretty --progress --prune --quiet --raw
    --recursive --remote --repo --reporter --reverse --run --save --save-dev --set --short --show-toplevel --silent
    --since --soft --sort --source --staged --stat --stdin --strict --tags --target --test --tests --timeout --title
    --type --update --upgrade --user --verbose --version --watch --workspace --write --yes
    """
)
"""Flags that every tool has."""
NAMES: Final = _listed(
    """
    GitHub GitLab JavaScript TypeScript OpenAI PostgreSQL MySQL SQLite MongoDB GraphQL WebSocket YouTube LinkedIn
    macOS iOS DevOps README.md package.json tsconfig.json pyproject.toml setup.py setup.cfg go.mod go.sum CLAUDE.md
    AGENTS.md LICENSE.md CHANGELOG.md index.html index.ts index.js main.go main.py conftest.py requirements.txt
    package-lock.json pnpm-lock.yaml yarn.lock .gitignore Cargo.toml __init__.py __init__ __main__ __name__ __file__
    node_modules /dev/null /tmp /bin/bash /usr/bin /bin/sh 1000 1024 2048 4096 8080 3000 5000 8000 10000 file_path
    old_string new_string exec_command apply_patch exit_code return_code tool_use tool_result tool_calls
    """
)
"""Names that every project has."""
FIRST_OF_COMPOUNDS: Final = _listed(
    """
    all anti auto best co cross end ex first follow full half hard high in inter ill last left long low multi never
    non off on one out over part post pre read real right second self semi short side single so sub third three to
    top two under up user well worst zero
    """
)
"""Hyphenated English begins so: `read-only`."""
LAST_OF_COMPOUNDS: Final = _listed(
    """
    based by case date effort end free friendly from in kind known level line like made off only on one out over
    party point ready related safe side specific style the time to type up ups wide wise word
    """
)
"""Hyphenated English ends so: `line-by-line`."""
LIBRARIES: Final = _listed(
    """
    atomic bufio bytes cmp context embed errors exec filepath flag fmt fs http httptest io ioutil json log maps math
    net os path rand reflect regexp runtime signal slices slog sort sql strconv strings sync syscall template
    testing time unicode url utf8 assert require Array Buffer Date Error JSON Map Math Number Object Promise RegExp
    Set String Symbol console document expect global globalThis jest module process vi window
    """
)
"""Go packages, JavaScript globals, and what every test imports."""
FILE_ENDINGS: Final = _listed(
    """
    go js json md py rs sh sql toml ts tsx txt yaml yml
    """
)
"""A dotted name that ends so is a file of the project."""
FUNCTION_WORDS: Final = _listed(
    """
    the and for are but not you all any can had her was one our out has him his how its may new now old see two way
    who did get let put say she too use that with have this will your from they know want been good much some time
    very when come here just like long make many more only over such take than them well were what which their there
    these those then also into about after again before because being between both could does doing down during each
    few further having itself most other should would under until where while whom why through same own off once nor
    yourself need yes okay sure def class return import else elif pass none true false self null undefined const var
    function func type struct interface package public private static void string int bool float char async await
    export default try catch except finally raise throw throws break continue switch case end begin fi do done echo
    nil err error ctx args kwargs str list dict set tuple map append range len print println printf http https www
    com org file line
    """
)
"""Function words of English, keywords of programming languages."""
METHODS: Final = _listed(
    """
    Error Errorf Fatal Fatalf Helper Log Logf Parallel Run Skip TempDir Cleanup length push map filter
    """
)
"""Methods that every Go test and JavaScript array has."""
