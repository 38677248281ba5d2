-- Numbers that are nobody's words. Older programs made these tables when they wrote their first row, so they may be
-- there. A trigger deletes what belongs to a session, whichever program deletes the session.

-- What a provider reported about one answer.
CREATE TABLE IF NOT EXISTS turns (
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    at INTEGER NOT NULL,
    count INTEGER NOT NULL,
    compaction INTEGER NOT NULL,
    model TEXT,
    kind TEXT,
    prompt INTEGER NOT NULL,
    completion INTEGER NOT NULL,
    cache_read INTEGER NOT NULL,
    cache_write INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS turns_session ON turns (session, id);
CREATE TRIGGER IF NOT EXISTS turns_go_with_their_session AFTER DELETE ON sessions
BEGIN
    DELETE FROM turns WHERE session = old.id;
END;

-- The last request of a conversation that passes through a gateway.
CREATE TABLE IF NOT EXISTS sketches (
    session INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    count INTEGER NOT NULL,
    compaction INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    reported INTEGER NOT NULL,
    context INTEGER NOT NULL,
    threshold INTEGER NOT NULL,
    requests INTEGER NOT NULL
);
CREATE TRIGGER IF NOT EXISTS sketches_go_with_their_session AFTER DELETE ON sessions
BEGIN
    DELETE FROM sketches WHERE session = old.id;
END;

-- Whose an id of a provider is, as a hash over the id and its owner.
CREATE TABLE IF NOT EXISTS belongings (
    name TEXT PRIMARY KEY,
    ends INTEGER
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS belongings_end ON belongings (ends) WHERE ends IS NOT NULL;
