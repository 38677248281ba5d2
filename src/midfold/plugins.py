"""Resolve the name of a context engine.

The specification's resolution order, and what keeps it safe:
1. `compressor` is always the built-in. Any other name: the directory `<config dir>/plugins/context_engine/<name>/`,
   then engines registered in this process, then entry points of `midfold.context_engines`, then built-in names.
2. Presence activates nothing. Only the code of the requested name is imported; listing imports none.
3. An unknown name or a broken plugin gives the built-in compressor and a notice that says what is wrong.
4. Conversations call `engine_for`. A resolved engine is cached; a failure only for a moment.
5. A name is never a path, and a plugin directory does not lead out of its folder. Its module gets a private name;
   `sys.path` is not changed.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from threading import RLock
from time import monotonic
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

import msgspec

from midfold.compaction.archive import Archive
from midfold.compaction.budget import Pressure
from midfold.compaction.redact import redact
from midfold.compaction.request import CompactionRequest, Flow
from midfold.engines import Compressor, ContextEngine, Noop, ToolSpec
from midfold.errors import PluginError
from midfold.lru import LRU

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from midfold.config import Config

RESERVED = "compressor"
GROUP = "midfold.context_engines"
BUILT_IN = "built-in"
LONGEST_NAME = 64
BRIEFLY = 10.0
"""Seconds before an engine that failed to load is tried again."""
_NAME = re.compile(r"(?!\.)[^/\\:\s\x00-\x1f\x7f-\x9f]+")
_BUILT_INS: dict[str, type[ContextEngine]] = {"noop": Noop}

Factory = Callable[[], ContextEngine]
EngineOrFactory = ContextEngine | type[ContextEngine] | Factory

_lock = RLock()
_registrations: dict[str, list[list[EngineOrFactory]]] = {}
"""Registrations per name, oldest first; each in its own list, because an engine may be registered twice."""
_resolved: LRU[tuple[str, str | None], tuple[Resolved, float]] = LRU(100)


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """Engine with its source and the notices for the user."""

    engine: ContextEngine
    source: str
    """ "built-in", "directory PATH", "registered" or "entry point NAME"."""
    notices: tuple[str, ...] = ()
    fell_back: bool = False
    """Whether the built-in replaces a requested engine that could not be used."""


class EngineWithNotices(ContextEngine):
    """Engine whose receipts also report how it was chosen."""

    def __init__(self, engine: ContextEngine, notices: tuple[str, ...]) -> None:
        vars(self).update(name=engine.name, reads_messages=engine.reads_messages)
        self.engine = engine
        self.notices = notices

    def should_compress(self, request: CompactionRequest) -> Pressure:
        return self.engine.should_compress(request)

    def compress(self, request: CompactionRequest) -> Flow:
        outcome = yield from self.engine.compress(request)
        receipt = msgspec.structs.replace(outcome.receipt, notices=(*self.notices, *outcome.receipt.notices))
        return msgspec.structs.replace(outcome, receipt=receipt)

    def tools(self) -> tuple[ToolSpec, ...]:
        return self.engine.tools()

    def call_tool(self, name: str, arguments: Mapping[str, object], archive: Archive) -> str:
        return self.engine.call_tool(name, arguments, archive)


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Engine that the configuration could name; its code was not imported."""

    name: str
    source: str
    active: bool = False
    problem: str = ""
    """Why it could not be used."""


