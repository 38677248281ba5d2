"""Who answers an engine's question for a summary: drivers, and the summarizer that needs no model."""

from midfold.summarize.drivers import Summarizer, begin, drive, drive_async, local_summarizer, resume

__all__ = ["Summarizer", "begin", "drive", "drive_async", "local_summarizer", "resume"]
