"""Who answers an engine's question for a summary: drivers, and the summarizer that needs no model."""

from midfold.summarize.drivers import Summarizer, drive, drive_async, local_summarizer

__all__ = ["Summarizer", "drive", "drive_async", "local_summarizer"]
