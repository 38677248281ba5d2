-- What only PostgreSQL is asked.

-- name: bodies_by_digest
SELECT digest, id, indexed FROM bodies WHERE digest = ANY(:digests::bytea[])

-- name: add_body
INSERT INTO bodies (digest, indexed, codec, data) VALUES (:digest, :indexed, :codec, :data)
ON CONFLICT (digest) DO NOTHING
RETURNING id

-- name: index_words
INSERT INTO words (body, chunk, version, tokens) VALUES (:id, :chunk, :version, array_to_tsvector(:tokens::text[]))

-- name: unindex_words
DELETE FROM words WHERE body = :id

-- name: unindex_old_words
DELETE FROM words WHERE body = :id AND version <> :version

-- name: age_words
UPDATE words SET version = 0

-- name: old_words
SELECT id, digest, codec, data FROM bodies
WHERE id IN (SELECT DISTINCT body FROM words WHERE body > :after AND version <> :version ORDER BY body LIMIT :most)
ORDER BY id FOR UPDATE

-- name: stale_words
SELECT count(DISTINCT body) FROM words WHERE version <> :words

-- name: orphan_words
SELECT (SELECT count(*) FROM words w WHERE NOT EXISTS
           (SELECT 1 FROM bodies b WHERE b.id = w.body AND b.indexed = 1))
     + (SELECT count(*) FROM bodies b WHERE b.indexed = 1 AND NOT EXISTS
           (SELECT 1 FROM words w WHERE w.body = b.id))

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

-- name: find
SELECT s.name, m.position, m.role, m.at, s.dialect,
       (SELECT o.chain FROM messages o WHERE o.session = m.session AND o.position = m.position - 1),
       m.chain, b.digest, b.codec, b.data
FROM messages m JOIN sessions s ON s.id = m.session JOIN bodies b ON b.id = m.body
WHERE {having} AND (:session::bigint IS NULL OR m.session = :session)
  AND (:role::smallint IS NULL OR m.role = :role) AND m.at >= :since AND m.at < :until
ORDER BY m.at DESC, m.position DESC LIMIT :most
