"""What midfold's users test with: a scripted summarizer and provider, a clock, a server for an application.

They need nothing but midfold (`served` needs uvicorn). `answers` is what a provider may answer; `strategies` needs
hypothesis; `engines` is a contract suite for authors of engines and needs pytest, too.
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
