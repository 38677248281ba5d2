"""A gateway on a store that keeps no secrets: the provider sees what the client sent, the store does not, folds fit."""

from __future__ import annotations

from pathlib import Path

import midfold
from midfold.testing.answers import openai_json
from midfold.testing.fixtures import assistant, call, numbered, system, user
from midfold.testing.provider import ScriptedProvider
from support.gateways import running

SECRET = "sk-" + "ant-api03-" + "Zx8" * 20
WINDOW = 16_000


def history() -> list[dict[str, object]]:
    said = [system(), user(f"Use {SECRET} for the tests."), assistant("I will.")]
    for number in range(40):
        text = numbered(f"line {{n}} of step {number}: nothing special happens in here", 30)
        said += call(number, "terminal", {"command": f"export KEY={SECRET} && make step-{number}"}, text)
    return [*said, user(f"Is {SECRET} still right?")]


def test_folds_are_found_again_and_originals_have_no_secret(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    heads = []
    for _ in range(2):
        with (
            midfold.open(url, redacts=True) as sessions,
            ScriptedProvider(then=lambda request: openai_json("fine")) as provider,
            running(provider.url, window=WINDOW, sessions=sessions) as gateway,
        ):
            heads.append(gateway.post("/v1/chat/completions", {"model": "gpt-4o", "messages": history()})[1])
            assert SECRET in str(provider.requests[-1].body["messages"][-1])
            (info,) = sessions.store.sessions(10)
            assert SECRET not in str(list(sessions.session(info.name).history()))
    assert [head["x-midfold-action"] for head in heads] == ["compacted", "checkpoint"]
    assert heads[0]["x-midfold-receipt"] == heads[1]["x-midfold-receipt"]
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in tmp_path.iterdir())
