-- The search index of each session: which positions a part of it covers, by which rules, and its words in packed
-- blocks. The tables of words before it stay for programs that still run.
CREATE TABLE word_segments (
    session INTEGER NOT NULL,
    start INTEGER NOT NULL,
    stop INTEGER NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (session, start)
) WITHOUT ROWID;

CREATE TABLE word_blocks (
    session INTEGER NOT NULL,
    start INTEGER NOT NULL,
    word TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (session, start, word)
);

CREATE TRIGGER IF NOT EXISTS words_go_with_their_session AFTER DELETE ON sessions
BEGIN
    DELETE FROM word_blocks WHERE session = old.id;
    DELETE FROM word_segments WHERE session = old.id;
END;
