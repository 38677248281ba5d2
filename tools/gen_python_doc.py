"""Write src/midfold/__init__.pyi and the tables of docs/reference/python.md from the table of public names.

.venv/bin/python tools/gen_python_doc.py          write both files
.venv/bin/python tools/gen_python_doc.py --check  exit 1 when one is out of date, or a name has no line or no
example

In the page, a line `<!-- names: compact Compaction -->` is followed by the table of these names. Each name is used
in a
Python block of the same section; the tests run those.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import midfold
from midfold import errors, types

ROOT = Path(__file__).resolve().parent.parent
STUB = ROOT / "src" / "midfold" / "__init__.pyi"
PAGE = ROOT / "docs" / "reference" / "python.md"
TABLE = re.compile(r"<!-- names: ([^>]*) -->\n+(?:\|.*\n)*\n*")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LONGEST_LINE = 200


def is_error(kind: object) -> bool:
    """Return whether a value of `midfold.errors` is one of its classes."""
    return getattr(kind, "__module__", "") == errors.__name__


PUBLIC = {
    **{name: f"types.{name}" for name in types.__all__},
    **{
        name: f"errors.{name}"
        for name, kind in vars(errors).items()
        if getattr(kind, "__module__", "") == errors.__name__
    },
    **{name: name for name in midfold.__all__},
}
"""Public name -> its path below `midfold`."""


def value_of(name: str) -> object:
    """Return the public value of a name."""
    return attrgetter(PUBLIC[name])(midfold)


def stub() -> str:
    """Return the public names as type checkers read them."""
    lines = ["# Made by tools/gen_python_doc.py from the table in __init__.py. Do not edit."]
    for module, names in vars(midfold)["_MODULES"].items():
        pairs = [(name.rpartition("=")[2], name.partition("=")[0]) for name in names.split()]
        lines.append(f"from midfold.{module} import {', '.join(f'{there} as {here}' for there, here in pairs)}")
    lines.append("from midfold import config as config, errors as errors, types as types")
    listed = "".join(f'    "{name}",\n' for name in sorted(midfold.__all__))
    return "\n".join([*lines, "", "__version__: str", "", f"__all__ = [\n{listed}]", ""])


def updated(page: str) -> str:
    """Return the page with new tables."""
    return TABLE.sub(lambda found: "".join(_table(found[1].split())), page)


def _table(names: list[str]) -> Iterator[str]:
    yield f"<!-- names: {' '.join(names)} -->\n\n| name | what it is |\n|---|---|\n"
    for name in names:
        told = _line(name).replace("|", "\\|")
        yield f"| `{_signature(name)}` | {told} |\n"
    yield "\n"


def _signature(name: str) -> str:
    value = value_of(name)
    if not inspect.isfunction(value):
        return PUBLIC[name]
    pieces: list[str] = []
    for parameter in inspect.signature(value).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in pieces:
            pieces.append("*")
        pieces.append(parameter.name)
    return f"{PUBLIC[name]}({', '.join(pieces)})"


def _line(name: str) -> str:
    """Return the first sentence of a name's docstring, or the definition of an alias."""
    value = value_of(name)
    if inspect.isclass(value) or inspect.isfunction(value):
        told = inspect.getdoc(value) or ""
        sentence = re.split(r"(?<=[^.][.!?])\s|\n\n", told, maxsplit=1)[0]
        return sentence.replace("\n", " ")[:LONGEST_LINE]
    if isinstance(value, str):
        return "The version of the package."
    return _alias(name)


def _alias(name: str) -> str:
    """Return an alias as its module defines it."""
    module, attribute = vars(midfold)["_HOMES"].get(name, ("types", name))
    tree = ast.parse(inspect.getsource(import_module(f"midfold.{module}")))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and attribute in [alias.name for alias in node.names]:
            tree = ast.parse(inspect.getsource(import_module(str(node.module))))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == attribute:
            told = ast.unparse(node.value)
            return f"`{told}`" if told.startswith("Literal") else f"`{told}`".replace("'", "")
    raise SystemExit(f"{name} is defined nowhere")


def problems(page: str) -> Iterator[str]:
    """Yield names that have no line or no example, or that are listed twice."""
    counted = Counter(name for names in TABLE.findall(page) for name in names.split())
    yield from (f"{name} is missing" for name in PUBLIC if name not in counted)
    yield from (f"{name} is not public" for name in counted if name not in PUBLIC)
    yield from (f"{name} stands there {count} times" for name, count in counted.items() if count > 1)
    for section in page.split("\n## "):
        examples = "\n".join(BLOCK.findall(section))
        for name in " ".join(TABLE.findall(section)).split():
            if not re.search(rf"\b{name}\b", examples):
                yield f"{name} has no example"
    yield from (f"{name} has no line" for name in PUBLIC if not _line(name))


def main() -> None:
    old = PAGE.read_text(encoding="utf-8")
    new = updated(old)
    if found := list(problems(new)):
        sys.exit("\n".join([f"{PAGE}:", *found]))
    if "--check" in sys.argv[1:]:
        current = new == old and STUB.exists() and STUB.read_text(encoding="utf-8") == stub()
        sys.exit(0 if current else f"{PAGE} or {STUB} is out of date: run tools/gen_python_doc.py")
    PAGE.write_text(new, encoding="utf-8")
    STUB.write_text(stub(), encoding="utf-8")


if __name__ == "__main__":
    main()
