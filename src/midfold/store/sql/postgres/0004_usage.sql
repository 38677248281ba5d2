-- Numbers that are nobody's words. Older programs made these tables when they wrote their first row, so they may be
-- there.

-- What a provider reported about one answer.
CREATE TABLE IF NOT EXISTS turns (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session bigint NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    at bigint NOT NULL,
    count bigint NOT NULL,
    compaction bigint NOT NULL,
    model text,
    kind text,
    prompt bigint NOT NULL,
    completion bigint NOT NULL,
    cache_read bigint NOT NULL,
    cache_write bigint NOT NULL
);
CREATE INDEX IF NOT EXISTS turns_session ON turns (session, id);

-- The last request of a conversation that passes through a gateway.
CREATE TABLE IF NOT EXISTS sketches (
    session bigint PRIMARY KEY REFERENCES sessions (id) ON DELETE CASCADE,
    at bigint NOT NULL,
    count bigint NOT NULL,
    compaction bigint NOT NULL,
    tokens bigint NOT NULL,
    reported integer NOT NULL,
    context bigint NOT NULL,
    threshold bigint NOT NULL,
    requests bigint NOT NULL
);

-- Whose an id of a provider is, as a hash over the id and its owner.
CREATE TABLE IF NOT EXISTS belongings (
    name text PRIMARY KEY,
    ends bigint
);
CREATE INDEX IF NOT EXISTS belongings_end ON belongings (ends) WHERE ends IS NOT NULL;
