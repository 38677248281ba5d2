"""Models of OpenAI's prompt caches, written from its documentation and independent of the planner they check.

    cache = AutomaticCache()                            # models before 5.6: caching is always on
    usage = cache.bill(body, at=0.0).usage()            # `usage` of a chat completion
    cache = BreakpointCache()                           # 5.6 and newer: breakpoints; writes are billed
    cache.bill(body_with_a_breakpoint_on_an_answer)     # raises Refused, as the provider answers 400

Provider rules (OpenAI, November 2026; Gemini's implicit cache is AutomaticCache with another minimum):
1. A prompt is one text: tools, instructions, messages, in that order. Breakpoints are not part of it.
2. The automatic cache reads the longest known prefix, in steps of 128 tokens, from 1,024 tokens on.
3. A request is routed by a hash of its first 256 tokens and its `prompt_cache_key`. Above 15 requests a minute the
   excess goes to the next machine, which has none of the entries.
4. An entry expires when unused for its lifetime: five minutes in the worst case, 24 hours if requested.
5. From 5.6 on a prefix is read and written only exactly at breakpoints: one that OpenAI sets at the end of the
   newest
   eligible message, and the client's own. At most the latest four are written; 80 are looked up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from support.prefix_cache import Refused

FIELD = "prompt_cache_breakpoint"
CHARACTERS = 4
"""Characters per token."""
MINIMUM, STEP, ROUTED = 1024, 128, 256
PER_MINUTE = 15
SHORT, LONG, BREAKPOINT = 300.0, 86_400.0, 1_800.0
MOST_WRITTEN, MOST_MATCHED = 4, 80
TEXTS = ("text", "input_text")


class AutomaticBill(NamedTuple):
    """Tokens of one prompt, by billing category."""

    prompt: int
    read: int
    written: int = 0
    machine: int = 0

    def cost(self, *, read: float = 0.1, write: float = 1.0) -> float:
        """Return the cost in tokens at the base price."""
        return self.prompt - self.read - self.written + self.read * read + self.written * write

    def usage(self, output_tokens: int = 0) -> dict[str, Any]:
        """Return the usage in the format of a chat completion."""
        details = {"cached_tokens": self.read}
        return {"prompt_tokens": self.prompt, "completion_tokens": output_tokens, "prompt_tokens_details": details}


class Piece(NamedTuple):
    """Part of a prompt at whose end a cached prefix may end."""

    text: str
    role: str
    can_carry: bool
    marked: bool


class AutomaticCache:
    """Automatic cache of one organisation across all machines."""

    def __init__(
        self,
        *,
        minimum: int = MINIMUM,
        step: int = STEP,
        lifetime: float = SHORT,
        machines: int = 1_000,
        per_minute: int = PER_MINUTE,
    ) -> None:
        self.minimum, self.step, self.lifetime = minimum, step, lifetime
        self.machines, self.per_minute = machines, per_minute
        self._entries: dict[tuple[int, str], float] = {}
        self._sent: dict[str, list[float]] = {}

    def bill(self, body: Mapping[str, Any], *, at: float = 0.0) -> AutomaticBill:
        """Bill one request at a time in seconds; `body` is a chat completion's or one of the Responses API."""
        found = pieces(body)
        if any(piece.marked for piece in found):
            raise Refused(f"this model knows no {FIELD}")
        text = "".join(piece.text for piece in found)
        machine = self._machine(text, body.get("prompt_cache_key"), at)
        life = LONG if body.get("prompt_cache_retention") == "24h" else self.lifetime
        read, known = 0, True
        for end, key in self._prefixes(body, text):
            known = known and self._entries.get((machine, key), -1.0) >= at
            read = end if known else read
            self._entries[machine, key] = at + life
        return AutomaticBill(len(text) // CHARACTERS, read, 0, machine)

    def best_read(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> int:
        """Return the maximum tokens of a request that could be read if all of another one were cached."""
        one, two = ("".join(piece.text for piece in pieces(body)) for body in (before, after))
        both = zip(self._prefixes(before, one), self._prefixes(after, two), strict=False)
        return max((end for (end, old), (_, new) in both if old == new), default=0)

    def _prefixes(self, body: Mapping[str, Any], text: str) -> Iterator[tuple[int, str]]:
        running = sha256(str(body.get("model")).encode())
        start, end = 0, self.minimum
        while end * CHARACTERS <= len(text):
            running.update(text[start * CHARACTERS : end * CHARACTERS].encode("utf-8", "surrogatepass"))
            yield end, running.hexdigest()
            start, end = end, end + self.step

    def _machine(self, text: str, key: Any, at: float) -> int:
        begins = text[: ROUTED * CHARACTERS].encode("utf-8", "surrogatepass")
        route = sha256(str(key or "").encode() + b"\0" + begins).hexdigest()
        recent = [sent for sent in self._sent.get(route, ()) if sent > at - 60.0]
        self._sent[route] = [*recent, at]
        return (int(route[:12], 16) + len(recent) // self.per_minute) % self.machines


class BreakpointCache:
    """Cache of models that cache at breakpoints."""

    def __init__(self, *, minimum: int = MINIMUM, lifetime: float = BREAKPOINT) -> None:
        self.minimum, self.lifetime = minimum, lifetime
        self._entries: dict[str, float] = {}

    def bill(self, body: Mapping[str, Any], *, at: float = 0.0) -> AutomaticBill:
        """Bill one request; raise Refused for an invalid breakpoint."""
        found = pieces(body)
        for piece in found:
            if piece.marked and not piece.can_carry:
                raise Refused(f"{FIELD} cannot stand on this block ({piece.role})")
        ends = list(_ends(body, found))
        implicit = self._implicit(body, found)
        explicit = [place for place, piece in enumerate(found) if piece.marked]
        places = sorted({*explicit, *([] if implicit is None else [implicit])})
        large = [place for place in places[-MOST_MATCHED:] if ends[place][0] >= self.minimum]
        read = max((ends[place][0] for place in large if self._entries.get(ends[place][1], -1.0) >= at), default=0)
        written = [place for place in large if place in self._written(explicit, implicit)]
        for place in large:
            if place in written or ends[place][1] in self._entries:
                self._entries[ends[place][1]] = at + self.lifetime
        last = max((ends[place][0] for place in written), default=0)
        return AutomaticBill(ends[-1][0] if ends else 0, read, max(last - read, 0))

    def best_read(self, before: Mapping[str, Any]) -> int:
        """Return the maximum tokens any plan could have cached: up to the last block that can carry a breakpoint."""
        found = pieces(before)
        ends = list(_ends(before, found))
        sizes = [size for (size, _), piece in zip(ends, found, strict=True) if piece.can_carry and size >= self.minimum]
        return max(sizes, default=0)

    @staticmethod
    def _implicit(body: Mapping[str, Any], found: Sequence[Piece]) -> int | None:
        options = body.get("prompt_cache_options") or {}
        if options.get("mode") == "explicit":
            return None
        return max((place for place, piece in enumerate(found) if piece.can_carry), default=None)

    @staticmethod
    def _written(explicit: Sequence[int], implicit: int | None) -> set[int]:
        free = MOST_WRITTEN - (implicit is not None)
        return {*explicit[-free:], *([] if implicit is None else [implicit])}


def pieces(body: Mapping[str, Any]) -> list[Piece]:
    """Return the parts of the prompt in the order the provider reads them."""
    fixed = [json.dumps(tool, ensure_ascii=False) for tool in body.get("tools") or ()]
    fixed += [f"system\n{body['instructions']}"] if body.get("instructions") else []
    found = [Piece(text, "fixed", False, False) for text in fixed]
    said = body.get("messages") if body.get("messages") is not None else body.get("input")
    for message in [{"role": "user", "content": said}] if isinstance(said, str) else said or ():
        found += _of_message(message)
    return found


def _of_message(message: Mapping[str, Any]) -> Iterator[Piece]:
    name = "output" if "output" in message else "content"
    role = str(message.get("role") or ("tool" if name == "output" else message.get("type")))
    rest = {key: value for key, value in message.items() if key not in (name, "role", FIELD)}
    begins = f"\n{role}\n{json.dumps(rest, ensure_ascii=False) if rest else ''}"
    content = message.get(name)
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
    if FIELD in message or not blocks:
        yield Piece(begins, role, False, FIELD in message)
        return
    for block in blocks:
        bare = {key: value for key, value in block.items() if key != FIELD} if isinstance(block, Mapping) else block
        is_text = isinstance(bare, Mapping) and bare.get("type") in TEXTS
        said = str(bare.get("text") or "") if is_text else json.dumps(bare, ensure_ascii=False)
        marker = block.get(FIELD) if isinstance(block, Mapping) else None
        if marker is not None and (not isinstance(marker, Mapping) or marker.get("mode") != "explicit"):
            raise Refused(f"not a {FIELD}: {marker}")
        can_carry = is_text and bool(said.strip()) and role != "assistant"
        yield Piece(begins + said, role, can_carry, marker is not None)
        begins = ""


def _ends(body: Mapping[str, Any], found: Sequence[Piece]) -> Iterator[tuple[int, str]]:
    """Yield the end of every piece in tokens, with the hash of everything up to it."""
    running = sha256(str(body.get("model")).encode())
    length = 0
    for piece in found:
        running.update(piece.text.encode("utf-8", "surrogatepass"))
        length += len(piece.text)
        yield length // CHARACTERS, running.hexdigest()
