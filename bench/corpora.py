"""Texts by content type, to fit and to check the token estimate.

Each type has two halves that share no text: ``fit`` sets the constants, ``held`` is reported. Real messages are
split
by conversation, generated texts by seed, sentences by their position in the list.
"""

from __future__ import annotations

import base64
import inspect
import json
import random
import re
import string
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from bench.languages import (
    ARABIC,
    CHINESE,
    EMOJI_TEXT,
    ENGLISH,
    EUROPEAN,
    HINDI,
    JAPANESE,
    KOREAN,
    OTHER_CYRILLIC,
    OTHER_SCRIPTS,
    RUSSIAN,
    THAI,
)

Half = Literal["fit", "held"]
Corpus = dict[str, list[str]]

LENGTHS = (100, 180, 320, 560, 1_000, 1_800, 3_200, 5_600, 10_000, 24_000, 60_000, 200_000)
LONG_AFTER = 10_000
PYTHON_MODULES = {
    "fit": ("argparse", "ast", "calendar", "csv", "decimal", "difflib", "fractions", "heapq", "json.decoder", "queue"),
    "held": ("bisect", "cmd", "configparser", "dataclasses", "email.message", "gettext", "shlex", "textwrap", "wave"),
}

EMOJI = EMOJI_TEXT.split()
WORDS = sorted({word.strip(".,?!;:") for word in ENGLISH.lower().split()})
HTTP_HOSTS = (
    "example.com",
    "docs.python.org",
    "api.github.com",
    "cdn.shop.example",
    "news.site.co.uk",
    "localhost:8080",
)


def corpora(half: Half = "held", data: Path | None = None) -> Corpus:
    """Return every content type: the generated ones, and the real ones if ``data`` has conversations."""
    found = {name: list(texts) for name, texts in generated(half).items()}
    if data is not None:
        for name, texts in real(half, data).items():
            found.setdefault(name, []).extend(texts)
    return found


def generated(half: Half = "held", longest: int = LENGTHS[-1]) -> Corpus:
    """Return content types built from a seed and the sentences above, and Python from the standard library."""
    lengths = [length for length in LENGTHS if length <= longest]
    found: Corpus = {}
    for name, make in GENERATORS.items():
        rng = random.Random(f"{name}/{half}")
        found[name] = [make(rng, half, size) for size in lengths for _ in range(1 if size > LONG_AFTER else 3)]
    return found


def real(half: Half, data: Path) -> Corpus:
    """Return message texts of ``data/*/conversations.jsonl`` by content type, and all of them as ``real messages``."""
    found: Corpus = defaultdict(list)
    everything = [(_half_of(key), kind, text) for key, message in _messages(data) for kind, text in _texts(message)]
    seen = {text for owner, _, text in everything if owner == "fit"} if half == "held" else set()
    for owner, kind, text in everything:
        if owner == half and text and text not in seen:
            seen.add(text)
            found[kind].append(text)
            found["real messages"].append(text)
    return dict(found)


