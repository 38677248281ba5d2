-- Queries for PostgreSQL only.

-- name: bodies_by_digest
SELECT digest, id FROM bodies WHERE digest = ANY(:digests::bytea[])

-- name: add_body
INSERT INTO bodies (digest, indexed, codec, data) VALUES (:digest, 0, :codec, :data)
ON CONFLICT (digest) DO NOTHING
RETURNING id

-- name: hidden_turns
SELECT chain, digest, CASE WHEN used < {now} - :rest THEN 1 ELSE 0 END FROM hidden_turns
WHERE place = :place AND chain IN (SELECT json_array_elements_text(CAST(:chains AS json)))

-- name: hidden_turns_data
SELECT chain, digest, codec, data FROM hidden_turns WHERE place = :place AND chain IN (SELECT json_array_elements_text(CAST(:chains AS json)))

-- name: use_hidden_turns
UPDATE hidden_turns SET used = {now} WHERE place = :place AND chain IN (SELECT json_array_elements_text(CAST(:chains AS json)))

-- name: lock_migrations
SELECT pg_advisory_xact_lock(7310593858020254828)

-- name: has_migrations
SELECT 1 FROM pg_class WHERE oid = to_regclass('midfold_migrations')

-- name: make_migrations
CREATE TABLE IF NOT EXISTS midfold_migrations (
    number integer PRIMARY KEY,
    checksum text NOT NULL,
    words integer NOT NULL,
    at bigint NOT NULL
)

-- name: messages_at
SELECT m.position, m.role, m.at,
       (SELECT o.chain FROM messages o WHERE o.session = m.session AND o.position = m.position - 1),
       m.chain, b.digest, b.codec, b.data
FROM (SELECT json_array_elements_text(CAST(:positions AS json))::integer AS position) p
CROSS JOIN LATERAL (SELECT * FROM messages o WHERE o.session = :session AND o.position = p.position OFFSET 0) m
JOIN bodies b ON b.id = m.body
ORDER BY m.position

-- Without statistics the planner would scan the whole session for each digest; OFFSET 0 prevents that.
-- name: digests_like
SELECT b.digest, (SELECT min(m.position)
                  FROM (SELECT o.session, o.position FROM messages o WHERE o.body = b.id OFFSET 0) m
                  WHERE m.session = :session)
FROM unnest(CAST(:low AS bytea[]), CAST(:high AS bytea[])) AS p(low, high)
CROSS JOIN LATERAL (SELECT o.id, o.digest FROM bodies o WHERE o.digest >= p.low AND o.digest < p.high OFFSET 0) b

-- name: drop_old_words
DELETE FROM words

-- name: drop_waiting_words
SELECT 1

-- Without statistics the planner would scan the whole index of a session; OFFSET 0 prevents that.
-- name: word_blocks
SELECT p.number, s.session, s.start, s.stop, b.data
FROM (SELECT n - 1 AS number, pair->>0 AS low, pair->>1 AS high
      FROM json_array_elements(CAST(:words AS json)) WITH ORDINALITY AS e(pair, n)) p
CROSS JOIN (SELECT * FROM word_segments o WHERE o.session = :session OFFSET 0) s
CROSS JOIN LATERAL (
    SELECT o.data FROM word_blocks o
    WHERE o.session = s.session AND o.start = s.start AND o.word <= p.high AND o.word >=
        (SELECT max(c.word) FROM word_blocks c WHERE c.session = s.session AND c.start = s.start AND c.word <= p.low)
    OFFSET 0) b

-- name: all_word_blocks
SELECT p.number, s.session, s.start, s.stop, b.data
FROM (SELECT n - 1 AS number, pair->>0 AS low, pair->>1 AS high
      FROM json_array_elements(CAST(:words AS json)) WITH ORDINALITY AS e(pair, n)) p
CROSS JOIN word_segments s
CROSS JOIN LATERAL (
    SELECT o.data FROM word_blocks o
    WHERE o.session = s.session AND o.start = s.start AND o.word <= p.high AND o.word >=
        (SELECT max(c.word) FROM word_blocks c WHERE c.session = s.session AND c.start = s.start AND c.word <= p.low)
    OFFSET 0) b
