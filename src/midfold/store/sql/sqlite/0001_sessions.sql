-- Times are milliseconds since 1970. `memory`, `receipt` and `state` are JSON.

CREATE TABLE bodies (
    id INTEGER PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE,
    indexed INTEGER NOT NULL,
    codec INTEGER NOT NULL,
    data BLOB NOT NULL
);

-- Bodies that are to be in the search index and are not yet: the next batch takes them in.
CREATE TABLE waiting (
    body INTEGER PRIMARY KEY,
    size INTEGER NOT NULL
);

CREATE TABLE sessions (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL CHECK (kind IN ('root', 'branch', 'continuation')),
    parent INTEGER,
    root INTEGER,
    forked INTEGER,
    dialect TEXT NOT NULL,
    model TEXT,
    created INTEGER NOT NULL,
    updated INTEGER NOT NULL,
    ended INTEGER,
    count INTEGER NOT NULL DEFAULT 0,
    chain BLOB NOT NULL DEFAULT x'',
    compaction INTEGER NOT NULL DEFAULT 0,
    compactions INTEGER NOT NULL DEFAULT 0,
    memory BLOB NOT NULL DEFAULT x''
);
CREATE INDEX sessions_root ON sessions (root) WHERE root IS NOT NULL;
CREATE INDEX sessions_parent ON sessions (parent) WHERE parent IS NOT NULL;

CREATE TABLE messages (
    session INTEGER NOT NULL,
    position INTEGER NOT NULL,
    body INTEGER NOT NULL,
    chain BLOB NOT NULL,
    role INTEGER NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (session, position)
) WITHOUT ROWID;
CREATE INDEX messages_body ON messages (body);

CREATE TABLE appends (
    session INTEGER NOT NULL,
    key TEXT NOT NULL,
    first INTEGER NOT NULL,
    count INTEGER NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (session, key)
) WITHOUT ROWID;

CREATE TABLE compactions (
    session INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    base INTEGER NOT NULL,
    upto INTEGER NOT NULL,
    at INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    noted INTEGER NOT NULL,
    undone INTEGER,
    child INTEGER,
    receipt BLOB NOT NULL,
    state BLOB NOT NULL,
    PRIMARY KEY (session, seq)
) WITHOUT ROWID;

-- The view a compaction leaves: runs of messages (first, count), and bodies that are not messages of the history.
CREATE TABLE pieces (
    session INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    place INTEGER NOT NULL,
    first INTEGER,
    count INTEGER NOT NULL,
    body INTEGER,
    PRIMARY KEY (session, seq, place)
) WITHOUT ROWID;
CREATE INDEX pieces_body ON pieces (body) WHERE body IS NOT NULL;

-- What a handle stands for, in the same terms.
CREATE TABLE handles (
    session INTEGER NOT NULL,
    handle TEXT NOT NULL,
    seq INTEGER NOT NULL,
    place INTEGER NOT NULL,
    first INTEGER,
    count INTEGER NOT NULL,
    body INTEGER,
    PRIMARY KEY (session, handle, seq, place)
) WITHOUT ROWID;
CREATE INDEX handles_body ON handles (body) WHERE body IS NOT NULL;

CREATE TABLE leases (
    session TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    fence INTEGER NOT NULL,
    expires INTEGER NOT NULL
) WITHOUT ROWID;

CREATE VIRTUAL TABLE words USING fts5 (tokens, content = '', detail = none, tokenize = "ascii tokenchars '_'");
