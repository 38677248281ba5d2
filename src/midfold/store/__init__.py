"""Sessions that last: an append-only history, compactions as rows, leases and search, on SQLite and PostgreSQL.

No message is ever rewritten or deleted by a compaction. All schema is in `sql/`, as numbered files for both databases;
every method of `SqlStore` is one transaction. Nothing here decides, asks a model, or knows the gateway.
"""

from midfold.store.leases import CompactionLease, Lease
from midfold.store.protocol import Store
from midfold.store.sqlstore import SqlStore, open_database

__all__ = ["CompactionLease", "Lease", "SqlStore", "Store", "open_database"]
