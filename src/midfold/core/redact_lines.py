"""Lines of a text, where only the line tells a credential from code: `password: word` in YAML.

Whatever is looked at around a place is bounded, so no place costs more than a constant.
"""

from __future__ import annotations

import re

_LINE_START = re.compile(r"""(?:\A|\n)(?:[ \t]|[0-9]{1,6}[→|:]|- ){0,40}+["']?\Z""")
_LINE_END = re.compile(r"[ \t]{0,40}+(?:#[^\n]{0,200}+)?(?=\r?\n|\0|\Z)")
_CODE_BEFORE, _CODE_AFTER = frozenset(",{(["), frozenset("})],")
_IN_YAML = re.compile(r"[a-z][a-z-]{3,}")
_KINDS = (
    "int long short uuid date time datetime json blob varchar hash hashed encrypted binary keyword enabled"
    " disabled yes off sensitive protected private public prompt none-set unset redacted plain plaintext clear"
    " pass word words data user username name login email update change reset same vault secrets manager bcrypt"
    " argon sha digest"
)
_KINDS_IN_YAML = frozenset(_KINDS.split())


def ends_a_line(text: str, at: int) -> bool:
    return _LINE_END.match(text, at) is not None


def is_alone_in_yaml(text: str, start: int, value: str, end: int) -> bool:
    """Whether `name: word` is a whole line among lines that are not code: `start` of the name, `end` of the word."""
    if not _IN_YAML.fullmatch(value) or value in _KINDS_IN_YAML or not ends_a_line(text, end):
        return False
    if _LINE_START.search(text, max(0, start - 48), start) is None:
        return False
    before, after = text[max(0, start - 200) : start].rstrip(" \t\r\n\"'-"), text[end : end + 200]
    following = after.partition("\n")[2].lstrip()[:1]
    return before[-1:] not in _CODE_BEFORE and (not following or following not in _CODE_AFTER)
