"""Hypothesis strategies for conversations, valid and as clients really send them.

from midfold.testing import strategies

@given(strategies.conversations("anthropic"))
def test_mine(messages): ...
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from midfold.transcript import jsonio

DIALECTS = ("openai-chat", "openai-responses", "anthropic")

texts = st.text(max_size=60)
words = st.sampled_from(["read_file", "terminal", "search", "mcp__files__list", "编辑"])
ids = st.sampled_from(["call_1", "call_2", "toolu_01", "x"])


def json_values(*, odd: bool = False) -> st.SearchStrategy[Any]:
    """Generate any JSON value; with `odd`, also what only lenient parsers accept: NaN, infinities, lone surrogates."""
    characters = st.characters() if odd else st.characters(codec="utf-8")
    strings = st.text(characters, max_size=20)
    floats = st.floats(allow_nan=odd, allow_infinity=odd)
    scalars = st.none() | st.booleans() | st.integers() | floats | strings
    return st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3), max_leaves=8
    )


def arguments() -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(["path", "command", "n", "ünï"]), json_values(), max_size=3)


def _extras() -> st.SearchStrategy[dict[str, Any]]:
    """Generate fields that midfold does not know and must preserve."""
    return st.dictionaries(st.sampled_from(["x_vendor", "_meta", "annotations"]), json_values(), max_size=2)


def _argument_texts() -> st.SearchStrategy[str]:
    return arguments().map(jsonio.text_of)


def _chat_calls() -> st.SearchStrategy[list[dict[str, Any]]]:
    function = st.fixed_dictionaries({"name": words, "arguments": _argument_texts()})
    call = st.fixed_dictionaries({"id": ids, "type": st.just("function"), "function": function})
    return st.lists(call, min_size=1, max_size=3)


def _chat_blocks() -> st.SearchStrategy[list[dict[str, Any]]]:
    text = st.builds(lambda text, extra: {"type": "text", "text": text, **extra}, texts, _extras())
    image = st.just({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}})
    return st.lists(text | image, min_size=1, max_size=3)


def chat_messages() -> st.SearchStrategy[dict[str, Any]]:
    content = texts | _chat_blocks()
    plain = st.fixed_dictionaries({"role": st.sampled_from(["system", "developer", "user"]), "content": content})
    answer = st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": st.none() | texts},
        optional={"tool_calls": _chat_calls(), "reasoning_content": texts, "refusal": st.none() | texts},
    )
    result = st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": ids, "content": content})
    return st.builds(lambda message, extra: {**message, **extra}, plain | answer | result, _extras())


def anthropic_messages() -> st.SearchStrategy[dict[str, Any]]:
    text = st.builds(lambda text, extra: {"type": "text", "text": text, **extra}, texts, _extras())
    image = st.just({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}})
    call = st.fixed_dictionaries({"type": st.just("tool_use"), "id": ids, "name": words, "input": arguments()})
    result = st.fixed_dictionaries(
        {"type": st.just("tool_result"), "tool_use_id": ids},
        optional={"content": texts | st.lists(text | image, max_size=2), "is_error": st.booleans()},
    )
    thought = st.fixed_dictionaries({"type": st.just("thinking"), "thinking": texts, "signature": st.just("c2ln")})
    hidden = st.just({"type": "redacted_thinking", "data": "ZGF0YQ=="})
    compaction = st.just({"type": "compaction", "content": "earlier"})
    user = st.lists(text | image | result, min_size=1, max_size=3)
    assistant = st.lists(text | thought | hidden | call | compaction, min_size=1, max_size=4)
    return st.builds(
        lambda pair, extra: {"role": pair[0], "content": pair[1], **extra},
        st.tuples(st.just("user"), texts | user) | st.tuples(st.just("assistant"), texts | assistant),
        _extras(),
    )


def responses_items() -> st.SearchStrategy[dict[str, Any]]:
    text = st.builds(lambda text: {"type": "input_text", "text": text}, texts)
    message = st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "developer", "system"]), "content": texts | st.lists(text, max_size=2)},
        optional={"type": st.just("message")},
    )
    call = st.fixed_dictionaries(
        {"type": st.just("function_call"), "call_id": ids, "name": words, "arguments": _argument_texts()}
    )
    output = st.fixed_dictionaries({"type": st.just("function_call_output"), "call_id": ids, "output": texts})
    custom = st.fixed_dictionaries({"type": st.just("custom_tool_call"), "call_id": ids, "name": words, "input": texts})
    thought = st.just(
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "e"}
    )
    search = st.just({"type": "web_search_call", "id": "ws_1", "status": "completed"})
    return st.builds(
        lambda item, extra: {**item, **extra}, message | call | output | custom | thought | search, _extras()
    )


def messages(dialect: str) -> st.SearchStrategy[dict[str, Any]]:
    """Generate a valid message with additional fields that midfold does not know."""
    return {"openai-chat": chat_messages, "openai-responses": responses_items, "anthropic": anthropic_messages}[
        dialect
    ]()


def conversations(dialect: str, *, max_size: int = 8) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(messages(dialect), max_size=max_size)


def malformed_messages(dialect: str) -> st.SearchStrategy[Any]:
    """Generate a message with one value, at any depth, replaced by another JSON value, or no message at all."""
    return st.one_of(
        json_values(odd=True), st.builds(_spoil, messages(dialect), st.integers(0, 50), json_values(odd=True))
    )


def _spoil(message: dict[str, Any], where: int, value: Any) -> Any:
    places = list(_places(message))
    container, key = places[where % len(places)]
    container[key] = value
    return message


def _places(value: Any) -> Any:
    entries: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(entries):
        yield value, key
        yield from _places(inner)
