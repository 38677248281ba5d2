"""Model access: endpoints (`endpoint`), the HTTP client (`client`), failure classification (`failures`), summaries
written by a model (`summarizer`), and running a compaction that needs one (`run`).

Keys are read here and never shown. The package uses no store; responses are parsed by `midfold.transcript.replies`.
"""

from midfold.model.run import Summarizer, advance, drive, local_summarizer

__all__ = ["Summarizer", "advance", "drive", "local_summarizer"]
