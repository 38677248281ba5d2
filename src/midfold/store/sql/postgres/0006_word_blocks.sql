-- The search index of each session: which positions a part of it covers, by which rules, and its words in packed
-- blocks. The tables of words before it stay for programs that still run.
CREATE TABLE word_segments (
    session bigint NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    start integer NOT NULL,
    stop integer NOT NULL,
    version integer NOT NULL,
    PRIMARY KEY (session, start)
);

CREATE TABLE word_blocks (
    session bigint NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    start integer NOT NULL,
    word text COLLATE "C" NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (session, start, word)
);
