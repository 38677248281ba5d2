"""What of a conversation is the client's prompt: instructions that stay whole and in place through every fold.

Rules of this file:
1. Clients send project rules, lists of skills and their environment as messages of the user or of the developer. They
   are part of the prompt, not of the conversation: the head decays, they do not. That is a departure from the first
   document, whose decaying head takes them along.
2. They are told by the table of wrappers, in the places where clients put them. Tool results, answers and summaries
   have none: text that somebody pasted or injected must not live for ever.
3. Each stays once: a newer version replaces the older one, and only a fold does that. Until then nothing changes.
4. They stay as far as their bound goes, rules before lists, the newest first; what is beyond it is folded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from midfold.transcript.laws import first_turn
from midfold.transcript.message import RESULT, TEXT, Message, Text, Transcript
from midfold.transcript.tokens import estimate_text
from midfold.transcript.wrappers import Block, prompt_blocks

MOST_TOKENS = 20_000
SHARE = 0.2
"""Of the size at which a conversation is folded: the most that instructions of clients take, and not more than that."""


class ClientInstructions(NamedTuple):
    """What stays of messages with instructions, by their places, and what is left of them without."""

    stays: Mapping[int, Message] = {}
    rest: Mapping[int, Message | None] = {}
    """Without instructions that stay, and without those that newer ones replaced."""
    left_out: int = 0
    """Tokens of instructions beyond the bound."""
    whole: frozenset[int] = frozenset()
    """The places of messages that hold nothing else."""


NONE = ClientInstructions()


class _PromptBlock(NamedTuple):
    place: int
    part: int
    block: Block


Blocks = dict[int, dict[int, list[str]]]
"""The texts of blocks in their order, by the place of their message and the number of their part."""


def find_client_instructions(messages: Transcript, bound: int) -> ClientInstructions:
    """The instructions of clients in these messages, as many as `bound` tokens hold."""
    found = _all_blocks(messages)
    valid = _newest(found)
    staying: set[int] = set()
    left_out = 0
    for number in sorted(valid, key=lambda number: found[number].block.wrapper.items is not None):
        size = estimate_text(found[number].block.text)
        if size <= bound:
            staying.add(number)
            bound -= size
        else:
            left_out += size
    beyond = set(valid) - staying
    kept = _by_part(item for number, item in enumerate(found) if number in staying)
    gone = _by_part(item for number, item in enumerate(found) if number not in beyond)
    stays = {place: _only(messages[place], own) for place, own in kept.items()}
    rest = {place: _without(messages[place], own) for place, own in gone.items()}
    whole = frozenset(place for place, message in stays.items() if message is messages[place])
    return ClientInstructions(stays, rest, left_out, whole)


def _all_blocks(messages: Transcript) -> list[_PromptBlock]:
    """The blocks behind the system prompt, which stays anyway."""
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
    """The numbers of blocks that no newer ones replace, the newest first; a list only gives way to all it lists."""
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
    """A message with these blocks alone; a text that holds nothing else stays as it is."""
    parts: list[Text] = []
    for number, part in enumerate(message.parts):
        if number in texts and isinstance(part, Text):
            own = texts[number]
            parts.append(part if not _rest(part.text, own) else Text("\n".join(own)))
    return message.with_parts(tuple(parts))


def _without(message: Message, texts: dict[int, list[str]]) -> Message | None:
    """A message without these blocks; None where nothing is left."""
    parts = list(message.parts)
    for number, own in texts.items():
        part = parts[number]
        if isinstance(part, Text):
            parts[number] = Text(_rest(part.text, own))
    left = tuple(part for part in parts if not isinstance(part, Text) or part.text.strip())
    return message.with_parts(left) if left else None


def _rest(text: str, blocks: list[str]) -> str:
    """A text without these blocks, which stand in it in this order."""
    pieces: list[str] = []
    place = 0
    for block in blocks:
        start = text.find(block, place)
        pieces.append(text[place:start])
        place = start + len(block)
    return "".join([*pieces, text[place:]]).strip()
