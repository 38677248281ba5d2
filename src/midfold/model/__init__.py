"""Models: where they are (`endpoint`), how they are asked (`client`), what their refusals mean (`refusals`), how one is
brought to write a summary (`summaries`), and how a compaction that needs one is driven to its end (`drive`).

Keys are read here and nowhere shown. Nothing here reads or writes a store; what an answer says is read by
`midfold.transcript.replies`.
"""

from midfold.model.run import Summarizer, advance, drive, local_summarizer

__all__ = ["Summarizer", "advance", "drive", "local_summarizer"]