def _messages(data: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(data.glob("*/conversations.jsonl")):
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                conversation = json.loads(line)
                for message in conversation["messages"]:
                    yield str(conversation["id"]).split("-trial")[0], message


def _half_of(key: str) -> Half:
    return "held" if zlib.crc32(key.encode()) % 5 < 2 else "fit"


def _texts(message: dict[str, Any]) -> Iterator[tuple[str, str]]:
    content = message.get("content") or ""
    if isinstance(content, str):
        yield _kind(message["role"], content), content
    yield "real: prose", message.get("reasoning_content") or ""
    for call in message.get("tool_calls") or ():
        arguments = call["function"]["arguments"]
        yield "real: JSON", arguments
        yield from _written_files(arguments)


def _written_files(arguments: str) -> Iterator[tuple[str, str]]:
    """Yield files that an agent wrote: a tool call has the path, and so the language, next to the text."""
    names = {".py": "real: Python", ".go": "real: Go", ".ts": "real: TypeScript", ".tsx": "real: TypeScript"}
    try:
        fields = json.loads(arguments)
    except ValueError:
        return
    if isinstance(fields, dict):
        suffix = Path(str(fields.get("file_path", ""))).suffix
        text = fields.get("content") or fields.get("new_string") or ""
        if suffix in {*names, ".md"} and isinstance(text, str):
            yield names.get(suffix, "real: Markdown"), text


def _kind(role: str, text: str) -> str:
    if role != "tool":
        return "real: Markdown" if "\n#" in text or "\n```" in text else "real: prose"
    lines = text.splitlines()[:200] or [""]
    if sum(bool(re.match(r" *\d+[→\t:]", line)) for line in lines) > len(lines) / 2:
        return "real: numbered file reads"
    if text.startswith("diff --git") or "\n@@ -" in text:
        return "real: diffs"
    if text[:1] in "{[" and text.rstrip()[-1:] in "}]":
        return "real: JSON"
    return "real: terminal output"


Generator = Callable[[random.Random, Half, int], str]


def _repeat(piece: Callable[[random.Random], str], joint: str) -> Generator:
    """Return a generator that joins pieces and cuts the text to the length."""

    def make(rng: random.Random, half: Half, size: int) -> str:
        pieces: list[str] = []
        length = 0
        while length < size:
            pieces.append(piece(rng))
            length += len(pieces[-1]) + len(joint)
        return joint.join(pieces)[:size]

    return make


def _prose(sentences: str, joint: str = " ") -> Generator:
    lines = sentences.strip().splitlines()
    fit, held = [line for i, line in enumerate(lines) if i % 3], lines[::3]
    return lambda rng, half, size: _repeat(
        lambda r: r.choice(fit if half == "fit" else held) + r.choice(("", "", "", "\n")), joint
    )(rng, half, size)


def _other_scripts(rng: random.Random, half: Half, size: int) -> str:
    lines = OTHER_SCRIPTS.strip().splitlines()[half == "held" :: 2]
    return _repeat(lambda r: r.choice(lines), "\n")(rng, half, size)


def _python(rng: random.Random, half: Half, size: int) -> str:
    sources = []
    for name in PYTHON_MODULES[half]:
        sources.append(inspect.getsource(__import__(name, fromlist=["_"])))
    text = "\n".join(sources)
    start = rng.randrange(max(1, len(text) - size))
    return text[start : start + size]


def _hex(rng: random.Random, half: Half, size: int) -> str:
    text = rng.randbytes(size // 2 + 1).hex()
    width = rng.choice((32, 40, 64, size))
    return "\n".join(text[i : i + width] for i in range(0, len(text), width))[:size]


def _base64(rng: random.Random, half: Half, size: int) -> str:
    raw = rng.randbytes(size)
    return (base64.encodebytes(raw) if rng.random() < 0.3 else base64.b64encode(raw)).decode()[:size]


def _uuid(rng: random.Random) -> str:
    h = rng.randbytes(16).hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def _log_line(rng: random.Random) -> str:
    level = rng.choice(("INFO", "DEBUG", "WARNING", "ERROR"))
    stamp = f"2025-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}T{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    where = rng.choice(("worker", "http.server", "db.pool", "scheduler")) + f"[{rng.randint(100, 32000)}]"
    said = " ".join(rng.choices(WORDS, k=rng.randint(3, 9)))
    return f"{stamp}:{rng.randint(0, 59):02}.{rng.randint(0, 999):03}Z {level} {where}: {said} ms={rng.randint(1, 900)}"


def _csv_row(rng: random.Random) -> str:
    return ",".join(f"{rng.uniform(-1000, 1000):.{rng.choice((0, 2, 4))}f}" for _ in range(rng.randint(5, 9)))


def _url(rng: random.Random) -> str:
    path = "/".join("-".join(rng.choices(WORDS, k=rng.randint(1, 3))) for _ in range(rng.randint(1, 4)))
    query = rng.choice(("", f"?id={rng.randint(1, 10**8)}", f"?q={rng.choice(WORDS)}&page={rng.randint(1, 99)}"))
    return f"https://{rng.choice(HTTP_HOSTS)}/{path}{query}"


def _minified(rng: random.Random) -> str:
    a, b, c, d = rng.choices(string.ascii_letters, k=4)
    word, other = rng.choices(
        ("length", "push", "target", "value", "call", "prototype", "getElementById", "style"), k=2
    )
    return rng.choice(
        (
            f"function {a}({b},{c}){{return {b}.{word}({c})?{d}:null}}",
            f"var {a}={b}.{word},{c}={rng.randint(0, 999)};",
            f"for(var {a}=0;{a}<{b}.length;{a}++){c}[{a}]={d}({b}[{a}].{word});",
            f'if(!{a}||"{word}"===typeof {b})throw new Error("{rng.choice(WORDS)}");',
            f"{a}.{word}=function({b}){{var {c}=this.{other};return void 0!=={b}&&({c}.{word}={b}),{c}}},",
            f"({a}=>{a}.{word}({b}=>{b}.{other}&&{c}))({d}),",
        )
    )


def _json_record(rng: random.Random) -> str:
    record = {
        "id": rng.randint(1, 10**6),
        "user_name": "_".join(rng.choices(WORDS, k=2)),
        "active": rng.random() < 0.5,
        "score": round(rng.uniform(0, 100), 2),
        "tags": rng.choices(WORDS, k=rng.randint(0, 4)),
        "note": None if rng.random() < 0.3 else " ".join(rng.choices(WORDS, k=5)),
    }
    return json.dumps(record, indent=rng.choice((None, None, 2)))


def _spaced(rng: random.Random) -> str:
    gap = rng.choice((" ", " ", " ", "\t", "\n")) * int(10 ** rng.uniform(0.8, 2.4))
    return rng.choice(WORDS) + gap


def _table_row(rng: random.Random) -> str:
    name = rng.choice(WORDS).ljust(rng.randint(16, 30))
    return f"{name}{rng.randint(0, 10**6):>12}{rng.uniform(0, 100):>10.2f}%   {rng.choice(WORDS):<20}|"


def _rule(rng: random.Random) -> str:
    line = rng.choice("-=*#_~─━") * rng.choice((20, 40, 60, 72, 80, 100, 120))
    return f"{line}\n{rng.choice(WORDS)} {rng.choice(WORDS)}"


def _mixed(rng: random.Random, half: Half, size: int) -> str:
    blob = _base64(rng, half, size // 3)
    at = rng.randrange(size - len(blob))
    prose = _prose(ENGLISH)(rng, half, size - len(blob))
    return prose[:at] + blob + prose[at:]


GENERATORS: dict[str, Generator] = {
    "English prose": _prose(ENGLISH),
    "European languages": _prose(EUROPEAN),
    "Chinese": _prose(CHINESE, ""),
    "Japanese": _prose(JAPANESE, ""),
    "Korean": _prose(KOREAN),
    "Russian": _prose(RUSSIAN),
    "Ukrainian, Bulgarian, Serbian": _prose(OTHER_CYRILLIC),
    "Arabic": _prose(ARABIC),
    "Hindi": _prose(HINDI),
    "Thai": _prose(THAI),
    "Greek to Ethiopic": _other_scripts,
    "emoji": _repeat(lambda rng: "".join(rng.choices(EMOJI, k=4)), ""),
    "prose with emoji": _repeat(lambda rng: f"{' '.join(rng.choices(WORDS, k=6))} {rng.choice(EMOJI[:20])}", "\n"),
    "Python": _python,
    "minified JavaScript": _repeat(_minified, ""),
    "JSON records": _repeat(_json_record, "\n"),
    "log lines": _repeat(_log_line, "\n"),
    "CSV of numbers": _repeat(_csv_row, "\n"),
    "URLs": _repeat(_url, "\n"),
    "UUIDs": _repeat(_uuid, "\n"),
    "hex": _hex,
    "base64": _base64,
    "whitespace runs": _repeat(_spaced, ""),
    "padded tables": _repeat(_table_row, "\n"),
    "separator lines": _repeat(_rule, "\n"),
    "long digits": _repeat(lambda rng: str(rng.randrange(10**200)), " "),
    "prose with a base64 blob": _mixed,
}
