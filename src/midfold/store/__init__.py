"""Session storage on SQLite and PostgreSQL: append-only histories, compactions, leases and search.

A compaction adds rows; it never rewrites or deletes a message. The schema is in `sql/`, as numbered migrations for each
database. Each method of `SqlStore` is one transaction. The package calls no model and does not depend on the gateway.
"""

from midfold.store.leases import CompactionLease, Lease
from midfold.store.protocol import Store
from midfold.store.sqlstore import SqlStore, open_database

__all__ = ["CompactionLease", "Lease", "SqlStore", "Store", "open_database"]
