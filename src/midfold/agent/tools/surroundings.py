"""What a command of the agent is given of midfold's environment: everything but secrets, unless they are named.

Rules of this file:
1. A variable is kept back by its name (keys, tokens, passwords, stores, midfold's own), because the settings name it as
   a key, or because its value is recognised as a credential. `agent.shell_environment` lets single ones through.
2. This is no wall. A command runs as the user, and may read what the user may: files with passwords in them, and the
   environment of other programs of the user's.
3. Of midfold's own process the environment can be hidden from the commands it starts, but not from the superuser.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Collection, Mapping
from contextlib import suppress

from midfold.fold.redact import is_sensitive_key, redact

_SECRET_NAME = re.compile(
    r"(?:MIDFOLD_|PG[A-Z]).*"
    r"|(?:.*_)?(?:(?:API|ACCESS|PRIVATE)?KEYS?|TOKENS?|SECRETS?|PASS|CREDENTIALS?|COOKIES?|AUTH|DSN|DATABASE_URL)"
    r"|.*(?:PASSWORD|PASSWD|PASSPHRASE|_PWD|_PAT)S?",
    re.IGNORECASE,
)
_FOLDERS = frozenset({"PWD", "OLDPWD"})
_LONGEST_NAME = 200
_PR_SET_DUMPABLE = 4


def passed_on(
    environment: Mapping[str, str], *, hidden: Collection[str] = (), named: Collection[str] = ()
) -> dict[str, str]:
    """The variables that a command is given; `hidden` are kept back whatever they look like, `named` never."""
    return {
        name: value
        for name, value in environment.items()
        if name in named or not (name in hidden or is_secret(name, value))
    }


def is_secret(name: str, value: str) -> bool:
    """Whether a variable holds something that opens a door."""
    if len(name) > _LONGEST_NAME or redact(value) != value:
        return True
    return name not in _FOLDERS and (_SECRET_NAME.fullmatch(name) is not None or is_sensitive_key(name))


def hide_own_environment() -> None:
    """Makes /proc/PID/environ of this process unreadable for other processes of the user, where the kernel can."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
