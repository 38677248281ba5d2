from __future__ import annotations

from midfold import Media, Message, Text, ToolResult
from midfold.compaction.media import has_images, newest_picture, replace_historical_media

PICTURE = Media("image", "AAAA", "image/png")


def turn(*parts: object) -> Message:
    return Message("user", tuple(parts))  # type: ignore[arg-type]


SHOT = Message("tool", (ToolResult("1", (Text("see"), PICTURE)),))
SAID = turn(Text("no picture"))


def test_pictures_before_the_newest_image_bearing_user_turn_become_placeholders() -> None:
    messages = (turn(Text("a"), PICTURE), SHOT, turn(Text("b"), PICTURE), SHOT, SAID)
    view, changed = replace_historical_media(messages, lambda message: "mf-1")
    assert sorted(changed) == [0, 1]
    assert not has_images(view[0].parts + view[1].parts)
    assert "unfold mf-1" in view[0].text
    assert view[2:] == messages[2:]
    assert view[2] is messages[2]


def test_without_a_users_picture_the_newest_screenshot_stays() -> None:
    view, changed = replace_historical_media((SHOT, SHOT, SAID), lambda message: "h")
    assert list(changed) == [0]
    assert has_images(view[1].parts)


def test_without_pictures_nothing_changes() -> None:
    assert replace_historical_media((SAID,), lambda message: "h") == ((SAID,), {})
    assert newest_picture((SAID,)) is None
