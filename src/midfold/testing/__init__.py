"""Test doubles for users of midfold: a scripted summarizer and provider, a fake clock, and a server for an
application.

They need only midfold (`served` also needs uvicorn). `answers` builds provider responses; `strategies` needs
hypothesis; `engines` is a contract suite for authors of engines and needs pytest and hypothesis.
"""

from midfold.testing.doubles import (
    FakeClock,
    Request,
    ScriptedProvider,
    ScriptedSummarizer,
    ScriptEnded,
    refusing_url,
    served,
)

__all__ = ["FakeClock", "Request", "ScriptEnded", "ScriptedProvider", "ScriptedSummarizer", "refusing_url", "served"]
