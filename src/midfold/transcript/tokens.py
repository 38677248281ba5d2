"""Count the tokens of a conversation, and state the basis of each count.

A count is `estimated`, `calibrated` by what a provider reported, or `reported` itself. Messages are counted in units of
the o200k vocabulary; a model's factor and overhead convert units to its tokens, so switching models recounts nothing.
Each message is counted once: the count is cached on the message, and in the meter by the message's bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple, Protocol
from zlib import adler32

import msgspec
from msgspec import Raw

from midfold.lru import LRU
from midfold.transcript.message import (
    DIGEST_SIZE,
    Media,
    Message,
    Opaque,
    Part,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
)

# Estimate of o200k_base tokens without a vocabulary. It uses only the standard library and returns the same number in
# every process and Python version. It is defined for every ``str``, including lone surrogates and NUL; ``""`` is 0,
# anything else at least 1. Its cost is bounded: texts longer than `SAMPLE_CHARACTERS` characters are sampled in
# `WINDOWS` slices.
#
# The estimate is a sum over neighbouring characters. Each character falls into one of sixteen classes, each pair of
# neighbouring classes has a price, and a character outside ASCII adds a price for its Unicode block. Word starts, digit
# groups, base64 and runs of separators need no separate rules, because they differ in their pairs.
#
# The loop over characters runs in C. Two class numbers fit into one byte, so one shift of the whole text, read as an
# integer, puts every class next to its predecessor; ``bytes.translate`` turns the pairs into prices; and the lower half
# of Adler-32 (RFC 1950), started from 0, is the sum of the bytes modulo 65521, which is exact for `CHUNK` bytes, since
# no price exceeds `TOP_PRICE` and 512 * 127 < 65521.


UNIT: Final = 64  # prices are in 1/64 of a token: the price of one dash in a long run of dashes
SAMPLE_CHARACTERS: Final = 4_096  # characters; longer texts are sampled
WINDOWS: Final = 64
WINDOW: Final = SAMPLE_CHARACTERS // WINDOWS
CHUNK: Final = 512
TOP_PRICE: Final = 127

# Classes were chosen by hand: b, c, d and f are separate because of hex, vowels because random letters lack them,
# separators because they repeat. Class 0 also precedes the first character. Control characters are class 2, the rest of
# Latin-1 is class 7 (rare letters), and everything beyond is class 15.
CLASSES: Final = (
    "\n\r",
    " ",
    "\t",
    "ae",
    "iou",
    "bcdf",
    "ghlmnprst",
    "jkqvwxyz",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "0123456789",
    "-=_*#.~",
    "\"'`",
    "([{<)]}>",
    ",;:",
    "/\\@!$%&^|+",
    "?",
)

# The table of constants, as printed by `python -m bench.fit_tokens`: least squares of the relative error against
# o200k_base with prices of at least zero, on the fit half of the corpora of bench/corpora.py.
# fmt: off
# one row per class of the previous character, one column per class of the character itself
PAIRS: Final = (
    (  5,  59,  62,  42,  52,  59,  69,  42,  50,  56,  43,  27,  52,  19,  25,  39),  # after '\n\r'
    ( 14,   1,  68,  38,  57,  37,  39,  41,  26, 118,  63,  68,  46,  29,  47,  43),  # after ' '
    ( 19,  18,   5,  34,  21,  12,  17,  46,  66,  30,  40,  62,  74,  28,  59,  23),  # after '\t'
    ( 41,  12,  37,  10,  42,   1,   2,   5,  32,  50,  33,  24,  45,  45,  81,  29),  # after 'ae'
    ( 29,  42,  24,   2,   1,  16,   1,   1,  54,  49,  50,   7,  21,  25,  70,  36),  # after 'iou'
    ( 49,   1,  17,   1,  11,   1,   1,   2,  33,  65,  25,  22,  20,  42,  42,  18),  # after 'bcdf'
    ( 36,   1,  72,   3,  13,   7,   4,   8,  33,  58,  34,  25,  30,  30,  25,  27),  # after 'ghlmnprst'
    ( 20,  17,  25,   1,   1,  74,  23,  90,  64,  70,  32,  39,  32,  55,  43,   4),  # after 'jkqvwxyz'
    ( 40,   1,  21,  13,  16,  52,  23,  78,  15,  83,  46,  28,  57,  63,  56,  32),  # after 'ABCDEFGHIJKL'
    ( 36,  18,  21,  60,  36,  62,  88,  66,  90,  21,  60,  20,  24,  36, 100,  46),  # after '0123456789'
    (  1,  26,  64,  27,  30,  33,  32,  38,  11,  67,   2,  26,  21,  23,   1,  97),  # after '-=_*#.~'
    ( 44,  50,  19,  21,  16,  18,  10,  34,  23,  32,  18,  19,  24,  36,  29,  21),  # after '"\'`'
    ( 12,  11,  19,  15,  51,  60,  58,  42,  44,  34,  18,   7,  19,  20,  56,  29),  # after '([{<)]}>'
    ( 27,  34,  30,  25,  41,  54,  50,  33,  35,  17,  12,  39,  27,  23,  45,  21),  # after ',;:'
    ( 55,  42,  69,  84,  78,  49,  50,  37,  77,  38,  16,  40,  24,  30,   6,  19),  # after '/\\@!$%&^|+'
    ( 12,  32,  31,  56,  24,  17,   6,  11,  19,  19,  74,  23,  18,  17,  16,   3),  # after '?'
)
# Unicode blocks by the upper byte of the UTF-16 unit: name, first, last, price added to the pair
BLOCKS: Final = (
    ("Latin extended", 0x01, 0x02, 87),
    ("Greek, combining marks", 0x03, 0x03, 17),
    ("Cyrillic", 0x04, 0x04, 3),
    ("Hebrew, Armenian", 0x05, 0x05, 6),
    ("Arabic", 0x06, 0x06, 2),
    ("Syriac to Arabic extended", 0x07, 0x08, 127),
    ("Devanagari, Bengali", 0x09, 0x09, 1),
    ("Gurmukhi, Gujarati", 0x0A, 0x0A, 12),
    ("Oriya, Tamil", 0x0B, 0x0B, 17),
    ("Telugu, Kannada", 0x0C, 0x0C, 14),
    ("Malayalam, Sinhala", 0x0D, 0x0D, 23),
    ("Thai, Lao", 0x0E, 0x0E, 18),
    ("Tibetan", 0x0F, 0x0F, 121),
    ("Georgian, Burmese", 0x10, 0x10, 20),
    ("Hangul jamo", 0x11, 0x11, 127),
    ("Ethiopic, Cherokee", 0x12, 0x13, 114),
    ("Canadian syllabics, runes", 0x14, 0x16, 127),
    ("Khmer, Mongolian", 0x17, 0x18, 37),
    ("Tai Le to phonetic extensions", 0x19, 0x1D, 127),
    ("Vietnamese, polytonic Greek", 0x1E, 0x1F, 1),
    ("general punctuation", 0x20, 0x20, 35),
    ("letterlike symbols, arrows", 0x21, 0x21, 20),
    ("mathematical and technical symbols", 0x22, 0x24, 127),
    ("box drawing, geometric shapes", 0x25, 0x25, 5),
    ("symbols, dingbats", 0x26, 0x27, 44),
    ("Braille to CJK radicals", 0x28, 0x2F, 127),
    ("kana, CJK punctuation", 0x30, 0x30, 40),
    ("compatibility jamo, enclosed CJK", 0x31, 0x33, 127),
    ("CJK extension A", 0x34, 0x4D, 127),
    ("CJK ideographs", 0x4E, 0x9F, 46),
    ("Yi to Meetei Mayek", 0xA0, 0xAB, 127),
    ("Hangul syllables", 0xAC, 0xD7, 16),
    ("supplementary planes, two units a character", 0xD8, 0xDF, 63),
    ("private use", 0xE0, 0xF8, 127),
    ("compatibility forms", 0xF9, 0xFE, 25),
    ("fullwidth forms", 0xFF, 0xFF, 28),
)
# fmt: on


def _class_table() -> bytes:
    table = bytearray([2] * 128 + [7] * 128)
    for number, members in enumerate(CLASSES):
        for member in members:
            table[ord(member)] = number
    return bytes(table)


def _block_table() -> bytes:
    table = bytearray(256)
    for _, first, last, price in BLOCKS:
        table[first : last + 1] = bytes([price]) * (last + 1 - first)
    return bytes(table)


_CLASS: Final = _class_table()
_PAIR: Final = bytes(price for row in PAIRS for price in row)
_BLOCK: Final = _block_table()


def estimate_text(text: str) -> int:
    """Return the estimated number of o200k_base tokens in ``text``."""
    length = len(text)
    if length > SAMPLE_CHARACTERS:
        text = _sample(text)
    prices = pair_codes(text).translate(_PAIR)
    units = _sum(prices) - prices[-1]
    if not text.isascii():
        units += _sum(block_codes(text).translate(_BLOCK, b"\0"))
    if length > SAMPLE_CHARACTERS:
        units = units * length // SAMPLE_CHARACTERS
    return (units + UNIT // 2) // UNIT or min(length, 1)


def estimate_each(texts: Sequence[str]) -> list[int]:
    """Return `estimate_text` of each of many short texts in a third of the time.

    A line break and the start of a text have the same class, so the texts can be priced together.
    """
    prices = pair_codes("\n".join(texts)).translate(_PAIR)
    found: list[int] = []
    start = 0
    for text in texts:
        length = len(text)
        if length <= CHUNK:
            units = adler32(prices[start : start + length], 0) & 0xFFFF
            if not text.isascii():
                units += _sum(block_codes(text).translate(_BLOCK, b"\0"))
            found.append((units + UNIT // 2) // UNIT or min(length, 1))
        else:
            found.append(estimate_text(text))
        start += length + 1
    return found


def pair_codes(text: str) -> bytes:
    """Return for each character its class plus sixteen times the previous class, and one byte for the end."""
    classes = text.encode("latin-1", "replace").translate(_CLASS)
    number = int.from_bytes(classes, "little")
    return (number | number << 12).to_bytes(len(classes) + 1, "little")


def block_codes(text: str) -> bytes:
    """Return the upper byte of each UTF-16 unit: 0 for Latin-1, else the Unicode block."""
    return text.encode("utf-16-le", "surrogatepass")[1::2]


def _sum(prices: bytes) -> int:
    if len(prices) <= CHUNK:
        return adler32(prices, 0) & 0xFFFF
    return sum([adler32(prices[at : at + CHUNK], 0) & 0xFFFF for at in range(0, len(prices), CHUNK)])


def _sample(text: str) -> str:
    """Return `SAMPLE_CHARACTERS` characters of a longer text: one window from each of `WINDOWS` equal strata.

    The position of a window in its stratum follows the golden ratio, so that it does not align with the lines or
    records of the text.
    """
    length = len(text)
    free = length // WINDOWS - WINDOW
    starts = [i * length // WINDOWS + (free * (i * 40_503 % 65_536) >> 16) for i in range(WINDOWS)]
    return "".join([text[start : start + WINDOW] for start in starts])


Basis = Literal["estimated", "calibrated", "reported"]

MESSAGE_UNITS = 4
"""Units for role and separators of one message."""
CALL_UNITS = 12
"""Units for id, type and JSON syntax of one tool call."""
NAME_CHARACTERS_PER_UNIT = 4
RESULT_UNITS = 6
"""Units for id and wrapping of one tool result."""
TOOL_UNITS = 8
"""Units for the wrapping of one tool definition."""
IMAGE_UNITS = 1_600
"""Units of an image: the maximum that a provider bills at its usual limits, to be safe."""
AUDIO_UNITS = 1_000
MAX_CACHED_TOOL_LISTS = 32
DOCUMENT_UNITS = 2_000
"""Minimum units of a document; larger ones are counted by size."""
DOCUMENT_BYTES_PER_UNIT = 40
LONG_DATA = 2_000
_BLOB = re.compile(r"[A-Za-z0-9+/=_-]{2000,}+")
SIGNATURE_CHARACTERS_PER_UNIT = 4
"""Characters per unit of a signature or encrypted reasoning, which bill the hidden reasoning instead of their text."""


class Count(NamedTuple):
    """Number of tokens and its basis."""

    tokens: int
    basis: Basis


class FixedSize(NamedTuple):
    """Size of system prompt and tools, the parts of a request outside its messages: units and number of messages."""

    units: int = 0
    messages: int = 0


NOTHING_FIXED = FixedSize()


class TokenCounter(Protocol):
    """Protocol for anything that counts the tokens of a text."""

    name: str

    def count(self, text: str, /) -> int: ...


class Estimate:
    """Default counter by character classes; within a few per cent of o200k on real conversations."""

    name = "estimate"
    count = staticmethod(estimate_text)


ESTIMATE = Estimate()


class Meter:
    """Message counter that caches every count by the message's bytes."""

    def __init__(
        self,
        counter: TokenCounter = ESTIMATE,
        *,
        factor: float = 1.0,
        message_overhead: int = 0,
        remember: int = 200_000,
    ) -> None:
        self.counter = counter
        self.factor = factor
        self.message_overhead = message_overhead
        self._memo: LRU[Any, int] = LRU(remember)
        self._tools: LRU[tuple[Tool, ...], int] = LRU(MAX_CACHED_TOOL_LISTS)

    def units(self, message: Message) -> int:
        """Return the units of one message, cached."""
        if self.counter is not ESTIMATE:
            return self._look_up_units(message)
        if message.units is None:
            # Hashing bytes is far cheaper than counting them; encoding a dict in order to hash it is not.
            message.units = (
                self._look_up_units(message) if isinstance(message.wire, Raw) else self._count_units(message)
            )
        return message.units

    def _count_units(self, message: Message) -> int:
        return MESSAGE_UNITS + part_units(message.parts, self.counter)

    def _look_up_units(self, message: Message) -> int:
        key = message.key
        units = self._memo.peek(key)
        if units is None:
            units = self._count_units(message)
            self._memo.put(key, units)
        return units

    def tool_units(self, definitions: Iterable[Tool]) -> int:
        """Return the units of all tool definitions, cached."""
        tools = tuple(definitions)
        return self._tools.get_or_make(tools, lambda: sum(TOOL_UNITS + self.counter.count(tool.body) for tool in tools))

    def raw_tool_units(self, data: bytes, definitions: Callable[[], Iterable[Tool]]) -> int:
        """Return the same for definitions given as bytes, which are parsed only if they are not cached."""
        key = blake2b(data, digest_size=16).digest()
        units = self._memo.peek(key)
        if units is None:
            units = self.tool_units(definitions())
            self._memo.put(key, units)
        return units

    def tokens(self, units: int, messages: int = 0) -> int:
        """Convert units to tokens of this meter's model."""
        return round(units * self.factor) + messages * self.message_overhead

    def fixed_size(self, system: Message | None, tools: Iterable[Tool] = ()) -> FixedSize:
        """Return the size that system prompt and tools add to every request."""
        units = self.tool_units(tools)
        return FixedSize(units) if system is None else FixedSize(units + self.units(system), 1)

    def request(self, units: int, messages: int, fixed: FixedSize) -> int:
        """Return the total tokens of a request; hosts, engines, the gateway and commands all use this sum."""
        return self.tokens(units + fixed.units, messages + fixed.messages)

    def count(self, messages: Iterable[Message], fixed: FixedSize = NOTHING_FIXED) -> Count:
        """Return the estimated size of a request with these messages."""
        count = self.units
        default = self.counter is ESTIMATE
        units = [message.units if default and message.units is not None else count(message) for message in messages]
        return Count(self.request(sum(units), len(units), fixed), "estimated")


