-- Sessions whose names begin alike, whatever the collation of the database.
CREATE INDEX IF NOT EXISTS sessions_name_bytes ON sessions (name COLLATE "C");
