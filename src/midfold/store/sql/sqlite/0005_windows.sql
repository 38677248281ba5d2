-- How large the window of a model turned out to be, for one key at one upstream: what a refusal named, the smallest size
-- that was refused, the largest that was answered. `name` is a hash over the key and the rest.
CREATE TABLE IF NOT EXISTS learned_windows (
    name TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    upstream TEXT NOT NULL,
    model TEXT NOT NULL,
    beta TEXT NOT NULL,
    named INTEGER NOT NULL,
    refused INTEGER NOT NULL,
    fitted INTEGER NOT NULL,
    ends INTEGER NOT NULL
) WITHOUT ROWID;
