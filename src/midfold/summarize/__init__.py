"""Who makes the summary, and how a compaction is driven to its end."""

from midfold.summarize.drivers import Summarizer, advance, drive, local_summarizer

__all__ = ["Summarizer", "advance", "drive", "local_summarizer"]