def part_units(parts: Iterable[Part], counter: TokenCounter = ESTIMATE) -> int:
    """Return the units of message parts, including their wrapping."""
    total = 0
    count = counter.count
    for part in parts:
        kind = type(part)
        if kind is Text:
            total += count(part.text)  # type: ignore[attr-defined]
        elif type(part) is ToolResult:
            only = part.parts[0] if len(part.parts) == 1 else None
            inner = count(only.text) if type(only) is Text else part_units(part.parts, counter)
            total += RESULT_UNITS + inner
        elif type(part) is ToolCall:
            total += CALL_UNITS + len(part.name) // NAME_CHARACTERS_PER_UNIT + count(part.arguments)
        elif isinstance(part, Thinking):
            total += count(part.text) or len(part.signature or "") // SIGNATURE_CHARACTERS_PER_UNIT
        elif isinstance(part, Media):
            total += media_units(part)
        elif isinstance(part, Opaque):
            total += _opaque_units(part.body, counter)
    return total


def _opaque_units(body: str, counter: TokenCounter) -> int:
    """Return the units of an uninterpreted block; long base64 in it counts as an image or file, not as text."""
    if len(body) < LONG_DATA:
        return counter.count(body)
    text, blobs = _BLOB.subn("", body)
    return counter.count(text) + blobs * IMAGE_UNITS


