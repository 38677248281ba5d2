"""A caller's media reducer: its input, its allowed output, and its failures."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

import midfold
from midfold.testing import ScriptedProvider
from midfold.testing.answers import turn
from support import fixtures
from support.gateways import running

FORM = "A form with a Save button."
BODY = "iVBORw0KGgo" * 300


def shot(number: int) -> list[dict[str, Any]]:
    """Return a screenshot with its number in the data, and an answer."""
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{number:04}{BODY}"}}
    text = {"type": "text", "text": f"Screenshot {number}: move the button."}
    return [{"role": "user", "content": [text, image]}, fixtures.assistant("Moved.")]


TALK = [message for number in range(24) for message in shot(number)]


def number_of(media: midfold.Media) -> int:
    return int(media.data.removeprefix("data:image/png;base64,")[:4])


def fold(reducer: midfold.MediaReducer | None, talk: list[dict[str, Any]] = TALK, **more: Any) -> midfold.Compaction:
    result = midfold.compact(talk, context_length=64_000, media_reducer=reducer, **more)
    assert result.changed
    return result


def test_a_text_stands_beside_the_handle_and_is_redacted() -> None:
    result = fold(lambda media: f"{FORM} password=9f8b7c6d5e4f3a")
    shown = json.dumps(result.messages)
    assert shown.count(FORM) == 23
    assert "9f8b7c6d5e4f3a" not in shown
    assert result.messages[0]["content"][1]["text"].startswith("[image/png removed to save context space | unfold mf-")
    media = [digest for digest in result.receipt.digests if digest.kind == "media"]
    assert result.archive.originals(media[0].handle) == [TALK[media[0].message]]


def test_it_never_sees_the_newest_image_bearing_turn_and_each_old_one_once() -> None:
    seen: list[int] = []
    result = fold(lambda media: seen.append(number_of(media)))
    assert seen == list(range(22, -1, -1))
    assert result.messages[-2] is TALK[-2]
    assert result.messages == fold(None).messages


@pytest.mark.parametrize("keeps_wire", [True, False])
def test_a_smaller_picture_takes_the_place_of_the_old_one(keeps_wire: bool) -> None:
    def shrink(media: midfold.Media) -> midfold.Media:
        small = f"data:image/png;base64,{number_of(media):04}small"
        return msgspec.structs.replace(media, data=small) if keeps_wire else midfold.Media("image", small)

    result = fold(shrink)
    urls = [
        block["image_url"]["url"] for message in result.messages for block in message["content"] if "image_url" in block
    ]
    assert urls == ["data:image/png;base64,0022small", TALK[-2]["content"][1]["image_url"]["url"]]
    assert result.receipt.notices == ("Replaced 22 old pictures with placeholders: no budget left for reduced ones.",)


def test_failures_are_counted_and_placeholders_stand() -> None:
    def fail(media: midfold.Media) -> Any:
        match number_of(media) % 6:
            case 0:
                raise ValueError("sk-secret in an error")
            case 1:
                return msgspec.structs.replace(media, data=media.data + "longer")
            case 2:
                return midfold.Media("audio", "AAAA")
            case 3:
                return b"bytes"
            case 4:
                return "word " * 4_000
            case _:
                return FORM

    result = fold(fail)
    (told,) = result.receipt.notices
    assert "failed for 20 of 23 old pictures" in told
    assert "ValueError" in told
    assert "secret" not in told
    assert json.dumps(result.messages).count("removed to save context space") == 23
    assert json.dumps(result.messages).count(FORM) == 3


def test_pictures_in_old_results_are_reduced_too() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BODY}}
    talk: list[dict[str, Any]] = [fixtures.user("Go.")]
    for number in range(24):
        call = {"type": "tool_use", "id": f"t{number}", "name": "browser", "input": {}}
        talk.append({"role": "assistant", "content": [call]})
        talk.append(
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"t{number}", "content": [image]}]}
        )
    after = fold(lambda media: msgspec.structs.replace(media, data="small", mime="image/webp"), talk).messages
    assert '{"type": "base64", "media_type": "image/webp", "data": "small"}' in json.dumps(after)


def test_sessions_hosts_and_engines_have_it() -> None:
    seen: list[midfold.MediaReducer | None] = []

    class Looks(midfold.Compressor):
        def compress(self, request: midfold.CompactionRequest) -> midfold.Flow:
            seen.append(request.media_reducer)
            return (yield from super().compress(request))

    def say(media: midfold.Media) -> str:
        return FORM

    host = midfold.EngineHost(Looks(), context_length=64_000, media_reducer=say)
    host.append(TALK)
    assert json.dumps(host.compress(TALK)).count(FORM) == 23
    with midfold.open("memory:", engine=Looks(), media_reducer=say) as sessions:
        session = sessions.session("a", context_length=64_000)
        session.append(TALK)
        session.compact()
        assert session.view().json().count(FORM.encode()) == 23
    assert seen == [say, say]


def test_a_gateway_over_such_sessions_has_it() -> None:
    with (
        ScriptedProvider([turn("openai", "Good.")]) as provider,
        midfold.open("memory:", media_reducer=lambda media: FORM) as sessions,
        running(provider.url, sessions=sessions) as gateway,
    ):
        status, _, _ = gateway.post("/v1/chat/completions", {"model": "gpt-5.5", "messages": TALK})
        sent = provider.requests[0].raw
    assert status == 200
    assert sent.count(FORM.encode()) == 23
    assert sent.count(BODY.encode()) == 1
