"""Pure parts of a compaction: budget, boundary, digests, trail, summary, audit, handoff, redaction and receipt.

Code here does no I/O and reads no clock. `midfold.decide` decides whether to compact, `midfold.model` calls models,
`midfold.store` persists, and `midfold.engines` combines the parts.
"""
