"""Hash what midfold outputs on recorded sessions, to prove that a refactoring changes no output byte.

    python tools/output_hashes.py DATA OUT.json          write one hash per session and way of use
    python tools/output_hashes.py --compare A.json B.json

Ways of use: `compact()` at three sizes, a stored session that compacts while it grows, and a gateway that receives a
growing conversation. Only public names are used, so the tool runs on trees with different module layouts.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

import midfold
from midfold.gateway import create_app
from midfold.testing import ScriptedProvider, served
from midfold.testing.answers import openai_json

WINDOW_TOKENS = 32_000
GATEWAY_SESSIONS = 30
STEP = 20
"""Messages between two compaction decisions of a session, and between two requests to the gateway."""


def sessions(data: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for file in sorted(data.glob("*/conversations.jsonl")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines()):
            messages = json.loads(line)["messages"]
            yield (
                f"{file.parent.name}-{number}",
                [{key: value for key, value in message.items() if key != "_meta"} for message in messages],
            )


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def library(messages: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    total = midfold.Meter().count(midfold.read(messages).messages).tokens
    yield "compact 32k", digest(midfold.compact(messages, context_length=WINDOW_TOKENS).messages)
    yield "compact forced", digest(midfold.compact(messages, context_length=200_000, force=True).messages)
    for share in (10, 3):
        small = midfold.compact(messages, context_length=WINDOW_TOKENS, target_tokens=max(total // share, 500))
        yield f"compact 1/{share}", digest(small.messages)


def stored(name: str, messages: list[dict[str, Any]]) -> str:
    found = []
    with midfold.open("memory:") as kept:
        session = kept.session(name, context_length=WINDOW_TOKENS)
        for start in range(0, len(messages), STEP):
            session.append(messages[start : start + STEP])
            session.compact()
            found.append(digest(session.view().messages))
    return digest(found)


def gateway(messages: list[dict[str, Any]]) -> str:
    config = midfold.Config(models={"*": midfold.ModelSettings(context_window=WINDOW_TOKENS)})
    turns = [end for end in range(STEP, len(messages) + 1, STEP) if messages[end - 1]["role"] in ("user", "tool")]
    with ScriptedProvider(then=openai_json("ok")) as provider, midfold.open("memory:") as kept:
        upstream = msgspec.structs.replace(config.gateway, upstream=provider.url)
        app = create_app(msgspec.structs.replace(config, gateway=upstream), sessions=kept, environment={})
        with served(app) as url:
            for end in turns:
                post(url, {"model": "gpt-4o", "messages": messages[:end]})
        return digest([request.text for request in provider.requests])


def post(url: str, body: object) -> None:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=120)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    connection.getresponse().read()
    connection.close()


def main(data: Path, target: Path) -> None:
    found: dict[str, str] = {}
    for number, (name, messages) in enumerate(sessions(data)):
        for way, value in library(messages):
            found[f"{name} {way}"] = value
        found[f"{name} session"] = stored(name, messages)
        if number % 6 == 0 and number < GATEWAY_SESSIONS * 6:
            found[f"{name} gateway"] = gateway(messages)
        print(f"\r{number + 1} sessions, {len(found)} outputs", end="", file=sys.stderr, flush=True)
    target.write_text(json.dumps(found, indent=1, sort_keys=True), encoding="utf-8")
    print(f"\n{len(found)} outputs of {midfold.__version__} written to {target}")


def compare(one: Path, other: Path) -> int:
    before, after = json.loads(one.read_text("utf-8")), json.loads(other.read_text("utf-8"))
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    print(f"{len(before)} outputs before, {len(after)} after, {len(changed)} differ")
    print("\n".join(changed[:40]))
    return 1 if changed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--compare"]:
        sys.exit(compare(Path(sys.argv[2]), Path(sys.argv[3])))
    main(Path(sys.argv[1]), Path(sys.argv[2]))
