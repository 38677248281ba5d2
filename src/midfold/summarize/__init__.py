"""Who makes the summary, and how a compaction is driven to its end."""

from midfold.summarize.drivers import Summarizer, begin, drive, drive_async, local_summarizer, resume

__all__ = ["Summarizer", "begin", "drive", "drive_async", "local_summarizer", "resume"]