class Registrar:
    """Argument of a plugin directory's `register`; registrations are visible only while its name is resolved."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.found: dict[str, EngineOrFactory] = {}

    def register_context_engine(self, engine_or_factory: EngineOrFactory, name: str | None = None) -> None:
        self.found[_name_for(engine_or_factory, name, self._name)] = engine_or_factory


def register_context_engine(engine_or_factory: EngineOrFactory, name: str | None = None) -> Callable[[], None]:
    """Make an engine (an instance, a class, or a factory without arguments) available in this process.

    It is used only when `context.engine` names it. The newest registration of a name wins; the returned function
    undoes this one. Raises PluginError for the name `compressor`, and for names that look like paths.
    """
    chosen = _name_for(engine_or_factory, name)
    entry = [engine_or_factory]
    with _lock:
        _registrations.setdefault(chosen, []).append(entry)
        _forget(chosen)

    def unregister() -> None:
        with _lock:
            left = [other for other in _registrations.get(chosen, []) if other is not entry]
            if left:
                _registrations[chosen] = left
            else:
                _registrations.pop(chosen, None)
            _forget(chosen)

    return unregister


def _forget(name: str) -> None:
    _resolved.forget_where(lambda key: key[0] == name)


def name_problem(name: str) -> str:
    """Return what is wrong with a name; empty if it is valid."""
    if not name:
        return "the name is empty"
    if len(name) > LONGEST_NAME:
        return f"the name has {len(name)} characters, at most {LONGEST_NAME} are allowed"
    if not _NAME.fullmatch(name) or not name.isprintable():
        return "the name looks like a path: no slashes, backslashes, colons, spaces, control characters or leading dots"
    return ""


def default_config_dir(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the folder of the configuration file; None without a home directory."""
    from midfold.config import locate

    path = locate(environ=environ)
    return None if path is None else path.parent


def engine_for(config: Config | None, given: ContextEngine | None = None) -> ContextEngine:
    """Return the engine of a conversation: the given one, else the one its settings name."""
    if given is not None:
        return given
    return Compressor() if config is None else configured_engine(config).engine


def configured_engine(config: Config) -> Resolved:
    """Return the engine that `context.engine` names, resolved from the folder of the settings."""
    name = config.context.engine
    if name == RESERVED:
        return resolve_engine(name)
    folder = default_config_dir() if config.folder is None else Path(config.folder)
    key = (name, None if folder is None else str(folder))
    found, until = _resolved.get(key) or (None, 0.0)
    if found is None or (found.fell_back and until < monotonic()):
        found = resolve_engine(name, config_dir=folder)
        if found.notices:
            found = msgspec.structs.replace(found, engine=EngineWithNotices(found.engine, found.notices))
        _resolved.put(key, (found, monotonic() + BRIEFLY))
    return found


def resolve_engine(name: str, *, config_dir: Path | None = None) -> Resolved:
    """Return the engine of a name; the built-in compressor, with a notice, if it is not available.

    `config_dir` is the folder that holds `plugins/`; without it, the folder of the usual configuration file.
    """
    if name == RESERVED:
        return Resolved(engine=Compressor(), source=BUILT_IN)
    try:
        if problem := name_problem(name):
            raise PluginError(problem)
        return _find(name, config_dir or default_config_dir())
    except PluginError as error:
        return _fallback(name, str(error), config_dir)


def _fallback(name: str, reason: str, config_dir: Path | None) -> Resolved:
    usable = dict.fromkeys(info.name for info in list_engines(config_dir) if not info.problem and info.name != name)
    notice = (
        f'CONTEXT ENGINE NOT USED: "{_printable(name, LONGEST_NAME)}": {reason}. '
        f"Using the built-in compressor instead. Available: {', '.join(usable)}"
    )
    return Resolved(engine=Compressor(), source=BUILT_IN, notices=(notice,), fell_back=True)


def _find(name: str, config_dir: Path | None) -> Resolved:
    folder = None if config_dir is None else _directory(config_dir, name)
    if folder is not None:
        return Resolved(engine=_of_module(_import_package(folder), name), source=f"directory {folder}")
    with _lock:
        registered = _registrations.get(name, [])[-1:]
    if registered:
        return Resolved(engine=_make_engine(registered[0][0], name), source="registered")
    offered = [point for point in _entry_points() if point.name == name]
    if offered:
        return _from_entry_points(offered, name)
    if name in _BUILT_INS:
        return Resolved(engine=_BUILT_INS[name](), source=BUILT_IN)
    raise PluginError("there is no engine of that name")


