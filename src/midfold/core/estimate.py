"""How many o200k_base tokens a text has, estimated without a vocabulary.

Rules of this file:

1. Pure: standard library only, no clock, no chance, the same number in every process and Python version.
2. Total: every ``str`` has an estimate, lone surrogates and NUL included; ``""`` is 0 and all else at least 1.
3. Bounded: a text of any length costs at most what `WHOLE` characters cost, plus `WINDOWS` slices.

The estimate is a sum over neighbouring characters. Each character falls into one of sixteen classes, each pair
of neighbouring classes has a price, and a character outside ASCII pays for its Unicode block on top. Word
starts, digit groups, base64 and runs of separators need no rule of their own: they differ in their pairs.

The loop over characters runs in C. Two class numbers fit into one byte, so one shift of the whole text, read as
an integer, puts every class next to its predecessor; ``bytes.translate`` turns the pairs into prices; and the
lower half of Adler-32 (RFC 1950), started from 0, is the sum of the bytes modulo 65521, which is exact for
`CHUNK` bytes, since no price exceeds `TOP_PRICE` and 512 * 127 < 65521.
"""

from __future__ import annotations

from typing import Final
from zlib import adler32

__all__ = ["estimate_text"]

UNIT: Final = 64  # prices are in 1/64 of a token: the price of one dash in a long run of dashes
WHOLE: Final = 4_096  # characters; longer texts are sampled
WINDOWS: Final = 64
WINDOW: Final = WHOLE // WINDOWS
CHUNK: Final = 512
TOP_PRICE: Final = 127

# The classes were chosen by hand: b, c, d and f apart because of hex, vowels apart because random letters lack
# them, separators apart because they repeat. Class 0 also stands before the first character. Control characters
# count as class 2, the rest of Latin-1 as the rare letters of class 7, and everything beyond as class 15.
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
# one row for each class of the character before, one column for each class of the character itself
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
# Unicode blocks by the upper byte of the UTF-16 unit: name, first, last, price on top of the pair
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
    """The estimated number of o200k_base tokens in ``text``."""
    length = len(text)
    if length <= WHOLE:
        units = _price(text) if length else 0
    else:
        units = _price(_sample(text)) * length // WHOLE
    return (units + UNIT // 2) // UNIT or min(length, 1)


def _price(text: str) -> int:
    """The price of a text in units."""
    prices = pair_codes(text).translate(_PAIR)
    units = _sum(prices) - prices[-1]
    if not text.isascii():
        units += _sum(block_codes(text).translate(_BLOCK, b"\0"))
    return units


def pair_codes(text: str) -> bytes:
    """For each character its class plus sixteen times the class before it, and one byte for the end of the text."""
    classes = text.encode("latin-1", "replace").translate(_CLASS)
    number = int.from_bytes(classes, "little")
    return (number | number << 12).to_bytes(len(classes) + 1, "little")


def block_codes(text: str) -> bytes:
    """The upper byte of each UTF-16 unit, which is 0 for Latin-1 and names the Unicode block for the rest."""
    return text.encode("utf-16-le", "surrogatepass")[1::2]


def _sum(prices: bytes) -> int:
    if len(prices) <= CHUNK:
        return adler32(prices, 0) & 0xFFFF
    return sum([adler32(prices[at : at + CHUNK], 0) & 0xFFFF for at in range(0, len(prices), CHUNK)])


def _sample(text: str) -> str:
    """`WHOLE` characters of a longer text: one window from each of `WINDOWS` equal strata.

    The place of a window inside its stratum follows the golden ratio, so that it does not keep step with the
    lines or records of the text.
    """
    length = len(text)
    free = length // WINDOWS - WINDOW
    starts = [i * length // WINDOWS + (free * (i * 40_503 % 65_536) >> 16) for i in range(WINDOWS)]
    return "".join([text[start : start + WINDOW] for start in starts])
