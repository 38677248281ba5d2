"""Find client instructions: parts of the prompt that clients send as messages and that no compaction folds.

- Clients send project rules, skill lists and their environment as user or developer messages. They are part of the
  prompt, so they stay even after the head has decayed. This departs from the first specification document, whose
  decaying head includes them.
- They are recognised by the table of wrappers, in the positions where clients put them. Tool results, answers and
  summaries are never searched: pasted or injected text must not stay forever.
- Each stays once. A compaction replaces an older version with the newer one; until then nothing changes.
- They stay within a token limit, rules before lists, newest first; the rest is folded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from midfold.transcript.laws import first_turn
from midfold.transcript.message import RESULT, TEXT, Message, Text, Transcript
from midfold.transcript.tokens import estimate_text
from midfold.transcript.wrappers import Block, prompt_blocks

MAX_INSTRUCTION_TOKENS = 20_000
MAX_INSTRUCTION_SHARE = 0.2
"""Maximum share of the compaction threshold for client instructions, which also have at most
MAX_INSTRUCTION_TOKENS.
"""


class ClientInstructions(NamedTuple):
    """Messages that hold client instructions, by index."""

    stays: Mapping[int, Message] = {}
    rest: Mapping[int, Message | None] = {}
    """Remainder of each message, without instructions that stay or were replaced by newer ones; None if empty."""
    left_out: int = 0
    """Tokens of instructions beyond the limit."""
    whole: frozenset[int] = frozenset()
    """Indices of messages that hold nothing but instructions."""


NONE = ClientInstructions()


class _PromptBlock(NamedTuple):
    place: int
    part: int
    block: Block


Blocks = dict[int, dict[int, list[str]]]
"""Block texts in order, by message index and part index."""


def find_client_instructions(messages: Transcript, max_tokens: int) -> ClientInstructions:
    """Return the client instructions in these messages that fit into `max_tokens` tokens."""
    found = _all_blocks(messages)
    valid = _newest(found)
    staying: set[int] = set()
    left_out = 0
    for number in sorted(valid, key=lambda number: found[number].block.wrapper.items is not None):
        size = estimate_text(found[number].block.text)
        if size <= max_tokens:
            staying.add(number)
            max_tokens -= size
        else:
            left_out += size
    beyond = set(valid) - staying
    kept = _by_part(item for number, item in enumerate(found) if number in staying)
    removed = _by_part(item for number, item in enumerate(found) if number not in beyond)
    stays = {place: _only(messages[place], own) for place, own in kept.items()}
    rest = {place: _without(messages[place], own) for place, own in removed.items()}
    whole = frozenset(place for place, message in stays.items() if message is messages[place])
    return ClientInstructions(stays, rest, left_out, whole)


def _all_blocks(messages: Transcript) -> list[_PromptBlock]:
    """Return the blocks after the system prompt, which stays in any case."""
    found: list[_PromptBlock] = []
    is_first = True
    for place in range(first_turn(messages), len(messages)):
        message = messages[place]
        is_first = is_first and message.role != "assistant"
        if message.role not in ("user", "system") or message.kinds & RESULT or not message.kinds & TEXT:
            continue
        for number, part in enumerate(message.parts):
            blocks = prompt_blocks(part.text, message.role, is_first=is_first) if isinstance(part, Text) else ()
            found += [_PromptBlock(place, number, block) for block in blocks]
    return found


def _newest(found: list[_PromptBlock]) -> list[int]:
    """Return the indices of blocks that no newer block replaces, newest first.

    A list is replaced only by newer ones that include all its items.
    """
    seen: dict[tuple[str, str], set[str]] = {}
    valid: list[int] = []
    for number in range(len(found) - 1, -1, -1):
        block = found[number].block
        newer, own = seen.get(block.key), block.names
        if newer is None or not own <= newer:
            valid.append(number)
            seen.setdefault(block.key, set()).update(own)
    return valid


def _by_part(found: Iterable[_PromptBlock]) -> Blocks:
    blocks: Blocks = {}
    for item in found:
        blocks.setdefault(item.place, {}).setdefault(item.part, []).append(item.block.text)
    return blocks


def _only(message: Message, texts: dict[int, list[str]]) -> Message:
    """Return a message with only these blocks; a text that holds nothing else is not changed."""
    parts: list[Text] = []
    for number, part in enumerate(message.parts):
        if number in texts and isinstance(part, Text):
            own = texts[number]
            parts.append(part if not _rest(part.text, own) else Text("\n".join(own)))
    return message.with_parts(tuple(parts))


def _without(message: Message, texts: dict[int, list[str]]) -> Message | None:
    """Return a message without these blocks; None if nothing is left."""
    parts = list(message.parts)
    for number, own in texts.items():
        part = parts[number]
        if isinstance(part, Text):
            parts[number] = Text(_rest(part.text, own))
    left = tuple(part for part in parts if not isinstance(part, Text) or part.text.strip())
    return message.with_parts(left) if left else None


def _rest(text: str, blocks: list[str]) -> str:
    """Return a text without these blocks, which occur in it in this order."""
    pieces: list[str] = []
    place = 0
    for block in blocks:
        start = text.find(block, place)
        pieces.append(text[place:start])
        place = start + len(block)
    return "".join([*pieces, text[place:]]).strip()