def list_engines(config_dir: Path | None = None, *, configured: str = RESERVED) -> list[EngineInfo]:
    """Return every engine that could be named, in the order of resolution, without importing plugin code.

    `configured` is the value of `context.engine`. If it is not available, the built-in that replaces it is active.
    """
    folder = config_dir or default_config_dir()
    seen: dict[str, str] = {}
    found: list[EngineInfo] = []
    for name, source, flaw in _everything(folder):
        problem = flaw or (f"hidden: {name} is resolved to {seen[name]}" if name in seen else "")
        seen.setdefault(name, source)
        found.append(EngineInfo(name=name, source=source, problem=problem))
    if all(info.problem for info in found if info.name == configured):
        configured = RESERVED
    return [
        msgspec.structs.replace(info, active=True) if info.name == configured and not info.problem else info
        for info in found
    ]


def _everything(folder: Path | None) -> Iterator[tuple[str, str, str]]:
    """Yield name, source and problem of every engine found."""
    yield RESERVED, BUILT_IN, ""
    for path in _plugin_directories(folder) if folder is not None else ():
        try:
            flaw = name_problem(path.name)
            if not flaw and path.name != RESERVED:
                _check(path)
        except PluginError as error:
            flaw = str(error)
        yield path.name, f"directory {path}", flaw
    with _lock:
        registered = sorted(_registrations)
    for name in registered:
        yield name, "registered", ""
    with contextlib.suppress(PluginError):
        for point in sorted(_entry_points(), key=lambda point: point.name):
            yield point.name, f"entry point {point.name}", name_problem(point.name)
    for name in _BUILT_INS:
        yield name, BUILT_IN, ""


# Directories


def engines_directory(config_dir: Path) -> Path:
    """Return the folder of plugin directories."""
    return config_dir / "plugins" / "context_engine"


def _plugin_directories(config_dir: Path) -> list[Path]:
    base = engines_directory(config_dir)
    try:
        return sorted(path for path in base.iterdir() if path.name != "__pycache__" and path.is_dir())
    except OSError:
        return []


def _directory(config_dir: Path, name: str) -> Path | None:
    """Return the plugin's directory, if there is one that may be used."""
    path = engines_directory(config_dir) / name
    try:
        if not path.is_dir():
            return None
    except (OSError, ValueError) as error:
        _fail(f"{_printable(str(path))} cannot be accessed", error)
    _check(path)
    return path


def _check(path: Path) -> None:
    """Raise unless the directory and its code are really inside the plugin folder."""
    try:
        base = path.parent.resolve(strict=True)
        start = path / "__init__.py"
        if not start.is_file():
            raise PluginError(f"{_printable(str(path))} has no __init__.py")
        inside = all(real.is_relative_to(base) and real != base for real in (path.resolve(), start.resolve()))
    except (OSError, RuntimeError) as error:
        _fail(f"{_printable(str(path))} cannot be accessed", error)
    if not inside:
        raise PluginError(f"{_printable(str(path))} is a link to a target outside the plugin folder")


def _import_package(folder: Path) -> ModuleType:
    """Import the plugin's package once per process under a private name."""
    where = folder.resolve()
    name = f"_midfold_context_engine_{blake2b(os.fsencode(where), digest_size=8).hexdigest()}"
    with _lock:
        if name in sys.modules:
            return sys.modules[name]
        importlib.invalidate_caches()
        start = where / "__init__.py"
        spec = importlib.util.spec_from_file_location(name, start, submodule_search_locations=[str(where)])
        if spec is None or spec.loader is None:
            raise PluginError(f"{_printable(str(start))} cannot be imported")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException as error:  # a plugin may raise anything; its partial import is removed
            for loaded in [other for other in sys.modules if other == name or other.startswith(f"{name}.")]:
                del sys.modules[loaded]
            if isinstance(error, Exception | SystemExit):
                _fail(f"importing {_printable(str(folder))} failed", error)
            raise
    return module


