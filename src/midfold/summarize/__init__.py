"""Who makes the summary, and how a compaction is driven to its end."""

from midfold.summarize.drivers import Summarizer, drive, drive_async, local_summarizer

__all__ = ["Summarizer", "drive", "drive_async", "local_summarizer"]
