"""Messages over the exact bytes they came from, pure: three dialects, laws, tokens, models' answers and their streams.

document = transcript.read(source)          # bytes, a list of messages, or a request body; the dialect is sniffed
document.messages, document.system, document.tools, document.problems
transcript.write(document)                  # the very bytes or objects that came in
transcript.write(document, messages=new)    # the same shape, with other messages

This is the lowest room: it imports `errors` and `lru` only, and whoever changes a message here must show that untouched
ones stay byte for byte.
"""

from __future__ import annotations

from midfold.transcript.document import Document, read, read_many, sniff, write

__all__ = ["Document", "read", "read_many", "sniff", "write"]
