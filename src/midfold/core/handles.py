"""Handles in text that is carried on: only one that leads to originals keeps its shape.

Anybody can write something that looks like a handle. A model that finds one in a summary takes it for ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from midfold.core.archive import PREFIX

_HANDLE = re.compile(rf"(?<![0-9A-Za-z]){PREFIX}([0-9a-f]{{4,64}})(?![0-9A-Za-z])")
_FRAMED = re.compile(rf"\| unfold ({PREFIX}[0-9a-f]{{4,64}})(?: …\]|\]|$)")
"""As digests, previews and placeholders of ours name theirs."""
STRANGE = "mf:"
"""What a handle begins with that is not one of ours."""


def handles_in(text: str) -> set[str]:
    """Everything in a text that looks like a handle."""
    return {PREFIX + digits for digits in _HANDLE.findall(text)}


def framed_handles(texts: Iterable[str]) -> set[str]:
    """Handles in frames of ours: what can be known without a store."""
    return {handle for text in texts for handle in _FRAMED.findall(text)}


def with_own_handles(text: str, is_own: Callable[[str], bool]) -> str:
    """The text in which nothing looks like a handle that is none of ours."""
    strange = {handle for handle in handles_in(text) if not is_own(handle)}

    def written(match: re.Match[str]) -> str:
        return STRANGE + match.group(1) if match.group() in strange else match.group()

    return _HANDLE.sub(written, text) if strange else text