def _of_module(module: ModuleType, name: str) -> ContextEngine:
    """Return the module's `engine`, or what its `register` registers under the name."""
    try:
        value, register = getattr(module, "engine", None), getattr(module, "register", None)
        if value is not None and not isinstance(value, ModuleType):  # a submodule may be called engine, too
            return _make_engine(value, name)
        if not callable(register):
            raise PluginError("it defines neither engine nor register(registrar)")
        registrar = Registrar(name)
        register(registrar)
    except PluginError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin may raise anything; the host must go on
        _fail("getting its engine failed", error)
    if name not in registrar.found:
        names = ", ".join(f'"{_printable(other, LONGEST_NAME)}"' for other in registrar.found) or "nothing"
        raise PluginError(f"it registers {names} instead of the name of its directory")
    return _make_engine(registrar.found[name], name)


# Entry points


def _entry_points() -> tuple[EntryPoint, ...]:
    from importlib.metadata import entry_points

    try:
        return tuple(entry_points(group=GROUP))
    except Exception as error:  # noqa: BLE001 - any installed distribution may have unreadable metadata
        _fail("the entry points of the installed packages cannot be read", error)


def _from_entry_points(offered: list[EntryPoint], name: str) -> Resolved:
    point = offered[0]
    notices: tuple[str, ...] = ()
    if len({other.value for other in offered}) > 1:
        others = ", ".join(_printable(other.value) for other in offered[1:])
        notices = (f'several packages provide the context engine "{name}": using {point.value}, ignoring {others}',)
    try:
        value = point.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin may raise anything; the host must go on
        _fail(f"loading its entry point {_printable(point.value)} failed", error)
    engine = _of_module(value, name) if isinstance(value, ModuleType) else _make_engine(value, name)
    return Resolved(engine=engine, source=f"entry point {name}", notices=notices)


# Engines


def _name_for(value: object, name: str | None, default: str | None = None) -> str:
    """Return the name to register an engine under; raise if it may not be registered."""
    is_engine = isinstance(value, ContextEngine) or (isinstance(value, type) and issubclass(value, ContextEngine))
    if not is_engine and not callable(value):
        raise PluginError(f"found {_kind(value)}, expected a ContextEngine, its class, or a factory without arguments")
    own = getattr(value, "name", None) if is_engine else None
    own = own if isinstance(own, str) else None
    chosen = name if name is not None else own if own is not None else default
    if chosen is None:
        raise PluginError("a factory needs a name to be registered under")
    if problem := name_problem(chosen):
        raise PluginError(problem)
    if chosen == RESERVED:
        raise PluginError(f'the name "{RESERVED}" is reserved for the built-in engine; choose another one')
    if own is not None and own != chosen:
        raise PluginError(f'the engine is named "{_printable(own, LONGEST_NAME)}", expected "{chosen}"')
    return chosen


def _make_engine(value: object, name: str) -> ContextEngine:
    """Return the engine from an instance, a class or a factory; its name must be the one it was found by."""
    made = value
    try:
        if not isinstance(made, ContextEngine) and callable(made):
            made = made()
        own = getattr(made, "name", None)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin may raise anything; the host must go on
        _fail("creating the engine failed", error)
    if not isinstance(made, ContextEngine):
        raise PluginError(f"found {_kind(made)}, expected a ContextEngine")
    if own != name:
        raise PluginError(f'the engine is named "{_printable(str(own), LONGEST_NAME)}", expected "{name}"')
    return made


def _kind(value: object) -> str:
    return f"a value of type {type(value).__name__}"


def _fail(what: str, error: BaseException) -> NoReturn:
    message = _printable(redact(str(error)))
    raise PluginError(f"{what}: {type(error).__name__}{f': {message}' if message else ''}") from error


def _printable(text: str, limit: int = 300) -> str:
    safe = text if text.isprintable() else repr(text)[1:-1]
    return safe if len(safe) <= limit else f"{safe[:limit]}..."
