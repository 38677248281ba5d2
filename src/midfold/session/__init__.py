"""Conversations that decide when to compact and carry it out: in memory, in a store, or behind an engine's verbs.

`conversation` holds the shared turn logic, `session` one stored conversation, `sessions` all of a store
(`midfold.open`), and `host` the stateful interface that the specification documents name (`EngineHost`). Imports no
gateway, page or command.
"""
