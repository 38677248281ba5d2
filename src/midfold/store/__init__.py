"""Sessions that last: an append-only history, compactions as rows, leases and search, on SQLite and PostgreSQL."""

from midfold.store.leases import CompactionLease, Lease
from midfold.store.protocol import Store
from midfold.store.sqlstore import SqlStore, open_database

__all__ = ["CompactionLease", "Lease", "SqlStore", "Store", "open_database"]
