"""Redaction: MB/s on real messages against one str.lower of the same text, and hostile text at n, 2n, 4n.

python -m bench.redact
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

from bench.workload import best, messages, origin, report
from midfold.compaction.redact import redact

COUNT = 10_000
SIZE = 250_000

HOSTILE = {
    "dotted run": "a.", "hex": "", "base64url": "", "password=password=": "password=", 'password="': 'password="',
    'password=\\"': 'password=\\"', "mixed quotes": "password=\"password='", '"key":': '"key":',
    '"api_key":': '"api_key":', "sk-sk-": "sk-", "sk-proj-sk-proj-": "sk-proj-", "eyJeyJ": "eyJ",
    "JWT heads": "eyJhbGciOiJIUzI1NiJ9.", "PEM heads": "-----BEGIN PRIVATE KEY-----",
    "PEM heads, lines": "-----BEGIN PRIVATE KEY-----\n",
    "PEM heads, keys": "-----BEGIN PRIVATE KEY-----\nMIIEpAIBAAKCAQEA0123456789\n",
    "PEM ends": "-----END PRIVATE KEY-----", "PEM header lines": "-----BEGIN PRIVATE KEY-----\nProc-Type: a",
    "://:@": "://:@", "://a:b": "://a:b", "://a@": "://a@", "@://": "@://", "one letter": "a", "one digit": "0",
    "dashes": "-", "underscores": "_", "quotes": '"', "backslashes": "\\", "newlines": "\n", "spaces": " ",
    "Authorization:": "Authorization: ", "authorization: bearer": "authorization: bearer ", "bearer": "bearer ",
    "cookie:": "cookie: ", "cookie: a=b": "cookie: a=bbbbbbbb", "sig=": "://sig=", "--password": "--password ",
    "--token=": "--token=", "token:": "token: ", "token=x(": "token=x(", "secret='": "secret='",
    "password>": "password>", "ghp_ghp_": "ghp_", "inner ghp_": "-ghp_aaaaaaaaaaaaaaaaaaa-",
    "SG.": "SG.aaaaaaaaaaaaaaaaaaaaaa.", "Discord": "Maaaaaaaaaaaaaaaaaaaaaaaa.aaaaaa.",
    "Telegram": "123456789:AAaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ", "AWS keys": "AKIAABCDEFGHIJKLMNOP ",
    "Cyrillic": "пароль password=ж", "paths": "password=a/a/a/", "attributes": "password=a.a.",
    "dates": "password: 1-1-1-", "runs of 20": "aaaaaaaaaaaaaaaaaaaa ", "elements": "<password>abc</password>",
    "YAML lines": "password: word\n", "YAML words": "password: word ", "full-width names": "ｐａｓｓｗｏｒｄ＝",
    "full-width runs": "ｅ：", "密码：": "密码：", "密码：x1x": "密码：x1x", "mot de passe:": "mot de passe : x",
    "encoded names": "token%3D", "encoded JSON": "%22api_key%22%3A%22", "encoded values": "password%3Dabcd",
    "encoded %25": "password%25", "PuTTY heads": "key private-lines: 1\n",
    "PuTTY keys": "key private-lines: 1\nAAAAAAAAAAAAAAAAAAAAAAAA\n", "mfk_mfk_": "mfk_",
    "inner mfk_": "-mfk_aaaaaaaaaaaaaaaa-",
    "ATATT": "ATATT3x", "age": "AGE-SECRET-KEY-1",
}  # fmt: skip


def hostile(name: str, size: int) -> str:
    """Return about `size` characters that are expensive for a redactor."""
    alphabets = {"hex": "0123456789abcdef", "base64url": "ABCDEFGHIJKLMNOPabcdefghijklmnop0123456789-_"}
    if name in alphabets:
        return "".join(random.Random(size).choices(alphabets[name], k=size))
    piece = HOSTILE[name]
    return (piece * (size // len(piece) + 1))[:size]


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings(item)


def main() -> None:
    texts = list(strings(messages(COUNT)))
    for label, chosen, goal in (
        ("all strings, however short", texts, 20),
        ("strings of 200 characters and more", [text for text in texts if len(text) >= 200], 20),
    ):
        size = sum(map(len, chosen)) / 1e6
        took = best(lambda chosen=chosen: [redact(text) for text in chosen], 3)  # type: ignore[misc]
        peer = best(lambda chosen=chosen: [text.lower() for text in chosen], 3)  # type: ignore[misc]
        changed = sum(redact(text) is not text for text in chosen)
        print(f"  {len(chosen):,} strings, {size:.1f} MB, from {origin()}; {changed:,} changed")
        report(
            f"{label} ({took / peer:.0f}x str.lower)", f"{size / took:.0f} MB/s", f">= {goal}", met=size / took >= goal
        )
    for name in HOSTILE:
        times = [_seconds(hostile(name, SIZE * times)) for times in (1, 2, 4)]
        shown = " / ".join(f"{took * 1000:.0f}" for took in times)
        linear = times[2] <= 6 * times[0] + 0.02
        report(
            f"hostile, 1 MB: {name} (n, 2n, 4n: {shown} ms)", f"{times[2]:.3f} s", "< 1 s", met=times[2] < 1 and linear
        )


def _seconds(text: str) -> float:
    """Return the processor time of the fastest of three runs."""
    fastest = float("inf")
    for _ in range(3):
        start = time.process_time()
        redact(text)
        fastest = min(fastest, time.process_time() - start)
    return fastest


if __name__ == "__main__":
    main()
