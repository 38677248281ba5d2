"""Test doubles for midfold's users: scripted summarizer and provider, fake clock, application server.

They need only midfold (`served` needs uvicorn). `answers` builds provider responses; `strategies` needs hypothesis;
`engines` is a contract test suite for engine authors and also needs pytest.
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
