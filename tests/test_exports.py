"""The public surface changes only on purpose."""

from __future__ import annotations

import inspect

import midfold
from midfold import errors
from midfold import transcript as wire

PUBLIC = """
Compaction CompactionState Config ConfigError ContextEngine Count Document EngineHost LeaseLost
MalformedTranscript Media Message Meter MidfoldError MissingExtra Opaque Part PluginError Pressure Problem
Protection Session Sessions StoreError SummaryAnswer SummaryAsk SummaryFailed Text Thinking
TokenCounter Tool ToolCall ToolResult Transcript TranscriptError Usage __version__ compact
effective_input_window load_config look_up_model open preview read read_many read_usage
register_context_engine register_digest rejoin select_tail_by_budget shrink_json_string_leaves
split_for_partial_compaction threshold_tokens write
"""


def test_the_package_exports_exactly_these_names() -> None:
    assert sorted(midfold.__all__) == sorted(PUBLIC.split())
    assert dir(midfold) == sorted(midfold.__all__)
    for name in midfold.__all__:
        assert getattr(midfold, name) is not None


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    assert not hasattr(midfold, "no_such_name")


def test_the_wire_room_exports_exactly_these_names() -> None:
    assert wire.__all__ == ["Document", "read", "read_many", "sniff", "write"]


def test_every_error_is_a_midfold_error_in_the_drawn_tree_with_a_message_of_its_own() -> None:
    assert errors.__doc__ is not None
    for name, item in vars(errors).items():
        if inspect.isclass(item) and issubclass(item, Exception):
            assert issubclass(item, errors.MidfoldError)
            assert name in errors.__doc__
            assert isinstance(item.status, int)
    assert str(errors.TranscriptError()) == "This is not a conversation midfold can read."
