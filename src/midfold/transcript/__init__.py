"""Bytes and lists of dicts in, transcripts out, and back again: the three shapes that providers speak.

document = wire.read(source)          # bytes, a list of messages, or a request body; the dialect is sniffed
document.messages, document.system, document.tools, document.problems
wire.write(document)                  # the very bytes or objects that came in
wire.write(document, messages=new)    # the same shape, with other messages
"""

from __future__ import annotations

from midfold.transcript.document import Document, read, read_many, sniff, write

__all__ = ["Document", "read", "read_many", "sniff", "write"]
