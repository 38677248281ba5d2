-- Times are milliseconds since 1970, of the server's clock. `memory`, `receipt` and `state` are JSON.

CREATE TABLE bodies (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    digest bytea NOT NULL UNIQUE,
    indexed smallint NOT NULL,
    codec smallint NOT NULL,
    data bytea NOT NULL
);
ALTER TABLE bodies ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE sessions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    kind text NOT NULL CHECK (kind IN ('root', 'branch', 'continuation')),
    parent bigint,
    root bigint,
    forked integer,
    dialect text NOT NULL,
    model text,
    created bigint NOT NULL,
    updated bigint NOT NULL,
    ended bigint,
    count integer NOT NULL DEFAULT 0,
    chain bytea NOT NULL DEFAULT '',
    compaction integer NOT NULL DEFAULT 0,
    compactions integer NOT NULL DEFAULT 0,
    memory bytea NOT NULL DEFAULT ''
) WITH (fillfactor = 70);
CREATE INDEX sessions_root ON sessions (root) WHERE root IS NOT NULL;
CREATE INDEX sessions_parent ON sessions (parent) WHERE parent IS NOT NULL;

CREATE TABLE messages (
    session bigint NOT NULL REFERENCES sessions (id),
    body bigint NOT NULL REFERENCES bodies (id),
    at bigint NOT NULL,
    position integer NOT NULL,
    role smallint NOT NULL,
    chain bytea NOT NULL,
    PRIMARY KEY (session, position)
);
CREATE INDEX messages_body ON messages (body);

CREATE TABLE appends (
    session bigint NOT NULL REFERENCES sessions (id),
    key text NOT NULL,
    first integer NOT NULL,
    count integer NOT NULL,
    digest bytea NOT NULL,
    PRIMARY KEY (session, key)
);

CREATE TABLE compactions (
    session bigint NOT NULL REFERENCES sessions (id),
    seq integer NOT NULL,
    base integer NOT NULL,
    upto integer NOT NULL,
    at bigint NOT NULL,
    fence bigint NOT NULL,
    noted smallint NOT NULL,
    undone bigint,
    child bigint,
    receipt bytea NOT NULL,
    state bytea NOT NULL,
    PRIMARY KEY (session, seq)
);

-- The view a compaction leaves: runs of messages (first, count), and bodies that are not messages of the history.
CREATE TABLE pieces (
    session bigint NOT NULL,
    body bigint REFERENCES bodies (id),
    seq integer NOT NULL,
    place integer NOT NULL,
    first integer,
    count integer NOT NULL,
    PRIMARY KEY (session, seq, place)
);
CREATE INDEX pieces_body ON pieces (body) WHERE body IS NOT NULL;

-- What a handle stands for, in the same terms.
CREATE TABLE handles (
    session bigint NOT NULL,
    body bigint REFERENCES bodies (id),
    handle text COLLATE "C" NOT NULL,
    seq integer NOT NULL,
    place integer NOT NULL,
    first integer,
    count integer NOT NULL,
    PRIMARY KEY (session, handle, seq, place)
);
CREATE INDEX handles_body ON handles (body) WHERE body IS NOT NULL;

CREATE TABLE leases (
    session text PRIMARY KEY,
    holder text NOT NULL,
    fence bigint NOT NULL,
    expires bigint NOT NULL
);

-- A tsvector holds at most 1 MB: the tokens of a large body are in several rows.
CREATE TABLE words (
    body bigint NOT NULL REFERENCES bodies (id),
    chunk integer NOT NULL,
    tokens tsvector NOT NULL,
    PRIMARY KEY (body, chunk)
);
CREATE INDEX words_tokens ON words USING gin (tokens);
