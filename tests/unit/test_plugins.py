"""Resolution of engine names: the order, the fallbacks, and modules that must never be imported."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from midfold.engines import Compressor, ContextEngine, Noop
from midfold.errors import PluginError
from midfold.plugins import (
    EngineOrFactory,
    default_config_dir,
    list_engines,
    name_problem,
    register_context_engine,
    resolve_engine,
)

ENGINE = """
from midfold.engines import Noop

class Mine(Noop):
    name = {name!r}
    origin = {origin!r}
"""
numbers = itertools.count()


class Here(Noop):
    name: ClassVar[str] = "here"


def make() -> ContextEngine:
    return Here()


def plugin(
    config_dir: Path, name: str, code: str = "", *, origin: str = "directory", last: str = "engine = Mine"
) -> Path:
    folder = config_dir / "plugins" / "context_engine" / name
    folder.mkdir(parents=True)
    text = code or ENGINE.format(name=name, origin=origin) + last + "\n"
    (folder / "__init__.py").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Create an installed package that offers engines by entry points; yield the name of its module."""
    module = f"installed_engines_{next(numbers)}"
    site = tmp_path / "site"
    info = site / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", encoding="utf-8")
    lines = [
        f"{name} = {module}{rest}"
        for name, rest in (("packed", ":Packed"), ("broken", ":nothing"), ("here", ":Here"), ("whole", ""))
    ]
    (info / "entry_points.txt").write_text("[midfold.context_engines]\n" + "\n".join(lines) + "\n", encoding="utf-8")
    code = "from midfold.engines import Noop\n"
    for name in ("packed", "here", "whole"):
        code += f"class {name.title()}(Noop):\n    name = {name!r}\n    origin = 'entry point'\n"
    (site / f"{module}.py").write_text(code + "engine = Whole\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    yield module
    sys.modules.pop(module, None)


@pytest.fixture
def registered() -> Iterator[None]:
    unregister = register_context_engine(Here())
    yield
    unregister()


def refused(name: str, config_dir: Path) -> str:
    """Return the notice of a name that fell back to the built-in engine."""
    resolved = resolve_engine(name, config_dir=config_dir)
    assert type(resolved.engine) is Compressor
    assert (resolved.source, resolved.fell_back) == ("built-in", True)
    (notice,) = resolved.notices
    assert notice.startswith("CONTEXT ENGINE NOT USED")
    assert "Available: compressor" in notice
    assert "noop" in notice
    return notice


# Order


def test_compressor_is_always_the_built_in_even_if_a_directory_has_its_name(tmp_path: Path) -> None:
    plugin(tmp_path, "compressor", "raise SystemExit('never imported')")
    resolved = resolve_engine("compressor", config_dir=tmp_path)
    assert type(resolved.engine) is Compressor
    assert (resolved.source, resolved.notices) == ("built-in", ())


def test_a_directory_wins_over_registered_engines_and_those_over_entry_points(
    tmp_path: Path, distribution: str, registered: None
) -> None:
    assert resolve_engine("packed", config_dir=tmp_path).source == "entry point packed"
    assert resolve_engine("here", config_dir=tmp_path).source == "registered"
    folder = plugin(tmp_path, "here")
    resolved = resolve_engine("here", config_dir=tmp_path)
    assert resolved.source == f"directory {folder}"
    assert vars(type(resolved.engine))["origin"] == "directory"


def test_an_entry_point_wins_when_nothing_is_registered_any_more(tmp_path: Path, distribution: str) -> None:
    unregister = register_context_engine(Here)
    assert resolve_engine("here", config_dir=tmp_path).source == "registered"
    unregister()
    unregister()
    assert resolve_engine("here", config_dir=tmp_path).source == "entry point here"


def test_an_entry_point_may_be_a_whole_module(tmp_path: Path, distribution: str) -> None:
    assert resolve_engine("whole", config_dir=tmp_path).engine.name == "whole"


def test_built_in_names_come_last_and_may_be_replaced(tmp_path: Path) -> None:
    assert type(resolve_engine("noop", config_dir=tmp_path).engine) is Noop
    plugin(tmp_path, "noop")
    assert resolve_engine("noop", config_dir=tmp_path).source.startswith("directory ")


def test_without_a_folder_the_one_of_the_configuration_file_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIDFOLD_CONFIG", str(tmp_path / "mine.yaml"))
    folder = plugin(tmp_path, "usual")
    assert resolve_engine("usual").source == f"directory {folder}"
    assert default_config_dir({"HOME": "/home/a"}) == Path("/home/a/.config/midfold")
    assert default_config_dir({"MIDFOLD_CONFIG": "/etc/midfold.yaml"}) == Path("/etc")
    assert default_config_dir({}) is None


# Registering


def test_the_newest_registration_wins_and_taking_it_back_brings_the_older_one(tmp_path: Path) -> None:
    first, second = Here(), Here()
    take_back_first, take_back_second = register_context_engine(first), register_context_engine(second)
    assert resolve_engine("here", config_dir=tmp_path).engine is second
    take_back_second()
    assert resolve_engine("here", config_dir=tmp_path).engine is first
    take_back_first()
    assert "no engine of that name" in refused("here", tmp_path)


def test_a_factory_needs_a_name_and_makes_a_new_engine_each_time(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="needs a name"):
        register_context_engine(make)
    unregister = register_context_engine(make, "here")
    engines = [resolve_engine("here", config_dir=tmp_path).engine for _ in range(2)]
    assert engines[0] is not engines[1]
    unregister()


BAD_NAMES = ["", ".", "..", ".hidden", "a/b", "/etc", "..\\x", "C:evil", "a\0b", "a b", "a\nb", "x" * 65, "\ud800"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_look_like_paths_are_refused_everywhere(tmp_path: Path, name: str) -> None:
    assert name_problem(name)
    with pytest.raises(PluginError):
        register_context_engine(make, name)
    assert refused(name, tmp_path).isprintable()


@pytest.mark.parametrize("name", ["lcm", "my-engine_2", "a.b", "编辑", "x" * 64])
def test_ordinary_names_are_fine(name: str) -> None:
    assert name_problem(name) == ""


@pytest.mark.parametrize(
    ("value", "name", "why"),
    [
        (Here(), "compressor", "is reserved for the built-in"),
        (Compressor(), None, "is reserved for the built-in"),
        (Here(), "other", "is named"),
        (3, "three", "expected a ContextEngine"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_registered(value: EngineOrFactory, name: str | None, why: str) -> None:
    with pytest.raises(PluginError, match=why):
        register_context_engine(value, name)


# Plugin directories


@pytest.mark.parametrize(
    "last",
    [
        "engine = Mine",
        "engine = Mine()",
        "def engine():\n    return Mine()",
        "def register(registrar):\n    registrar.register_context_engine(Mine())",
        "def register(registrar):\n    registrar.register_context_engine(lambda: Mine())",
        "def register(registrar):\n    registrar.register_context_engine(Mine, 'forms')",
    ],
)
def test_a_directory_may_give_an_instance_a_class_a_factory_or_register_one(tmp_path: Path, last: str) -> None:
    plugin(tmp_path, "forms", last=last)
    resolved = resolve_engine("forms", config_dir=tmp_path)
    assert resolved.notices == ()
    assert resolved.engine.name == "forms"
    assert list_names(tmp_path) == ["compressor", "forms", "noop"]


def list_names(config_dir: Path) -> list[str]:
    return [info.name for info in list_engines(config_dir)]


def test_a_plugin_is_a_package_with_relative_imports_under_a_private_name(tmp_path: Path) -> None:
    folder = plugin(
        tmp_path,
        "parted",
        "from .engine import Mine\n\ndef register(registrar):\n    registrar.register_context_engine(Mine)\n",
    )
    (folder / "engine.py").write_text(ENGINE.format(name="parted", origin="submodule"), encoding="utf-8")
    path = list(sys.path)
    engine = resolve_engine("parted", config_dir=tmp_path).engine
    module = type(engine).__module__
    assert module.startswith("_midfold_context_engine_")
    assert module.endswith(".engine")
    assert sys.path == path
    assert "parted" not in sys.modules


def test_two_plugins_of_one_name_in_two_folders_do_not_meet(tmp_path: Path) -> None:
    for place in ("a", "b"):
        plugin(tmp_path / place, "twin", origin=place)
    engines = [resolve_engine("twin", config_dir=tmp_path / place).engine for place in ("a", "b", "a")]
    assert [vars(type(engine))["origin"] for engine in engines] == ["a", "b", "a"]
    assert type(engines[0]) is type(engines[2])


def test_many_threads_import_a_plugin_once(tmp_path: Path) -> None:
    code = "import pathlib\nwith open(pathlib.Path(__file__).parent / 'log', 'a') as log:\n    log.write('x')\n"
    folder = plugin(tmp_path, "once", code + ENGINE.format(name="once", origin="") + "engine = Mine\n")
    threads = [
        threading.Thread(target=resolve_engine, args=("once",), kwargs={"config_dir": tmp_path}) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (folder / "log").read_text(encoding="utf-8") == "x"


BROKEN = {
    "does not import": ("import no_such_module_anywhere\n", "ModuleNotFoundError"),
    "does not parse": ("def (:\n", "SyntaxError"),
    "leaves": ("raise SystemExit(3)\n", "SystemExit: 3"),
    "has no engine": ("x = 1\n", "neither engine nor register"),
    "gives no engine": ("engine = object()\n", "expected a ContextEngine"),
    "makes no engine": ("def engine():\n    return 3\n", "expected a ContextEngine"),
    "raises in its factory": ("def engine():\n    raise OSError('out of ink')\n", "OSError: out of ink"),
    "needs arguments": ("def engine(x):\n    return x\n", "TypeError"),
    "is abstract": (
        "from midfold.engines import ContextEngine\nclass engine(ContextEngine):\n    name = 'bad'\n",
        "TypeError",
    ),
    "has another name": (ENGINE.format(name="other", origin="") + "engine = Mine\n", 'is named "other"'),
    "has no name": (
        "from midfold.engines import ContextEngine, Noop\nclass engine(Noop):\n    name = None\n",
        'is named "None"',
    ),
    "registers nothing": ("def register(registrar):\n    pass\n", "registers nothing"),
    "registers others": (
        ENGINE.format(name="other", origin="") + "def register(r):\n    r.register_context_engine(Mine)\n",
        '"other"',
    ),
    "registers the reserved name": (
        "def register(r):\n    r.register_context_engine(lambda: 1, 'compressor')\n",
        "is reserved for",
    ),
    "raises in register": ("def register(r):\n    r.no_such_method()\n", "AttributeError"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_falls_back_and_says_what_was_wrong(tmp_path: Path, case: str) -> None:
    code, told = BROKEN[case]
    plugin(tmp_path, "bad", code)
    assert told in refused("bad", tmp_path)


def test_a_broken_plugin_hides_what_is_registered_rather_than_being_replaced_silently(tmp_path: Path) -> None:
    plugin(tmp_path, "here", "raise ValueError\n")
    unregister = register_context_engine(Here)
    assert "ValueError" in refused("here", tmp_path)
    unregister()


def test_a_plugin_that_was_mended_is_loaded(tmp_path: Path) -> None:
    folder = plugin(tmp_path, "mended", "from . import part\nraise ValueError('not yet')\n")
    (folder / "part.py").write_text("x = 1\n", encoding="utf-8")
    assert "not yet" in refused("mended", tmp_path)
    assert not [name for name in sys.modules if name.startswith("_midfold_context_engine_") and name.endswith(".part")]
    (folder / "__init__.py").write_text(ENGINE.format(name="mended", origin="") + "engine = Mine\n", encoding="utf-8")
    assert resolve_engine("mended", config_dir=tmp_path).engine.name == "mended"


def test_a_broken_entry_point_or_factory_falls_back(tmp_path: Path, distribution: str) -> None:
    assert "AttributeError" in refused("broken", tmp_path)
    unregister = register_context_engine(lambda: 1 / 0, "divided")  # type: ignore[arg-type, return-value]
    assert "ZeroDivisionError" in refused("divided", tmp_path)
    unregister()


def test_an_unknown_name_says_what_there_is(tmp_path: Path) -> None:
    plugin(tmp_path, "another", "raise SystemExit('never imported')")
    assert refused("unknown", tmp_path).endswith("Available: compressor, another, noop")


def test_a_folder_without_code_is_broken_and_a_file_is_no_plugin(tmp_path: Path) -> None:
    base = tmp_path / "plugins" / "context_engine"
    (base / "hollow").mkdir(parents=True)
    (base / "file").write_text("", encoding="utf-8")
    assert "has no __init__.py" in refused("hollow", tmp_path)
    assert "no engine of that name" in refused("file", tmp_path)


@pytest.mark.parametrize("how", ["folder", "code", "parent"])
def test_links_do_not_lead_out_of_the_plugins(tmp_path: Path, how: str) -> None:
    outside = plugin(tmp_path / "outside", "evil", "raise SystemExit('never imported')")
    base = tmp_path / "plugins" / "context_engine"
    base.mkdir(parents=True)
    if how == "folder":
        (base / "evil").symlink_to(outside)
    elif how == "parent":
        (base / "evil").symlink_to(base)
        (base / "__init__.py").write_text("raise SystemExit('never imported')", encoding="utf-8")
    else:
        (base / "evil").mkdir()
        (base / "evil" / "__init__.py").symlink_to(outside / "__init__.py")
    assert "outside the plugin folder" in refused("evil", tmp_path)
    assert ["outside the plugin folder" in info.problem for info in list_engines(tmp_path) if info.name == "evil"] == [
        True
    ]


def test_a_link_inside_the_plugins_is_fine_if_the_engine_has_its_name(tmp_path: Path) -> None:
    folder = plugin(tmp_path, "real", ENGINE.format(name="alias", origin="") + "engine = Mine\n")
    (folder.parent / "alias").symlink_to(folder)
    assert resolve_engine("alias", config_dir=tmp_path).notices == ()


# Listing


def test_listing_and_resolving_import_no_other_plugin(tmp_path: Path) -> None:
    for name in ("wanted", "other", "third"):
        plugin(tmp_path, name, f"print('imported {name}')\n" + ENGINE.format(name=name, origin="") + "engine = Mine\n")
    code = (
        "import sys\nfrom pathlib import Path\nfrom midfold.plugins import list_engines, resolve_engine\n"
        "folder = Path(sys.argv[1])\nlist_engines(folder, configured='other')\n"
        "for name in ('compressor', 'unknown', 'wanted'):\n    resolve_engine(name, config_dir=folder)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout == "imported wanted\n"


def test_the_list_says_where_each_comes_from_and_which_one_is_active(
    tmp_path: Path, distribution: str, registered: None
) -> None:
    folder = plugin(tmp_path, "here")
    found = list_engines(tmp_path, configured="here")
    assert [(info.name, info.source) for info in found] == [
        ("compressor", "built-in"),
        ("here", f"directory {folder}"),
        ("here", "registered"),
        ("broken", "entry point broken"),
        ("here", "entry point here"),
        ("packed", "entry point packed"),
        ("whole", "entry point whole"),
        ("noop", "built-in"),
    ]
    assert [info.source for info in found if info.active] == [f"directory {folder}"]
    assert all(info.problem.startswith("hidden") for info in found if info.name == "here" and not info.active)
    assert distribution not in sys.modules


def test_where_the_configured_engine_is_missing_the_built_in_is_active(tmp_path: Path) -> None:
    for configured in ("compressor", "gone"):
        assert [info.name for info in list_engines(tmp_path, configured=configured) if info.active] == ["compressor"]


def test_a_directory_that_cannot_be_named_is_listed_with_its_problem(tmp_path: Path) -> None:
    plugin(tmp_path, "a b")
    assert [bool(info.problem) for info in list_engines(tmp_path) if info.name == "a b"] == [True]
