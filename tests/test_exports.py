"""Public API: its names, that it exposes only public types, and that the documentation uses nothing else."""

from __future__ import annotations

import ast
import builtins
import collections.abc
import inspect
import re
import sys
import typing
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

import midfold
from midfold import errors, types
from midfold import transcript as wire

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*.md")), ROOT / "README.md"]
ADAPTERS = ("google_adk", "hermes", "langchain", "litellm", "openai_agents", "pydantic_ai", "strands")
ROOMS = (
    *(f"adapters.{name}" for name in ADAPTERS),
    "agent",
    "cache",
    "config",
    "errors",
    "gateway",
    "lab",
    "pages",
    "testing",
    "types",
)
"""Packages whose names are importable from the package itself."""

INNER = {
    "Session.__init__ Sessions.__init__": "`midfold.open` and `Sessions.session` make them, over a store of ours",
    "View.__init__": "`Session.view` makes it, of rows of the store",
    "Dialect.read Dialect.read_system Message.over": "`midfold.read` calls them; the three dialects are ours",
    "Health.observe Health.seen": "a conversation calls it with hashes of the request that it has sent",
    "Meter.count Meter.fixed_size Meter.request Setup.fixed_size": "the parts of a request that is no document yet",
    "InMemorySource.messages InMemorySource.places InMemorySource.shorten": "`midfold.recall` calls them",
    "Recall.__init__ Recall.hits": "`midfold.recall` calls them",
    "ModelSummarizer.send": "what a summarizer and its HTTP client say to each other",
    "PreparedFold.now PreparedFold.tally": "what `swap` compares; a user hands the fold back as it is",
    "Sessions.given": "what the gateway and the adapters hand over, already measured",
    "Setup.forecast Setup.prices Setup.schedule": "follow from the settings; `Sessions` and hosts ask for them",
}
"""Names used only by midfold's own packages, with the reason why users do not need them."""


def test_every_name_is_there_once_and_leads_somewhere() -> None:
    assert len(set(midfold.__all__)) == len(midfold.__all__)
    assert dir(midfold) == sorted(midfold.__all__)
    for name in midfold.__all__:
        assert getattr(midfold, name) is not None


def test_the_top_level_stays_small() -> None:
    assert len(midfold.__all__) <= 90
    assert not set(midfold.__all__) & set(types.__all__)
    assert midfold.types is types and midfold.errors is errors


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    assert not hasattr(midfold, "no_such_name")


def test_the_wire_room_exports_exactly_these_names() -> None:
    assert wire.__all__ == ["Document", "read", "read_many", "sniff", "write"]


def test_every_error_is_in_the_drawn_tree_with_a_message_of_its_own() -> None:
    assert errors.__doc__ is not None
    for name, item in vars(errors).items():
        if inspect.isclass(item) and issubclass(item, Exception):
            assert issubclass(item, errors.MidfoldError)
            assert name in errors.__doc__
            assert isinstance(item.status, int)
    assert str(errors.TranscriptError()) == "This is not a conversation midfold can read."


def functions(kind: type) -> Iterator[tuple[str, FunctionType]]:
    """Yield the public functions of a class: methods, properties and constructors."""
    for name, value in vars(kind).items():
        found = value.fget if isinstance(value, property) else value
        found = found.func if isinstance(found, cached_property) else inspect.unwrap(getattr(found, "__func__", found))
        if inspect.isfunction(found) and (name == "__init__" or not name.startswith("_")):
            yield name, found


def shown(value: Any) -> Iterator[tuple[str, str, ModuleType]]:
    """Yield the location, text and module of each annotation of a public value."""
    if inspect.isfunction(value):
        yield from ((value.__name__, text, sys.modules[value.__module__]) for text in value.__annotations__.values())
    if not inspect.isclass(value):
        return
    for kind in value.__mro__:
        if not kind.__module__.startswith("midfold"):
            continue
        module = sys.modules[kind.__module__]
        for name, text in vars(kind).get("__annotations__", {}).items():
            if not name.startswith("_"):
                yield f"{kind.__name__}.{name}", text, module
        for name, function in functions(kind):
            yield from ((f"{kind.__name__}.{name}", text, module) for text in function.__annotations__.values())


def names(annotation: ast.AST) -> Iterator[str]:
    """Yield the names in an annotation, except in Literal values and Annotated metadata."""
    outer = ast.unparse(annotation.value) if isinstance(annotation, ast.Subscript) else ""
    if isinstance(annotation, ast.Name):
        yield annotation.id
    elif isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        yield from names(ast.parse(annotation.value, mode="eval").body)
    elif outer == "Annotated":
        assert isinstance(annotation, ast.Subscript) and isinstance(annotation.slice, ast.Tuple)
        yield from names(annotation.slice.elts[0])
    elif outer != "Literal":
        for child in ast.iter_child_nodes(annotation):
            yield from names(child)


@cache
def imported(module: ModuleType) -> dict[str, tuple[str, str]]:
    """Return the names a module imports from midfold, including those under TYPE_CHECKING."""
    tree = ast.parse(inspect.getsource(module))
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {
        alias.asname or alias.name: (str(node.module), alias.name)
        for node in froms
        for alias in node.names
        if str(node.module).startswith("midfold")
    }


def meant(name: str, module: ModuleType) -> Any:
    """Resolve a name in an annotation; None if it is not midfold's."""
    home, original = imported(module).get(name, ("", name))
    if home:
        return getattr(__import__(home, fromlist=[original]), original)
    value = vars(module).get(name)
    if hasattr(builtins, name) or hasattr(typing, name) or hasattr(collections.abc, name) or inspect.ismodule(value):
        return None
    if inspect.isclass(value) and not value.__module__.startswith("midfold"):
        return None
    return value


def classes(kind: Any) -> Iterator[type]:
    """Yield midfold's classes in a value: the class itself, or those in an alias."""
    if inspect.isclass(kind) and not typing.get_args(kind):
        yield from (kind,) if kind.__module__.startswith("midfold") else ()
    else:
        for part in kind if isinstance(kind, list) else typing.get_args(kind):
            yield from classes(part)


def test_every_type_in_a_public_signature_is_public() -> None:
    public = [getattr(midfold, name) for name in midfold.__all__]
    public += [getattr(types, name) for name in types.__all__] + [vars(errors)[name] for name in vars(errors)]
    missing: dict[str, set[str]] = {}
    for value in public:
        for where, text, module in shown(value):
            for name in names(ast.parse(str(text), mode="eval").body):
                for kind in classes(meant(name, module)):
                    if not kind.__name__.startswith("_") and not any(kind is known for known in public):
                        missing.setdefault(where, set()).add(f"{kind.__module__}.{kind.__name__}")
    inner = " ".join(INNER).split()
    assert {where: kinds for where, kinds in missing.items() if where not in inner} == {}
    assert sorted(set(inner) - set(missing)) == [], "these need no exemption any more"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_teach_the_public_face_and_the_rooms_alone(page: Path) -> None:
    taught = re.findall(r"^\s*(?:from|import) midfold\.([\w.]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert [path for path in taught if path not in ROOMS and not path.startswith("testing.")] == []
