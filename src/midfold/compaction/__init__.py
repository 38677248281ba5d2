"""What a compaction is made of, pure: budget, boundary, digests, trail, story, summary, audit, handoff, redaction and
receipt.

Nothing here decides whether to fold (`midfold.decide`), asks a model (`midfold.model`) or stores anything
(`midfold.store`); nothing here knows a clock, a file or a socket. `midfold.engines` puts the parts together.
"""
