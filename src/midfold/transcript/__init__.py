"""Lossless conversations: read messages in three provider dialects and write them back byte for byte.

    document = transcript.read(source)          # bytes, messages or a request body; detects the dialect
    document.messages, document.system, document.tools, document.problems
    transcript.write(document)                  # exactly the bytes or objects that were read
    transcript.write(document, messages=new)    # the same shape with other messages

Also here: transcript laws, token counting, and parsing of model responses and streams. No I/O. This is the lowest layer
and imports only `errors` and `lru`. Unchanged messages must keep their exact bytes.
"""

from __future__ import annotations

from midfold.transcript.document import Document, read, read_many, sniff, write

__all__ = ["Document", "read", "read_many", "sniff", "write"]
