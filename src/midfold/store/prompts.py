"""The system prompt and the tools that stand beside a session's messages.

Rules of this file:
1. They are bodies like any other, stored once by their hash. A session has a row for each time one of them changed,
   with the position of the first message it was sent with: so what a request looked like can be told later.
2. What did not change writes nothing.
3. A row says by a seal which body it stands for: one that leads to another is damaged. Older rows have no seal.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, NamedTuple, get_args

from msgspec import Raw

from midfold.errors import StoreDamaged
from midfold.store.appending import Tip
from midfold.store.bodies import Entry, blob, digest_of, inflated
from midfold.store.database import Tx
from midfold.store.protocol import Prompt, PromptKind
from midfold.transcript.message import Message
from midfold.transcript.openai_chat import OpenAIChat

KINDS: tuple[PromptKind, ...] = get_args(PromptKind)


class Prompted(NamedTuple):
    """One change of a system prompt or of the tools."""

    kind: PromptKind
    position: int
    at: int
    data: bytes | None


def keep(tx: Tx, session: Tip, prompt: Prompt, position: int) -> None:
    """Rows for what is new in it; it was sent with the messages from `position` on."""
    for kind, number in _changed(tx, session.id, prompt).items():
        add(tx, session.id, number, Prompted(kind, position, session.now, getattr(prompt, kind)))


def is_kept(tx: Tx, session: int, prompt: Prompt) -> bool:
    return not _changed(tx, session, prompt)


def _changed(tx: Tx, session: int, prompt: Prompt) -> dict[PromptKind, int]:
    """What differs from what is stored, and the number the change gets."""
    known = {kind: (number, digest) for kind, number, digest in tx.all("last_prompts", session=session)}
    found: dict[PromptKind, int] = {}
    for kind in KINDS:
        data = getattr(prompt, kind)
        number, digest = known.get(kind, (0, None))
        if (None if digest is None else bytes(digest)) != (None if data is None else digest_of(data)):
            found[kind] = number + 1
    return found


def add(tx: Tx, session: int, number: int, prompted: Prompted) -> None:
    body = seal = None
    if prompted.data is not None:
        entry = Entry(Message.over(Raw(prompted.data), OpenAIChat.read), OpenAIChat)
        body = tx.add_bodies([entry], index=False)[entry.digest]
        seal = _seal(prompted.kind, entry.digest)
    values = {"kind": prompted.kind, "number": number, "position": prompted.position, "at": prompted.at}
    tx.run("add_prompt", session=session, body=body, seal=seal, **values)


def stored(kind: str, seal: bytes | None, *body: Any) -> bytes:
    """The prompt or the tools of a row; raises unless they are what was written there."""
    if seal is not None and blob(seal) != _seal(kind, blob(body[0])):
        raise StoreDamaged(f"the {kind} of a session is not what was written")
    return inflated(*body)


def _seal(kind: str, digest: bytes) -> bytes:
    return blake2b(kind.encode() + digest, digest_size=16).digest()


def history(tx: Tx, session: int) -> list[Prompted]:
    """Every change, the oldest first."""
    return [
        Prompted(kind, position, at, None if body is None else stored(kind, *sealed))
        for kind, position, at, body, *sealed in tx.all("prompts", session=session)
    ]
