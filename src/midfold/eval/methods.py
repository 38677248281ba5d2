"""Compactors by name: the built-in ones, and anybody's callable.

Rules of this file:
1. `Compactor` is the whole contract: messages as plain dicts and a number of tokens in, messages out. The system prompt
   is not among them, and does not count.
2. A compactor may change what it is given. It may return a list of messages, or a request body that holds one.
3. Oracles know the needs of the cut; nobody else does.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from midfold.errors import PluginError, TranscriptError
from midfold.eval import baselines, oracle, sketch
from midfold.eval.cuts import Cut
from midfold.eval.needs import Need
from midfold.transcript.document import read
from midfold.transcript.message import Transcript

Compactor = Callable[[list[Any], int], Any]
Method = Callable[[Cut, int, Sequence[Need]], Transcript]


def built_in_midfold(messages: list[Any], target_tokens: int) -> Any:
    """midfold as it is installed, without a model."""
    from midfold.api import compact

    return compact(messages, target_tokens=target_tokens, force=True).messages


def _on_past(function: Callable[[Transcript, int], Transcript], cut: Cut, target: int, _: Sequence[Need]) -> Transcript:
    return function(cut.past, target)


def _knowing(
    function: Callable[[Transcript, int, Sequence[Need]], Transcript], cut: Cut, target: int, needs: Sequence[Need]
) -> Transcript:
    return function(cut.past, target, needs)


def _recorded(cut: Cut, target: int, _: Sequence[Need]) -> Transcript:
    if cut.session.summary is None:
        raise PluginError("the method recorded is for cuts at recorded compactions only")
    return (cut.session.summary,)


def _plugged(name: str, function: Compactor, cut: Cut, target: int, _: Sequence[Need]) -> Transcript:
    where = f"the method {name} on {cut.session.conversation} before message {cut.at}"
    try:
        kept = function(cut.session.values(cut.at), target)
    except Exception as error:  # a compactor of somebody else's may raise anything; the figure needs its name
        raise PluginError(f"{where} failed: {type(error).__name__}: {error}") from error
    if isinstance(kept, Iterable) and not isinstance(kept, Mapping | str | bytes):
        kept = list(kept)
    if not kept:
        return ()
    try:
        return read(kept, dialect=cut.session.dialect).messages
    except TranscriptError as error:
        raise PluginError(f"{where} gave back no messages: {error}") from None


BUILT_IN: Mapping[str, Method] = {
    "window": partial(_on_past, baselines.sliding_window),
    "head-tail": partial(_on_past, baselines.head_tail),
    "masked": partial(_on_past, baselines.masked),
    "clipped": partial(_on_past, baselines.clipped),
    "random": partial(_on_past, baselines.random_messages),
    "ledger": partial(_on_past, baselines.ledger),
    "snippets": partial(_on_past, sketch.snippets),
    "midfold": partial(_plugged, "midfold", built_in_midfold),
    "oracle-messages": partial(_knowing, oracle.oracle_messages),
    "oracle-snippets": partial(_knowing, oracle.oracle_snippets),
}
RECORDED = "recorded"
"""The agent's own summary, whatever it costs; only at recorded compactions."""
DEFAULT = ("window", "head-tail", "masked", "random", "midfold", "oracle-snippets")


def plug(name: str, function: Compactor) -> Method:
    """Anybody's callable as a method."""
    return partial(_plugged, name, function)


def chosen(methods: Iterable[str] | Mapping[str, str | Compactor]) -> dict[str, Method]:
    """Methods by name: built-in ones, or a mapping from names to built-in ones and callables."""
    if isinstance(methods, Mapping):
        return {
            name: built_in(method) if isinstance(method, str) else plug(name, method)
            for name, method in methods.items()
        }
    names = [methods] if isinstance(methods, str) else list(methods)
    return {name: built_in(name) for name in (BUILT_IN if names == ["all"] else names)}


def built_in(name: str) -> Method:
    if name == RECORDED:
        return _recorded
    if name not in BUILT_IN:
        raise PluginError(f"there is no method {name}; built in: {', '.join(BUILT_IN)}")
    return BUILT_IN[name]


def load_compactor(text: str) -> tuple[str, Compactor]:
    """A name and a callable from `name=package.module:function`; modules of the working directory are found too."""
    name, equals, place = text.partition("=")
    module, colon, attribute = place.partition(":")
    if not (equals and colon and name and module and attribute):
        raise PluginError(f"expected name=package.module:function, found {text}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        function: Any = importlib.import_module(module)
        for part in attribute.split("."):
            function = getattr(function, part)
    except (ImportError, AttributeError) as error:
        raise PluginError(f"the method {name} could not be loaded: {error}") from None
    if not callable(function):
        raise PluginError(f"the method {name} could not be loaded: {place} cannot be called")
    return name, function