def media_units(media: Media) -> int:
    """Return a flat, conservative size; the real one does not depend on the length of the base64."""
    if media.kind == "image":
        return IMAGE_UNITS
    if media.kind == "audio":
        return AUDIO_UNITS
    if media.mime is not None and media.mime.startswith("text/"):
        return estimate_text(media.data)
    return max(DOCUMENT_UNITS, len(media.data) * 3 // 4 // DOCUMENT_BYTES_PER_UNIT)


# Running totals, corrected by what providers report. A `Tally` is a total over the first `count` messages, bound to
# their bytes by a hash chain; `RunningTally` grows by appended messages, and checks in one comparison whether an older
# tally is still a prefix. A report is exact for the messages it measured; only later messages are estimated. A report
# for messages that are no longer a prefix only updates the model's factor.


MIN_SAMPLE_TOKENS = 500
"""Minimum tokens of a calibration sample; smaller reports reflect fixed framing rather than the vocabulary."""
MIN_RATIO, MAX_RATIO = 0.25, 4.0
MIN_PLAUSIBLE_RATIO, MAX_PLAUSIBLE_RATIO = 0.1, 10.0
MAX_UNSEEN_TOKENS = 200_000
"""Maximum tokens of a prompt that the host cannot see; less plausible reports are ignored."""
NEWEST_WEIGHT = 0.3


class Tally(msgspec.Struct, frozen=True):
    """First `count` messages of a conversation: their units and a hash of their bytes."""

    count: int = 0
    units: int = 0
    chain: bytes = b""


class RunningTally:
    """Tally of a growing conversation, kept by its host."""

    def __init__(self, meter: Meter, messages: Iterable[Message] = ()) -> None:
        self.meter = meter
        self._marks: list[Tally] = [Tally()]
        self.extend(messages)

    def extend(self, messages: Iterable[Message]) -> Tally:
        """Add messages; the cost is linear in their number."""
        mark = self._marks[-1]
        for message in messages:
            chain = blake2b(mark.chain + message.digest, digest_size=DIGEST_SIZE).digest()
            mark = Tally(mark.count + 1, mark.units + self.meter.units(message), chain)
            self._marks.append(mark)
        return mark

    @property
    def now(self) -> Tally:
        return self._marks[-1]

    def at(self, count: int) -> Tally:
        return self._marks[count]

    def starts_with(self, tally: Tally) -> bool:
        """Return whether the tallied messages are still the start of the conversation."""
        return tally.count < len(self._marks) and self._marks[tally.count].chain == tally.chain


class Calibration(msgspec.Struct, frozen=True):
    """Correction of the estimate learned from reported usage in one session."""

    ratio: float = 1.0
    """Ratio of reported to estimated tokens."""
    samples: int = 0
    anchor: Tally | None = None
    anchor_tokens: int = 0
    anchor_fixed: int = 0

    def observe(self, measured: Tally, prompt_tokens: int, *, fixed: FixedSize, meter: Meter) -> Calibration:
        """Return the calibration updated with the prompt tokens that a provider reported for these messages."""
        estimate = meter.request(measured.units, measured.count, fixed)
        if prompt_tokens <= 0:
            return self
        if not MIN_PLAUSIBLE_RATIO * estimate <= prompt_tokens <= MAX_PLAUSIBLE_RATIO * estimate + MAX_UNSEEN_TOKENS:
            return self
        ratio, samples = self.ratio, self.samples
        seen = self._ratio_of(measured, prompt_tokens, estimate, fixed.units, meter)
        if seen is not None:
            ratio = seen if not samples else ratio + NEWEST_WEIGHT * (seen - ratio)
            samples += 1
        return Calibration(ratio, samples, measured, prompt_tokens, fixed.units)

    def _ratio_of(
        self, measured: Tally, prompt_tokens: int, estimate: int, fixed_units: int, meter: Meter
    ) -> float | None:
        """Return reported over estimated growth since the last report; over the whole prompt for the first one."""
        last = self.anchor
        if last is not None and measured.count > last.count and fixed_units == self.anchor_fixed:
            estimate = meter.tokens(measured.units - last.units, measured.count - last.count)
            prompt_tokens -= self.anchor_tokens
        if min(estimate, prompt_tokens) < MIN_SAMPLE_TOKENS:
            return None
        return min(max(prompt_tokens / estimate, MIN_RATIO), MAX_RATIO)

    def predict(self, running: RunningTally, fixed: FixedSize) -> Count:
        """Return the size of the next request: the last report plus later messages, else the corrected estimate."""
        meter, now, anchor = running.meter, running.now, self.anchor
        if anchor is not None and running.starts_with(anchor):
            new = meter.tokens(now.units - anchor.units + fixed.units - self.anchor_fixed, now.count - anchor.count)
            if new == 0 and now.count == anchor.count:
                return Count(self.anchor_tokens, "reported")
            return Count(max(self.anchor_tokens + round(new * self.ratio), 0), "calibrated")
        estimate = meter.request(now.units, now.count, fixed)
        if not self.samples:
            return Count(estimate, "estimated")
        return Count(round(estimate * self.ratio), "calibrated")

    def without_anchor(self) -> Calibration:
        """Return the calibration without its anchor; the size is unknown after a compaction or a model switch."""
        return Calibration(self.ratio, self.samples)
